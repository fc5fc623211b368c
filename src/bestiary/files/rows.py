"""The rows of a CSV or JSON-lines table with their line numbers, and text columns that hold a million of them in arrays."""

from __future__ import annotations

import csv
import json
import os
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from bestiary.files.names import PackedNames

_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")


class TextColumn:
    """A growing column of strings in one byte array."""

    def __init__(self) -> None:
        """Start without rows."""
        self._data, self._offsets = bytearray(), array("q", [0])

    def append(self, text: str) -> None:
        """Add a row."""
        self._data += text.encode("utf-8", "surrogatepass")
        self._offsets.append(len(self._data))

    def packed(self) -> PackedNames:
        """Return the rows."""
        return PackedNames.from_arrays(np.frombuffer(self._data, np.uint8), np.frombuffer(self._offsets, np.int64))


def read_rows(path: str | os.PathLike[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (number of the line that a row begins on, the row by column); blank lines are passed over.

    Raises:
        ValueError: not a table, or a line that cannot be read; the message names file and line.
    """
    kind = Path(path).suffix.lower()
    if kind not in _ENDINGS:
        raise ValueError(f"{path} should end in {', '.join(_ENDINGS)}, which tells how to read it")
    with open(path, encoding="utf-8-sig", newline="") as file:
        line = [1]  # where the row begins that is being read, for the message
        try:
            if "json" in kind:
                yield from _json_rows(file, line)
            else:
                yield from _csv_rows(file, "\t" if kind == ".tsv" else ",", line)
        except (ValueError, csv.Error) as error:
            raise ValueError(f"{path}, line {line[0]}: {error}") from error


def _json_rows(file: Iterable[str], line: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    for line[0], text in enumerate(file, 1):
        if not text.strip():
            continue
        row = json.loads(text)
        if type(row) is not dict:
            raise ValueError(f"expected an object with a file name, but found {text.strip():.80}")
        yield line[0], row


def _csv_rows(file: Iterable[str], delimiter: str, line: list[int]) -> Iterator[tuple[int, dict[str, Any]]]:
    reader = csv.reader(file, delimiter=delimiter, strict=True)
    header: list[str] = []
    for cells in reader:
        if cells and not header:
            header = cells
            if len(set(header)) < len(header):
                raise ValueError(f"the header names a column twice: {', '.join(map(repr, header))}")
        elif cells:
            if len(cells) != len(header):
                raise ValueError(f"found {len(cells)} cells, but the header has {len(header)}")
            yield line[0], dict(zip(header, cells, strict=True))
        line[0] = reader.line_num + 1  # a quoted cell may hold line breaks


def converted(where: str, row: dict[str, Any], column: str, kind: type) -> Any:
    """Return a cell as str, int or float.

    Raises:
        ValueError: the cell is missing, null, or of another kind; the message says where.
    """
    value = row.get(column)
    try:
        if value is None or isinstance(value, (bool, list, dict)):
            raise ValueError
        if kind is int and isinstance(value, float) and not value.is_integer():
            raise ValueError
        found = kind(value)
        if kind is int and not -(2**63) <= found < 2**63:
            raise OverflowError
        return found
    except (ValueError, OverflowError):
        raise ValueError(f"{where}: column {column!r} {state_of(row, column)}, expected {kind.__name__}") from None


def state_of(row: dict[str, Any], column: str) -> str:
    """Say what a cell holds, or that it is missing."""
    return f"is {row[column]!r:.80}" if column in row else "is missing"
