"""Orders: which samples an epoch reads, one after the other, as a function of (seed, epoch).

An order is called with a seed and an epoch and gives int64 indices; its length is how many these are. It has no state,
so any epoch can be had at any time, in any process, and it knows nothing of batches or ranks. ``Sequential`` and
``Shuffled`` read every item once; ``weighted`` holds those that draw.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from bestiary.loading.arrays import IntArray, Values, digest, frozen, int_array, whole_number
from bestiary.loading.chance import chance, permutation


class Order(Protocol):
    """What a plan asks of an order; one of your own needs no more than this."""

    def __len__(self) -> int:
        """Return how many indices an epoch has."""

    def __call__(self, seed: int, epoch: int) -> IntArray:
        """Return the indices of an epoch, int64 (len(self),)."""


@dataclass(frozen=True, eq=False, repr=False)
class Sequential:
    """Every item once, always in the given order.

    Args:
        items: a number of items, or the indices to read, such as a split's.

    Raises:
        TypeError, ValueError: ``items`` is neither, for instance a dataset.

    >>> Sequential([4, 2])(seed=0, epoch=7).tolist(), len(Sequential(3))
    ([4, 2], 3)
    """

    items: int | Values

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", _count_or_indices(self.items, "Sequential"))

    def __len__(self) -> int:
        return _length(self.items)

    def __call__(self, seed: int, epoch: int) -> IntArray:
        """Return the indices as they were given; seed and epoch change nothing."""
        return frozen(np.arange(self.items) if isinstance(self.items, int) else np.asarray(self.items))

    def __repr__(self) -> str:
        return f"Sequential({_short(self.items)})"


@dataclass(frozen=True, eq=False, repr=False)
class Shuffled:
    """Every item once, in another order each epoch.

    Args:
        items: a number of items, or the indices to read, such as a split's.

    Raises:
        TypeError, ValueError: ``items`` is neither, for instance a dataset.

    >>> order = Shuffled(100)
    >>> np.array_equal(np.sort(order(0, 1)), np.arange(100)), np.array_equal(order(0, 1), order(1, 0))
    (True, False)
    """

    items: int | Values

    def __post_init__(self) -> None:
        object.__setattr__(self, "items", _count_or_indices(self.items, "Shuffled"))

    def __len__(self) -> int:
        return _length(self.items)

    def __call__(self, seed: int, epoch: int) -> IntArray:
        """Return a permutation of the indices, drawn with the key of (seed, epoch)."""
        places = permutation(chance("order", seed, epoch), len(self))
        return frozen(places if isinstance(self.items, int) else np.asarray(self.items)[places])

    def __repr__(self) -> str:
        return f"Shuffled({_short(self.items)})"


def _count_or_indices(items: Any, who: str) -> int | IntArray:
    if isinstance(items, (bool, np.bool_)) or (hasattr(items, "__getitem__") and not hasattr(items, "__iter__")):
        raise TypeError(
            f"{who} takes a number of items or their indices, but got {type(items).__name__}; try {who}(len(dataset))"
        )
    if hasattr(items, "__index__") and getattr(items, "ndim", 0) == 0:
        return whole_number(items, f"{who}'s number of items", 0)
    if isinstance(items, float) or not hasattr(items, "__len__"):
        raise TypeError(f"{who} takes a number of items or their indices, but got {items!r} ({type(items).__name__})")
    indices = int_array(items, f"{who}'s indices")
    if len(indices) and indices.min() < 0:
        first = int(np.argmax(indices < 0))
        raise ValueError(f"{who}'s indices should not be negative, but position {first} holds {indices[first]}")
    return indices


def _length(items: int | Values) -> int:
    return items if isinstance(items, int) else len(items)


def _short(items: int | Values) -> str:
    return str(items) if isinstance(items, int) else f"{len(items)} indices, digest {digest(np.asarray(items))}"
