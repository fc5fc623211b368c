"""Where records of a text begin and end: at line feeds, or at line feeds outside quotes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from bestiary.records.marks import IntArray, Marks, add, before, behind, between, first_place, marks, places, since

LF, CR, QUOTE = 10, 13, 34
FIRST_WALK = 64  # records read one by one after an odd quote, twice as many after the next


class Cut(NamedTuple):
    """What lies in a piece of text that begins at a border.

    Attributes:
        starts, stops: int64 (N,), bytes of each record that is not blank, its line end included.
        used: bytes up to the last border.
        feeds: all line feeds of the text.
        regular: whether counting quotes explained all of them, so that any CSV reader sees the same fields.
    """

    starts: IntArray
    stops: IntArray
    used: int
    feeds: Marks
    regular: bool = True


class Signs(NamedTuple):
    """Where the bytes stand that matter in CSV.

    Attributes:
        feeds, quotes, returns: line feeds, quotes, carriage returns.
        borders: delimiters, line feeds and quotes: what stands before a quote that opens a field, or goes on in one.
    """

    feeds: Marks
    quotes: Marks
    returns: Marks
    borders: Marks


def cut_lines(data: bytes, final: bool, white: bytes = b" \t\r\n") -> Cut:
    """Cut at line feeds; ``final`` says that the text ends here, so that a last line needs none.

    >>> cut = cut_lines(b'{"a": 1}\\n\\n{"a": 2}', final=True)
    >>> cut.starts.tolist(), cut.stops.tolist(), cut.used
    ([0, 10], [9, 18], 18)
    """
    (feeds,) = marks(data, LF)
    return _without_blanks(data, feeds, places(feeds) + 1, final, white)


def cut_quoted(data: bytes, delimiter: bytes, final: bool) -> Cut:
    """Cut at line feeds outside quotes, as RFC 4180 has it; a quote within an unquoted field is a plain character.

    A record that cannot be read (a quote never closed, text behind a closing quote) ends with its first line, so that
    it does not take the following ones along.

    >>> cut_quoted(b'1,"a\\nb"\\n2,c\\n', b",", final=True).stops.tolist()
    [8, 12]
    """
    white = b" \r\n" if delimiter == b"\t" else b" \t\r\n"
    if b'"' not in data and b"\r" not in data:
        return cut_lines(data, final, white)
    signs = _signs(data, delimiter)
    parts: list[IntArray] = []
    at, walk = 0, FIRST_WALK
    while True:
        ends, trouble = _regular(data, signs, at, final)
        parts.append(ends)
        if trouble < 0:
            break
        at = int(ends[-1]) if len(ends) else at
        slow = _walked(data, at, delimiter, final, walk)
        parts.append(np.array(slow, dtype=np.int64))
        if len(slow) < walk:
            break
        at, walk = slow[-1], 2 * walk
    ends = np.concatenate(parts) if len(parts) > 1 else parts[0]
    cut = _without_blanks(data, signs.feeds, ends, final, white)
    return cut if len(parts) == 1 else cut._replace(regular=False)


def _signs(data: bytes, delimiter: bytes) -> Signs:
    if b"\r" in data:
        feeds, quotes, borders, returns = marks(data, LF, QUOTE, delimiter[0], CR)
    else:
        feeds, quotes, borders = marks(data, LF, QUOTE, delimiter[0])
        returns = np.zeros_like(feeds)
    borders |= feeds
    borders |= quotes
    return Signs(feeds, quotes, returns, borders)


def _regular(data: bytes, signs: Signs, at: int, final: bool) -> tuple[IntArray, int]:
    """Return the borders from ``at`` on, up to the first byte that the counting of quotes cannot explain (-1: none)."""
    if at >= len(data):
        return np.empty(0, np.int64), -1
    feeds, quotes, returns = (since(found, at) for found in signs[:3]) if at else signs[:3]
    inside = between(quotes)
    outside, opens, closes = ~inside, behind(signs.borders), before(signs.borders | signs.returns)
    add(opens, 0)
    add(closes, len(data) - 1)
    opens &= inside
    closes &= outside
    opens |= closes
    odd = quotes & ~opens
    if returns.any():  # one outside quotes has a line feed behind it, or may have one yet
        fed = before(feeds)
        add(fed, len(data) - 1)
        returns = returns & outside
        odd |= returns & ~fed
    trouble = first_place(odd)
    if final and trouble < 0 and inside[-1] >> np.uint64(63):
        trouble = data.rfind(b'"')
    ends = places(feeds & outside) + 1
    return (ends, -1) if trouble < 0 else (ends[ends <= trouble], trouble)


def _walked(data: bytes, at: int, delimiter: bytes, final: bool, count: int) -> list[int]:
    """Return where the next records end, read one by one; fewer than ``count`` where the text ends before."""
    from bestiary.records.record_walk import walk_record

    ends: list[int] = []
    while len(ends) < count and at < len(data):
        at = walk_record(data, at, delimiter, final).end
        if at < 0:
            break
        ends.append(at)
    return ends


def _without_blanks(data: bytes, feeds: Marks, ends: IntArray, final: bool, white: bytes) -> Cut:
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
    return Cut(starts, ends, used, feeds)
