"""CSV by index: quotes, line ends, what is wrong with a record, and Python's csv as the judge of what is right."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.records import CsvRows, RecordError, RecordStream

E16 = b'id,text\r\n1,"a\nb"\r\n\r\n2,"x ""q"", y"\r\n3,"c\r\nd"'
TEXTS = ["a\nb", 'x "q", y', "c\r\nd"]


def made(folder: Path, data: bytes, name: str = "rows.csv") -> Path:
    path = folder / name
    path.write_bytes(data)
    return path


def listed(rows: Any) -> list[dict[str, Any]]:
    return [rows[i] for i in range(len(rows))]


def test_case_e16_quoted_line_ends(tmp_path: Path) -> None:
    rows = CsvRows(made(tmp_path, E16))
    assert listed(rows) == [{"id": str(i + 1), "text": text} for i, text in enumerate(TEXTS)]
    assert rows.locate(1) == "rows.csv, line 5, byte 20" and rows.columns == ["id", "text"]
    assert rows.__getitems__([2, 0]) == [rows[2], rows[0]]


@pytest.mark.parametrize("readers", [1, 2, 3, *range(4, len(E16) + 2, 5)])
def test_case_e16_splits_anywhere_give_the_same_records(tmp_path: Path, readers: int) -> None:
    stream = RecordStream(made(tmp_path, E16))
    found = [sample for reader in range(readers) for sample in stream.open(reader, readers, 0, 0)]
    assert [sample["text"] for sample in found] == TEXTS


@pytest.mark.parametrize("at", range(len(E16) + 1))
def test_case_e16_json_lines_split_at_every_byte(tmp_path: Path, at: int) -> None:
    data = b'{"t": "a"}\r\n\r\n{"t": "bc"}\n \n{"t": "d"}'
    stream = RecordStream(made(tmp_path, data, "rows.jsonl"))
    start = {"reader": 0, "readers": 3, "unit": 0, "piece": 0, "at": None, "taken": 0, "end": None}
    at = min(at, len(data))
    halves = [start | {"work": [[0, [[0, 0, at]]]]}, start | {"work": [[0, [[0, at, len(data)]]]]}]
    found = [sample["t"] for sample in stream.open(0, 1, 0, 0, halves)]
    assert found == ["a", "bc", "d"]


def test_case_e17_a_byte_order_mark(tmp_path: Path) -> None:
    mark = b"\xef\xbb\xbf"
    assert CsvRows(made(tmp_path, mark + b"id,text\n1,a\n"))[0] == {"id": "1", "text": "a"}
    assert CsvRows(made(tmp_path, mark + b'"a, b",text\n1,a\n', "b.csv"))[0] == {"a, b": "1", "text": "a"}
    made(tmp_path, b"id,text\n1,a\n", "s1.csv")
    made(tmp_path, mark + b"id,text\n2,b\n", "s2.csv")
    assert [row["id"] for row in listed(CsvRows(tmp_path / "s?.csv"))] == ["1", "2"]


def test_case_e19_fields_of_any_length_and_a_limit_of_ones_own(tmp_path: Path) -> None:
    path = made(tmp_path, b'id,text\n1,"' + b"y" * 200_000 + b'"\n2,b\n')
    before = csv.field_size_limit()
    assert [len(row["text"]) for row in listed(CsvRows(path))] == [200_000, 1]
    assert [len(row["text"]) for row in RecordStream(path)] == [200_000, 1]
    with pytest.raises(RecordError, match=r"rows\.csv, line 2, byte 8: .*200005 bytes.*limit=100"):
        CsvRows(path, limit=100)[0]
    assert csv.field_size_limit() == before


def test_a_process_with_a_small_limit_of_csv(tmp_path: Path) -> None:
    path = made(tmp_path, b'id,text\n1,"yyy ""y"""\n')
    before = csv.field_size_limit(2)
    try:
        assert listed(CsvRows(path)) == [{"id": "1", "text": 'yyy "y"'}]
        assert csv.field_size_limit() == 2
    finally:
        csv.field_size_limit(before)


@pytest.mark.parametrize(
    ("data", "line", "what"),
    [
        (b'1,"abc\n2,b\n3,c\n', 2, "never closed"),
        (b'1,"abc\n2,"b"\n3,c\n', 2, "never closed|follows the closing quote"),
        (b'1,"a"b\n2,b\n3,c\n', 2, "follows the closing quote"),
        (b"1\n2,b\n3,c\n", 2, "short row: 1 fields"),
        (b"1,a,b\n2,b\n3,c\n", 2, "long row: 3 fields"),
        (b"1,\xff\n2,b\n3,c\n", 2, "0xff"),
        (b"1,a\rx\n2,b\n3,c\n", 2, "carriage return|short|long"),
        (b'2,b\n3,c\n1,"ab', 4, "never closed"),
    ],
)
def test_a_bad_record_is_named_and_takes_no_other_along(tmp_path: Path, data: bytes, line: int, what: str) -> None:
    path = made(tmp_path, b"id,text\n" + data)
    for rows in (CsvRows(path), RecordStream(path).open(0, 1, 0, 0)):
        good, errors = [], []
        count = len(rows) if isinstance(rows, CsvRows) else 99
        for i in range(count):
            try:
                good.append(rows[i]["text"] if isinstance(rows, CsvRows) else next(rows)["text"])
            except RecordError as error:
                errors.append(error)
            except StopIteration:
                break
        assert good == ["b", "c"] and len(errors) == 1
        assert errors[0].where.startswith(f"rows.csv, line {line}, byte ")
        with pytest.raises(RecordError, match=what):
            raise errors[0]


