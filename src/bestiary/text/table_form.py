"""How the records of a table are written, and Python's own limit on the length of a field."""

from __future__ import annotations

import csv
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from bestiary.text.decoding import known_encoding

_DELIMITERS = {".csv": ",", ".tsv": "\t", ".tab": "\t", ".jsonl": "", ".ndjson": ""}


class Form(NamedTuple):
    """How records are written: the delimiter of columns ("" for JSON lines), whether quotes quote, the encoding."""

    delimiter: str
    quotes: bool
    encoding: str

    def reader(self, lines: Any) -> Iterator[list[str]]:
        """Return a strict CSV reader over lines: a quote left open is an error, not one huge field."""
        how: Any = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        return csv.reader(lines, delimiter=self.delimiter, quoting=how, strict=True)


def table_form(path: str, delimiter: str | None, quotes: bool, encoding: str) -> Form:
    """Return the form of a table from its name and the caller's wishes.

    Raises:
        ValueError: the name says nothing, or line ends cannot be found in this encoding.
    """
    coding, ending = known_encoding(encoding), Path(path).suffix.lower()
    if delimiter is None and ending not in _DELIMITERS:
        raise ValueError(f"{path} should end in one of {', '.join(_DELIMITERS)}; else give delimiter= (such as ',')")
    if "\n".encode(coding) != b"\n":
        raise ValueError(f"{path}: a table in {coding} cannot be read line by line; convert it to utf-8")
    return Form(_DELIMITERS[ending] if delimiter is None else delimiter, quotes, coding)


_lock = threading.Lock()
_raised = [0, 0]  # how many calls read long fields just now; the limit to go back to


@contextmanager
def long_fields(size: int | None) -> Iterator[None]:
    """Lift the csv module's limit, which is one for the whole process, while a field longer than it may come."""
    if size is not None and size <= csv.field_size_limit():
        yield
        return
    with _lock:
        if _raised[0] == 0:
            _raised[1] = csv.field_size_limit(2**31 - 1)
        _raised[0] += 1
    try:
        yield
    finally:
        with _lock:
            _raised[0] -= 1
            if _raised[0] == 0:
                csv.field_size_limit(_raised[1])
