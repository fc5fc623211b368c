"""Parquet by row groups."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from bestiary.records import ParquetRows, RecordStream
from record_files import write_parquet

pytest.importorskip("pyarrow")


def test_rows_of_several_files_and_groups(tmp_path: Path) -> None:
    write_parquet(tmp_path / "a.parquet", range(20))
    write_parquet(tmp_path / "b.parquet", range(20, 25))
    rows = ParquetRows(tmp_path / "*.parquet")
    assert len(rows) == 25 and rows[17] == {"id": 17, "text": "row 17"}
    assert [row["id"] for row in rows.__getitems__([24, 0, 13, -1, 7])] == [24, 0, 13, 24, 7]
    assert rows.locate(17) == "a.parquet, row 17 (row group 2, row 3 in it)"
    assert len(pickle.dumps(rows)) < 2_000 and pickle.loads(pickle.dumps(rows))[22]["id"] == 22
    with pytest.raises(IndexError):
        rows[25]


def test_values_are_what_pyarrow_makes_of_them(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"a": [1, None], "b": [b"x", b"y"], "c": [[1.5], []], "d": [True, False]})
    pq.write_table(table, tmp_path / "t.parquet")
    rows = ParquetRows(tmp_path / "t.parquet")
    assert [rows[0], rows[1]] == table.to_pylist() == list(RecordStream(tmp_path / "t.parquet"))


def test_what_is_no_parquet_says_so(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(OSError, match=r"bad\.parquet cannot be read"):
        len(ParquetRows(tmp_path / "bad.parquet"))
