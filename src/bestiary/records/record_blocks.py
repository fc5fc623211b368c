"""Some neighbouring records on their way through a stream: cut before, read when they are asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

from bestiary.records.faults import too_long

if TYPE_CHECKING:
    from bestiary.records.csv_columns import ColumnRows
    from bestiary.records.csv_form import CsvForm
    from bestiary.records.feeds import Feed
    from bestiary.records.json_form import JsonForm
    from bestiary.records.splitting import Cut


class Block(Protocol):
    """Some neighbouring records of one file."""

    def __len__(self) -> int:
        """Return how many records these are."""

    def at(self, row: int) -> int:
        """Return the place of a record; that of the row behind the last is where reading goes on."""

    def many(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """Return records; any error at all means that they have to be read one by one."""

    def one(self, row: int) -> dict[str, Any]:
        """Return one record, or raise what is wrong with it."""


class FaultBlock:
    """Stands for what cannot be read: its one record raises."""

    def __init__(self, error: Exception, at: int, behind: int) -> None:
        self.error, self.places = error, (at, behind)

    def __len__(self) -> int:
        return 1

    def at(self, row: int) -> int:
        """Return its place, or where reading goes on."""
        return self.places[row]

    def many(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """Raise what is wrong."""
        raise self.error

    def one(self, row: int) -> dict[str, Any]:
        """Raise what is wrong."""
        raise self.error


class TextBlock:
    """Lines of JSON, or records of CSV."""

    def __init__(
        self,
        form: JsonForm | CsvForm,
        name: str,
        feed: Feed,
        base: int,
        data: bytes,
        cut: Cut,
        limit: int | None,
    ) -> None:
        self.form, self.name, self.feed, self.base, self.data, self.limit = form, name, feed, base, data, limit
        self.starts, self.stops, self.behind = cut.starts.tolist(), cut.stops.tolist(), cut.used
        self.line, self.regular = feed.line(base), cut.regular
        self.names: list[str] = []
        self.columns: ColumnRows | None = None
        self.tried = False

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, row: int) -> int:
        """Return the byte of a record."""
        return self.base + (self.starts[row] if row < len(self.starts) else self.behind)

    def where(self, row: int) -> str:
        """Return file, line and byte of a record."""
        start = self.starts[row]
        line = (
            self.feed.line_behind(self.base + start)
            if self.line is None
            else self.line + self.data.count(b"\n", 0, start)
        )
        return f"{self.name}, line {line}, byte {self.base + start}"

    def many(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """Return records; any error at all means that they have to be read one by one."""
        if self.limit is not None and any(
            self.stops[row] - self.starts[row] > self.limit for row in range(start, stop)
        ):
            raise ValueError("one of these is too long")
        if self.form.kind == "csv":
            columns = self._columns()
            if columns is None:
                raise ValueError("some record of this block is bad")
            return columns[start:stop]
        data = self.data
        return self.form.many([data[a:b] for a, b in zip(self.starts[start:stop], self.stops[start:stop], strict=True)])

    def one(self, row: int) -> dict[str, Any]:
        """Return one record, or raise what is wrong with it."""
        record, where = self.raw(row), self._where_of(row)
        if self.limit is not None and len(record) > self.limit:
            raise too_long(where(), len(record), self.limit)
        if self.form.kind == "json":
            return self.form.one(record, where)
        columns = self._columns()
        return self.form.one(record, self.names, where) if columns is None else columns[row]

    def raw(self, row: int) -> bytes:
        """Return the bytes of a record."""
        return self.data[self.starts[row] : self.stops[row]]

    def _columns(self) -> ColumnRows | None:
        """Return all records of CSV, read when the first is asked for; None where some is bad."""
        from bestiary.records.csv_columns import csv_block

        if self.columns is None and not self.tried:
            self.tried = True
            form: Any = self.form
            with suppress(Exception):  # the bad one is found when they are read one by one
                self.columns = csv_block(form, self.names, self.data, self.starts, self.stops, self.regular)
        return self.columns

    def _where_of(self, row: int) -> Callable[[], str]:
        return lambda: self.where(row)
