"""How much of a batch is padding."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

Lengths: TypeAlias = "Sequence[int] | np.ndarray[Any, Any] | Tensor"


def padding_waste(batch: Mapping[str, Any] | Lengths, batches: Iterable[Lengths] | None = None) -> float:
    """Return the share of padded positions, 0 to 1.

    Args:
        batch: a batch with ``<field>_mask``, several of which are counted together; or lengths, padded to the longest.
        batches: with lengths, the indices of each batch; a batch is padded to its longest item.

    Raises:
        ValueError: the batch holds no padded field.

    >>> padding_waste({"tokens_mask": torch.tensor([[True, True], [True, False]])})
    0.25
    >>> padding_waste([4, 2]), padding_waste([1, 3, 2], [[0, 1], [2]])
    (0.25, 0.25)
    """
    if isinstance(batch, Mapping):
        masks = [value for name, value in batch.items() if _is_mask(name, value)]
        if not masks:
            raise ValueError(f"no padded field among {list(batch)}; give the lengths, or a batch with a '<field>_mask'")
        return _share(sum(int(mask.sum()) for mask in masks), sum(mask.numel() for mask in masks))
    lengths = np.asarray(batch, dtype=np.int64)
    parts = [np.arange(len(lengths))] if batches is None else [np.asarray(part, dtype=np.int64) for part in batches]
    parts = [part for part in parts if len(part)]
    if not parts:
        return 0.0
    sizes, real = np.array([len(part) for part in parts]), lengths[np.concatenate(parts)]
    longest = np.maximum.reduceat(real, np.cumsum(sizes) - sizes)  # of each batch
    return _share(int(real.sum()), int((longest * sizes).sum()))


def _is_mask(name: str, value: Any) -> bool:
    return str(name).endswith("_mask") and isinstance(value, Tensor) and value.dtype == torch.bool


def _share(real: int, places: int) -> float:
    return 1 - real / places if places else 0.0
