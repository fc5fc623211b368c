"""Lines of JSON on their way through a stream: split at once, placed only when somebody asks where they stand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from bestiary.records.faults import too_long

if TYPE_CHECKING:
    from bestiary.records.feeds import Feed
    from bestiary.records.json_form import JsonForm


class LineBlock:
    """Neighbouring lines of a file, none of them blank; ``closed`` says that the last one has its line feed."""

    def __init__(
        self, form: JsonForm, name: str, feed: Feed, base: int, lines: list[bytes], closed: bool, limit: int | None
    ) -> None:
        self.form, self.name, self.feed, self.base, self.limit = form, name, feed, base, limit
        self.lines, self.closed, self.line = lines, closed, feed.line(base)
        self._known = (0, 0)

    def __len__(self) -> int:
        return len(self.lines)

    def at(self, row: int) -> int:
        """Return the byte of a line; for the row behind the last, where reading goes on."""
        known, at = self._known if self._known[0] <= row else (0, 0)
        at += sum(map(len, self.lines[known:row])) + row - known
        self._known = (row, at)
        return self.base + at - (row == len(self.lines) and not self.closed)

    def where(self, row: int) -> str:
        """Return file, line and byte of a line."""
        line = self.feed.line_behind(self.at(row)) if self.line is None else self.line + row
        return f"{self.name}, line {line}, byte {self.at(row)}"

    def many(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """Return records; any error at all means that they have to be read one by one."""
        lines = self.lines[start:stop]
        if self.limit is not None and max(map(len, lines)) >= self.limit:
            raise ValueError("one of these may be too long")
        return self.form.many(lines)

    def one(self, row: int) -> dict[str, Any]:
        """Return one record, or raise what is wrong with it."""
        record = self.raw(row)
        if self.limit is not None and len(record) > self.limit:
            raise too_long(self.where(row), len(record), self.limit)
        return self.form.one(record, lambda: self.where(row))

    def raw(self, row: int) -> bytes:
        """Return the bytes of a line."""
        ended = self.closed or row < len(self.lines) - 1
        return self.lines[row] + b"\n" if ended else self.lines[row]


def split_lines(data: bytes, room: int, final: bool) -> tuple[list[bytes], int] | None:
    """Return the lines that begin in the first ``room`` bytes (-1: in all) and the bytes they take; None: some are blank.

    >>> split_lines(b"a\\nbc\\nd", 3, final=False)
    ([b'a', b'bc'], 5)
    """
    end = data.find(b"\n", room - 1) + 1 if room > 0 else 0
    lines = (data[:end] if end else data).split(b"\n")
    rest = lines.pop()
    if rest and final:
        lines.append(rest)
        rest = b""
    return (lines, (end or len(data)) - len(rest)) if all(map(bytes.lstrip, lines)) else None
