"""Where some bytes stand in a text, as bits: 64 places a word, the lowest bit first."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Marks = npt.NDArray[np.uint64]
IntArray = npt.NDArray[np.int64]
PIECE = 1 << 17  # bytes compared at once: what lies between stays in the cache, and is seldom mapped anew


def marks(data: bytes, *wanted: int) -> list[Marks]:
    """Return the places of each of some bytes.

    >>> [places(found).tolist() for found in marks(b'a,"b"', 34, 44)]
    [[2, 4], [1]]
    """
    array = np.frombuffer(data, np.uint8)
    found = np.zeros((len(wanted), -(-len(array) // 64) * 8), np.uint8)
    for start in range(0, len(array), PIECE):
        piece, at = array[start : start + PIECE], start >> 3
        for row, byte in zip(found, wanted, strict=True):
            packed = np.packbits(piece == byte, bitorder="little")
            row[at : at + len(packed)] = packed
    return list(found.view("<u8"))


def places(found: Marks) -> IntArray:
    """Return the places in order, int64 (N,)."""
    number = (found != 0).nonzero()[0]
    if 2 * len(number) > len(found):
        return np.unpackbits(found.view(np.uint8), bitorder="little").view(np.bool_).nonzero()[0]
    words, number, parts = found.take(number), number << 6, list[IntArray]()
    while len(number):  # the lowest bit of each word; as a float its exponent is its place
        low = words & -words
        parts.append(number + ((low.astype(np.float64).view(np.int64) >> 52) - 1023))
        words ^= low
        more = words != 0
        words, number = words.compress(more), number.compress(more)
    found_places = np.concatenate([np.empty(0, np.int64), *parts])
    found_places.sort()
    return found_places


def count(found: Marks, at: int) -> int:
    """Count the places before ``at``."""
    words, rest = found[: at >> 6], at & 63
    ones = np.bitwise_count(words) if hasattr(np, "bitwise_count") else np.unpackbits(words.view(np.uint8))
    return int(ones.sum(dtype=np.int64)) + ((int(found[at >> 6]) & ((1 << rest) - 1)).bit_count() if rest else 0)


def first_place(found: Marks) -> int:
    """Return the first place; -1 without one."""
    number = int((found != 0).argmax()) if len(found) else 0
    word = int(found[number]) if len(found) else 0
    return 64 * number + (word & -word).bit_length() - 1 if word else -1


def since(found: Marks, at: int) -> Marks:
    """Return the places that are not before ``at``."""
    rest = found.copy()
    rest[: at >> 6] = 0
    rest[at >> 6 : (at >> 6) + 1] &= ~np.uint64((1 << (at & 63)) - 1)
    return rest


def behind(found: Marks) -> Marks:
    """Return the places one further."""
    moved = found << np.uint64(1)
    moved[1:] |= found[:-1] >> np.uint64(63)
    return moved


def before(found: Marks) -> Marks:
    """Return the places one less far."""
    moved = found >> np.uint64(1)
    moved[:-1] |= found[1:] << np.uint64(63)
    return moved


def add(found: Marks, place: int) -> None:
    """Mark one more place."""
    found[place >> 6] |= np.uint64(1 << (place & 63))


def between(found: Marks) -> Marks:
    """Return the places from the first to before the second, from the third to before the fourth, and so on.

    >>> places(between(marks(b'a"bc"d"e', 34)[0])).tolist()[:5]
    [1, 2, 3, 6, 7]
    """
    filled, moved = found.copy(), np.empty_like(found)
    for step in (1, 2, 4, 8, 16, 32):
        np.left_shift(filled, np.uint64(step), out=moved)
        filled ^= moved
    odd = np.logical_xor.accumulate(filled >> np.uint64(63) != 0)
    filled[1:] ^= np.where(odd[:-1], ~np.uint64(0), np.uint64(0))
    return filled
