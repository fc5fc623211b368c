"""Where records of a text begin and end: at line feeds, or at line feeds outside quotes."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

IntArray = npt.NDArray[np.int64]
LF, CR, QUOTE = 10, 13, 34
FIRST_WALK = 64  # records read one by one after an odd quote, twice as many after the next


class Cut(NamedTuple):
    """What lies in a piece of text that begins at a border.

    Attributes:
        starts, stops: int64 (N,), bytes of each record that is not blank, its line end included.
        used: bytes up to the last border.
        breaks: int64, bytes of all line feeds.
        regular: whether counting quotes explained all of them, so that any CSV reader sees the same fields.
    """

    starts: IntArray
    stops: IntArray
    used: int
    breaks: IntArray
    regular: bool = True


class Walk(NamedTuple):
    """One record read byte by byte: where it ends (-1: not in this text), its fields, and what is wrong with it."""

    end: int
    fields: list[tuple[int, int]]
    wrong: str
    wrong_at: int


def cut_lines(data: bytes, final: bool) -> Cut:
    """Cut at line feeds; ``final`` says that the text ends here, so that a last line needs none.

    >>> cut = cut_lines(b'{"a": 1}\\n\\n{"a": 2}', final=True)
    >>> cut.starts.tolist(), cut.stops.tolist(), cut.used
    ([0, 10], [9, 18], 18)
    """
    breaks = np.flatnonzero(np.frombuffer(data, np.uint8) == LF)
    return _without_blanks(data, breaks + 1, breaks, final, b" \t\r\n")


def cut_quoted(data: bytes, delimiter: bytes, final: bool) -> Cut:
    """Cut at line feeds outside quotes, as RFC 4180 has it; a quote within an unquoted field is a plain character.

    A record that cannot be read (a quote never closed, text behind a closing quote) ends with its first line, so that
    it does not take the following ones along.

    >>> cut_quoted(b'1,"a\\nb"\\n2,c\\n', b",", final=True).stops.tolist()
    [8, 12]
    """
    array = np.frombuffer(data, np.uint8)
    special = np.flatnonzero((array == LF) | (array == QUOTE))
    breaks = special[array[special] == LF]
    parts: list[IntArray] = []
    at, walk = 0, FIRST_WALK
    while True:
        ends, trouble = _regular(array, special[np.searchsorted(special, at) :], delimiter[0], at, final)
        parts.append(ends)
        if trouble < 0:
            break
        at = int(ends[-1]) if len(ends) else at
        slow: list[int] = []
        while len(slow) < walk and at < len(data):
            end = walk_record(data, at, delimiter, final).end
            if end < 0:
                break
            slow.append(end)
            at = end
        parts.append(np.array(slow, dtype=np.int64))
        if len(slow) < walk:
            break
        walk *= 2
    white = b" \r\n" if delimiter == b"\t" else b" \t\r\n"
    cut = _without_blanks(data, np.concatenate(parts) if len(parts) > 1 else parts[0], breaks, final, white)
    return cut if len(parts) == 1 else cut._replace(regular=False)


def _regular(array: Any, special: IntArray, delimiter: int, at: int, final: bool) -> tuple[IntArray, int]:
    """Return the borders from ``at`` on, up to the first byte that the counting of quotes cannot explain (-1: none)."""
    quoted = array[special] == QUOTE
    inside = np.cumsum(quoted, dtype=np.uint8) & 1
    ends = special[~quoted & (inside == 0)] + 1
    quotes = special[quoted]
    opening, closing = quotes[0::2], quotes[1::2]
    before, behind = array[opening - 1], array[np.minimum(closing + 1, len(array) - 1)]
    bad_open = ~((opening == at) | (before == delimiter) | (before == LF) | (before == QUOTE))
    closed = (behind == delimiter) | (behind == LF) | (behind == CR) | (behind == QUOTE) | (closing + 1 >= len(array))
    wrong = [*opening[bad_open][:1].tolist(), *closing[~closed][:1].tolist()]
    if final and len(quotes) % 2:
        wrong.append(int(quotes[-1]))
    wrong += _bare_returns(array, at, special[~quoted], quotes)
    if not wrong:
        return ends, -1
    return ends[ends <= min(wrong)], min(wrong)


def _bare_returns(array: Any, at: int, breaks: IntArray, quotes: IntArray) -> list[int]:
    """Return the first carriage return outside quotes that no line feed follows; one at the very end may have one yet."""
    count = np.count_nonzero(array[at:] == CR)
    if not count or count == np.count_nonzero(array[breaks[breaks > at] - 1] == CR):
        return []
    returns = np.flatnonzero(array[at:-1] == CR) + at
    bare = returns[array[returns + 1] != LF]
    bare = bare[np.searchsorted(quotes, bare) % 2 == 0]
    return [int(place) for place in bare[:1]]


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


def _without_blanks(data: bytes, ends: IntArray, breaks: IntArray, final: bool, white: bytes) -> Cut:
    """Return the records between borders, without those of white space alone."""
    used = int(ends[-1]) if len(ends) else 0
    if final and used < len(data):
        ends, used = np.append(ends, len(data)), len(data)
    starts = np.empty_like(ends)
    starts[:1], starts[1:] = 0, ends[:-1]
    suspects = np.flatnonzero(np.frombuffer(data, np.uint8)[starts] <= 32)
    blank = [row for row in suspects.tolist() if not data[starts[row] : ends[row]].strip(white)]
    if blank:
        starts, ends = np.delete(starts, blank), np.delete(ends, blank)
    return Cut(starts, ends, used, breaks)
