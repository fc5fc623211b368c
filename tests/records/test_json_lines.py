"""JSON lines by index: what is a record, where it stands, and the index that says so."""

from __future__ import annotations

import json
import os
import pickle
import threading
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.loading import BatchPlan, Blocks, FixedSize, Loader
from bestiary.records import JsonLines, RecordError
from record_files import write_jsonl


def test_case_e21_blank_lines_bad_bytes_and_a_cut_last_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"id": 1}\n\n{"id": 3}\r\n{"id": "\xff"}\n{"id": 5}')
    rows = JsonLines(path)
    assert len(rows) == 4
    assert [rows[0], rows[1], rows[3]] == [{"id": 1}, {"id": 3}, {"id": 5}]
    with pytest.raises(RecordError, match=r"rows\.jsonl, line 4, byte 22.*0xff"):
        rows[2]
    assert rows.locate(2) == "rows.jsonl, line 4, byte 22"
    path.write_bytes(b'{"id": 1}\n{"id": 23')
    with pytest.raises(RecordError, match=r"line 2, byte 10.*cut"):
        JsonLines(path)[1]


@pytest.mark.parametrize("line", ["5", "[1]", "null", '"text"', "NaN", '{"a": NaN}', "{'a': 1}", '{"a": 1} {"b": 2}'])
def test_what_is_no_object_is_an_error(tmp_path: Path, line: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(f'{{"a": 0}}\n{line}\n')
    rows = JsonLines(path)
    assert rows[0] == {"a": 0}
    with pytest.raises(RecordError, match=r"rows\.jsonl, line 2, byte 9"):
        rows[1]
    with pytest.raises(RecordError, match="line 2"):
        rows.__getitems__([0, 1])


def test_python_json_refuses_what_orjson_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from bestiary.records.json_form import loader

    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": NaN}\n{"a": "é\\n"}\n', encoding="utf-8")
    monkeypatch.setitem(__import__("sys").modules, "orjson", None)
    loader.cache_clear()
    try:
        rows = JsonLines(path)
        with pytest.raises(RecordError, match="NaN"):
            rows[0]
        assert rows[1] == {"a": "é\n"}
    finally:
        loader.cache_clear()


def test_case_e17_a_byte_order_mark_is_stripped_at_the_start_of_each_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"id": 1}\n')
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"id": 2}\n\xef\xbb\xbf{"id": 3}\n')
    rows = JsonLines(tmp_path / "*.jsonl")
    assert [rows[0], rows[1]] == [{"id": 1}, {"id": 2}]
    with pytest.raises(RecordError, match=r"b\.jsonl, line 2, byte 13"):
        rows[2]


def test_case_e19_a_line_of_5_mb_and_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps({"text": "x" * 5_000_000}) + '\n{"text": "y"}\n')
    assert [len(row["text"]) for row in JsonLines(path).__getitems__([0, 1])] == [5_000_000, 1]
    limited = JsonLines(path, limit=1000)
    assert limited[1] == {"text": "y"}
    with pytest.raises(RecordError, match=r"rows\.jsonl, line 1, byte 0.*5000013 bytes.*limit=1000"):
        limited[0]


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0b", "\x0c", "\x1c"])
def test_only_a_line_feed_ends_a_record(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "rows.jsonl"
    texts = [f"a{separator}b", "c"]
    path.write_text(
        "".join(json.dumps({"t": t}, ensure_ascii=False) + "\r\n" for t in texts), encoding="utf-8", newline=""
    )
    rows = JsonLines(path)
    assert len(rows) == 2 and [rows[0]["t"], rows[1]["t"]] == texts


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(["", " ", "\r", "\t "]), st.booleans()), max_size=30),
    st.booleans(),
    st.booleans(),
)
def test_index_finds_what_python_finds(tmp_path_factory: Any, parts: Any, mark: bool, ended: bool) -> None:
    path = tmp_path_factory.mktemp("law") / "rows.jsonl"
    lines = [blank if not full else f'{blank}{{"n": {n}}}{blank}' for n, (blank, full) in enumerate(parts)]
    text = "\n".join(lines) + ("\n" if ended else "")
    path.write_bytes((b"\xef\xbb\xbf" if mark else b"") + text.encode())
    expected = [(n + 1, json.loads(line)) for n, line in enumerate(text.split("\n")) if line.strip()]
    rows = JsonLines(path)
    assert [rows[i] for i in range(len(rows))] == [row for _, row in expected]
    assert [rows.locate(i).split(", ")[1] for i in range(len(rows))] == [f"line {line}" for line, _ in expected]
    assert rows.__getitems__(list(range(len(rows)))) == [row for _, row in expected]


