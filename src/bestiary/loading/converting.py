"""Python numbers, lists of them and numpy arrays as tensors of stated dtypes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestiary.loading.faults import HOW_TO_PAD, CollateError, field, found, kind_of, positions


def as_array(values: Sequence[Any], name: str, shown: Sequence[Any] | None = None) -> np.ndarray[Any, Any]:
    """Turn Python numbers, or nested equal lists of them, into a bool, int64 or float32 array.

    Errors tell positions in ``shown``, which are the values of the samples where ``values`` has been taken out of them.

    Raises:
        CollateError: bools beside numbers, an int too large for int64, a float too large for float32, unequal lists.
    """
    shown = values if shown is None else shown
    kinds = set(map(type, values))
    if list in kinds:
        kinds = set(map(type, leaves(values)))
    if not all(issubclass(kind, (bool, int, float)) for kind in kinds) or (bool in kinds and len(kinds) > 1):
        raise CollateError(f"{field(name)}: types differ: {found(shown, _leaf_kinds)}; make all bool or all numbers")
    real = any(issubclass(kind, float) for kind in kinds)
    try:
        if not real:
            return np.array(values, dtype=np.bool_ if kinds == {bool} else np.int64)
        with np.errstate(over="raise"):
            return np.array(values, dtype=np.float64).astype(np.float32)
    except (OverflowError, FloatingPointError):
        raise CollateError(_too_large(shown, name, "float32" if real else "int64")) from None
    except (ValueError, TypeError):
        raise CollateError(f"{field(name)}: lists differ: {found(shown, _extent)}; {HOW_TO_PAD}") from None


def leaves(values: Sequence[Any]) -> Sequence[Any]:
    """Take lists apart, level by level, until no list is left."""
    while any(isinstance(value, list) for value in values):
        values = [leaf for value in values for leaf in (value if isinstance(value, list) else [value])]
    return values


def _leaf_kinds(value: Any) -> str:
    return " and ".join(dict.fromkeys(map(kind_of, leaves([value])))) or "nothing"


def _extent(value: Any) -> str:
    return f"length {len(value)}" if isinstance(value, list) else kind_of(value)


def _too_large(shown: Sequence[Any], name: str, dtype: str) -> str:
    info: Any = np.iinfo(np.int64) if dtype == "int64" else np.finfo(np.float32)
    for place, value in enumerate(shown):
        for leaf in leaves([value]):
            if (isinstance(leaf, int) or math.isfinite(leaf)) and not int(info.min) <= leaf <= int(info.max):
                return (
                    f"{field(name)}: {leaf!r} at {positions([place])} does not fit into {dtype}; "
                    "give it as a tensor or a string"
                )
    return f"{field(name)}: a number does not fit into {dtype}; give it as a tensor or a string"


def from_array(array: np.ndarray[Any, Any], name: str) -> Tensor:
    """Return an array as a tensor of the same dtype, in native byte order, writable."""
    try:
        if array.flags.writeable:
            return torch.from_numpy(array)
    except (ValueError, TypeError):  # negative strides, foreign byte order, or a dtype that torch does not know
        pass
    try:
        return torch.from_numpy(array.astype(array.dtype.newbyteorder("="), order="C"))
    except TypeError:
        raise CollateError(
            f"{field(name)} has numpy dtype {array.dtype}, which torch does not know; convert it in the dataset"
        ) from None


@lru_cache(maxsize=64)
def torch_dtype(dtype: np.dtype[Any]) -> torch.dtype | None:
    """Return torch's name of a numpy dtype, None where it has none: foreign byte order, words, objects."""
    try:
        return torch.from_numpy(np.empty(0, dtype)).dtype
    except (TypeError, ValueError):
        return None
