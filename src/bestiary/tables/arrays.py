"""Rows of arrays or tensors in memory: features and what they should give.

Sample::

    features  float32 (F,)
    label     int (integer targets), or
    target    float32 scalar (floating targets)

For numbers that are in memory already, slicing them is quicker than any loader; see ``docs/in_memory.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from bestiary.tables.rows import Rows, field_value, row_number, row_numbers, target_field, to_tensor


class TabularDataset:
    """Serve row i of ``features`` together with row i of ``targets``.

    Args:
        features: (N, F) numbers: a tensor, an array, a data frame, a list of lists. (N,) is taken as one column.
        targets: (N,) integers give ``label``, floats give ``target``; (N, T) gives a tensor of T values.
        dtype: type of the features, and of floating targets.
        target_dtype: type of the targets where the rule above is not wanted; a floating one gives ``target``.

    Raises:
        ValueError: the two have different lengths.

    Example:
        >>> table = TabularDataset([[0.5, 1.0], [2.0, 3.0]], [1, 0])
        >>> table[0]
        {'features': tensor([0.5000, 1.0000]), 'label': 1}
    """

    draws = False

    def __init__(
        self,
        features: Any,
        targets: Any,
        *,
        dtype: torch.dtype = torch.float32,
        target_dtype: torch.dtype | None = None,
    ) -> None:
        if len(features) != len(targets):
            raise ValueError(
                f"features and targets should have one row each a sample, but there are {len(features)} features and "
                f"{len(targets)} targets"
            )
        self.features = to_tensor(features, dtype)
        if self.features.ndim == 1:
            self.features = self.features[:, None]
        self.field, self.targets = target_field(to_tensor(targets, None), dtype, target_dtype)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = row_number(index, len(self), "the table")
        return {"features": self.features[row].clone(), self.field: field_value(self.field, self.targets[row].clone())}

    def __getitems__(self, indices: Sequence[int]) -> Rows:
        """Return copies of many rows at once, as columns."""
        rows = torch.from_numpy(row_numbers(indices, len(self), "the table"))
        return Rows({"features": self.features[rows], self.field: self.targets[rows]})

    def locate(self, index: int) -> str:
        """Say where a sample comes from."""
        return f"row {row_number(index, len(self), 'the table')} of the arrays"
