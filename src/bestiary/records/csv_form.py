"""CSV after RFC 4180: how a file begins, where records end, and what their fields are."""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from bestiary.records.faults import RecordError, fault

if TYPE_CHECKING:
    from bestiary.records.handles import Handle
    from bestiary.records.splitting import Cut

MARK = b"\xef\xbb\xbf"
HEAD = 1 << 16  # bytes read to find the head line, more where that is longer


@dataclass(frozen=True)
class CsvForm:
    """How CSV is cut and read; ``columns`` are given for files without a head line."""

    delimiter: str = ","
    quotes: bool = True
    columns: tuple[str, ...] | None = None
    types: Mapping[str, Callable[[str], Any]] | None = None
    kind: ClassVar[Literal["csv"]] = "csv"
    step: ClassVar[int] = 1 << 19

    @property
    def key(self) -> str:
        """Return what borders depend on."""
        return f"csv-1 {self.delimiter!r} {self.quotes} {self.columns is None}"

    def read_head(self, handle: Handle) -> tuple[int, list[str]]:
        """Return where the records of a file begin, and its columns.

        Raises:
            RecordError: the head line cannot be read.
        """
        size = HEAD
        while True:
            data = handle.read(size, 0)
            found = self.names(data, len(data) < size or size >= handle.size)
            if found is not None:
                return found
            size *= 4

    def names(self, data: bytes, final: bool) -> tuple[int, list[str]] | None:
        """Return where the records begin in a file that begins so, and its columns; None: more is needed."""
        if len(data) < len(MARK) and not final:
            return None
        begin = len(MARK) if data.startswith(MARK) else 0
        if self.columns is not None:
            return begin, list(self.columns)
        cut = self.cut(data[begin:], final)
        if not len(cut.starts):
            return (len(data), []) if final else None
        start, stop = int(cut.starts[0]), int(cut.stops[0])
        names = self.fields(data[begin + start : begin + stop], lambda: "the head line")
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise RecordError(f"the head line has the column {twice[0]!r} twice; rename one of them")
        return begin + stop, names

    def head(self, data: bytes, final: bool) -> int:
        """Return the length of what stands before the records of a file that begins so; -1: more is needed."""
        found = self.names(data, final)
        return -1 if found is None else found[0]

    def cut(self, data: bytes, final: bool) -> Cut:
        """Return the records in a text."""
        from bestiary.records.splitting import cut_lines, cut_quoted

        return cut_quoted(data, self.delimiter.encode(), final) if self.quotes else cut_lines(data, final)

    def rows(self, records: Sequence[bytes], width: int) -> list[list[str]]:
        """Return the fields of many records; any error at all means that they have to be read one by one."""
        if max(map(len, records)) > csv.field_size_limit():
            raise ValueError("Python's csv reads no field as long as this")
        texts = b"".join(records).decode("utf-8") if len(records) == 1 else [r.decode("utf-8") for r in records]
        how: Any = csv.QUOTE_MINIMAL if self.quotes else csv.QUOTE_NONE
        lines = [texts] if isinstance(texts, str) else texts
        found = list(csv.reader(lines, delimiter=self.delimiter, quoting=how, strict=True))
        if len(found) != len(records) or set(map(len, found)) - {width}:
            raise ValueError("not all of these have the columns of the head line")
        return found

    def fields(self, record: bytes, where: Callable[[], str]) -> list[str]:
        """Return the fields of one record of any length.

        Raises:
            RecordError: a quote is not closed, or bytes are no UTF-8 text.
        """
        delimiter = self.delimiter.encode()
        if not self.quotes:
            return [_decoded(part, where) for part in record.rstrip(b"\n").removesuffix(b"\r").split(delimiter)]
        from bestiary.records.record_walk import walk_record

        walk = walk_record(record, 0, delimiter, True)
        if walk.wrong:
            raise fault(where(), f"{walk.wrong} ({walk.wrong_at} bytes into the record): {record[:60]!r}")
        return [_decoded(_unquoted(record[start:stop]), where) for start, stop in walk.fields]

    def one(self, record: bytes, names: Sequence[str], where: Callable[[], str]) -> dict[str, Any]:
        """Read one record.

        Raises:
            RecordError: quotes, bytes, the number of fields or a type are wrong; names the place.
        """
        try:
            values = self.rows([record], len(names))[0]
        except (ValueError, csv.Error):
            values = self.fields(record, where)
        if len(values) != len(names):
            kind = "short" if len(values) < len(names) else "long"
            raise fault(where(), f"a {kind} row: {len(values)} fields, but the head line has {len(names)}")
        sample: dict[str, Any] = dict(zip(names, values, strict=True))
        for name, read in (self.types or {}).items():
            try:
                sample[name] = read(sample[name])
            except (ValueError, KeyError) as error:
                raise fault(where(), f"column {name!r}: {error}") from None
        return sample


def _unquoted(field: bytes) -> bytes:
    return field[1:-1].replace(b'""', b'"') if field[:1] == b'"' else field


def _decoded(field: bytes, where: Callable[[], str]) -> str:
    try:
        return field.decode("utf-8")
    except UnicodeDecodeError as error:
        raise fault(where(), f"byte {field[error.start]:#04x} is not UTF-8 text, in the field {field[:60]!r}") from None
