"""Make a batch from columns that a dataset has at hand, without a single sample.

A column is one of::

    array or tensor (B, ...)     becomes the field as it is
    list of B                    joined like the values of B samples
    ragged pair                  ``values`` (N,), the rows one after another, and ``lengths`` (B,); integers are token
                                 ids and become int64
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from bestiary.loading.converting import from_array
from bestiary.loading.faults import HOW_TO_PAD, CollateError, field, found, kind_of
from bestiary.loading.padding import mask_fields, pad_flat, padded_field, row_lengths, width_of
from bestiary.loading.stacking import join


@runtime_checkable
class Columns(Protocol):
    """Samples that a dataset can also give as columns; ``bestiary.loading.columns`` says what a column may be."""

    def columns(self) -> Mapping[str, Any]:
        """Return name to column; arrays are the caller's to keep."""
        ...


@lru_cache
def has_columns(kind: type) -> bool:
    """Whether objects of this class are ``Columns``; asked once a class, for the question costs as much as a batch."""
    return issubclass(kind, Columns)


def check_columns(columns: Mapping[str, Any], count: int) -> None:
    """Raise where a column is none, or has not one row for each of ``count`` samples."""
    for name, column in columns.items():
        if not isinstance(column, (Tensor, np.ndarray, list)) and not is_ragged(column):
            raise CollateError(
                f"{field(name)} is a column of type {kind_of(column)}; give an array, a tensor, a list, or values with lengths"
            )
        rows = len(column.lengths if is_ragged(column) else column)
        if rows != count:
            raise CollateError(
                f"{field(name)} is a column of {rows} rows, but there are {count} samples; give one row each"
            )


def is_ragged(column: Any) -> bool:
    """Whether this is a pair of ``values`` and ``lengths``."""
    return hasattr(column, "lengths") and hasattr(column, "values")


def column_lengths(column: Any, name: str) -> np.ndarray[Any, Any]:
    """Return the length of each row, int64 (B,), checked against the number of values."""
    if isinstance(column, list):
        return row_lengths(column, name)
    if not is_ragged(column):
        if len(column.shape) < 2:
            return row_lengths(list(column), name)
        return np.full(len(column), column.shape[-1], dtype=np.int64)
    lengths = np.array(column.lengths, dtype=np.int64)
    if int(lengths.sum()) != len(column.values) or lengths.min() < 0:
        raise CollateError(
            f"{field(name)} has {len(column.values)} values, but lengths that sum to {int(lengths.sum())}"
        )
    return lengths


def take(column: Any, kept: np.ndarray[Any, Any]) -> Any:
    """Return the rows of a column at the positions ``kept``, which ascend."""
    if isinstance(column, list):
        return [column[place] for place in kept.tolist()]
    if not is_ragged(column):
        return column[kept]
    lengths = np.asarray(column.lengths)
    stays = np.zeros(len(lengths), dtype=np.bool_)
    stays[kept] = True
    return _Ragged(np.asarray(column.values)[np.repeat(stays, lengths)], lengths[kept])


class _Ragged:
    def __init__(self, values: np.ndarray[Any, Any], lengths: np.ndarray[Any, Any]) -> None:
        self.values, self.lengths = values, lengths


def plain_column(column: Any, name: str) -> Any:
    """Return the field that a column becomes without padding."""
    if isinstance(column, list):
        return join(column, name)
    if not is_ragged(column):
        return _tensor(column, name)
    lengths = column_lengths(column, name)
    if len(set(lengths.tolist())) > 1:
        raise CollateError(f"{field(name)}: lengths differ: {found(lengths.tolist(), str)}; {HOW_TO_PAD}")
    return _ids(column.values, name).reshape(len(lengths), -1)


def padded_column(
    key: str, column: Any, lengths: np.ndarray[Any, Any], fill: float, multiple: int | None
) -> dict[str, Any]:
    """Return the three fields that a padded column becomes."""
    if not is_ragged(column):
        rows: Sequence[Any] = column if isinstance(column, list) else list(_tensor(column, key))
        return padded_field(key, rows, key, fill=fill, multiple=multiple)
    width = width_of(lengths, multiple)
    padded, mask = pad_flat(_tensor(column.values, key), lengths, fill, width, key, ids=True)
    return {key: padded, **mask_fields(key, mask, lengths)}


def _ids(values: Any, name: str) -> Tensor:
    tensor = _tensor(values, name)
    whole = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    return tensor.to(torch.int64) if whole else tensor


def _tensor(column: Any, name: str) -> Tensor:
    return column if isinstance(column, Tensor) else from_array(column, name)
