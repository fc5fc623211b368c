"""Next-token windows over a flat file of token ids.

Layout::

    tokens.npy    an array of integers as numpy.save or write_tokens writes it
    tokens.bin    bare numbers: say ``dtype``

Sample::

    tokens   int64 (T,), T = block
    targets  int64 (T,), the token that follows each of them
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from typing import Any, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bestiary.text.rows import row_number, row_numbers
from bestiary.text.token_file import Place, map_place, read_places

_NOTHING: npt.NDArray[Any] = np.empty(0, dtype=np.int64)


class WindowSample(TypedDict):
    """``tokens`` and ``targets``, both int64 (T,)."""

    tokens: Tensor
    targets: Tensor


class Windows(Sequence[WindowSample]):
    """Windows of one batch, kept as two columns (B, T)."""

    def __init__(self, tokens: Tensor, targets: Tensor) -> None:
        self._tokens, self._targets = tokens, targets

    def columns(self) -> dict[str, Tensor]:
        """Return ``tokens`` and ``targets``, int64 (B, T)."""
        return {"tokens": self._tokens, "targets": self._targets}

    def __len__(self) -> int:
        return len(self._tokens)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return Windows(self._tokens[index], self._targets[index])
        row = row_number(index, len(self), "the batch")
        return {"tokens": self._tokens[row].clone(), "targets": self._targets[row].clone()}


class TokenWindows:
    """Serve windows of ``block`` tokens and the tokens that follow them, one window every ``stride`` tokens.

    A file is mapped read-only, by each process for itself; what is pickled is its name. Every window is a copy.

    Args:
        tokens: integers (N,), or the path of a file of them, or a ``numpy.memmap`` (only its place is kept).
        block: tokens in a window, T.
        stride: tokens from one window to the next; 1 unless given. ``block`` gives windows that share no target.
            What is left at the end and shorter than a stride makes no window; ``left_over`` counts it.
        start_token: an id put before every window, whose first target is then the window's first token.
        dtype: the type of bare numbers in a file; a ``.npy`` file knows its own.

    Raises:
        OSError: the file cannot be read.
        TypeError: tokens that are no integers.
        ValueError: fewer tokens than one window needs, or a file that is no token file.

    >>> windows = TokenWindows(np.arange(8), 4)
    >>> len(windows), windows[3]["tokens"].tolist(), windows[3]["targets"].tolist()
    (4, [3, 4, 5, 6], [4, 5, 6, 7])
    >>> TokenWindows(np.arange(8), 4, start_token=99)[0]["tokens"].tolist()
    [99, 0, 1, 2]
    """

    draws = False

    def __init__(
        self,
        tokens: Any,
        block: int,
        *,
        stride: int | None = None,
        start_token: int | None = None,
        dtype: npt.DTypeLike | None = None,
    ) -> None:
        for name, value in (("block", block), ("stride", 1 if stride is None else stride)):
            if value < 1:
                raise ValueError(f"{name} should be 1 or more, but is {value}")
        self.block, self.stride, self.start_token = block, 1 if stride is None else stride, start_token
        self._path, self._place, self._values = _source(tokens, dtype)
        self._process: int | None = None
        self._total = len(self._values) if self._place is None else self._place.length
        self._need = block + (start_token is None)
        if self._total < self._need:
            raise ValueError(
                f"{self._path or 'the array'} holds {self._total} tokens, but a window of block={block} needs "
                f"{self._need}; give a smaller block or more tokens"
            )

    @property
    def left_over(self) -> int:
        """Tokens at the end that no window reaches."""
        return (self._total - self._need) % self.stride

    def __len__(self) -> int:
        return (self._total - self._need) // self.stride + 1

    def __getitem__(self, index: int) -> WindowSample:
        sample: WindowSample = self.__getitems__([row_number(index, len(self), self._path or "the windows")])[0]
        return sample

    def __getitems__(self, indices: Sequence[int]) -> Windows:
        """Return many windows at once, gathered by one look into the flat array."""
        starts = row_numbers(indices, len(self), self._path or "the windows") * self.stride
        found = self._array()[starts[:, None] + np.arange(self._need)].astype(np.int64)  # (B, T + 1), or T with a start
        if self.start_token is not None:
            found = np.concatenate([np.full((len(found), 1), self.start_token, dtype=np.int64), found], axis=1)
        # Two copies: a view of the other would change with it when the caller writes.
        return Windows(torch.from_numpy(found[:, :-1].copy()), torch.from_numpy(found[:, 1:].copy()))

    def locate(self, index: int) -> str:
        """Say where a window begins."""
        start = row_number(index, len(self), self._path or "the windows") * self.stride
        return f"{self._path + ', ' if self._path else ''}token {start}"

    def _array(self) -> npt.NDArray[Any]:
        """This process's array; a forked child maps the file for itself."""
        if self._place is not None and self._process != os.getpid():
            self._values, self._process = map_place(self._path, self._place), os.getpid()
        return self._values

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_values": _NOTHING, "_process": None} if self._place else self.__dict__


def _source(tokens: Any, dtype: npt.DTypeLike | None) -> tuple[str, Place | None, npt.NDArray[Any]]:
    """Return path and place of tokens in a file, or the tokens themselves."""
    if isinstance(tokens, (str, os.PathLike)):
        path = os.path.abspath(os.fspath(tokens))
        return path, read_places(path)[0] if dtype is None else _bare(path, np.dtype(dtype)), _NOTHING
    if isinstance(tokens, np.memmap) and tokens.filename is not None and tokens.flags.c_contiguous:
        return os.path.abspath(os.fspath(tokens.filename)), _place_of(tokens), _NOTHING
    array = np.asarray(tokens)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"tokens should be integers (N,), but is {array.dtype} {array.shape}; encode texts first")
    return "", None, array


def _bare(path: str, dtype: np.dtype[Any]) -> Place:
    size = os.stat(path).st_size
    if dtype.kind not in "iu" or size % dtype.itemsize:
        raise ValueError(f"{path} has {size} bytes, which are no whole number of {dtype} ids; check dtype=")
    return Place(dtype.str, size // dtype.itemsize, 0)


def _place_of(array: np.memmap[Any, Any]) -> Place:
    """Take the place of a map; a slice of it lies further on in the same file."""
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise TypeError(f"tokens should be integers (N,), but is {array.dtype} {array.shape}")
    base = np.frombuffer(array._mmap, dtype=np.uint8)  # type: ignore[attr-defined]
    begin = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY
    return Place(array.dtype.str, len(array), begin + array.ctypes.data - base.ctypes.data)
