"""Which rows are meant by an index, and the rows of a batch that were asked for at once.

Layout::

    values   integers (N,), the rows one after another
    lengths  int64 (B,)

Sample::

    tokens  int64 (T,)
    label   int, only where there are labels
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, NamedTuple, SupportsIndex, overload

import numpy as np
import numpy.typing as npt
import torch


class RaggedColumn(NamedTuple):
    """Rows of unequal length as one flat array and their lengths."""

    values: npt.NDArray[Any]
    lengths: npt.NDArray[np.int64]


class TokenRows(Sequence[dict[str, Any]]):
    """Samples of one batch, kept as columns: a collator that knows ``columns()`` need not touch single rows.

    >>> rows = TokenRows(np.array([5, 6, 7]), np.array([2, 1]), np.array([0, 1]))
    >>> len(rows), rows[0]["tokens"].tolist(), rows[1]["label"]
    (2, [5, 6], 1)
    """

    def __init__(
        self, values: npt.NDArray[Any], lengths: npt.NDArray[np.int64], labels: npt.NDArray[np.int64] | None = None
    ) -> None:
        self._values, self._lengths, self._labels = values, lengths, labels

    def columns(self) -> dict[str, Any]:
        """Return ``tokens`` as flat values with lengths, and ``label`` (B,) where there is one."""
        columns: dict[str, Any] = {"tokens": RaggedColumn(self._values, self._lengths)}
        return columns if self._labels is None else columns | {"label": self._labels}

    def __len__(self) -> int:
        return len(self._lengths)

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        if isinstance(index, slice):
            return [self[row] for row in range(*index.indices(len(self)))]
        row = row_number(index, len(self), "the batch")
        stop = int(self._lengths[: row + 1].sum())
        sample: dict[str, Any] = {"tokens": to_ids(self._values[stop - int(self._lengths[row]) : stop])}
        return sample if self._labels is None else sample | {"label": int(self._labels[row])}


def to_ids(values: npt.NDArray[Any]) -> torch.Tensor:
    """Return a copy of stored ids (T,) as int64, the caller's to write into."""
    return torch.from_numpy(values.astype(np.int64))


def row_number(index: SupportsIndex, count: int, where: str) -> int:
    """Return ``index`` as a row in [0, count); negative ones count from the end, as in a list.

    Raises:
        IndexError: there is no such row.

    >>> row_number(-1, 10, "the table")
    9
    """
    row = operator.index(index)
    if not -count <= row < count:
        raise IndexError(f"index {row} of {where}, which has {count} samples")
    return row % count


def row_numbers(indices: Sequence[int], count: int, where: str) -> npt.NDArray[np.int64]:
    """Return many indices as an int64 array (B,) of rows in [0, count).

    Raises:
        IndexError: one of them is no row.
    """
    rows = np.array(indices, dtype=np.int64)
    if rows.size and rows.view(np.uint64).max() >= count:  # read without a sign, negative ones are huge: one look does
        return np.array([row_number(index, count, where) for index in rows.tolist()], dtype=np.int64)
    return rows
