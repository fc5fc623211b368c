"""Orders that draw: items by weight, and classes in equal shares.

All ranks draw from one common stream, since an order knows nothing of ranks; a plan deals the draws out. Weights are
float64 throughout, so that sums over many millions of items stay true.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from bestiary.loading.arrays import FloatArray, IntArray, Values, digest, frozen, plain_array, whole_number
from bestiary.loading.chance import chance, uniform


@dataclass(frozen=True, eq=False, repr=False)
class Weighted:
    """Items drawn with a chance in proportion to their weight, anew each epoch.

    Args:
        weights: one for each item of the dataset (N,), not one for each class; they need not sum to one.
        num_samples: draws an epoch; None draws N with replacement, and every item of a positive weight without.
        replacement: whether an item may come more than once an epoch.

    Raises:
        ValueError: a weight is negative or not finite (the first such position is named), all are zero, or more
            draws without replacement are asked for than there are items of a positive weight.

    >>> Weighted([0.0, 3.0, 0.0], num_samples=4)(seed=0, epoch=0).tolist()
    [1, 1, 1, 1]
    """

    weights: Values
    num_samples: int | None = None
    replacement: bool = True

    def __post_init__(self) -> None:
        weights = _checked(self.weights)
        positive = int(np.count_nonzero(weights))
        most = len(weights) if self.replacement else positive
        count = most if self.num_samples is None else whole_number(self.num_samples, "num_samples", 0)
        if not self.replacement and count > positive:
            text = (
                f"{count} draws without replacement need as many items of a positive weight, but there are {positive}"
            )
            raise ValueError(f"{text} of {len(weights)}; lower num_samples or set replacement=True")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "num_samples", count)

    def __len__(self) -> int:
        return self.num_samples or 0

    def __call__(self, seed: int, epoch: int) -> IntArray:
        """Return the draws of an epoch, int64 (num_samples,)."""
        draw = draw_with if self.replacement else draw_without
        return frozen(draw(np.asarray(self.weights), len(self), seed, epoch))

    def __repr__(self) -> str:
        what = f"{len(self.weights)} weights, digest {digest(np.asarray(self.weights))}"
        return f"Weighted({what}, num_samples={self.num_samples}, replacement={self.replacement})"


@dataclass(frozen=True, eq=False, repr=False)
class ClassBalanced:
    """Items drawn so that rare classes come more often: a class of n items has a share in proportion to n**(1 - power).

    Args:
        labels: one for each item of the dataset (N,), integers or names; behind a subset, the subset's.
        power: 1.0 gives every class that has items the same share, 0.0 leaves the shares as they are.
        num_samples: draws an epoch, with replacement; None draws N.

    Raises:
        TypeError, ValueError: ``labels`` is no flat list of integers or names, or ``power`` is not finite.

    >>> order = ClassBalanced([0] * 90 + [1] * 10, num_samples=10_000)
    >>> 4_800 < (order(seed=0, epoch=0) >= 90).sum().item() < 5_200
    True
    """

    labels: Values
    power: float = 1.0
    num_samples: int | None = None

    def __post_init__(self) -> None:
        if isinstance(self.power, bool) or not isinstance(self.power, (int, float)) or not np.isfinite(self.power):
            raise ValueError(
                f"power should be a finite number such as 1.0 (equal classes) or 0.5, but is {self.power!r}"
            )
        labels = _checked_labels(self.labels)
        count = len(labels) if self.num_samples is None else whole_number(self.num_samples, "num_samples", 0)
        if count and not len(labels):
            raise ValueError(f"{count} draws an epoch are asked for, but labels is empty")
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "num_samples", count)

    def __len__(self) -> int:
        return self.num_samples or 0

    def __call__(self, seed: int, epoch: int) -> IntArray:
        """Return the draws of an epoch, int64 (num_samples,)."""
        return frozen(draw_with(class_weights(self.labels, power=self.power), len(self), seed, epoch))

    def __repr__(self) -> str:
        labels = np.asarray(self.labels)
        what = f"{len(labels)} labels of {len(np.unique(labels))} classes, digest {digest(labels)}"
        return f"ClassBalanced({what}, power={self.power}, num_samples={self.num_samples})"


def class_weights(labels: Values, *, power: float = 1.0) -> FloatArray:
    """Return one weight for each item, float64 (N,): its class's count to the power of -``power``.

    For torch's own sampler: ``WeightedRandomSampler(class_weights(labels), len(labels))``. These are no class weights for
    a loss, which would be one for each class; a class without items has none here, so nothing is divided by zero.

    >>> class_weights([0, 0, 2, 0]).round(3).tolist()
    [0.333, 0.333, 1.0, 0.333]
    """
    _, codes, counts = np.unique(_checked_labels(labels), return_inverse=True, return_counts=True)
    logs = -power * np.log(counts)
    scale = logs.max(initial=0.0) if power < 0 else 0.0  # a large negative power must not reach infinity
    return np.asarray(np.exp(logs - scale)[codes.reshape(-1)], dtype=np.float64)


def draw_with(weights: FloatArray, count: int, seed: int, epoch: int) -> IntArray:
    """Draw ``count`` positions with replacement: uniform numbers looked up in the running sum of the weights (N,)."""
    if not count:
        return np.empty(0, dtype=np.int64)
    sums = np.cumsum(weights / weights.max())
    places = np.searchsorted(sums, uniform(chance("draw", seed, epoch), count) * sums[-1], side="right")
    last = len(weights) - 1 - int(np.argmax(weights[::-1] > 0))
    return np.asarray(np.minimum(places, last), dtype=np.int64)


def draw_without(weights: FloatArray, count: int, seed: int, epoch: int) -> IntArray:
    """Draw ``count`` positions without replacement: those of the smallest exponential numbers over weights (N,).

    The same as drawing one after the other, each in proportion to what is left (Efraimidis and Spirakis, 2006).
    """
    rows = np.flatnonzero(weights)
    waits = np.log(-np.log1p(-uniform(chance("draw", seed, epoch), len(rows)))) - np.log(weights[rows])
    if count < len(rows):
        nearest = np.argpartition(waits, count)[:count]  # a full sort of millions for a few draws would cost seconds
        rows, waits = rows[nearest], waits[nearest]
    return np.asarray(rows[np.argsort(waits, kind="stable")], dtype=np.int64)


def _checked(values: Any) -> FloatArray:
    array = plain_array(values, "weights")
    if array.dtype.kind not in "biuf":
        raise TypeError(f"weights should be numbers, but hold {array.dtype}")
    weights = array.astype(np.float64)
    bad = ~(np.isfinite(weights) & (weights >= 0))
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            f"weights should be finite and not negative, but position {first} of {len(weights)} holds {weights[first]}"
        )
    if len(weights) == 0 or weights.max() == 0:
        raise ValueError(f"all {len(weights)} weights are zero; at least one item needs a positive weight")
    return frozen(weights)


def _checked_labels(values: Any) -> npt.NDArray[Any]:
    labels = plain_array(values, "labels")
    if labels.dtype == object:
        raise TypeError("labels should be integers or names, one for each item, but hold a mixture of types")
    if labels.dtype.kind == "f":
        bad = ~(np.isfinite(labels) & (labels == np.floor(labels)))
        if bad.any():
            first = int(np.argmax(bad))
            raise ValueError(f"labels should be class numbers or names, but position {first} holds {labels[first]}")
        labels = labels.astype(np.int64)
    return frozen(labels.copy())
