"""Lengths and what they cost, checked before anything is built on them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bestiary.loading.arrays import frozen, plain_array

Numbers: TypeAlias = npt.NDArray[Any]  # int64 or float64
Cost: TypeAlias = Callable[[Numbers], Numbers]


def checked_lengths(values: Any) -> Numbers:
    """Return lengths (N,) as a read-only copy, int64 or float64.

    Raises:
        TypeError: they are no numbers.
        ValueError: one is negative or not finite; the first such position is named.
    """
    return _checked(plain_array(values, "lengths"), "lengths")


def checked_costs(cost: Cost, lengths: Numbers) -> Numbers:
    """Return what ``cost`` makes of the lengths (N,), read-only, int64 or float64.

    Raises:
        TypeError, ValueError: it is no function, or gives another shape, or a cost that is negative or not finite.

    >>> checked_costs(lambda n: n + n**2 // 4, np.array([2, 4])).tolist()
    [3, 8]
    """
    if not callable(cost):
        raise TypeError(
            f"cost should be a function of an array of lengths, such as lambda n: n + n**2 / 500, but is {cost!r}"
        )
    costs = plain_array(cost(lengths.copy()), "the result of cost")
    if costs.shape != lengths.shape:
        raise ValueError(
            f"cost was given {len(lengths)} lengths at once and should return as many costs, but returned {len(costs)}"
        )
    return _checked(costs, "the result of cost")


def _checked(array: Numbers, name: str) -> Numbers:
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} should be numbers, but is an array of {array.dtype}")
    numbers = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    bad = ~(np.isfinite(numbers) & (numbers >= 0))
    if bad.any():
        first = int(np.argmax(bad))
        raise ValueError(
            f"{name} should be finite and not negative, but position {first} of {len(numbers)} holds {numbers[first]}"
        )
    return frozen(numbers)
