"""PackedNames: a million paths in two arrays.

A list of a million strings is a million objects. A forked worker that only reads them writes their reference counts,
so the kernel copies page after page until every worker owns the whole list. Two arrays have no such counts.

Layout::

    data      uint8 (total bytes,), the names one after another in UTF-8
    offsets   int64 (N + 1,), name i is data[offsets[i] : offsets[i + 1]]
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice
from operator import index as as_int
from typing import Any, overload

import numpy as np
import numpy.typing as npt

# Lone surrogates, by which Python carries file names that are not UTF-8, go through this handler and come back as they were.
_CODING = ("utf-8", "surrogatepass")


class PackedNames(Sequence[str]):
    """A read-only sequence of strings in one byte array and one offset array.

    Any string survives, also a file name that is not valid UTF-8 (as ``os.fsdecode`` gives it). A slice with step 1
    shares the bytes; ``take`` and other slices copy. Pickles as the two arrays, a slice as its own part only.

    >>> names = PackedNames(["cat/1.png", "cat/2.png", "dog/1.png"])
    >>> names[-1], len(names), list(names[:2]), list(names.take([2, 0]))
    ('dog/1.png', 3, ['cat/1.png', 'cat/2.png'], ['dog/1.png', 'cat/1.png'])
    """

    __slots__ = ("_bytes", "_data", "_edges", "_offsets")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, names: Iterable[str]) -> None:
        """Pack the names; they are read once and never held as a list.

        Raises:
            TypeError: ``names`` is a single string, or holds something that is no string.
        """
        if isinstance(names, (str, bytes)):
            raise TypeError(f"PackedNames takes an iterable of names, but got the single name {names!r}; write [name]")
        data, offsets, rest = bytearray(), array("q", [0]), iter(names)
        while some := list(islice(rest, 1024)):
            try:
                joined = "".join(some)
            except TypeError:
                at, name = next((at, name) for at, name in enumerate(some) if not isinstance(name, str))
                kind = type(name).__name__
                raise TypeError(f"name {len(offsets) - 1 + at} should be a str, but is {name!r} ({kind})") from None
            lengths = map(len, some if joined.isascii() else [name.encode(*_CODING) for name in some])
            offsets.extend(islice(accumulate(lengths, initial=len(data)), 1, None))
            data += joined.encode(*_CODING)
        self._hold(np.frombuffer(data, np.uint8), np.frombuffer(offsets, np.int64))

    @classmethod
    def from_arrays(cls, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> PackedNames:
        """Return the names that lie in ``data`` (uint8) between neighbouring ``offsets`` (int64, N + 1); nothing is copied.

        >>> list(PackedNames.from_arrays(np.frombuffer(b"onetwo", np.uint8), np.array([0, 3, 6])))
        ['one', 'two']
        """
        self = cls.__new__(cls)
        self._hold(data.view(), offsets.view())
        return self

    def _hold(self, data: npt.NDArray[np.uint8], offsets: npt.NDArray[np.int64]) -> None:
        data.flags.writeable = offsets.flags.writeable = False
        self._data, self._offsets = data, offsets
        # Memory views give slices and plain integers several times faster than arrays do.
        self._bytes, self._edges = data.data, offsets.data

    def __len__(self) -> int:
        return len(self._offsets) - 1

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> PackedNames: ...
    def __getitem__(self, index: int | slice) -> str | PackedNames:
        if isinstance(index, slice):
            start, stop, step = index.indices(len(self))
            if step == 1:
                return PackedNames.from_arrays(self._data, self._offsets[start : max(start, stop) + 1])
            return self.take(range(start, stop, step))
        at, count = as_int(index), len(self)
        if not -count <= at < count:
            raise IndexError(f"name {at} of {count}")
        at %= count
        return str(self._bytes[self._edges[at] : self._edges[at + 1]], *_CODING)

    def __iter__(self) -> Iterator[str]:
        start, data = self._edges[0], self._bytes
        for stop in self._edges[1:]:
            yield str(data[start:stop], *_CODING)
            start = stop

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, (PackedNames, list, tuple)):
            return NotImplemented
        return len(self) == len(other) and all(mine == theirs for mine, theirs in zip(self, other, strict=True))

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self[:3])) + (", ..." if len(self) > 3 else "")
        return f"PackedNames({len(self)} names: {shown})" if len(self) else "PackedNames(0 names)"

    def __reduce__(self) -> tuple[Any, ...]:
        first, last = self._edges[0], self._edges[-1]
        return PackedNames.from_arrays, (self._data[first:last], self._offsets - first)

    @property
    def nbytes(self) -> int:
        """Bytes that the names and their offsets take; a slice counts its own part."""
        return int(self._edges[-1] - self._edges[0]) + self._offsets.nbytes

    def take(self, indices: Iterable[int] | npt.NDArray[np.integer[Any]]) -> PackedNames:
        """Return the names at ``indices`` (N,), in that order, repeats included, packed anew.

        Raises:
            IndexError: an index lies outside the names, or the indices are not integers (a mask goes through
                ``numpy.flatnonzero`` first).
        """
        wanted = np.asarray(indices if isinstance(indices, Sequence) else np.asarray(indices))
        if wanted.size and (wanted.ndim != 1 or not np.issubdtype(wanted.dtype, np.integer)):
            raise IndexError(
                f"take wants integers (N,), but got {wanted.dtype} {wanted.shape}; a mask: numpy.flatnonzero"
            )
        return PackedNames(self[at] for at in wanted.tolist())
