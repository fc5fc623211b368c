"""Rows of a file that is mapped, not read: a table larger than memory, at the speed of the page cache.

Layout::

    table.npy    written by numpy.save: knows its own shape and type
    table.bin    bare numbers, row after row: say ``dtype`` and ``shape``

Sample::

    features  float32 (F,), a copy that the caller may write into
    label     int, or
    target    float32 scalar, where ``targets`` names a second file
"""

from __future__ import annotations

import math
import mmap
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from bestiary.tables.rows import Rows, row_number, row_numbers, target_field, to_tensor


class _Place(NamedTuple):
    """Where the numbers of an array lie in a file; all that is needed to map it again."""

    path: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    fortran: bool

    def open(self) -> np.ndarray[Any, Any]:
        """Map the file for reading; an array without a number needs no map."""
        order: Any = "F" if self.fortran else "C"
        if 0 in self.shape:
            return np.empty(self.shape, dtype=self.dtype)
        _check_size(self, os.stat(self.path).st_size)
        return np.memmap(self.path, dtype=self.dtype, mode="r", offset=self.offset, shape=self.shape, order=order)


class MemmapTable:
    """Serve rows of a memory-mapped file; what is pickled is the file's name, whatever its size.

    Each process maps the file for itself when it first reads; the map is read-only, and so is the file.

    Args:
        features: a ``.npy`` file, a bare file of numbers, or a ``numpy.memmap`` (only its place is kept).
        targets: a second such file with as many rows, or None. Integers give ``label``, floats give ``target``.
        dtype: type of the numbers in bare files; a ``.npy`` file knows its own.
        shape: (N, F) of a bare features file, N may be -1; without it every number is a row.
        offset: bytes before the first number of a bare features file.
        target_file_dtype: type of the numbers in a bare targets file.
        feature_dtype: type of the features that come out, and of floating targets.
        target_dtype: type of the targets that come out; None is int64 for integers, ``feature_dtype`` for floats.

    Raises:
        OSError: a file cannot be read.
        ValueError: a file does not hold a whole number of rows, holds no plain numbers, or the rows differ in number.

    Example:
        >>> import tempfile
        >>> path = os.path.join(tempfile.mkdtemp(), "table.npy")
        >>> np.save(path, np.arange(6).reshape(3, 2))
        >>> MemmapTable(path)[2]["features"]
        tensor([4., 5.])
    """

    draws = False

    def __init__(
        self,
        features: str | os.PathLike[str] | np.memmap[Any, Any],
        targets: str | os.PathLike[str] | np.memmap[Any, Any] | None = None,
        *,
        dtype: Any = np.float32,
        shape: Sequence[int] | None = None,
        offset: int = 0,
        target_file_dtype: Any = np.int64,
        feature_dtype: torch.dtype = torch.float32,
        target_dtype: torch.dtype | None = None,
    ) -> None:
        self._features = _find(features, dtype, shape, offset)
        self._targets = None if targets is None else _find(targets, target_file_dtype, None, 0)
        if self._targets is not None and len(self) != self._targets.shape[0]:
            raise ValueError(
                f"features and targets should have one row each a sample, but {self._features.path} has {len(self)} "
                f"rows and {self._targets.path} has {self._targets.shape[0]}"
            )
        self._feature_dtype, self._target_dtype = feature_dtype, target_dtype
        self._open: tuple[int, list[np.ndarray[Any, Any]]] | None = None

    def __len__(self) -> int:
        return self._features.shape[0]

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.__getitems__([row_number(index, len(self), self._features.path)])[0]

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """Return copies of many rows at once, as columns."""
        rows = row_numbers(indices, len(self), self._features.path)
        arrays = self._maps()
        features = to_tensor(np.array(arrays[0][rows]), self._feature_dtype)
        columns = {"features": features[:, None] if features.ndim == 1 else features}
        if len(arrays) == 2:
            name, values = target_field(
                to_tensor(np.array(arrays[1][rows]), None), self._feature_dtype, self._target_dtype
            )
            columns[name] = values
        return Rows(columns)

    def locate(self, index: int) -> str:
        """Say where a sample comes from."""
        return f"{self._features.path}, row {row_number(index, len(self), self._features.path)}"

    def _maps(self) -> list[np.ndarray[Any, Any]]:
        """Return this process's maps; a forked child opens its own."""
        opened = self._open
        if opened is None or opened[0] != os.getpid():
            places = [self._features] if self._targets is None else [self._features, self._targets]
            self._open = opened = (os.getpid(), [place.open() for place in places])
        return opened[1]

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_open": None}


def _find(source: Any, dtype: Any, shape: Sequence[int] | None, offset: int) -> _Place:
    """Learn where an array lies, from a map, from the head of a .npy file or from what the caller says."""
    if isinstance(source, np.memmap):
        return _place_of_map(source)
    path = Path(os.path.abspath(os.fspath(source)))
    if path.suffix == ".npy":
        return _place_of_npy(path)
    size = path.stat().st_size - offset
    stored = np.dtype(dtype)
    wanted = tuple(int(n) for n in shape) if shape is not None else (-1,)
    row_bytes = math.prod(wanted[1:]) * stored.itemsize
    rows = wanted[0] if wanted[0] >= 0 else size // max(row_bytes, 1)
    place = _Place(str(path), _plain(stored, str(path)), (rows, *wanted[1:]), offset, False)
    if row_bytes * rows != size:
        raise ValueError(
            f"{path} holds {size} bytes after byte {offset}, which is not {rows} rows of {row_bytes} bytes "
            f"({stored.name}); check dtype={stored.name!r} and shape={wanted}"
        )
    return place


def _place_of_map(array: np.memmap[Any, Any]) -> _Place:
    """Take the place of a map; a slice of rows lies further on in the same file."""
    if array.filename is None or not array.flags.c_contiguous:
        raise ValueError(
            "the memmap is a view with gaps, or has no file; give the whole map, or save it with numpy.save"
        )
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    base = np.frombuffer(array._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
    offset = begin + array.ctypes.data - base.ctypes.data
    path = os.path.abspath(os.fspath(array.filename))
    return _Place(path, _plain(array.dtype, path), array.shape, offset, False)


def _place_of_npy(path: Path) -> _Place:
    """Read the head of a .npy file; never its pickles."""
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, fortran, dtype = read(file)
        except ValueError as error:
            raise ValueError(f"{path} is no .npy file that numpy can read: {error}") from error
        place = _Place(str(path), _plain(dtype, str(path)), tuple(shape), file.tell(), bool(fortran))
    if not shape:
        raise ValueError(f"{path} holds a single number and no rows")
    _check_size(place, path.stat().st_size)
    return place


def _plain(dtype: np.dtype[Any], path: str) -> str:
    if dtype.kind not in "biuf":
        raise ValueError(f"{path} holds values of type {dtype}; a mapped table takes plain numbers (bool, int, float)")
    return dtype.str


def _check_size(place: _Place, size: int) -> None:
    """A map beyond the end of its file would kill the process with a bus error."""
    need = place.offset + math.prod(place.shape) * np.dtype(place.dtype).itemsize
    if size < need:
        raise ValueError(
            f"{place.path} has {size} bytes, but its {place.shape} numbers need {need}; the file is cut short"
        )
