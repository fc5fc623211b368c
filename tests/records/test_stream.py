"""Streams shared out to any number of readers: each record once, also when others go on, in any layout."""

from __future__ import annotations

import gzip
import json
import os
import pickle
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.records import RecordError, RecordStream
from record_files import id_of, read_all, write_csv, write_jsonl, write_records


def split(folder: Path, kind: str, sizes: list[int]) -> list[Path]:
    """Write files of so many records, numbered through."""
    paths, start = [], 0
    for number, size in enumerate(sizes):
        paths.append(write_records(folder / f"s{number}.{kind}", range(start, start + size)))
        start += size
    return paths


@pytest.mark.parametrize("kind", ["csv", "jsonl", "tar", "parquet"])
@pytest.mark.parametrize(("workers", "world"), [(w, r) for w in (1, 3) for r in (1, 2, 5)])
def test_case_e01_each_record_once(tmp_path: Path, kind: str, workers: int, world: int) -> None:
    path = write_records(tmp_path / f"rows.{kind}", range(100))
    found = read_all(RecordStream(path), workers * world)
    assert sorted(i for ids in found for i in ids) == list(range(100))


@pytest.mark.parametrize("kind", ["csv", "jsonl", "tar"])
@pytest.mark.parametrize("sizes", [[50], [3, 0, 40], [0], [1]])
def test_case_e02_fewer_files_than_readers(tmp_path: Path, kind: str, sizes: list[int]) -> None:
    stream = RecordStream(split(tmp_path, kind, sizes))
    found = read_all(stream, 8)
    assert sorted(i for ids in found for i in ids) == list(range(sum(sizes)))
    if sizes == [50]:
        assert all(found), "every reader has a part"
    assert any(f"{len(sizes)} file{'s' * (len(sizes) > 1)} for 8 readers" in text for text in stream.prepare(8, 0, 0))


@settings(max_examples=120, deadline=None)
@given(st.data())
def test_exactly_once_and_resume_in_any_layout(tmp_path_factory: Any, data: Any) -> None:
    folder = tmp_path_factory.mktemp("law")
    kind = data.draw(st.sampled_from(["csv", "jsonl", "tar"]))
    sizes = data.draw(st.lists(st.integers(0, 30), min_size=1, max_size=4))
    shuffle, ends = data.draw(st.sampled_from([False, 5, 16])), data.draw(st.sampled_from(["exact", "trim"]))
    epoch, total = data.draw(st.integers(0, 3)), sum(sizes)
    paths = split(folder, kind, sizes)
    got: list[int] = []
    positions: Any = None
    for _ in range(data.draw(st.integers(1, 3))):
        readers = data.draw(st.integers(1, 5)) * data.draw(st.integers(1, 5))
        stream, behind = RecordStream(paths, shuffle=shuffle, ends=ends), []  # type: ignore[arg-type]
        for number in range(readers):
            reader = stream.open(number, readers, epoch, 0, positions)
            for _ in range(data.draw(st.integers(0, 12))):
                sample = next(reader, None)
                if sample is not None:
                    got.append(id_of(sample))
            behind.append(json.loads(json.dumps(reader.position)))
        positions = behind
    readers = data.draw(st.integers(1, 6))
    stream = RecordStream(paths, shuffle=shuffle, ends=ends)  # type: ignore[arg-type]
    rest = read_all(stream, readers, epoch, positions)
    counts = stream.counts(readers, epoch, 0, positions)
    assert counts is None or counts == [len(ids) for ids in rest]
    assert sorted(got + [i for ids in rest for i in ids]) == list(range(total))


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_one_layout_goes_on_as_if_it_had_not_stopped(tmp_path_factory: Any, data: Any) -> None:
    paths = split(tmp_path_factory.mktemp("law"), data.draw(st.sampled_from(["csv", "jsonl", "parquet"])), [13, 0, 24])
    shuffle, readers = data.draw(st.sampled_from([False, 4, 50])), data.draw(st.integers(1, 4))
    straight = read_all(RecordStream(paths, shuffle=shuffle), readers, 1)
    pieces: list[list[int]] = [[] for _ in range(readers)]
    positions: Any = None
    for stops in ([data.draw(st.integers(0, 9)) for _ in range(readers)] for _ in range(3)):
        stream, behind = RecordStream(paths, shuffle=shuffle), []
        for number, stop in enumerate(stops):
            reader = stream.open(number, readers, 1, 0, positions)
            assert positions is None or json.loads(json.dumps(reader.position)) == positions[number]
            pieces[number] += [id_of(s) for s in (next(reader, None) for _ in range(stop)) if s is not None]
            behind.append(json.loads(json.dumps(reader.position)))
        positions = behind
    for number, ids in enumerate(read_all(RecordStream(paths, shuffle=shuffle), readers, 1, positions)):
        pieces[number] += ids
    assert pieces == straight


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
@pytest.mark.parametrize("ends", ["trim", "pad"])
def test_counted_readers_differ_by_one_at_most(tmp_path: Path, kind: str, ends: Any) -> None:
    paths = split(tmp_path, kind, [3, 40, 5, 55])
    for readers in (1, 2, 3, 5, 8):
        for shuffle in (False, 10):
            for epoch in (0, 1, 2):
                stream = RecordStream(paths, ends=ends, shuffle=shuffle)
                counts = [len(ids) for ids in read_all(stream, readers, epoch)]
                assert max(counts) - min(counts) <= 1 and stream.counts(readers, epoch, 0) == counts


