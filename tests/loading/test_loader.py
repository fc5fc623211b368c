"""The loader's promises, each on real worker processes."""

from __future__ import annotations

import itertools
import os
import pickle
import random
import subprocess
import sys
import textwrap
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import Subset, TensorDataset

from bestiary.loading import (
    BatchPlan,
    CollateError,
    FixedSize,
    Loader,
    SampleError,
    Sequential,
    Shuffled,
    Weighted,
    WorkerDied,
)
from loader_datasets import (
    Batched,
    Dies,
    Faulty,
    HasMessage,
    KeepsGenerators,
    KeywordOnly,
    Noisy,
    Plain,
    Slow,
    TwoArguments,
    doubling_collate,
    failing_collate,
)


def same(left: Any, right: Any) -> bool:
    """Tell whether two batches are equal bit for bit, types and keys too."""
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and left.dtype == right.dtype and torch.equal(left, right)
    if isinstance(left, dict):
        return (
            isinstance(right, dict) and left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
        )
    if isinstance(left, (list, tuple)):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and bool(left == right)


def indices(batches: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


@contextmanager
def _all_notices() -> Iterator[None]:
    """Let notices pass: they are the matter of other tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def flat(batches: Any) -> list[int]:
    return [index for batch in batches for index in batch["index"].tolist()]


# -- 1: the same batches


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("batch_size", [4, 8])
@pytest.mark.parametrize("dataset", [Noisy(22), KeepsGenerators(22)], ids=["global", "kept"])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_case_f03_same_batches_for_any_number_of_workers(workers: int, batch_size: int, dataset: Noisy) -> None:
    alone = list(Loader(dataset, batch_size=batch_size, shuffle=True, seed=7))
    crew = list(Loader(dataset, batch_size=batch_size, shuffle=True, seed=7, num_workers=workers))
    assert same(alone, crew)
    assert len(alone) == -(-22 // batch_size)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_case_f22_same_batches_under_every_start_method(method: str) -> None:
    alone = list(Loader(Noisy(9), batch_size=4, shuffle=True, seed=3))
    crew = Loader(Noisy(9), batch_size=4, shuffle=True, seed=3, num_workers=2, multiprocessing_context=method)
    assert same(alone, list(crew))


@pytest.mark.parametrize("batch_size", [4, 8])
def test_same_tensors_for_an_index_whatever_the_batch_size(batch_size: int) -> None:
    def by_index(size: int) -> dict[int, list[float]]:
        loader = Loader(Noisy(20), batch_size=size, shuffle=True, seed=7)
        return {
            i: row for batch in loader for i, row in zip(batch["index"].tolist(), batch["torch"].tolist(), strict=True)
        }

    assert by_index(batch_size) == by_index(5)


def test_same_batches_after_a_resume_at_every_batch() -> None:
    straight = list(Loader(Noisy(21), batch_size=4, shuffle=True, seed=5))
    for stop, workers in itertools.product(range(len(straight) + 1), [0, 2]):
        first = Loader(Noisy(21), batch_size=4, shuffle=True, seed=5, num_workers=2 - workers)
        head = list(itertools.islice(iter(first), stop))
        second = Loader(Noisy(21), batch_size=4, shuffle=True, seed=5, num_workers=workers)
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        if stop < len(straight):
            assert len(second) == len(straight) - stop
            assert same(head + list(second), straight)
        else:
            assert second.epoch == 1 and len(second) == len(straight)


def test_a_collate_that_draws_is_keyed_by_the_batch() -> None:
    alone = Loader(Plain(12), batch_size=3, seed=1, collate=doubling_collate)
    crew = Loader(Plain(12), batch_size=3, seed=1, collate=doubling_collate, num_workers=2)
    passes = [list(alone), list(crew)]
    assert same(*passes)
    assert len({float(batch["mix"]) for batch in passes[0]}) == 4


def test_torchvision_style_tuples_and_torch_subsets() -> None:
    data = TensorDataset(torch.arange(10.0), torch.arange(10))
    loader = Loader(Subset(data, [9, 8, 7]), batch_size=2, num_workers=1)
    batches = list(loader)
    assert isinstance(batches[0], tuple)
    assert batches[0][0].tolist() == [9.0, 8.0] and batches[1][1].tolist() == [7]


# -- 2: chance


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_case_f01_every_draw_differs_and_repeats(persistent: bool) -> None:
    def draws(seed: int) -> dict[str, list[Any]]:
        loader = Loader(Noisy(32), batch_size=4, seed=seed, num_workers=4, persistent_workers=persistent)
        passes = [*loader, *loader]
        return {
            "torch": [tuple(row) for batch in passes for row in batch["torch"].tolist()],
            "numpy": torch.cat([batch["numpy"] for batch in passes]).tolist(),
            "python": torch.cat([batch["python"] for batch in passes]).tolist(),
        }

    once, again, other = draws(0), draws(0), draws(1)
    assert once == again
    for kind, values in once.items():
        assert len(set(values)) == 64, kind
        assert not set(values) & set(other[kind])


@pytest.mark.parametrize("workers", [0, 2])
def test_generators_kept_by_the_dataset_differ_by_epoch_and_sample(workers: int) -> None:
    loader = Loader(KeepsGenerators(16), batch_size=4, num_workers=workers)
    with pytest.warns(UserWarning, match=r"bestiary: .*rng"):
        first = list(loader)
    passes = first + list(loader)
    for kind in ("numpy", "python", "state"):
        assert len({value for batch in passes for value in batch[kind].tolist()}) == 32
    assert len({tuple(row) for batch in passes for row in batch["torch"].tolist()}) == 32


def test_repeats_of_an_index_are_drawn_apart() -> None:
    plan = BatchPlan(Weighted(torch.tensor([1.0, 0.0, 0.0]), num_samples=12), FixedSize(5), seed=2)
    batches = list(Loader(Noisy(3), plan=plan))
    assert flat(batches) == [0] * 12
    assert len({tuple(row) for batch in batches for row in batch["torch"].tolist()}) == 12
    again = Loader(
        Noisy(3), plan=BatchPlan(Weighted(torch.tensor([1.0, 0.0, 0.0]), num_samples=12), FixedSize(5), seed=2)
    )
    next(running := iter(again))
    resumed = Loader(
        Noisy(3), plan=BatchPlan(Weighted(torch.tensor([1.0, 0.0, 0.0]), num_samples=12), FixedSize(5), seed=2)
    )
    resumed.load_state_dict(again.state_dict())
    assert same(list(resumed), batches[1:])
    running.close()


@pytest.mark.parametrize("dataset", [Noisy(6), KeepsGenerators(6)], ids=["global", "kept"])
@pytest.mark.parametrize("workers", [0, 1])
def test_the_callers_generators_are_left_as_they_were(dataset: Noisy, workers: int) -> None:
    def states() -> list[Any]:
        own = [dataset.rng.bit_generator.state] if isinstance(dataset, KeepsGenerators) else []
        return [torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state()), *own]

    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    before = states()
    bits = np.random.get_bit_generator()
    loader = Loader(dataset, batch_size=2, shuffle=True, num_workers=workers)
    for _ in loader:
        assert states() == before
    assert states() == before and np.random.get_bit_generator() is bits


def test_case_f23_default_device_does_not_matter() -> None:
    expected = list(Loader(Noisy(10), batch_size=3, shuffle=True, seed=4))
    torch.set_default_device("meta")
    try:
        for workers in (0, 2):
            got = list(Loader(Noisy(10), batch_size=3, shuffle=True, seed=4, num_workers=workers))
            assert {batch["torch"].device.type for batch in got} == {"cpu"}
            assert same(got, expected)
    finally:
        torch.set_default_device(None)


# -- 3: epochs


@pytest.mark.parametrize("persistent", [False, True])
def test_case_f05_the_epoch_moves_on_by_itself(persistent: bool) -> None:
    loader = Loader(Plain(24), batch_size=4, shuffle=True, num_workers=2, persistent_workers=persistent)
    passes = [flat(loader) for _ in range(3)]
    assert len({tuple(order) for order in passes}) == 3
    assert all(sorted(order) == list(range(24)) for order in passes)
    loader.set_epoch(1)
    assert flat(loader) == passes[1]
    assert flat(loader) == passes[2]


def test_case_e07_orders_are_the_same_with_persistent_workers() -> None:
    def passes(workers: int, persistent: bool) -> list[list[int]]:
        loader = Loader(Plain(64), batch_size=8, shuffle=True, num_workers=workers, persistent_workers=persistent)
        return [flat(loader) for _ in range(3)]

    assert passes(2, True) == passes(2, False) == passes(0, False)


def test_a_pass_left_early_counts_as_begun() -> None:
    loader = Loader(Plain(10), batch_size=2, shuffle=True)
    for _ in loader:
        break
    assert loader.epoch == 1
    assert flat(loader) == flat(second_epoch(10))


def second_epoch(size: int) -> Loader:
    loader = Loader(Plain(size), batch_size=2, shuffle=True)
    loader.set_epoch(1)
    return loader


@pytest.mark.parametrize("persistent", [False, True])
def test_a_pass_after_a_break_is_whole(persistent: bool) -> None:
    loader = Loader(Plain(40), batch_size=2, shuffle=True, num_workers=2, persistent_workers=persistent)
    for _ in loader:
        break
    alone = Loader(Plain(40), batch_size=2, shuffle=True)
    alone.set_epoch(1)
    assert flat(loader) == flat(alone)


# -- 4: resuming


def test_case_e09_a_second_and_third_interruption() -> None:
    straight = indices(Loader(Plain(100), batch_size=1, shuffle=True))
    got: list[list[int]] = []
    state = None
    for steps in (30, 10, 25):
        loader = Loader(Plain(100), batch_size=1, shuffle=True, num_workers=2)
        if state is not None:
            loader.load_state_dict(state)
        got += indices(itertools.islice(iter(loader), steps))
        state = loader.state_dict()
    last = Loader(Plain(100), batch_size=1, shuffle=True)
    last.load_state_dict(state)
    assert got + indices(last) == straight


def test_case_e10_the_end_of_an_epoch_is_the_start_of_the_next() -> None:
    loader = Loader(Plain(20), batch_size=2, shuffle=True)
    for _ in itertools.islice(iter(loader), 10):
        pass
    state = loader.state_dict()
    fresh = Loader(Plain(20), batch_size=2, shuffle=True)
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state
    assert (state["epoch"], state["batch"]) == (1, 0)
    both = Loader(Plain(20), batch_size=2, shuffle=True)
    list(both)
    assert both.state_dict() == state
    assert indices(fresh) == indices(both)


@given(
    size=st.integers(1, 60),
    batch=st.integers(1, 5),
    layouts=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    steps=st.lists(st.integers(0, 4), min_size=4, max_size=4),
)
@settings(deadline=None, max_examples=30)
def test_case_e12_any_layout_after_any_layout(size: int, batch: int, layouts: list[int], steps: list[int]) -> None:
    """With ends="exact" the pieces of all ranks, under changing numbers of ranks, are the epoch, once each."""

    def loader(rank: int, world: int) -> Loader:
        plan = BatchPlan(Shuffled(size), FixedSize(batch), seed=1, rank=rank, world_size=world, ends="exact")
        made = Loader(Plain(size), plan=plan)
        if state is not None:
            made.load_state_dict(state)
        return made

    state: dict[str, Any] | None = None
    seen: list[int] = []
    with _all_notices():
        for world, step in zip(layouts, steps, strict=False):
            team = [loader(rank, world) for rank in range(world)]
            step = min(step, *(len(one) for one in team))
            for one in team:
                seen += flat(itertools.islice(iter(one), step))
            state = team[0].state_dict()
            if state["epoch"] == 1:
                break
        if state is not None and state["epoch"] == 0:
            seen += flat(loader(0, 1))
    assert sorted(seen) == list(range(size))


def test_a_state_of_another_plan_is_refused_naming_both() -> None:
    state = Loader(Plain(10), batch_size=2, seed=1).state_dict()
    with pytest.raises(ValueError, match=r"seed: state 1, loader 2"):
        Loader(Plain(10), batch_size=2, seed=2).load_state_dict(state)
    with pytest.raises(ValueError, match=r"indices: state 10, loader 11"):
        Loader(Plain(11), batch_size=2, seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match=r"batch_size=2.*batch_size=5"):
        Loader(Plain(10), batch_size=5, seed=1).load_state_dict(state)
    with pytest.raises(ValueError, match="not a state"):
        Loader(Plain(10), batch_size=5).load_state_dict({"epoch": 1})


def test_the_state_counts_what_the_loop_received_not_what_workers_read() -> None:
    loader = Loader(Plain(40), batch_size=2, num_workers=2, prefetch_factor=4)
    running = iter(loader)
    for count in range(1, 4):
        next(running)
        assert loader.state_dict()["batch"] == count
    del running


# -- 5: lengths


@given(size=st.integers(0, 40), batch=st.integers(1, 7), drop=st.booleans(), world=st.integers(1, 3))
@settings(deadline=None, max_examples=60)
def test_case_f11_length_is_what_comes(size: int, batch: int, drop: bool, world: int) -> None:
    for rank, ends in itertools.product(range(world), ("trim", "pad", "exact")):
        plan = BatchPlan(Shuffled(size), FixedSize(batch, drop_last=drop), rank=rank, world_size=world, ends=ends)
        loader = Loader(Plain(size), plan=plan)
        with _all_notices():
            for epoch in (0, 3):
                loader.set_epoch(epoch)
                assert len(loader) == len(list(loader))


def test_length_inside_a_pass_is_that_of_the_pass() -> None:
    loader = Loader(Plain(10), batch_size=3)
    assert [len(loader) for _ in loader] == [4, 4, 4, 4]
    running = iter(loader)
    next(running)
    loader.load_state_dict(loader.state_dict())
    assert len(loader) == 3


def test_an_empty_plan_is_said_before_the_first_epoch() -> None:
    with pytest.warns(UserWarning, match=r"bestiary: the plan has no batch.*drop_last"):
        assert list(Loader(Plain(3), batch_size=4, drop_last=True)) == []


# -- 6: bad samples


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Faulty, Batched])
def test_a_bad_sample_is_named(workers: int, kind: type[Faulty]) -> None:
    loader = Loader(kind(10, (6,)), batch_size=2, num_workers=workers)
    got = []
    with pytest.raises(SampleError, match=r"sample 6 \(row 6.txt\).*OSError: image file is truncated") as caught:
        for batch in loader:
            got += batch["index"].tolist()
    assert got == [0, 1, 2, 3, 4, 5]
    assert (caught.value.index, caught.value.where, caught.value.epoch) == (6, "row 6.txt", 0)
    assert isinstance(caught.value.__cause__, OSError)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "error",
    [TwoArguments("a", "b"), KeywordOnly(name="x"), HasMessage("text", 3), KeyError("field")],
    ids=lambda e: type(e).__name__,
)
def test_case_f15_type_text_and_sample_survive(workers: int, error: Exception) -> None:
    with pytest.raises(SampleError) as caught:
        list(Loader(Faulty(4, (2,), error), batch_size=2, num_workers=workers))
    assert (
        type(error).__name__ in str(caught.value)
        and str(error) in str(caught.value)
        and "row 2.txt" in str(caught.value)
    )


def test_case_f15_own_errors_pickle_and_rebuild_from_one_string() -> None:
    error = SampleError("sample 3 is bad", index=3, where="a.png", epoch=1, cause="OSError: cut")
    error.__cause__ = OSError("cut")
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.index, copy.where, copy.epoch, copy.cause) == (
        "sample 3 is bad",
        3,
        "a.png",
        1,
        "OSError: cut",
    )
    assert isinstance(copy.__cause__, OSError)
    for kind in (SampleError, CollateError, WorkerDied):
        assert str(kind("text")) == "text" == str(pickle.loads(pickle.dumps(kind("text"))))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Faulty, Batched])
def test_case_f14_skip(workers: int, kind: type[Faulty]) -> None:
    loader = Loader(kind(10, (3, 4, 5)), batch_size=2, on_error="skip", num_workers=workers)
    with pytest.warns(UserWarning, match=r"3 bad samples were skipped.*row 3.txt"):
        got = indices(loader)
    assert got == [[0, 1], [2], [6, 7], [8, 9]]
    assert [(error.index, error.where, error.epoch) for error in loader.errors] == [
        (i, f"row {i}.txt", 0) for i in (3, 4, 5)
    ]
    assert loader.errors[0].cause == "OSError: image file is truncated"
    assert loader.report().errors == 3 and loader.report().samples == 7


@pytest.mark.parametrize("workers", [0, 2])
def test_case_f14_replace(workers: int) -> None:
    loader = Loader(Faulty(12, (1, 2, 7)), batch_size=6, on_error="replace", num_workers=workers)
    with pytest.warns(UserWarning, match="3 bad samples were replaced"):
        batches = list(loader)
    for batch, expected, bad in zip(batches, ([0, 1, 2, 3, 4, 5], [6, 7, 8, 9, 10, 11]), ({1, 2}, {7}), strict=True):
        got, pads = batch["index"].tolist(), batch["is_pad"].tolist()
        assert [index in bad for index in expected] == pads
        assert [index for index, pad in zip(got, pads, strict=True) if not pad] == [
            index for index in expected if index not in bad
        ]
        stand_ins = [index for index, pad in zip(got, pads, strict=True) if pad]
        assert len(set(stand_ins)) == len(stand_ins) and not set(stand_ins) & bad
    assert same(batches, list(reset(loader)))


def reset(loader: Loader) -> Loader:
    loader.set_epoch(0)
    return loader


@pytest.mark.parametrize("policy", ["skip", "replace"])
def test_case_f14_all_bad_raises(policy: Any) -> None:
    with pytest.raises(SampleError, match="row"):
        list(Loader(Faulty(10, tuple(range(10))), batch_size=2, on_error=policy))


@pytest.mark.parametrize(("limit", "stops"), [(2, True), (3, False), (0.25, True), (0.3, False), (0, True)])
def test_case_f14_limit(limit: float, stops: bool) -> None:
    loader = Loader(Faulty(10, (3, 4, 5)), batch_size=2, on_error="skip", max_errors=limit)
    with _all_notices():
        if stops:
            with pytest.raises(SampleError, match=f"max_errors={limit}"):
                list(loader)
        else:
            assert len(flat(loader)) == 7


def test_skipping_keeps_the_steps_of_several_ranks_equal() -> None:
    def run(rank: int) -> list[dict[str, Any]]:
        plan = BatchPlan(Sequential(8), FixedSize(2), rank=rank, world_size=2)
        with _all_notices():
            return list(Loader(Faulty(8, (4, 5)), plan=plan, on_error="skip"))

    zero, one = run(0), run(1)
    assert len(zero) == len(one) == 2
    assert zero[1]["is_pad"].tolist() == [True] and zero[1]["index"].item() not in (4, 5)
    assert not any(batch["is_pad"].any() for batch in [zero[0], *one])


def test_padded_batches_are_flagged() -> None:
    plans = [BatchPlan(Sequential(5), FixedSize(1), rank=rank, world_size=2, ends="pad") for rank in range(2)]
    with _all_notices():
        ranks = [list(Loader(Plain(5), plan=plan)) for plan in plans]
    assert [len(batches) for batches in ranks] == [3, 3]
    rows = [
        (i, pad)
        for batches in ranks
        for b in batches
        for i, pad in zip(b["index"].tolist(), b["is_pad"].tolist(), strict=True)
    ]
    assert sorted(i for i, pad in rows if not pad) == [0, 1, 2, 3, 4]
    assert sum(pad for _, pad in rows) == 1


def test_padding_a_dataset_of_tuples_says_what_to_do() -> None:
    plan = BatchPlan(Sequential(3), FixedSize(1), rank=0, world_size=2, ends="pad")
    with _all_notices(), pytest.raises(CollateError, match="is_pad.*dict"):
        list(Loader(TensorDataset(torch.arange(3)), plan=plan))


@pytest.mark.parametrize("error", [ImportError("no module named codec"), MemoryError("too large")])
def test_import_and_memory_errors_always_stop(error: Exception) -> None:
    with pytest.raises(SampleError, match=type(error).__name__):
        list(Loader(Faulty(4, (2,), error), batch_size=2, on_error="skip"))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_failing_collate_names_batch_and_samples(workers: int) -> None:
    with pytest.raises(CollateError, match=r"batch 0 of epoch 0.*KeyError.*no such field.*row 0.txt"):
        list(Loader(Plain(4), batch_size=2, collate=failing_collate, num_workers=workers))


def test_errors_are_kept_in_the_state() -> None:
    loader = Loader(Faulty(10, (1, 8)), batch_size=2, on_error="skip", num_workers=2, prefetch_factor=4)
    running = iter(loader)
    next(running), next(running)
    assert [error.index for error in loader.errors] == [1]  # index 8 is read by now, and not received
    state = loader.state_dict()
    del running
    fresh = Loader(Faulty(10, (1, 8)), batch_size=2, on_error="skip")
    fresh.load_state_dict(state)
    with _all_notices():
        list(fresh)
    assert [error.index for error in fresh.errors] == [1, 8]


# -- 7: workers


@pytest.mark.parametrize("workers", [1, 2])
def test_a_worker_that_dies_names_the_samples_in_hand(workers: int) -> None:
    with pytest.raises(
        WorkerDied, match=r"killed by SIGKILL.*batch 2 of epoch 0, samples 4 \(row 4.txt\), 5 \(row 5.txt\)"
    ):
        list(Loader(Dies(12, 5), batch_size=2, num_workers=workers))


def test_a_death_during_the_callers_step_is_raised_at_the_next_next() -> None:
    running = iter(Loader(Dies(8, 3), batch_size=2, num_workers=1, prefetch_factor=1))
    next(running)
    end = time.monotonic() + 1.5
    while time.monotonic() < end:  # the worker dies in here
        time.sleep(0.05)
    with pytest.raises(WorkerDied, match="samples 2 .*3"):
        next(running)


def test_a_timeout_names_the_worker() -> None:
    loader = Loader(Slow(4, 30.0), batch_size=2, num_workers=1, timeout=1)
    with pytest.raises(WorkerDied, match=r"worker 0 \(pid \d+\).*timeout=1.*samples 0 \(row 0.txt\)"):
        next(iter(loader))


def children(pid: int) -> list[int]:
    try:
        return [int(part) for part in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:
        return []


def test_a_break_leaves_no_worker() -> None:
    before = set(children(os.getpid()))
    for _ in Loader(Plain(100), batch_size=2, num_workers=2):
        break
    deadline = time.monotonic() + 5
    while set(children(os.getpid())) - before and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not set(children(os.getpid())) - before


SCRIPT = """
    import signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell has its background jobs ignore it
    sys.path.insert(0, {support!r})
    from loader_datasets import Slow
    from bestiary.loading import Loader
    if __name__ == "__main__":
        for batch in Loader(Slow(1000, 0.05), batch_size=2, num_workers=2, multiprocessing_context={method!r}):
            print(*batch["pid"].tolist(), flush=True)
            if {interrupt}:
                import os
                os.kill(os.getpid(), signal.SIGINT)
"""


def start(tmp_path: Path, method: str, interrupt: bool) -> subprocess.Popen[str]:
    script = tmp_path / "run.py"
    support = str(Path(__file__).parent.parent / "support")
    script.write_text(textwrap.dedent(SCRIPT.format(support=support, method=method, interrupt=interrupt)))
    return subprocess.Popen([sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gone(pid: int, within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_end_with_a_killed_parent(tmp_path: Path, method: str) -> None:
    with start(tmp_path, method, interrupt=False) as parent:
        assert parent.stdout is not None
        pids = {int(part) for _ in range(4) for part in parent.stdout.readline().split()}
        assert len(pids) == 2
        parent.kill()
    assert all(gone(pid, 20) for pid in pids)


def test_ctrl_c_ends_the_run_and_its_workers(tmp_path: Path) -> None:
    parent = start(tmp_path, "fork", interrupt=True)
    out, err = parent.communicate(timeout=120)
    assert "KeyboardInterrupt" in err and parent.returncode != 0
    assert all(gone(int(pid), 20) for pid in out.split())


# -- arguments


def test_a_plan_excludes_what_it_settles() -> None:
    plan = BatchPlan(Sequential(4), FixedSize(2))
    for name, value in {"batch_size": 2, "shuffle": True, "drop_last": False, "seed": 0}.items():
        with pytest.raises(ValueError, match=name):
            Loader(Plain(4), plan=plan, **{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"num_workers": -1}, "num_workers"),
        ({"num_workers": 1.5}, "num_workers"),
        ({"on_error": "ignore"}, "on_error"),
        ({"max_errors": -1}, "max_errors"),
        ({"max_errors": 1.5}, "max_errors"),
        ({"persistent_workers": True}, "persistent_workers"),
        ({"prefetch_factor": 2}, "prefetch_factor"),
        ({"batch_size": 0}, "batch_size"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, Any], word: str) -> None:
    with pytest.raises((ValueError, TypeError), match=word):
        Loader(Plain(4), **arguments)


def test_replace_and_exact_exclude_each_other() -> None:
    with pytest.raises(ValueError, match="exact"):
        Loader(Plain(4), plan=BatchPlan(Sequential(4), FixedSize(2), ends="exact"), on_error="replace")


def test_case_f10_one_weight_a_class_is_caught() -> None:
    with pytest.raises(ValueError, match=r"2 weights.*100 samples"):
        list(Loader(Plain(100), plan=BatchPlan(Weighted([0.1, 0.9], num_samples=100), FixedSize(10))))


def test_a_plan_beyond_the_dataset_is_caught() -> None:
    with pytest.raises(ValueError, match=r"index 9.*7 samples"):
        list(Loader(Plain(7), plan=BatchPlan(Sequential(10), FixedSize(10))))


def test_not_a_dataset() -> None:
    with pytest.raises(TypeError, match="__len__"):
        Loader(iter([1, 2]))


def test_case_f22_a_lambda_is_named() -> None:
    dataset = Plain(4)
    dataset.transform = lambda sample: sample  # type: ignore[attr-defined]
    with pytest.raises(TypeError, match=r"dataset\.transform cannot be sent.*spawn"):
        list(Loader(dataset, num_workers=1, multiprocessing_context="spawn"))
    with pytest.raises(TypeError, match=r"collate cannot be sent.*spawn"):
        list(Loader(Plain(4), collate=lambda samples: samples, num_workers=1, multiprocessing_context="spawn"))


def test_report_counts_the_pass() -> None:
    loader = Loader(Slow(6, 0.01), batch_size=2)
    list(loader)
    report = loader.report()
    assert (report.epoch, report.batches, report.samples, report.errors) == (0, 3, 6, 0)
    assert 0.0 < report.wait_share <= 1.0 and report.wait_s <= report.total_s and report.fetch_s >= 0.06
    assert "3 batches" in str(report)
