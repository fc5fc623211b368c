"""Rows that were asked for at once: the columns of a batch, and a sequence of samples over them.

Sample::

    features    float32 (F,)
    categories  int64 (K,), only where a table has categories
    label       int, or
    target      float32 scalar (a 0-d tensor, so that torch's own collate gives float32 and not float64)
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from typing import Any, SupportsIndex, overload

import numpy as np
import torch
from torch import Tensor


class Rows(Sequence[dict[str, Any]]):
    """Samples of one batch, kept as columns: a collator that knows ``columns()`` need not touch single rows.

    Args:
        columns: for each field a tensor with leading dimension B. ``label`` comes out of a row as an int.

    >>> rows = Rows({"features": torch.tensor([[1.0], [2.0]]), "label": torch.tensor([1, 0])})
    >>> len(rows), rows[1]["label"], rows.columns()["features"].shape
    (2, 0, torch.Size([2, 1]))
    """

    def __init__(self, columns: Mapping[str, Tensor]) -> None:
        self._columns = dict(columns)

    def columns(self) -> dict[str, Tensor]:
        """Return the fields as tensors with leading dimension B."""
        return dict(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values())))

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> Rows: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | Rows:
        if isinstance(index, slice):
            return Rows({name: column[index] for name, column in self._columns.items()})
        row = row_number(index, len(self), "batch")
        return {name: field_value(name, column[row]) for name, column in self._columns.items()}


def field_value(name: str, value: Tensor) -> Any:
    """Return a label as an int, everything else as a tensor of its own row."""
    return int(value) if name == "label" and value.ndim == 0 else value


def row_number(index: SupportsIndex, length: int, where: str) -> int:
    """Return ``index`` as a row in [0, length); negative ones count from the end, as in a list.

    Raises:
        IndexError: there is no such row.

    >>> row_number(-1, 10, "table")
    9
    """
    row = operator.index(index)
    if not -length <= row < length:
        raise IndexError(f"row {row} of {where}: it has {length} rows")
    return row % length


def row_numbers(indices: Sequence[int], length: int, where: str) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Return many indices as an int64 array of rows in [0, length).

    Raises:
        IndexError: one of them is no row.
    """
    rows = np.asarray(indices, dtype=np.int64).reshape(-1)
    bad = rows[(rows < -length) | (rows >= length)]
    if len(bad):
        raise IndexError(f"row {int(bad[0])} of {where}: it has {length} rows")
    return np.where(rows < 0, rows + length, rows)


def to_tensor(values: Any, dtype: torch.dtype | None) -> Tensor:
    """Return an array as a tensor of ``dtype`` on the CPU; None keeps the type. Shares memory only where nothing changes.

    Raises:
        TypeError: the values are no numbers.

    >>> to_tensor([[1, 2]], torch.float32)
    tensor([[1., 2.]])
    """
    if isinstance(values, Tensor):
        return values.detach().to("cpu", dtype or values.dtype)
    array = np.asarray(values)
    if array.dtype.kind not in "biuf":
        raise TypeError(
            f"a table takes numbers, but these values have the type {array.dtype}; turn words into codes first"
        )
    if not array.flags.writeable or not array.flags.c_contiguous or not array.dtype.isnative:
        array = np.array(array, dtype=array.dtype.newbyteorder("="), order="C", subok=False)
    tensor = torch.from_numpy(np.asarray(array))
    return tensor if dtype is None else tensor.to(dtype)


def target_field(values: Tensor, float_dtype: torch.dtype, dtype: torch.dtype | None) -> tuple[str, Tensor]:
    """Return the field that targets go to, and the targets in its type: integers are labels, floats are regression.

    ``dtype`` decides where it is given; else integers and booleans become int64, floats ``float_dtype``.
    """
    if dtype is None:
        dtype = float_dtype if values.is_floating_point() else torch.int64
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    return ("target" if dtype.is_floating_point else "label"), values.to(dtype)
