"""The challenge, for the reference solution and for anybody's own."""

from __future__ import annotations

import csv
import itertools
import json
import sys
from pathlib import Path

import pytest
from torch.utils.data import DataLoader

HERE = Path(__file__).resolve().parent
NAME = "challenge_sharded_stream"
sys.path.insert(0, str(HERE if (HERE / f"{NAME}.py").exists() else HERE.parents[1] / "recipes" / "lesson"))

import challenge_sharded_stream as lesson

TEXTS = ["plain", 'with "quotes"', "two\nlines", "", "comma, comma", "\r\n", "é ü 漢"]
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


def make(path, count):
    rows = [{"id": str(number), "text": TEXTS[number % len(TEXTS)]} for number in range(count)]
    with path.open("w", encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            csv.writer(file).writerows([("id", "text"), *((row["id"], row["text"]) for row in rows)])
        else:
            file.writelines(json.dumps(row) + "\n" for row in rows)
    return rows


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
def test_offsets_are_the_borders_of_records(tmp_path, name):
    rows = make(tmp_path / name, 20)
    offsets = lesson.record_offsets(tmp_path / name)
    data = (tmp_path / name).read_bytes()
    assert len(offsets) == len(rows) + 1
    assert offsets[-1] == len(data)
    names = ["id", "text"] if name.endswith(".csv") else None
    cut = [data[a:b].decode() for a, b in itertools.pairwise(offsets)]
    assert [lesson.parse_record(text, names) for text in cut] == rows


@pytest.mark.parametrize("count", [0, 1, 3, 10, 101])
@pytest.mark.parametrize("readers", [1, 2, 4, 7])
def test_shares_are_even_and_whole(count, readers):
    shares = [lesson.share(count, reader, readers) for reader in range(readers)]
    assert [index for part in shares for index in part] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


@pytest.mark.parametrize("name", ["rows.csv", "rows.jsonl"])
@pytest.mark.parametrize(
    ("count", "workers", "ranks"), [(50, 0, 1), (50, 1, 1), (50, 4, 1), (50, 5, 3), (50, 2, 2), (3, 5, 1), (0, 4, 1)]
)
def test_each_record_comes_exactly_once(tmp_path, name, count, workers, ranks):
    rows = make(tmp_path / name, count)
    got = []
    for rank in range(ranks):
        dataset = lesson.ShardedRecords(tmp_path / name, rank, ranks)
        mine = list(DataLoader(dataset, batch_size=None, num_workers=workers))
        assert len(mine) == len(dataset)
        got += mine
    assert sorted(got, key=lambda row: int(row["id"])) == rows


def test_without_workers_the_order_is_the_files(tmp_path):
    rows = make(tmp_path / "rows.csv", 12)
    assert list(lesson.ShardedRecords(tmp_path / "rows.csv")) == rows
    wanted = lesson.read_records(tmp_path / "rows.csv", lesson.record_offsets(tmp_path / "rows.csv"), range(3, 6))
    assert list(wanted) == rows[3:6]


@pytest.mark.parametrize("text", ["", "id,text\n", "id,text", "id,text\r\n\r\n"])
def test_files_without_records(tmp_path, text):
    (tmp_path / "rows.csv").write_bytes(text.encode())
    assert list(lesson.ShardedRecords(tmp_path / "rows.csv")) == []


def test_spellings_of_one_file(tmp_path):
    for text in ("\ufeffid,text\r\n1,a\r\n\r\n2,b", "id,text\n1,a\n2,b\n\n\n", '"id","text"\n"1","a"\n"2","b"'):
        (tmp_path / "rows.csv").write_bytes(text.encode())
        assert list(lesson.ShardedRecords(tmp_path / "rows.csv")) == [
            {"id": "1", "text": "a"},
            {"id": "2", "text": "b"},
        ]


def test_both_readers_give_the_same_and_are_timed(tmp_path):
    rows = make(tmp_path / "rows.csv", 30)
    stream, table = lesson.ShardedRecords(tmp_path / "rows.csv"), lesson.MapRecords(tmp_path / "rows.csv")
    assert list(stream) == [table[index] for index in range(len(table))] == rows
    for dataset in (stream, table):
        count, rate = lesson.records_per_second(dataset, 0)
        assert count == 30
        assert rate > 0
