"""Token ids of unequal length in one flat array plus offsets, in memory or memory-mapped.

Layout::

    tokens.npy    written by write_tokens: values, offsets, and labels where there are any

Sample::

    tokens  int64 (T,), a copy that the caller may write into
    label   int, only where there are labels
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, NamedTuple, TypedDict

import numpy as np
import numpy.typing as npt
from torch import Tensor

from bestiary.text.rows import TokenRows, row_number, row_numbers, to_ids
from bestiary.text.token_file import map_place, read_places

Empty = Literal["keep", "drop", "error"]


class _Tokens(TypedDict):
    tokens: Tensor


class TokenSample(_Tokens, total=False):
    """One row: ``tokens`` int64 (T,), and ``label`` where the rows have labels."""

    label: int


class _Store(NamedTuple):
    """The arrays, the rows that are left of them (None for all), and the process that mapped them (None: in memory)."""

    values: npt.NDArray[Any]
    offsets: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64] | None
    kept: npt.NDArray[np.int64] | None
    process: int | None


class RaggedTokens:
    """Serve rows of token ids from one flat array.

    ``open`` maps a file: what is pickled is its name, and each process maps it for itself when it first reads.

    Args:
        values: integers (N,) of any width, the rows one after another.
        offsets: (rows + 1,), row i is ``values[offsets[i] : offsets[i + 1]]``.
        labels: one int for each row, or None.
        empty: what to do with rows of length 0: keep them, drop them, or raise, naming them.
        transform: sample -> sample.

    Raises:
        TypeError: values or labels that are no integers.
        ValueError: offsets that do not fit the values, labels that do not fit the rows, empty rows with ``"error"``.

    >>> rows = RaggedTokens.from_rows([[5, 6], [], [7]], empty="drop")
    >>> len(rows), rows[-1]["tokens"], rows.lengths.tolist()
    (2, tensor([7]), [2, 1])
    """

    def __init__(
        self,
        values: Any,
        offsets: Any,
        labels: Any = None,
        *,
        empty: Empty = "keep",
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        arrays = [_integers(values, "values"), _integers(offsets, "offsets").astype(np.int64)]
        numbers = None if labels is None else _integers(labels, "labels").astype(np.int64)
        self._hold("", _store(arrays[0], arrays[1], numbers, empty, "the rows", None), empty, transform)

    @classmethod
    def open(
        cls, path: str | os.PathLike[str], *, empty: Empty = "keep", transform: Callable[[Any], Any] | None = None
    ) -> RaggedTokens:
        """Map the file that ``write_tokens`` wrote; it is only ever read.

        Raises:
            OSError: the file cannot be read.
            ValueError: it is no such file, or is cut short.
        """
        self = cls.__new__(cls)
        where = os.path.abspath(os.fspath(path))
        self._hold(where, _map(where, empty), empty, transform)
        return self

    @classmethod
    def from_rows(
        cls,
        rows: Iterable[Any],
        labels: Any = None,
        *,
        empty: Empty = "keep",
        transform: Callable[[Any], Any] | None = None,
    ) -> RaggedTokens:
        """Join lists, arrays or tensors (T_i,) in memory."""
        parts = [_integers(row, f"row {number}") for number, row in enumerate(rows)]
        offsets = np.cumsum([0, *map(len, parts)], dtype=np.int64)
        values = np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)
        return cls(values, offsets, labels, empty=empty, transform=transform)

    def _hold(self, path: str, store: _Store, empty: Empty, transform: Callable[[Any], Any] | None) -> None:
        self._path, self._stored, self._empty, self.transform = path, store, empty, transform
        self._count = len(store.offsets) - 1 if store.kept is None else len(store.kept)

    @property
    def draws(self) -> bool:
        """Whether a sample may depend on chance: only where there is a transform."""
        return self.transform is not None

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """The length of each row, int64 (N,), for batches of like length."""
        store = self._store
        lengths: npt.NDArray[np.int64] = np.diff(store.offsets)
        return lengths if store.kept is None else lengths[store.kept]

    @property
    def labels(self) -> npt.NDArray[np.int64] | None:
        """The label of each row, int64 (N,), a copy; None where there are none."""
        store = self._store
        if store.labels is None:
            return None
        return store.labels.copy() if store.kept is None else store.labels[store.kept]

    @property
    def has_labels(self) -> bool:
        """Whether samples have a ``label``."""
        return self._store.labels is not None

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> TokenSample:
        store, row = self._store, self._row(index)
        sample: TokenSample = {"tokens": to_ids(store.values[store.offsets[row] : store.offsets[row + 1]])}
        if store.labels is not None:
            sample["label"] = int(store.labels[row])
        return self.transform(sample) if self.transform else sample

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Any]:
        """Return many rows at once, gathered by one look into the flat array."""
        if self.transform:
            return [self[index] for index in indices]
        store, rows = self._store, row_numbers(indices, self._count, "the rows")
        if store.kept is not None:
            rows = store.kept[rows]
        starts = store.offsets[rows]
        lengths = store.offsets[rows + 1] - starts
        stops = lengths.cumsum()
        # Position p of the batch comes from p + (start of its row in values - start of its row in the batch).
        source = (starts - stops + lengths).repeat(lengths)
        source += np.arange(len(source))
        return TokenRows(store.values.take(source), lengths, None if store.labels is None else store.labels[rows])

    def locate(self, index: int) -> str:
        """Say where a sample comes from; rows are counted from 0, dropped ones included."""
        return f"{self._path}, row {self._row(index)}" if self._path else f"row {self._row(index)}"

    def _row(self, index: int) -> int:
        row, kept = row_number(index, self._count, self._path or "the rows"), self._store.kept
        return row if kept is None else int(kept[row])

    @property
    def _store(self) -> _Store:
        """This process's arrays; a forked child maps the file for itself."""
        store: _Store | None = self._stored
        if store is None or (store.process is not None and store.process != os.getpid()):
            self._stored = store = _map(self._path, self._empty)
        return store

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_stored": None} if self._path else self.__dict__


