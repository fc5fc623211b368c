"""Texts in a CSV, TSV or JSON-lines table: listed once, read from the file one record at a time.

Layout::

    rows.csv, rows.tsv    a head line with the names of the columns; quoted fields may hold line ends
    rows.jsonl            one JSON object a line

Kept in memory are a byte offset, a line number and a label for each record, never the records.
"""

from __future__ import annotations

import csv
import io
import json
import os
from array import array
from collections.abc import Iterator
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bestiary.files.names import PackedNames
from bestiary.text.decoding import decode
from bestiary.text.table_form import Form, long_fields


class Listing(NamedTuple):
    """What one pass over a table finds; codes index ``labels``, which come in order of first sight."""

    texts: TableTexts
    codes: npt.NDArray[np.int64]
    labels: list[str]
    blank: npt.NDArray[np.int64]


class TableTexts:
    """The texts of a table, each read when asked for by one look into the file."""

    def __init__(
        self, path: str, column: str, at: int, form: Form, status: os.stat_result, starts: Any, lines: Any, names: Any
    ) -> None:
        self.path, self.column, self.at, self.form = path, column, at, form
        self.stamp = (status.st_size, status.st_mtime_ns)
        self.starts = np.frombuffer(starts, np.int64)  # (N + 1,)
        self.lines = np.frombuffer(lines, np.int64)
        self.names: PackedNames | None = names

    def __len__(self) -> int:
        return len(self.lines)

    def read(self, row: int) -> str:
        """Open the file, read one record and close it.

        Raises:
            ValueError: the file has changed since it was listed.
        """
        start, stop = int(self.starts[row]), int(self.starts[row + 1])
        with open(self.path, "rb", buffering=0) as file:
            status = os.fstat(file.fileno())
            if (status.st_size, status.st_mtime_ns) != self.stamp:
                raise ValueError(f"{self.path} has changed since it was listed; make the dataset again")
            file.seek(start)
            data = file.read(stop - start)
        text = decode(data, self.form.encoding, self.path, start)
        if not self.form.delimiter:
            return str(json.loads(text)[self.column])
        with long_fields(len(text)):
            return next(self.form.reader(io.StringIO(text, newline="")))[self.at]

    def name(self, row: int) -> str:
        """Return the record's id, else the file's name and the record's line."""
        return f"{os.path.basename(self.path)}:{self.lines[row]}" if self.names is None else self.names[row]

    def locate(self, row: int) -> str:
        """Return the path and the record's line, counted from 1."""
        return f"{self.path}, line {self.lines[row]}"


def list_table(path: str, *, text: str, label: str, name: str | None, form: Form) -> Listing:
    """Read a table once: where its records begin, and their labels.

    Raises:
        OSError: the file cannot be read.
        ValueError: a column is missing, a record is broken, or a byte does not fit the encoding; names file and line.
    """
    starts, lines, codes, blank = array("q"), array("q"), array("q"), array("q")
    found: dict[str, int] = {}
    ids: list[str] = []
    with open(path, "rb") as file, long_fields(None):
        status = os.fstat(file.fileno())
        source = _Lines(file, path, form.encoding)
        records = _csv_records if form.delimiter else _json_records
        places = _Columns(path, text, label, name)
        for start, line, values in records(source, form, places):
            words, kind, own = _cells(values, path, line)
            if not words.strip():
                blank.append(len(lines))
            starts.append(start)
            lines.append(line)
            codes.append(found.setdefault(kind, len(found)))
            if name is not None:
                ids.append(own)
        starts.append(source.at)
    if not lines:
        raise ValueError(f"{path} holds no records; expected the columns {text!r} and {label!r} and one record or more")
    names = PackedNames(ids) if name is not None else None
    texts = TableTexts(path, text, places.at, form, status, starts, lines, names)
    return Listing(texts, np.frombuffer(codes, np.int64), list(found), np.frombuffer(blank, np.int64))


class _Columns:
    """The names of the wanted columns; ``at`` is where the text stands in a CSV record."""

    def __init__(self, path: str, text: str, label: str, name: str | None) -> None:
        self.path, self.wanted, self.at = path, [text, label] + ([] if name is None else [name]), 0

    def find(self, found: list[str], line: int) -> list[int]:
        """Return where the wanted columns stand."""
        missing = [name for name in self.wanted if name not in found]
        if missing:
            raise ValueError(
                f"{self.path}, line {line}: no column {missing[0]!r} among {found[:20]}; "
                "say which by text=, label= and name=, or how columns are parted by delimiter="
            )
        twice = [name for name in self.wanted if found.count(name) > 1]
        if twice:
            raise ValueError(f"{self.path}, line {line}: the column {twice[0]!r} comes twice; rename one of them")
        places = [found.index(name) for name in self.wanted]
        self.at = places[0]
        return places


class _Lines:
    """Decoded lines of a file; knows at which byte the next one begins, and the number of the last."""

    def __init__(self, file: IO[bytes], path: str, encoding: str) -> None:
        self.file, self.path, self.encoding = file, path, encoding
        self.at = self.number = 0

    def __iter__(self) -> _Lines:
        return self

    def __next__(self) -> str:
        line = self.file.readline()
        if not line:
            raise StopIteration
        start = self.at
        self.at += len(line)
        self.number += 1
        return decode(line, self.encoding, self.path, start)


def _csv_records(source: _Lines, form: Form, places: _Columns) -> Iterator[tuple[int, int, list[Any]]]:
    """Yield the first byte, the first line and the wanted cells of each record; the reader itself finds borders."""
    wanted: list[int] = []
    width, start, line = 0, 0, 1
    try:
        for row in form.reader(source):
            if len(row) > 1 or (row and row[0].strip()):  # else a blank line
                if not wanted:
                    wanted, width = places.find(row, line), len(row)
                elif len(row) != width:
                    raise ValueError(f"{source.path}, line {line}: {len(row)} columns, but the head has {width}")
                else:
                    yield start, line, [row[at] for at in wanted]
            start, line = source.at, source.number + 1
    except csv.Error as error:
        raise ValueError(
            f"{source.path}, line {line}: {error}; repair the quotes, or give quotes=False if they are plain characters"
        ) from None
    if not wanted:
        places.find([], line)


def _json_records(source: _Lines, form: Form, places: _Columns) -> Iterator[tuple[int, int, list[Any]]]:
    start = 0
    for text in source:
        if text.strip():
            try:
                row = json.loads(text)
            except ValueError as error:
                raise ValueError(f"{source.path}, line {source.number}, byte {start}: no JSON ({error})") from None
            if not isinstance(row, dict):
                raise ValueError(f"{source.path}, line {source.number}: expected a JSON object, but found {row!r:.80}")
            places.find(list(row), source.number)
            yield start, source.number, [row[name] for name in places.wanted]
        start = source.at


def _cells(values: list[Any], path: str, line: int) -> tuple[str, str, str]:
    """Check text and label of a record; return them and its id."""
    text, label = values[0], values[1]
    is_text = isinstance(text, str)
    if not is_text:
        raise ValueError(f"{path}, line {line}: the text should be a string, but is {text!r:.80}")
    if not isinstance(label, (str, int)) or label == "":
        raise ValueError(f"{path}, line {line}: the label should be a word or an integer, but is {label!r:.80}")
    return text, label if isinstance(label, str) else json.dumps(label), str(values[-1])
