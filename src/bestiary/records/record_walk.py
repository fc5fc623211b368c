"""One record of CSV read byte by byte: what counting quotes cannot explain, and what is wrong with a record."""

from __future__ import annotations

import re
from typing import Any, NamedTuple


class Walk(NamedTuple):
    """One record read byte by byte: where it ends (-1: not in this text), its fields, and what is wrong with it."""

    end: int
    fields: list[tuple[int, int]]
    wrong: str
    wrong_at: int


def walk_record(data: bytes, start: int, delimiter: bytes, final: bool) -> Walk:
    """Read one record from a border, byte by byte."""
    plain, fields, at = _plain(delimiter), list[tuple[int, int]](), start
    while True:
        begin = at
        if data[at : at + 1] == b'"':
            at = _closing(data, at + 1) + 1
            if at == 0 or (at == len(data) and not final):
                return _broken(data, start, fields, "a quote is opened and never closed", begin) if final else _MORE
        else:
            match = plain.match(data, at)
            at = match.end() if match else at
        fields.append((begin, at))
        follows = data[at : at + 1]
        if follows == delimiter:
            at += 1
        elif follows == b"\n" or data[at : at + 2] == b"\r\n":
            return Walk(at + 1 + (follows == b"\r"), fields, "", -1)
        elif at + len(follows) >= len(data) and follows in (b"", b"\r"):
            return Walk(len(data), fields, "", -1) if final else _MORE
        elif follows == b"\r":
            return _broken(
                data, start, fields, "a carriage return outside quotes has no line feed behind it", at, final
            )
        else:
            return _broken(data, start, fields, "text follows the closing quote of a field", at, final)


_MORE = Walk(-1, [], "", -1)


def _broken(data: bytes, start: int, fields: Any, what: str, at: int, final: bool = True) -> Walk:
    end = data.find(b"\n", start) + 1
    return Walk(end or (len(data) if final else -1), fields, what, at)


def _closing(data: bytes, at: int) -> int:
    """Return the quote that closes a field whose text begins at ``at``; -1 without one."""
    while True:
        at = data.find(b'"', at)
        if at < 0 or data[at + 1 : at + 2] != b'"':
            return at
        at += 2


def _plain(delimiter: bytes) -> re.Pattern[bytes]:
    return re.compile(b"[^" + re.escape(delimiter) + b"\r\n]*")