def test_orders_are_functions_of_seed_and_epoch(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(300))

    def order(seed: int, epoch: int, readers: int = 1) -> list[int]:
        stream = RecordStream(path, shuffle=100)
        return [id_of(s) for k in range(readers) for s in stream.open(k, readers, epoch, seed)]

    assert order(0, 0) == order(0, 0) and sorted(order(0, 0)) == list(range(300))
    assert len({tuple(order(seed, epoch)) for seed in range(2) for epoch in range(3)}) == 6
    plain = RecordStream(path)
    assert [id_of(s) for s in plain.open(0, 1, 5, 0)] == list(range(300)), "one reader keeps the order of the file"
    first = [read_all(plain, 2, epoch)[0] for epoch in (0, 1)]
    assert first[0] != first[1], "who reads what changes with the epoch"


def test_state_of_a_shuffled_stream_is_small(tmp_path: Path) -> None:
    reader = RecordStream(write_jsonl(tmp_path / "rows.jsonl", range(5000)), shuffle=True).open(0, 2, 0, 0)
    for _ in range(700):
        next(reader)
    assert len(json.dumps(reader.position)) < 300


def test_case_e15_what_was_read_before_is_not_read_again(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(20_000))
    reader = RecordStream(path).open(0, 1, 0, 0)
    while (found := reader.take(4096))[-1]["id"] < 18_000:
        pass
    position, last = reader.position, found[-1]["id"]
    seen: list[int] = []
    stream = RecordStream(path, transform=lambda row: seen.append(row["id"]) or row)
    assert next(stream.open(0, 1, 0, 0, [position]))["id"] == last + 1
    assert seen == [last + 1]
    path.write_bytes(
        b"#" * (position["at"] - 1) + b"\n" + path.read_bytes()[position["at"] :]
    )  # nothing before is looked at
    assert next(RecordStream(path).open(0, 1, 0, 0, [position]))["id"] == last + 1


# -- packed files


def lines(ids: range) -> bytes:
    return b"".join(b'{"id": %d}\n' % i for i in ids)


def outcome(path: Path, **options: Any) -> tuple[list[int], list[str]]:
    reader, ids, errors = RecordStream(path, **options).open(0, 1, 0, 0), [], []
    for _ in range(999):
        try:
            ids.append(id_of(next(reader)))
        except StopIteration:
            break
        except RecordError as error:
            errors.append(str(error))
    return ids, errors


def test_case_e22_members_cuts_zeros_and_junk(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    two = gzip.compress(lines(range(2))) + gzip.compress(lines(range(2, 5)))
    path.write_bytes(two)
    assert outcome(path) == ([0, 1, 2, 3, 4], [])
    path.write_bytes(two + bytes(10))
    assert outcome(path) == ([0, 1, 2, 3, 4], [])
    path.write_bytes(two[:-6])
    ids, errors = outcome(path)
    assert ids == [0, 1, 2, 3, 4] and len(errors) == 1 and "rows.jsonl.gz" in errors[0] and "cut" in errors[0]
    path.write_bytes(two[:-12])
    ids, errors = outcome(path)
    assert ids == list(range(len(ids))) and len(errors) == 1 and "cut" in errors[0]
    path.write_bytes(two + b"junk")
    ids, errors = outcome(path)
    assert ids == [0, 1, 2, 3, 4] and len(errors) == 1 and "junk" in errors[0] and f"byte {len(two)}" in errors[0]
    damaged = bytearray(two)
    damaged[-5] ^= 1  # of the length
    path.write_bytes(bytes(damaged))
    assert outcome(path)[1]


def test_a_packed_file_is_never_split(tmp_path: Path) -> None:
    paths = []
    for n in range(2):
        paths.append(tmp_path / f"s{n}.jsonl.gz")
        paths[-1].write_bytes(gzip.compress(lines(range(50 * n, 50 * n + 50))))
    found = read_all(RecordStream(paths), 5)
    assert sorted(map(len, found)) == [0, 0, 0, 50, 50]
    for ends in ("trim", "pad"):
        stream = RecordStream(paths, ends=ends)
        assert stream.counts(5, 0, 0) == [len(ids) for ids in read_all(stream, 5)]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=3),
    st.integers(0, 60),
    st.sampled_from([False, 7]),
    st.integers(1, 3),
)
def test_packed_files_go_on_anywhere(
    tmp_path_factory: Any, sizes: list[int], stop: int, shuffle: Any, readers: int
) -> None:
    folder, paths, start = tmp_path_factory.mktemp("law"), [], 0
    for n, size in enumerate(sizes):
        paths.append(folder / f"s{n}.csv.gz")
        plain = write_csv(folder / "plain.csv", range(start, start + size)).read_bytes()
        paths[-1].write_bytes(gzip.compress(plain[:30]) + gzip.compress(plain[30:]))
        start += size
    reader = RecordStream(paths, shuffle=shuffle).open(0, 1, 0, 0)
    got = [id_of(s) for s in (next(reader, None) for _ in range(stop)) if s is not None]
    rest = read_all(RecordStream(paths, shuffle=shuffle), readers, 0, [json.loads(json.dumps(reader.position))])
    assert sorted(got + [i for ids in rest for i in ids]) == list(range(start))


