"""What a demanding user does to a loader: several passes at once, caches, subclasses, loaders in datasets and threads."""

from __future__ import annotations

import copy
import gc
import json
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bestiary.loading import BatchPlan, Collate, CollateError, FixedSize, Loader, Sequential, WorkerDied
from loader_datasets import (
    Caching,
    Dies,
    Drawing,
    HiddenGenerators,
    ManyWithNone,
    Nested,
    Noisy,
    Pictures,
    Plain,
    dtypes_collate,
    none_collate,
    unsendable_collate,
    views_collate,
)


def flat(batches: Any) -> list[int]:
    return [index for batch in batches for index in batch["index"].tolist()]


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("dataset", [Plain, Pictures])
def test_two_passes_at_once(persistent: bool, dataset: type[Plain]) -> None:
    def first(batch: dict[str, Any]) -> Any:
        return batch["index"].tolist() if "index" in batch else batch["image"][:, 0, 0, 0].tolist()

    loader = Loader(dataset(24), batch_size=4, num_workers=2, persistent_workers=persistent)
    expected = [first(batch) for batch in Loader(dataset(24), batch_size=4)]
    got = []
    for batch in loader:
        got.append(first(batch))
        for _ in loader:
            break
    assert got == expected
    assert [(first(a), first(b)) for a, b in zip(loader, loader, strict=True)] == [(one, one) for one in expected]


def test_an_old_iterator_goes_on_beside_a_new_pass() -> None:
    loader = Loader(Plain(16), batch_size=2, num_workers=2)
    old = iter(loader)
    next(old)
    assert flat(loader) == list(range(16))
    assert flat(old) == list(range(2, 16))


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_what_a_dataset_keeps_stays_as_it_is(workers: int) -> None:
    loader = Loader(Caching(8), batch_size=2, num_workers=workers, persistent_workers=workers > 0)
    for _ in range(3):
        for batch in loader:
            for index, rows in zip(batch["index"].tolist(), batch["rows"], strict=True):
                assert rows.unique().tolist() == [index]


def test_a_subclass_that_draws_is_seeded() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state().tolist()

    def draws(workers: int) -> list[tuple[float, float]]:
        loader = Loader(Drawing(8), batch_size=2, num_workers=workers)
        both = [*loader, *loader]
        return [pair for batch in both for pair in zip(batch["torch"].tolist(), batch["numpy"].tolist(), strict=True)]

    assert draws(0) == draws(2) and len(set(draws(0))) == 16
    assert torch.get_rng_state().tolist() == before


def test_a_collator_that_draws_is_seeded_also_where_it_is_one_of_ours() -> None:
    class Mix(Collate):
        def __call__(self, samples: Any) -> Any:
            return super().__call__(samples) | {"mix": torch.rand(1)}

    mixes = [
        [float(batch["mix"]) for batch in Loader(Plain(8), batch_size=2, collate=Mix(), num_workers=n)] for n in (0, 2)
    ]
    assert mixes[0] == mixes[1] and len(set(mixes[0])) == 4


def test_a_loader_inside_a_dataset_leaves_the_draws_of_the_one_around_it() -> None:
    here, crew = (list(Loader(Nested(6), batch_size=2, num_workers=n)) for n in (0, 2))
    for key in ("numpy", "torch"):
        values = [value for batch in here for value in batch[key].flatten().tolist()]
        assert values == [value for batch in crew for value in batch[key].flatten().tolist()]
        assert len(set(values)) == 6
    assert all(torch.equal(a["inner"], b["inner"]) for a, b in zip(here, crew, strict=True))