def test_more_than_a_thousand_records_of_several_files(tmp_path: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", range(3000))
    write_jsonl(tmp_path / "b.jsonl", range(3000, 3010))
    rows = JsonLines([tmp_path / "b.jsonl", tmp_path / "a.jsonl"])
    assert len(rows) == 3010 and rows[-1]["id"] == 3009
    assert [row["id"] for row in rows.__getitems__([3005, 7, 2999, 3000, -1])] == [3005, 7, 2999, 3000, 3009]
    assert rows.locate(2500).startswith("a.jsonl, line 2501,") and rows.locate(3001).startswith("b.jsonl, line 2,")
    with pytest.raises(IndexError):
        rows[3010]
    with pytest.raises(IndexError):
        rows.__getitems__([0, 3010])


def test_case_a10_files_are_sorted_whatever_the_folder_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for n in range(5):
        write_jsonl(tmp_path / f"shard-{n}.jsonl", [n])
    names = [str(tmp_path / f"shard-{n}.jsonl") for n in range(5)]
    assert JsonLines(reversed(names)).paths == names
    assert JsonLines(tmp_path / "shard-*.jsonl").paths == names
    listing = os.listdir(tmp_path)
    monkeypatch.setattr(os, "listdir", lambda *_: listing[::-1])
    assert JsonLines(str(tmp_path / "*.jsonl")).paths == names


def test_paths_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match=r"none\.jsonl"):
        JsonLines(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="folder"):
        JsonLines(tmp_path)
    with pytest.raises(ValueError, match="no files"):
        JsonLines([])
    path = write_jsonl(tmp_path / "rows.jsonl", [1])
    with pytest.raises(ValueError, match="twice"):
        JsonLines([path, path])
    (tmp_path / "rows.jsonl.gz").write_bytes(b"")
    with pytest.raises(ValueError, match="RecordStream"):
        JsonLines(tmp_path / "rows.jsonl.gz")


def test_the_index_is_kept_and_made_again_when_stale(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(5))
    assert len(JsonLines(path)) == 5
    kept = tmp_path / "rows.jsonl.index"
    first = kept.stat().st_mtime_ns
    assert len(JsonLines(path)) == 5 and kept.stat().st_mtime_ns == first
    write_jsonl(path, range(7))
    assert len(JsonLines(path)) == 7
    write_jsonl(path, range(10, 17))  # of the same size, at another time
    os.utime(path, ns=(1, 1))
    assert JsonLines(path)[0]["id"] == 10 or len(JsonLines(path)) == 7
    kept.write_bytes(b"nonsense")
    assert len(JsonLines(path)) == 7
    kept.write_bytes(kept.read_bytes()[:-3])
    assert len(JsonLines(path)) == 7
    assert not [name for name in os.listdir(tmp_path) if name.startswith(".rows")]


def test_a_file_that_changes_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(5))
    rows = pickle.loads(pickle.dumps(JsonLines(path)))
    assert rows[4]["id"] == 4
    write_jsonl(path, range(9))
    fresh = JsonLines(path)
    assert len(fresh) == 9
    other = pickle.loads(pickle.dumps(rows))
    assert len(other) == 9


def test_the_index_goes_to_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(5))
    assert len(JsonLines(path, index_folder=tmp_path / "made" / "here")) == 5
    assert len(list((tmp_path / "made" / "here").iterdir())) == 1 and not (tmp_path / "rows.jsonl.index").exists()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "rows.jsonl.index").mkdir()  # nothing can be written under this name
    with pytest.raises(OSError):
        (tmp_path / "rows.jsonl.index").write_bytes(b"")


def test_case_d02_pickles_are_small(tmp_path: Path) -> None:
    rows = JsonLines(write_jsonl(tmp_path / "rows.jsonl", range(20_000)))
    assert rows[19_999]["id"] == 19_999
    assert len(pickle.dumps(rows)) < 2_000
    assert pickle.loads(pickle.dumps(rows))[12_345]["id"] == 12_345


def _read_in_child(rows: Any, start: int, queue: Any) -> None:
    queue.put([rows[i]["id"] for i in range(start, len(rows), 4)])


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_case_d04_handles_are_per_process(tmp_path: Path, method: str) -> None:
    rows = JsonLines(write_jsonl(tmp_path / "rows.jsonl", range(2_000)))
    assert rows[0]["id"] == 0
    context: Any = get_context(method)
    queue = context.Queue()
    children = [context.Process(target=_read_in_child, args=(rows, start, queue)) for start in range(4)]
    for child in children:
        child.start()
    found = sorted(i for _ in children for i in queue.get(timeout=60))
    for child in children:
        child.join()
    assert found == list(range(2_000))


def test_case_d04_threads_share_a_file(tmp_path: Path) -> None:
    rows = JsonLines(write_jsonl(tmp_path / "rows.jsonl", range(2_000)))
    wrong: list[int] = []

    def read(start: int) -> None:
        wrong.extend(i for i in range(start, 2_000, 4) if rows[i]["id"] != i)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_no_draws_without_a_transform(tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "rows.jsonl", range(3))
    assert JsonLines(path).draws is False
    rows = JsonLines(path, transform=lambda row: row | {"id": row["id"] + 1})
    assert rows.draws is True and rows[0]["id"] == 1 and [r["id"] for r in rows.__getitems__([1, 2])] == [2, 3]


def test_through_a_plan_and_a_loader(tmp_path: Path) -> None:
    rows = JsonLines(write_jsonl(tmp_path / "rows.jsonl", range(100)))
    plan = BatchPlan(Blocks(len(rows), block=8, window=2), FixedSize(10), seed=3)
    batches = list(Loader(rows, plan=plan, num_workers=2))
    assert sorted(i for batch in batches for i in batch["id"].tolist()) == list(range(100))
    assert batches[0]["text"] == [f"row {i}" for i in batches[0]["id"].tolist()]