def test_an_unquoted_quote_is_a_plain_character(tmp_path: Path) -> None:
    data = b'id,text\n1,5" disk\n2,a "b" c\n3,"d\ne"\n'
    rows = listed(CsvRows(made(tmp_path, data)))
    assert [row["text"] for row in rows] == ['5" disk', 'a "b" c', "d\ne"]
    assert [row["text"] for row in RecordStream(tmp_path / "rows.csv")] == ['5" disk', 'a "b" c', "d\ne"]


def test_options(tmp_path: Path) -> None:
    tabs = made(tmp_path, b'id\ttext\n1\t"a\n2\t\n', "rows.tsv")
    rows = CsvRows(tabs, quotes=False, types={"id": int})
    assert listed(rows) == [{"id": 1, "text": '"a'}, {"id": 2, "text": ""}]
    bare = made(tmp_path, b"1;a\n2;b\n", "bare.csv")
    assert listed(CsvRows(bare, delimiter=";", columns=["id", "text"]))[1] == {"id": "2", "text": "b"}
    with pytest.raises(RecordError, match=r"bare\.csv, line 1.*'id'"):
        CsvRows(bare, delimiter=";", columns=["text", "id"], types={"id": int})[0]
    with pytest.raises(ValueError, match="delimiter"):
        CsvRows(bare, delimiter=";;")
    assert len(CsvRows(made(tmp_path, b"", "empty.csv"))) == 0
    assert len(CsvRows(made(tmp_path, b"id,text\n", "head.csv"))) == 0


def test_heads_that_cannot_be(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"twice\.csv: .*'id' twice"):
        CsvRows(made(tmp_path, b"id,id\n1,2\n", "twice.csv"))[0]
    made(tmp_path, b"id,text\n1,a\n", "s1.csv")
    made(tmp_path, b"id,other\n1,a\n", "s2.csv")
    rows = CsvRows(tmp_path / "s?.csv")
    assert rows[0] == {"id": "1", "text": "a"}
    with pytest.raises(ValueError, match=r"s2\.csv has the columns .*other.*s1\.csv has"):
        rows[1]


CELLS = st.text(st.sampled_from('ab"\n\r,é '), max_size=6)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.tuples(CELLS, CELLS), max_size=12), st.sampled_from(["\n", "\r\n"]))
def test_what_python_writes_is_read(tmp_path_factory: Any, table: Any, end: str) -> None:
    folder = tmp_path_factory.mktemp("law")
    text = io.StringIO(newline="")
    bare = end == "\n" and any("\r" in cell for row in table for cell in row)  # csv.writer would not quote these
    writer = csv.writer(text, lineterminator=end, quoting=csv.QUOTE_ALL if bare else csv.QUOTE_MINIMAL)
    writer.writerow(["a", "b"])
    for row in table:
        writer.writerow(row)
    path = made(folder, text.getvalue().encode())
    expected = [{"a": a, "b": b} for a, b in table]
    rows = CsvRows(path)
    assert listed(rows) == expected
    assert (list(rows.__getitems__(list(range(len(rows))))) if expected else []) == expected
    assert list(RecordStream(path)) == expected
    for readers in (2, 3):
        stream = RecordStream(path)
        assert [row for k in range(readers) for row in stream.open(k, readers, 0, 0)] == expected


@settings(max_examples=150, deadline=None)
@given(st.text(st.sampled_from('a",\n'), max_size=30))
def test_any_text_gives_the_same_records_by_index_and_as_stream(tmp_path_factory: Any, text: str) -> None:
    path = made(tmp_path_factory.mktemp("law"), b"a,b\n" + text.encode())

    def one_by_one(read: Any) -> list[Any]:
        found: list[Any] = []
        while True:
            try:
                found.append(read(len(found)))
            except RecordError as error:
                found.append(error.where)
            except (StopIteration, IndexError):
                return found

    rows = CsvRows(path)
    by_index = one_by_one(lambda i: rows[i])
    reader = RecordStream(path).open(0, 1, 0, 0)
    assert one_by_one(lambda _: next(reader)) == by_index
    good = [tuple(row.values()) for row in by_index if isinstance(row, dict)]
    if len(good) == len(by_index):  # then Python's csv sees the same, blank lines apart
        lines = csv.reader(io.StringIO(text, newline=""), strict=True)
        assert good == [
            tuple(row) for row in lines if row and row != [""] and "".join(row).strip(" ") + "," * (len(row) - 1)
        ]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("last", ["", "\x1d", "\x1f", '5" disk'])
def test_many_blocks_of_records_as_python_reads_them(tmp_path: Path, end: str, last: str) -> None:
    lines = [f'{i},"a ""{i}""\r\n",{i / 4},' for i in range(9000)] + ["x,,é,NA", " \t", '2,"","""",' + last]
    text = "a,b,c,d" + end + end.join(lines) + end
    path = made(tmp_path, text.encode())
    expected = [
        dict(zip("abcd", row, strict=True)) for row in csv.reader(io.StringIO(text, newline="")) if len(row) == 4
    ][1:]
    assert list(RecordStream(path)) == expected == listed(CsvRows(path))
    shuffled = list(RecordStream(path, shuffle=True))
    assert shuffled != expected and sorted(row["a"] for row in shuffled) == sorted(row["a"] for row in expected)


def test_a_limit_holds_behind_records_that_were_read(tmp_path: Path) -> None:
    reader = RecordStream(made(tmp_path, b"a,b\n1,2\n" + b"3" * 90 + b",4\n5,6\n"), limit=80).open(0, 1, 0, 0)
    assert [row["a"] for row in reader.take(1)] == ["1"]
    with pytest.raises(RecordError, match="limit=80"):
        next(reader)
    assert next(reader) == {"a": "5", "b": "6"}