def test_zst_files(tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard")
    path = tmp_path / "rows.jsonl.zst"
    frames = [zstandard.ZstdCompressor().compress(lines(range(n, n + 3))) for n in (0, 3)]
    path.write_bytes(b"".join(frames))
    assert outcome(path) == ([0, 1, 2, 3, 4, 5], [])
    path.write_bytes(b"".join(frames)[:-3])
    ids, errors = outcome(path)
    assert ids == [0, 1, 2] and "cut" in errors[0]
    path.write_bytes(b"".join(frames) + b"junk")
    assert "junk" in outcome(path)[1][0]


def test_errors_of_packed_files_name_line_and_byte(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(gzip.compress(lines(range(100)) + b"bad\n" + lines(range(100, 102))))
    ids, errors = outcome(path)
    assert ids == list(range(102)) and errors[0].startswith(f"rows.jsonl.gz, line 101, byte {len(lines(range(100)))}:")


# -- pipes, formats, bad files


def test_a_pipe_has_one_reader_and_no_position(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=lambda: pipe.write_bytes(lines(range(1000))))
    writer.start()
    stream = RecordStream(pipe, format="jsonl")
    with pytest.raises(ValueError, match="one reader"):
        stream.open(0, 2, 0, 0)
    reader = stream.open(0, 1, 0, 0)
    assert [id_of(s) for s in reader] == list(range(1000)) and reader.position is None
    writer.join()
    with pytest.raises(ValueError, match="pipe"):
        RecordStream(pipe, format="jsonl", ends="trim")


def test_formats_by_name(tmp_path: Path) -> None:
    data = tmp_path / "rows.data"
    data.write_bytes(lines(range(3)))
    with pytest.raises(ValueError, match=r"format='jsonl'"):
        RecordStream(data)
    assert [id_of(s) for s in RecordStream(data, format="jsonl")] == [0, 1, 2]
    with pytest.raises(ValueError, match="format"):
        RecordStream(data, format="xml")
    with pytest.raises(ValueError, match="format"):
        RecordStream([write_jsonl(tmp_path / "a.jsonl", [1]), write_csv(tmp_path / "b.csv", [1])])
    with pytest.raises(ValueError, match="ends"):
        RecordStream(data, format="jsonl", ends="even")  # type: ignore[arg-type]


def test_a_file_that_vanishes_is_one_bad_record(tmp_path: Path) -> None:
    paths = [write_csv(tmp_path / f"s{n}.csv", [n]) for n in range(3)]
    stream = RecordStream(paths)
    readers = [stream.open(0, 1, 0, 0)]
    assert id_of(next(readers[0])) == 0
    pickled = pickle.loads(pickle.dumps(stream))
    assert len(pickle.dumps(stream)) < 3_000
    assert [id_of(s) for s in pickled.open(0, 1, 0, 0)] == [0, 1, 2]


def test_heads_that_differ_or_break(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"id,id\n1,2\n")
    (tmp_path / "b.csv").write_bytes(b"id,text\n7,x\n")
    reader = RecordStream([tmp_path / "a.csv", tmp_path / "b.csv"]).open(0, 1, 0, 0)
    with pytest.raises(RecordError, match=r"a\.csv: .*twice"):
        next(reader)
    assert next(reader)["id"] == "7"
