"""How often an index has come before in an epoch: draws with replacement must not be augmented alike each time."""

from __future__ import annotations

import numpy as np

from bestiary.loading.arrays import IntArray


def occurrences(batches: list[IntArray]) -> list[IntArray] | None:
    """Return, for each place in the batches, how often its index came before it; None where no index comes twice.

    >>> occurrences([np.array([7, 5]), np.array([5, 5])])
    [array([0, 0]), array([1, 2])]
    """
    flat = np.concatenate(batches) if batches else np.empty(0, dtype=np.int64)
    if not _repeats(flat):
        return None
    order = np.argsort(flat, kind="stable")
    new = np.diff(flat[order], prepend=flat[order[0]] - 1) != 0
    first = np.maximum.accumulate(np.where(new, np.arange(len(flat)), 0))  # where each run of equal indices begins
    count = np.empty_like(flat)
    count[order] = np.arange(len(flat)) - first
    stops = np.cumsum([len(batch) for batch in batches]).tolist()
    return [count[stop - len(batch) : stop] for batch, stop in zip(batches, stops, strict=True)]


def times(batches: list[IntArray], indices: IntArray) -> IntArray:
    """Return how often each of ``indices`` comes in all the batches.

    >>> times([np.array([7, 5]), np.array([5, 5])], np.array([5, 7]))
    array([3, 1])
    """
    flat = np.sort(np.concatenate(batches))
    return np.searchsorted(flat, indices, side="right") - np.searchsorted(flat, indices, side="left")


def _repeats(flat: IntArray) -> bool:
    if not len(flat):
        return False
    if flat.min() >= 0 and flat.max() < 8 * len(flat):
        return bool(np.bincount(flat).max() > 1)  # ten times faster than sorting
    return len(np.unique(flat)) < len(flat)
