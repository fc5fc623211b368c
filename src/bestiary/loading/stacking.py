"""Join equal values of many samples to one value with a leading dimension B.

What becomes of a field::

    tensors, numpy arrays and scalars   one tensor (B, ...), same dtype; unequal shapes or dtypes are an error
    bool / int / float                  bool, int64 or float32 (B,); ints beside floats become float32
    list of numbers                     as if it were a 1-D tensor (nested lists: n-D)
    str, bytes; lists of them           list of B
    None in any sample                  list of B
    dict, tuple, named tuple, list, dataclass   joined entry by entry, type kept (any mapping becomes a dict)
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestiary.loading.converting import as_array, from_array, leaves, torch_dtype
from bestiary.loading.faults import (
    CollateError,
    check_new,
    field,
    found,
    kind_of,
    raise_missing_key,
    raise_unequal,
    under,
)
from bestiary.loading.rooms import room

Special = Mapping[str, Callable[[str, Sequence[Any], str], dict[str, Any]]]
"""Dotted path of a dict entry -> function(key, values, path) that gives the entries of the batch made from it."""

NONE_SPECIAL: Special = MappingProxyType({})


def stack(values: Sequence[Tensor]) -> Tensor:
    """Stack equal tensors (...) to one (B, ...).

    Raises:
        ValueError: nothing to stack.
        CollateError: shapes or dtypes differ; the message names both, and the positions.

    >>> stack([torch.tensor([1, 2]), torch.tensor([3, 4])]).tolist()
    [[1, 2], [3, 4]]
    """
    if len(values) == 0:
        raise ValueError("empty batch")
    return _tensors(values, "", NONE_SPECIAL)


def join(values: Sequence[Any], name: str = "", special: Special = NONE_SPECIAL) -> Any:
    """Join the values that one field has in B samples; ``name`` is its dotted path, for errors and for ``special``."""
    kinds = set(map(type, values))
    if type(None) in kinds:
        return list(values)
    way = _way(frozenset(kinds))
    if way is not None:
        return way(values, name, special)
    if len(kinds) == 1 and dataclasses.is_dataclass(next(iter(kinds))):
        return _dataclass(values, name, special)
    if len(kinds) > 1:
        raise CollateError(f"{field(name)}: types differ: {found(values, kind_of)}; give every sample the same type")
    raise CollateError(
        f"{field(name)} holds {kind_of(values[0])} objects, which no batch can be made of; "
        "turn them into tensors, numbers or strings in the dataset or its transform"
    )


def _tensors(values: Sequence[Tensor], name: str, _: Special) -> Tensor:
    if len({value.dtype for value in values}) > 1:  # torch would promote them, in some batches and not in others
        raise_unequal(values, name)
    try:
        return torch.stack(list(values), out=_room(values))
    except RuntimeError as error:
        raise_unequal(values, name)
        raise CollateError(f"{field(name)} cannot be stacked: {str(error).splitlines()[0]}") from None


def _room(values: Sequence[Tensor]) -> Tensor | None:
    """Return used memory for a large batch, which costs less to fill than fresh memory; None: let torch take it."""
    first = values[0]
    fits = not first.is_quantized and all(
        value.shape == first.shape
        and value.device.type == "cpu"
        and value.layout == torch.strided
        and not value.requires_grad
        for value in values
    )
    return room((len(values), *first.shape), first.dtype) if fits else None


def _arrays(values: Sequence[Any], name: str, _: Special) -> Tensor:
    raise_unequal(values, name)
    dtype = torch_dtype(values[0].dtype)
    place = None if dtype is None else room((len(values), *values[0].shape), dtype)
    if place is None:
        return from_array(np.stack(values), name)
    np.stack(values, out=place.numpy())
    return place


def _masked(values: Sequence[Any], name: str, _: Special) -> Tensor:
    raise CollateError(
        f"{field(name)} holds masked arrays, whose mask has no place in a tensor; "
        "return array.filled(0) and array.mask as two fields"
    )


def _numbers(values: Sequence[Any], name: str, _: Special) -> Tensor:
    return torch.from_numpy(as_array(values, name))


def _strings(values: Sequence[Any], _: str, __: Special) -> list[Any]:
    return list(values)


def _dicts(values: Sequence[Mapping[Any, Any]], name: str, special: Special) -> dict[Any, Any]:
    if len(set(map(len, values))) > 1:
        raise_missing_key(values, name)
    batch: dict[Any, Any] = {}
    for key in values[0]:
        path = under(name, key)
        try:
            column = [value[key] for value in values]
        except KeyError:
            raise_missing_key(values, name)
        made = special[path](key, column, path) if path in special else {key: join(column, path, special)}
        check_new(made, key, path, batch, values[0])
        batch.update(made)
    return batch


def _tuples(values: Sequence[tuple[Any, ...]], name: str, special: Special) -> Any:
    names: Sequence[Any] = getattr(values[0], "_fields", range(len(values[0])))
    kind: Any = type(values[0])
    if len({type(value) for value in values}) > 1:
        raise CollateError(f"{field(name)}: types differ: {found(values, kind_of)}; give every sample the same type")
    parts = _columns(values, names, name, special)
    if hasattr(kind, "_make"):
        return kind._make(parts)
    try:
        return kind(parts)
    except TypeError:  # torch.Size takes whole numbers
        return tuple(parts)


def _columns(values: Sequence[Sequence[Any]], names: Sequence[Any], name: str, special: Special) -> list[Any]:
    if len({len(value) for value in values}) > 1:
        raise CollateError(
            f"{field(name)}: lengths differ: {found(values, len)}; give every sample the same number of entries"
        )
    return [
        join(column, under(name, key), special) for key, column in zip(names, zip(*values, strict=True), strict=True)
    ]


def _lists(values: Sequence[list[Any]], name: str, special: Special) -> Any:
    kinds = set(map(type, leaves(values)))
    if kinds and kinds <= {bool, int, float}:
        return torch.from_numpy(as_array(values, name))
    if kinds <= {str, bytes}:
        return list(values)
    return _columns(values, range(len(values[0])), name, special)


def _dataclass(values: Sequence[Any], name: str, special: Special) -> Any:
    names = [part.name for part in dataclasses.fields(values[0])]
    batch = copy.copy(values[0])
    columns = _columns([[getattr(value, part) for part in names] for value in values], names, name, special)
    for part, column in zip(names, columns, strict=True):
        object.__setattr__(batch, part, column)  # frozen dataclasses too
    return batch


@lru_cache
def _way(kinds: frozenset[type]) -> Callable[[Any, str, Special], Any] | None:
    """Return the function that joins values of these types, or None."""
    numpys = {kind for kind in kinds if issubclass(kind, np.number)}  # float64 is a float, too, but keeps its dtype
    if numpys and any(issubclass(kind, (int, float)) for kind in kinds - numpys):
        return None
    return next((how for types, how in _WAYS if all(issubclass(kind, types) for kind in kinds)), None)


_WAYS: list[tuple[Any, Callable[[Any, str, Special], Any]]] = [
    (Tensor, _tensors),
    ((str, bytes), _strings),
    (np.ma.MaskedArray, _masked),
    ((np.ndarray, np.generic), _arrays),
    ((bool, int, float), _numbers),
    (Mapping, _dicts),
    (tuple, _tuples),
    (list, _lists),
]
