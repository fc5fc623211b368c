"""Which records are meant by an index."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import SupportsIndex

import numpy as np
import numpy.typing as npt


def row_number(index: SupportsIndex, count: int) -> int:
    """Return ``index`` as a row in [0, count); negative ones count from the end, as in a list.

    Raises:
        IndexError: there is no such record.

    >>> row_number(-1, 10)
    9
    """
    row = operator.index(index)
    if not -count <= row < count:
        raise IndexError(f"record {row} of {count}: there is no such record")
    return row % count


def row_numbers(indices: Sequence[int], count: int) -> npt.NDArray[np.int64]:
    """Return many indices as rows in [0, count), int64 (B,)."""
    rows = np.array(indices, dtype=np.int64)
    if rows.size and (rows.min() < 0 or rows.max() >= count):
        return np.array([row_number(index, count) for index in rows.tolist()], dtype=np.int64)
    return rows