def test_loaders_in_threads() -> None:
    expected = [batch["numpy"].tolist() for batch in Loader(Noisy(400), batch_size=4, shuffle=True, seed=1)]
    bits = np.random.get_bit_generator()
    found: list[list[list[int]]] = [[], []]

    def run(place: int) -> None:
        found[place] = [batch["numpy"].tolist() for batch in Loader(Noisy(400), batch_size=4, shuffle=True, seed=1)]

    threads = [threading.Thread(target=run, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [expected, expected]
    assert np.random.get_bit_generator() is bits


@pytest.mark.parametrize("draws_between", [0, 1, 2])
def test_numpys_second_normal_is_left_as_it_was(draws_between: int) -> None:
    """It draws two at a time and keeps one, beside the bits that a pass borrows."""

    def draws(pass_too: bool) -> list[float]:
        np.random.seed(0)
        drawn = [np.random.standard_normal()]
        for _ in Loader(Noisy(6), batch_size=2) if pass_too else range(3):
            drawn += [np.random.standard_normal() for _ in range(draws_between)]
        return [*drawn, np.random.standard_normal(), np.random.standard_normal()]

    assert draws(True) == draws(False)


@pytest.mark.parametrize("collate", [views_collate, dtypes_collate])
@pytest.mark.parametrize("transport", ["slots", "torch"])
def test_unusual_tensors_arrive_as_made(collate: Any, transport: Any) -> None:
    here = list(Loader(Plain(4), batch_size=2, collate=collate))
    crew = list(Loader(Plain(4), batch_size=2, collate=collate, num_workers=1, transport=transport))
    for left, right in zip(here, crew, strict=True):
        assert {k: (v.dtype, v.to(torch.complex64).tolist()) for k, v in left.items()} == {
            k: (v.dtype, v.to(torch.complex64).tolist()) for k, v in right.items()
        }


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_the_default_dtype_goes_along(method: str) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        here = next(iter(Loader(Noisy(2), batch_size=2)))["torch"]
        there = next(iter(Loader(Noisy(2), batch_size=2, num_workers=1, multiprocessing_context=method)))["torch"]
    finally:
        torch.set_default_dtype(torch.float32)
    assert here.dtype == there.dtype == torch.float64 and torch.equal(here, there)


def test_none_in_a_whole_batch_is_a_bad_sample() -> None:
    loader = Loader(ManyWithNone(6), batch_size=2, on_error="skip")
    with pytest.warns(UserWarning, match="1 bad sample was"):
        assert flat(loader) == [0, 1, 2, 4, 5]
    assert [error.cause for error in loader.errors] == ["OSError: gone"]


@pytest.mark.parametrize("workers", [0, 1])
def test_a_collator_may_give_none(workers: int) -> None:
    assert list(Loader(Plain(6), batch_size=2, collate=none_collate, num_workers=workers)) == [None] * 3


@pytest.mark.filterwarnings("ignore:bestiary. random generators kept")
def test_generators_in_odd_places_are_found() -> None:
    runs = []
    for workers in (0, 2):
        HiddenGenerators.of_the_class = np.random.default_rng(1)
        runs.append([batch for batch in Loader(HiddenGenerators(8), batch_size=2, num_workers=workers)])
    for key in ("class", "first", "queue"):
        values = [batch[key].tolist() for batch in runs[0]]
        assert values == [batch[key].tolist() for batch in runs[1]]
        assert len({value for row in values for value in row}) == 8


def test_the_sample_that_kills_its_worker_is_named_every_time() -> None:
    for _ in range(4):
        with pytest.raises(WorkerDied, match=r"was reading sample 9 \(row 9.txt\) and had in hand .*samples 8 .*, 9 "):
            list(Loader(Dies(16, 9), batch_size=2, num_workers=1))


class HasLock(Plain):
    """Holds what may be sent only to a process that is being started."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.lock = multiprocessing.get_context("spawn").Lock()
        self.tensors = [torch.zeros(3) for _ in range(50)]


def test_a_dataset_with_locks_and_tensors_is_sent_and_nothing_is_left() -> None:
    import loader_datasets

    loader_datasets.HasLock = HasLock  # type: ignore[attr-defined]
    HasLock.__module__ = "loader_datasets"
    try:
        from bestiary.loading.sending import check_sendable

        dataset, before, threads = HasLock(4), descriptors(), threading.active_count()
        check_sendable("spawn", {"dataset": dataset})
        del dataset
        gc.collect()
        assert threading.active_count() <= threads
        assert descriptors() <= before
    finally:
        del loader_datasets.HasLock


GONE = """
import gc, os, sys, time
from multiprocessing import active_children
sys.path.insert(0, {support!r})
from loader_datasets import Pictures
from bestiary.loading import Loader

def use():
    loader = Loader(Pictures(8), batch_size=2, num_workers=2, persistent_workers={persistent})
    for batch in loader:
        del batch

if __name__ == "__main__":
    use()  # what torch opens once for the process is open now
    gc.collect()
    gc.disable()
    before = len(os.listdir("/proc/self/fd"))
    use()
    end = time.monotonic() + 10  # queues are closed by threads of their own
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < end:
        time.sleep(0.05)
    print(len(active_children()), max(0, len(os.listdir("/proc/self/fd")) - before))
"""


@pytest.mark.parametrize("persistent", [False, True])
def test_a_loader_that_is_gone_leaves_nothing_without_waiting_for_the_collector(persistent: bool) -> None:
    """In a process of its own, where nothing else opens or closes files."""
    script = GONE.format(support=str(Path(__file__).parent.parent / "support"), persistent=persistent)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.split() == ["0", "0"], done.stderr


def test_the_loader_may_be_a_temporary() -> None:
    assert flat(Loader(Plain(6), batch_size=2)) == list(range(6))
    batches = iter(Loader(Plain(6), batch_size=2, num_workers=1))
    gc.collect()
    assert flat(batches) == list(range(6))


@pytest.mark.parametrize("collate", [unsendable_collate])
def test_what_cannot_be_sent_names_the_batch(collate: Any) -> None:
    with pytest.raises(CollateError, match=r"batch 0 of epoch 0 could not be sent.*generator.*row 0.txt"):
        list(Loader(Plain(4), batch_size=2, collate=collate, num_workers=1))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "how", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))], ids=["copy", "pickle"]
)
def test_a_copy_of_a_loader_is_one(workers: int, how: Any) -> None:
    loader = Loader(Plain(8), batch_size=2, shuffle=True, num_workers=workers)
    next(iter(loader))
    assert flat(how(loader)) == flat(loader)


def test_set_epoch_in_the_middle_sets_the_next_pass_and_keeps_the_place() -> None:
    loader = Loader(Plain(8), batch_size=2, shuffle=True)
    running = iter(loader)
    next(running)
    loader.set_epoch(7)
    next(running)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (0, 2)
    list(running)
    assert (loader.state_dict()["epoch"], loader.state_dict()["batch"]) == (7, 0)


def test_epochs_are_whole_numbers() -> None:
    loader = Loader(Plain(8), batch_size=2, shuffle=True)
    loader.set_epoch(np.int64(3))  # type: ignore[arg-type]
    assert json.loads(json.dumps(loader.state_dict()))["epoch"] == 3
    for wrong in (3.0, "3", -1, True):
        with pytest.raises((TypeError, ValueError), match="epoch"):
            loader.set_epoch(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("change", [{"batch": 99}, {"batch": -1}, {"epoch": -1}, {"plan": None}, {"errors": None}])
def test_a_damaged_state_is_refused(change: dict[str, Any]) -> None:
    loader = Loader(Plain(8), batch_size=2)
    with pytest.raises(ValueError, match="state"):
        loader.load_state_dict(loader.state_dict() | change)


@pytest.mark.parametrize(
    "change", [{"transport": "slot"}, {"shuffle": "False"}, {"prefetch_factor": 0, "num_workers": 1}]
)
def test_choices_are_checked(change: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError), match=next(iter(change))):
        Loader(Plain(8), batch_size=2, **change)
    assert len(Loader(Plain(8), batch_size=2, num_workers=np.int64(1))) == 4  # type: ignore[arg-type]


def test_case_f25_kept_large_batches_need_few_descriptors() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(256, soft), hard))
    try:
        kept = list(Loader(Pictures(300), batch_size=2, num_workers=2))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [batch["image"][0, 0, 0, 0].item() for batch in kept] == [2 * n % 251 for n in range(150)]


def test_ranks_that_have_less_are_told_of() -> None:
    plan = BatchPlan(Sequential(10), FixedSize(1), rank=0, world_size=3, ends="exact")
    loader = Loader(Plain(10), plan=plan)
    with pytest.warns(UserWarning, match="rank 0 has 4 of 10"):
        list(islice(loader, 3))
    assert loader.state_dict()["batch"] == 9
