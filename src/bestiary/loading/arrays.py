"""Read-only arrays made from what a caller hands over: lists, numpy arrays, tensors on any device."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, SupportsIndex, TypeAlias

import numpy as np
import numpy.typing as npt

IntArray: TypeAlias = npt.NDArray[np.int64]
FloatArray: TypeAlias = npt.NDArray[np.float64]
Values: TypeAlias = Sequence[Any] | npt.NDArray[Any]


def plain_array(values: Any, name: str) -> npt.NDArray[Any]:
    """Return values (N,) as a numpy array; a tensor is brought to the CPU, and nothing of torch is imported for that.

    Raises:
        TypeError: a mapping, a set, a text or a dataset: nothing with an order of plain values.
        ValueError: the values are not one flat list.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.double() if "float" in str(values.dtype) else values
    if isinstance(values, (str, bytes, dict, set, frozenset)):
        raise TypeError(
            f"{name} should be a list, an array or a tensor, one value for each item, but is {type(values).__name__}"
        )
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise ValueError(f"{name} should be one flat list of values: {error}") from None
    if array.size == 0 and array.ndim == 1 and array.dtype == np.float64:
        array = array.astype(np.int64)  # numpy calls an empty list float
    if array.ndim != 1:
        raise ValueError(f"{name} should have one axis (N,), one value for each item, but has shape {array.shape}")
    return array


def int_array(values: Any, name: str) -> IntArray:
    """Return values (N,) as a read-only int64 copy.

    Raises:
        TypeError: the values are not integers.
    """
    array = plain_array(values, name)
    if array.dtype == np.bool_:
        raise TypeError(
            f"{name} should be integers, but is a mask of {len(array)} booleans; np.flatnonzero(mask) gives the indices"
        )
    if not np.issubdtype(array.dtype, np.integer):
        raise TypeError(f"{name} should be integers, but holds {array.dtype}")
    return frozen(array.astype(np.int64))


def frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Forbid writing into an array, and into every view that is taken of it from now on."""
    array.setflags(write=False)
    return array


def digest(array: npt.NDArray[Any]) -> str:
    """Return eight hex digits for the values of an array, the same on every machine.

    >>> digest(np.arange(3)) == digest(np.arange(3)), digest(np.arange(3)) == digest(np.arange(4))
    (True, False)
    """
    kind = array.dtype.newbyteorder("<")
    return blake2b(
        np.ascontiguousarray(array, dtype=kind).tobytes(), digest_size=4, person=str(kind)[:16].encode()
    ).hexdigest()


def whole_number(value: SupportsIndex, name: str, least: int) -> int:
    """Return a whole number of at least ``least``; True and 8.0 are mistakes, not numbers.

    Raises:
        TypeError: not an integer.
        ValueError: too small.

    >>> whole_number(np.int32(8), "batch_size", 1)
    8
    """
    if isinstance(value, (bool, np.bool_)) or not hasattr(value, "__index__"):
        raise TypeError(f"{name} should be an integer, but is {value!r} ({type(value).__name__})")
    number = int(value.__index__())
    if number < least:
        raise ValueError(f"{name} should be at least {least}, but is {number}")
    return number