def _map(path: str, empty: Empty) -> _Store:
    places = read_places(path)
    if len(places) < 2:
        raise ValueError(
            f"{path} holds one array of tokens and no rows; write it with write_tokens, or use TokenWindows"
        )
    arrays = [map_place(path, place) for place in places]
    return _store(arrays[0], arrays[1], arrays[2] if len(arrays) > 2 else None, empty, path, os.getpid())


def _store(
    values: npt.NDArray[Any],
    offsets: npt.NDArray[np.int64],
    labels: npt.NDArray[np.int64] | None,
    empty: Empty,
    where: str,
    process: int | None,
) -> _Store:
    if empty not in ("keep", "drop", "error"):
        raise ValueError(f"empty should be 'keep', 'drop' or 'error', but is {empty!r}")
    lengths = np.diff(offsets)
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(values) or (lengths.size and lengths.min() < 0):
        ends = f"run from {offsets[0]} to {offsets[-1]}" if len(offsets) else "are empty"
        raise ValueError(f"offsets of {where} should ascend from 0 to {len(values)} (the number of values), but {ends}")
    if labels is not None and len(labels) != len(lengths):
        raise ValueError(f"{where}: there are {len(lengths)} rows, but {len(labels)} labels; give one for each row")
    kept = None if empty == "keep" else np.flatnonzero(lengths)
    if kept is None or len(kept) == len(lengths):
        return _Store(values, offsets, labels, None, process)
    if empty == "error":
        rows = np.flatnonzero(lengths == 0)
        raise ValueError(f"{where}: {len(rows)} rows are empty: {_some(rows)}; give empty='drop' or 'keep'")
    return _Store(values, offsets, labels, kept, process)


def _some(rows: npt.NDArray[np.int64]) -> str:
    return ", ".join(f"row {row}" for row in rows[:10].tolist()) + (", ..." if len(rows) > 10 else "")


def _integers(values: Any, name: str) -> npt.NDArray[Any]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise TypeError(f"{name} should be integers (N,), but is {array.dtype} {array.shape}")
    return array if array.size else array.astype(array.dtype if array.dtype.kind in "iu" else np.int64)
