"""The fields of many CSV records at once, where counting quotes explains all of them."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from bestiary.records.marks import Marks, before, behind, between, marks, places

FIELD, GONE = 0x1F, 0x1D  # rare signs for what parts fields and for what is left out
LF, CR, QUOTE = 10, 13, 34


def split_fields(data: bytes, delimiter: bytes, width: int, count: int, quotes: bool = True) -> list[list[str]] | None:
    """Return ``width`` columns of the fields of ``count`` records; None where these have more or fewer, or rare signs.

    None of the records is blank, and each quote opens, closes, or is doubled within a field.

    >>> split_fields(b'1,"a, ""b"" c"\\r\\n2,\\r\\n', b",", 2, 2)
    [['1', '2'], ['a, "b" c', '']]

    Raises:
        UnicodeDecodeError: some field is no UTF-8 text.
    """
    if bytes([FIELD]) in data or bytes([GONE]) in data:
        return None
    data = data if data.endswith(b"\n") else data + b"\n"
    feeds, quoted, parts, returns = marks(data, LF, QUOTE, delimiter[0], CR)
    quoted = quoted if quotes else np.zeros_like(quoted)
    outside = ~between(quoted)
    feeds, parts = feeds & outside, parts & outside
    text = np.frombuffer(data, np.uint8).copy()
    ends = text.take(places(feeds | parts)) == LF
    if len(ends) != width * count or np.count_nonzero(ends) != count or not ends[width - 1 :: width].all():
        return None
    doubled = quoted & ~outside & behind(quoted)  # the second quote of two within a field
    _change(text, quoted & ~doubled, QUOTE, GONE)
    _change(text, returns & before(feeds), CR, GONE)
    _change(text, feeds, LF, FIELD)
    _change(text, parts, delimiter[0], FIELD)
    fields = text.tobytes().replace(bytes([GONE]), b"").decode("utf-8").split(chr(FIELD))
    return [fields[place : width * count : width] for place in range(width)]


def _change(text: npt.NDArray[np.uint8], found: Marks, old: int, new: int) -> None:
    """Put one byte in the place of another."""
    if found.any():
        chosen = np.unpackbits(found.view(np.uint8), count=len(text), bitorder="little")
        chosen *= np.uint8(old ^ new)
        text ^= chosen
