"""Token files: arrays of integers one after another in one file, each with its head as numpy.save writes it.

Layout::

    tokens.npy    values   int32 or another integer type (N,), the rows one after another
                  offsets  int64 (rows + 1,), row i is values[offsets[i] : offsets[i + 1]]
                  labels   int64 (rows,), only where labels were given

``numpy.load(path, mmap_mode="r")`` gives the values, and so does every reader of a flat token file.
"""

from __future__ import annotations

import os
import time
from array import array
from collections.abc import Iterable, Iterator, Sized
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt

_HEAD = 128  # bytes; room for any count, so that the head can be written again when the count is known


class Place(NamedTuple):
    """Where an array (length,) lies in a file; all that is needed to map it again."""

    dtype: str
    length: int
    offset: int


def write_tokens(
    path: str | os.PathLike[str],
    rows: Iterable[Any],
    *,
    labels: Iterable[int] | None = None,
    dtype: npt.DTypeLike = np.int32,
) -> Path:
    """Write rows of token ids to a file for ``RaggedTokens.open`` and ``TokenWindows``, in one pass; return its path.

    A reader of ``path`` sees the old file or the whole new one. After two seconds a progress bar shows on stderr.

    Args:
        path: the file to write.
        rows: lists, arrays or tensors (T_i,) of integers; may be a generator, and no row is kept.
        labels: one int for each row; read after the rows, so that a list which the generator fills will do.
        dtype: the type of ids in the file; uint16 halves it for vocabularies up to 65,536.

    Raises:
        TypeError: a row holds no integers.
        ValueError: an id does not fit into ``dtype``, or there is not one label for each row.

    >>> import tempfile
    >>> path = write_tokens(os.path.join(tempfile.mkdtemp(), "tokens.npy"), [[5, 6], [7]])
    >>> np.load(path).tolist()
    [5, 6, 7]
    """
    target, kind = Path(path), np.dtype(dtype)
    if kind.kind not in "iu":
        raise TypeError(f"token ids are integers, but dtype is {kind}; give an integer type such as np.int32")
    draft = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        with draft.open("wb") as file:
            _write(file, rows, labels, kind)
        os.replace(draft, target)
    finally:
        draft.unlink(missing_ok=True)
    return target


def _write(file: IO[bytes], rows: Iterable[Any], labels: Iterable[int] | None, dtype: np.dtype[Any]) -> None:
    file.write(_head(dtype, 0, 0))
    offsets = array("q", [0])
    for row in _with_progress(rows):
        ids = _ids(row, len(offsets) - 1, dtype)
        file.write(ids.tobytes())
        offsets.append(offsets[-1] + len(ids))
    _append(file, np.frombuffer(offsets, np.int64))
    if labels is not None:
        numbers = _ids(list(labels), None, np.dtype(np.int64))
        if len(numbers) != len(offsets) - 1:
            raise ValueError(
                f"there are {len(offsets) - 1} rows, but {len(numbers)} labels; give one label for each row"
            )
        _append(file, numbers)
    file.seek(0)
    file.write(_head(dtype, offsets[-1], 0))


def _append(file: IO[bytes], values: npt.NDArray[Any]) -> None:
    file.write(_head(values.dtype, len(values), file.tell()))
    file.write(values.tobytes())


def _head(dtype: np.dtype[Any], count: int, position: int) -> bytes:
    """Return the head of a .npy array that begins at ``position``; the numbers behind it lie at a multiple of 64."""
    text = f"{{'descr': {dtype.str!r}, 'fortran_order': False, 'shape': ({count},), }}"
    size = _HEAD + -position % 64 - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + text.ljust(size - 1).encode("ascii") + b"\n"


def _ids(row: Any, number: int | None, dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    where = "labels" if number is None else f"row {number}"
    values = np.asarray(row)
    if values.ndim != 1 or (values.size and values.dtype.kind not in "iu"):
        raise TypeError(f"{where} should be integers (T,), but is {values.dtype} {values.shape}; encode texts first")
    ids = values.astype(dtype)
    if not np.can_cast(values.dtype, dtype) and not np.array_equal(ids, values):
        wrong = values[ids != values][0]
        raise ValueError(f"{where} holds the id {wrong}, which does not fit into {dtype}; give a wider dtype=")
    return ids


def _with_progress(rows: Iterable[Any]) -> Iterator[Any]:
    """Pass rows on; show a bar once this has taken two seconds, where tqdm is installed."""
    began, bar = time.monotonic(), None
    try:
        for number, row in enumerate(rows, 1):
            yield row
            if bar is not None:
                bar.update()
            elif time.monotonic() - began > 2:
                bar, began = _bar(rows, number), float("inf")
    finally:
        if bar is not None:
            bar.close()


def _bar(rows: Iterable[Any], done: int) -> Any:
    try:
        bar: Any = import_module("tqdm").tqdm
    except ImportError:
        return None
    return bar(initial=done, total=len(rows) if isinstance(rows, Sized) else None, desc="tokens", unit=" rows")


def read_places(path: str) -> list[Place]:
    """Read the heads of the arrays in a file, at most three; never a pickle.

    Raises:
        OSError: the file cannot be read.
        ValueError: no such arrays, not integers, or the file is cut short.
    """
    places: list[Place] = []
    with open(path, "rb") as file:
        size, position = os.fstat(file.fileno()).st_size, 0
        while position < size and len(places) < 3:
            file.seek(position)
            places.append(_read_head(file, path))
            position = places[-1].offset + places[-1].length * np.dtype(places[-1].dtype).itemsize
            if position > size:
                raise ValueError(f"{path} has {size} bytes, but its arrays need {position}; the file is cut short")
    if not places:
        raise ValueError(f"{path} is empty; write it with write_tokens")
    return places


def _read_head(file: IO[bytes], path: str) -> Place:
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(file)
    except ValueError as error:
        raise ValueError(
            f"{path} is no token file: {error}; write it with write_tokens, or give dtype= for bare numbers"
        ) from None
    if len(shape) != 1 or dtype.kind not in "iu":
        raise ValueError(f"{path} holds {dtype} {shape}, but a token file holds integers (N,)")
    return Place(dtype.str, shape[0], file.tell())


def map_place(path: str, place: Place) -> npt.NDArray[Any]:
    """Map an array (length,) read-only; a plain array over the map, whose slices cost less than a memmap's."""
    if place.length == 0:
        return np.empty(0, dtype=place.dtype)
    size, need = os.stat(path).st_size, place.offset + place.length * np.dtype(place.dtype).itemsize
    if size < need:  # reading past the end of a map would kill the process
        raise ValueError(f"{path} has {size} bytes, but its tokens need {need}; the file was cut since it was opened")
    return np.asarray(np.memmap(path, dtype=place.dtype, mode="r", offset=place.offset, shape=(place.length,)))
