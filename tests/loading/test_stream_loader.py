"""The loader over streams, with real worker processes: once each, resumed exactly, in any layout."""

from __future__ import annotations

import itertools
import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from bestiary.loading import Collate, Loader, SampleError
from bestiary.records import RecordStream
from record_files import write_csv, write_jsonl, write_records
from stream_datasets import Bare, Open, doubled

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(autouse=True)
def no_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_jsonl(tmp_path_factory.mktemp("rows") / "rows.jsonl", range(103))


class Ranks:
    """Set the rank that the next loader or pass is of."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.monkeypatch = monkeypatch

    def __call__(self, rank: int, world: int) -> None:
        self.monkeypatch.setenv("RANK", str(rank))
        self.monkeypatch.setenv("WORLD_SIZE", str(world))


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Ranks:
    return Ranks(monkeypatch)


def ids(batches: Any) -> list[int]:
    return [int(i) for batch in batches for i in batch["id"]]


def groups(batches: Any) -> list[list[int]]:
    return [[int(i) for i in batch["id"]] for batch in batches]


def saved(loader: Loader) -> Any:
    return json.loads(json.dumps(loader.state_dict()))


def taken(loader: Loader, count: int) -> list[Any]:
    iterator: Any = iter(loader)
    found = list(itertools.islice(iterator, count))
    return found


@pytest.mark.parametrize("kind", ["csv", "jsonl", "tar"])
@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("world", [1, 2])
def test_case_e01_each_record_once(tmp_path: Path, kind: str, workers: int, world: int, as_rank: Ranks) -> None:
    path, found = write_records(tmp_path / f"rows.{kind}", range(100)), list[int]()
    for rank in range(world):
        as_rank(rank, world)
        found += ids(Loader(RecordStream(path), batch_size=7, num_workers=workers))
    assert sorted(found) == list(range(100))


def test_case_e02_one_notice_with_the_numbers(rows: Path, as_rank: Ranks) -> None:
    as_rank(0, 2)
    loader = Loader(RecordStream(rows), batch_size=5, num_workers=4)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        list(loader)
        list(loader)
    texts = [str(one.message) for one in told if "file for" in str(one.message)]
    assert len(texts) == 1 and texts[0].startswith("bestiary: 1 file for 8 readers")


@pytest.mark.parametrize("ends", ["trim", "pad", "exact"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("sizes", [[5], [3, 4, 5, 6], [1]])
def test_case_e03_equal_steps(tmp_path: Path, ends: Any, workers: int, sizes: list[int], as_rank: Ranks) -> None:
    paths, start = [], 0
    for n, size in enumerate(sizes):
        paths.append(write_jsonl(tmp_path / f"s{n}.jsonl", range(start, start + size)))
        start += size
    steps, real = [], []
    for rank in range(2):
        as_rank(rank, 2)
        loader = Loader(RecordStream(paths, ends=ends), batch_size=1, num_workers=workers)
        if ends != "exact":
            expected = len(loader)
        batches = list(loader)
        assert ends == "exact" or len(batches) == expected
        steps.append(len(batches))
        for batch in batches:
            assert ("is_pad" in batch) == (ends == "pad")
            if ends != "pad" or not bool(batch["is_pad"].any()):
                real += ids([batch])
    if ends == "exact":
        assert sorted(real) == list(range(start))
    else:
        assert steps[0] == steps[1] == (start // 2 if ends == "trim" else -(-start // 2))
    assert len(set(real)) == len(real) and (ends == "trim" or sorted(real) == list(range(start)))


def test_case_e05_short_last_groups_are_joined(tmp_path: Path) -> None:
    many = write_jsonl(tmp_path / "many.jsonl", range(1000))
    batches = list(Loader(RecordStream(many), batch_size=128, drop_last=True, num_workers=10))
    assert [len(batch["id"]) for batch in batches] == [128] * 7 and len(set(ids(batches))) == 7 * 128
    four = write_jsonl(tmp_path / "four.jsonl", range(4))
    batches = list(Loader(RecordStream(four), batch_size=4, num_workers=2))
    assert [sorted(group) for group in groups(batches)] == [[0, 1, 2, 3]]


@pytest.mark.parametrize("workers", [0, 4])
@pytest.mark.parametrize("world", [1, 2])
def test_case_e06_length(rows: Path, workers: int, world: int, as_rank: Ranks) -> None:
    for rank in range(world):
        as_rank(rank, world)
        unknown = Loader(
            RecordStream(rows, index_folder=rows.parent / f"none-{workers}"), batch_size=10, num_workers=workers
        )
        with pytest.raises(TypeError, match="length"):
            len(unknown)
        for ends in ("trim", "pad"):
            loader = Loader(RecordStream(rows, ends=ends), batch_size=10, num_workers=workers)
            known = len(loader)
            assert known == len(list(loader)) == (6 if world == 2 else 11)
        counted = Loader(RecordStream(rows), batch_size=10, num_workers=workers)  # its index is there by now
        assert len(counted) == len(list(counted))


@pytest.mark.parametrize("shuffle", [False, 16])
def test_case_e07_epochs_differ_with_persistent_workers_too(tmp_path: Path, shuffle: Any) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(64))
    runs = []
    for persistent in (False, True):
        loader = Loader(RecordStream(path, shuffle=shuffle), batch_size=8, num_workers=2, persistent_workers=persistent)
        runs.append([groups(loader) for _ in range(3)])
    assert runs[0] == runs[1]
    for epoch in runs[0]:
        assert sorted(i for group in epoch for i in group) == list(range(64))
    assert runs[0][0] != runs[0][1]
    assert not shuffle or runs[0][2] not in runs[0][:2]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("shuffle", [False, 30])
def test_case_e09_a_second_interruption(tmp_path: Path, workers: int, shuffle: Any) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(400))

    def fresh() -> Loader:
        return Loader(RecordStream(path, shuffle=shuffle), batch_size=4, num_workers=workers, seed=3)

    straight, pieces, state = groups(fresh()), list[Any](), None
    for count in (30, 10, 23, 1000):
        loader = fresh()
        if state is not None:
            loader.load_state_dict(state)
            assert saved(loader) == state
        pieces += groups(taken(loader, count))
        state = saved(loader)
    assert pieces == straight and len(straight) == 100
    assert state["epoch"] == 1


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("shuffle", [False, 20])
def test_case_e10_the_end_of_an_epoch_is_the_start_of_the_next(tmp_path: Path, workers: int, shuffle: Any) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(100))

    def fresh() -> Loader:
        return Loader(RecordStream(path, shuffle=shuffle), batch_size=10, num_workers=workers)

    loader = fresh()
    both = [groups(loader), groups(loader)]
    loader = fresh()
    iterator = iter(loader)
    assert groups(next(iterator) for _ in range(10)) == both[0]
    state = saved(loader)
    assert state["epoch"] == 1
    other = fresh()
    other.load_state_dict(state)
    assert saved(other) == state and other.epoch == 1
    assert groups(other) == both[1]


@pytest.mark.parametrize("shuffle", [False, 12])
@pytest.mark.parametrize(("world", "workers"), [(1, 3), (4, 1), (2, 2), (1, 0), (3, 2)])
def test_case_e12_another_layout(tmp_path: Path, shuffle: Any, world: int, workers: int, as_rank: Ranks) -> None:
    path, seen, states = write_csv(tmp_path / "rows.csv", range(100)), list[int](), []
    for rank in range(2):
        as_rank(rank, 2)
        loader = Loader(RecordStream(path, shuffle=shuffle), batch_size=3, num_workers=2)
        seen += ids(taken(loader, 6 + rank))
        states.append(saved(loader))
    assert len(seen) == 39
    as_rank(0, world)
    if (world, workers) != (2, 2):
        with pytest.raises(ValueError, match=rf"rank 0 of 2 with 2 workers.*rank 0 of {world} with {max(workers, 1)}"):
            Loader(RecordStream(path, shuffle=shuffle), batch_size=3, num_workers=workers).load_state_dict(states[0])
    rest = []
    for rank in range(world):
        as_rank(rank, world)
        loader = Loader(RecordStream(path, shuffle=shuffle), batch_size=3, num_workers=workers)
        loader.load_state_dict(states[::-1])
        rest += ids(loader)
    assert sorted(seen + rest) == list(range(100))
    with pytest.raises(ValueError, match="one state for each rank"):
        loader.load_state_dict(states[:1])


@pytest.mark.parametrize("workers", [0, 2])
def test_case_e13_the_shuffle_window_is_not_lost(tmp_path: Path, workers: int) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(200))

    def fresh() -> Loader:
        return Loader(RecordStream(path, shuffle=50), batch_size=5, num_workers=workers)

    straight, pieces, state = groups(fresh()), list[Any](), None
    for count in (4, 6, 26, 100):
        loader = fresh()
        if state is not None:
            loader.load_state_dict(state)
        pieces += groups(taken(loader, count))
        state = saved(loader)
        assert len(json.dumps(state)) < 2_000
    assert pieces == straight
    assert sorted(i for group in straight for i in group) == list(range(200))
    assert straight != [list(range(n, n + 5)) for n in range(0, 200, 5)]


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (1, 5), (2, 3), (3, 0)])
@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_grid_of_real_processes(tmp_path: Path, world: int, workers: int, kind: str, as_rank: Ranks) -> None:
    path, seen, states = write_records(tmp_path / f"rows.{kind}", range(90)), list[int](), []
    for rank in range(world):
        as_rank(rank, world)
        loader = Loader(RecordStream(path, shuffle=16), batch_size=4, num_workers=workers)
        seen += ids(taken(loader, 5))
        states.append(saved(loader))
    for rank in range(2):
        as_rank(rank, 2)
        loader = Loader(RecordStream(path, shuffle=16), batch_size=4, num_workers=1)
        loader.load_state_dict(states)
        seen += ids(loader)
    assert sorted(seen) == list(range(90))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_within_joined_last_groups(tmp_path: Path, workers: int) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(23))

    def fresh() -> Loader:
        return Loader(RecordStream(path), batch_size=6, num_workers=workers)

    straight = groups(fresh())
    assert len(straight) == 4
    for stop in range(4):
        first = fresh()
        head = groups(taken(first, stop))
        second = fresh()
        second.load_state_dict(saved(first))
        assert sorted(i for group in head + groups(second) for i in group) == list(range(23))


# -- errors


@pytest.mark.parametrize("workers", [0, 2])
def test_bad_records_raise_or_are_skipped_and_listed(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(b'{"id": %d}\n' % i if i % 10 != 3 else b"bad\n" for i in range(40)))
    with pytest.raises(SampleError, match=r"rows\.jsonl, line 4, byte 30|line 24") as caught:
        list(Loader(RecordStream(path), batch_size=4, num_workers=workers))
    assert caught.value.where.startswith("rows.jsonl, line ")
    loader = Loader(RecordStream(path), batch_size=4, num_workers=workers, on_error="skip")
    with pytest.warns(UserWarning, match="4 bad samples were skipped"):
        found = ids(loader)
    assert sorted(found) == [i for i in range(40) if i % 10 != 3]
    lines = sorted(int(error.where.split(",")[1].split()[1]) for error in loader.errors)
    assert lines == [4, 14, 24, 34]
    with pytest.raises(SampleError, match="max_errors=2"):
        list(Loader(RecordStream(path), batch_size=4, num_workers=workers, on_error="skip", max_errors=2))


def test_bad_records_are_replaced_and_steps_stay_equal(tmp_path: Path, as_rank: Ranks) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(b'{"id": %d}\n' % i if i not in (0, 1, 2, 3, 9) else b"bad\n" for i in range(16)))
    for rank in range(2):
        as_rank(rank, 2)
        loader = Loader(RecordStream(path, ends="trim"), batch_size=4, on_error="skip")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            batches = list(loader)
        assert len(batches) == 2 == len(loader)
        assert [bool(batch["is_pad"].all()) for batch in batches] == [rank == 0, False]
    as_rank(0, 1)
    loader = Loader(RecordStream(path, ends="trim"), batch_size=4, on_error="replace")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        batches = list(loader)
    assert [batch["is_pad"].tolist() for batch in batches[1:]] == [
        [False] * 4,
        [False, True, False, False],
        [False] * 4,
    ]
    with pytest.raises(ValueError, match="exact"):
        Loader(RecordStream(path), on_error="replace")


def test_a_stream_of_nothing_but_bad_records(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"bad\n" * 5)
    with pytest.raises(SampleError, match="no good sample"):
        list(Loader(RecordStream(path), batch_size=2, on_error="skip"))
    (tmp_path / "none.jsonl").write_bytes(b"")
    assert list(Loader(RecordStream(tmp_path / "none.jsonl"), batch_size=2)) == []


# -- other streams


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_without_open_works_and_says_what_it_lacks(workers: int) -> None:
    loader = Loader(Bare(20), batch_size=3, num_workers=workers)
    assert sorted(ids(loader)) == list(range(20))
    with pytest.raises(ValueError, match=r"Bare .*open\(reader, readers, epoch, seed"):
        loader.state_dict()
    with pytest.raises(TypeError, match="length"):
        len(loader)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_smallest_stream_that_can_be_resumed(workers: int) -> None:
    straight = list(Loader(Open(23), batch_size=4, num_workers=workers))
    first = Loader(Open(23), batch_size=4, num_workers=workers)
    head = taken(first, 2)
    second = Loader(Open(23), batch_size=4, num_workers=workers)
    second.load_state_dict(saved(first))
    rest = list(second)
    assert groups(head + rest) == groups(straight)
    assert torch.equal(torch.cat([b["draw"] for b in head + rest]), torch.cat([b["draw"] for b in straight]))
    third = Loader(Open(23), batch_size=4, num_workers=3)
    third.load_state_dict(saved(first))
    assert sorted(ids(head) + ids(third)) == list(range(23))


def test_ends_without_counts_need_an_agreement(as_rank: Ranks) -> None:
    as_rank(0, 2)
    with pytest.raises(ValueError, match="init_process_group"):
        list(Loader(Open(5, ends="trim"), batch_size=1))


def test_what_a_stream_does_not_take(rows: Path) -> None:
    with pytest.raises(ValueError, match="shuffle=True"):
        Loader(RecordStream(rows), shuffle=True)
    loader = Loader(RecordStream(rows), batch_size=4)
    state = loader.state_dict()
    with pytest.raises(ValueError, match="another plan"):
        Loader(RecordStream(rows, shuffle=5), batch_size=4).load_state_dict(state)
    with pytest.raises(ValueError, match="another plan"):
        Loader(RecordStream(rows), batch_size=4, seed=1).load_state_dict(state)


def test_draws_are_keyed_and_the_callers_generators_stay(rows: Path) -> None:
    torch.manual_seed(7)
    before = torch.random.get_rng_state()
    loader = Loader(RecordStream(rows, transform=doubled), batch_size=10)
    passes = [torch.cat([batch["draw"] for batch in loader]) for _ in range(2)]
    assert torch.equal(torch.random.get_rng_state(), before)
    again = torch.cat([batch["draw"] for batch in Loader(RecordStream(rows, transform=doubled), batch_size=10)])
    assert torch.equal(passes[0], again) and not torch.equal(passes[0], passes[1])
    assert len({tuple(row) for row in passes[0].tolist()}) == 103


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_every_start_method_gives_the_same_batches(rows: Path, method: str) -> None:
    stream = RecordStream(rows, shuffle=20)
    loader = Loader(stream, batch_size=9, num_workers=2, multiprocessing_context=method, collate=Collate())
    assert groups(loader) == groups(Loader(stream, batch_size=9, num_workers=2))


@pytest.mark.parametrize("workers", [0, 2, 3])
def test_a_bare_dataloader_gets_each_record_once(rows: Path, workers: int) -> None:
    stream = RecordStream(rows, shuffle=10)
    found = [int(i) for batch in DataLoader(stream, batch_size=5, num_workers=workers) for i in batch["id"]]
    assert sorted(found) == list(range(103))


def test_leaving_a_pass_early_and_beginning_the_next(rows: Path) -> None:
    loader = Loader(RecordStream(rows), batch_size=5, num_workers=2, persistent_workers=True)

    def first(iterator: Iterator[Any]) -> Any:
        return next(iterator)

    first(iter(loader))
    assert sorted(ids(loader)) == list(range(103)) and loader.epoch == 2
