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
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import torch
from torch import Tensor

Special = Mapping[str, Callable[[str, Sequence[Any], str], dict[str, Any]]]
"""Dotted path of a dict entry -> function(key, values, path) that gives the entries of the batch made from it."""

NONE_SPECIAL: Special = MappingProxyType({})


class CollateError(ValueError):
    """Samples that do not fit together: the text names the field, the positions in the batch, and what was found."""


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


def field(name: str) -> str:
    """Say which field is meant; the sample itself has no name."""
    return f"field {name!r}" if name else "the sample"


def kind_of(value: Any) -> str:
    """Name the type of a value as a reader would look it up."""
    kind = type(value)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def positions(numbers: Sequence[int], limit: int = 6) -> str:
    """List places in the batch.

    >>> positions([3]), positions([0, 2]), positions(range(50), 3)
    ('position 3', 'positions 0, 2', 'positions 0, 1, 2 and 47 more')
    """
    shown = ", ".join(map(str, numbers[:limit]))
    more = f" and {len(numbers) - limit} more" if len(numbers) > limit else ""
    return f"position{'s' * (len(numbers) > 1)} {shown}{more}"


def found(values: Iterable[Any], what: Callable[[Any], Any], limit: int = 4) -> str:
    """Say what was found and where: ``(3, 4, 4) at position 0, (3, 4, 5) at positions 1, 2``."""
    places: dict[str, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(str(what(value)), []).append(place)
    parts = [f"{text} at {positions(where)}" for text, where in places.items()]
    return ", ".join(parts[:limit]) + (f" and {len(parts) - limit} more" if len(parts) > limit else "")


def raise_missing_key(samples: Sequence[Mapping[Any, Any]], name: str) -> NoReturn:
    """Raise for samples with different keys, naming the first key that is not everywhere and the positions without it."""
    keys = dict.fromkeys(key for sample in samples for key in sample)
    key = next(key for key in keys if any(key not in sample for sample in samples))
    without = positions([place for place, sample in enumerate(samples) if key not in sample])
    raise CollateError(
        f"{field(under(name, key))} is missing at {without} of the batch; give every sample the same keys"
    )


def under(name: str, key: Any) -> str:
    """Return the dotted path of an entry."""
    return f"{name}.{key}" if name else str(key)


def as_array(values: Sequence[Any], name: str) -> np.ndarray[Any, Any]:
    """Turn Python numbers, or nested equal lists of them, into a bool, int64 or float32 array.

    Raises:
        CollateError: bools beside numbers, an int too large for int64, a float too large for float32, unequal lists.
    """
    kinds = set(map(type, values))
    if list in kinds:
        kinds = set(map(type, _leaves(values)))
    if bool in kinds and len(kinds) > 1:
        raise CollateError(f"{field(name)}: types differ: {found(values, kind_of)}; make all bool or all numbers")
    real = any(issubclass(kind, float) for kind in kinds)
    try:
        if not real:
            return np.array(values, dtype=np.bool_ if kinds == {bool} else np.int64)
        with np.errstate(over="raise"):
            return np.array(values, dtype=np.float64).astype(np.float32)
    except (OverflowError, FloatingPointError):
        raise CollateError(_too_large(values, name, "float32" if real else "int64")) from None
    except (ValueError, TypeError):
        raise CollateError(f"{field(name)}: lists differ: {found(values, _extent)}; {HOW_TO_PAD}") from None


HOW_TO_PAD = "make them equal in the transform, or pad the last axis with Collate(pad={field: value})"


def _leaves(values: Sequence[Any]) -> Sequence[Any]:
    """Take lists apart, level by level, until numbers are left."""
    while any(isinstance(value, list) for value in values):
        values = [leaf for value in values for leaf in (value if isinstance(value, list) else [value])]
    return values


def _extent(value: Any) -> str:
    return f"length {len(value)}" if isinstance(value, list) else kind_of(value)


def _too_large(values: Sequence[Any], name: str, dtype: str) -> str:
    info: Any = np.iinfo(np.int64) if dtype == "int64" else np.finfo(np.float32)
    for place, value in enumerate(values):
        for leaf in _leaves([value]):
            if abs(leaf) != float("inf") and not int(info.min) <= leaf <= int(info.max):
                return f"{field(name)}: {leaf!r} at {positions([place])} does not fit into {dtype}; give it as a tensor or a string"
    return f"{field(name)}: a number does not fit into {dtype}; give it as a tensor or a string"


def raise_unequal(values: Sequence[Any], name: str) -> None:
    """Raise where dtypes or shapes differ, naming both."""
    if len({value.dtype for value in values}) > 1:
        raise CollateError(
            f"{field(name)}: dtypes differ: {found(values, lambda v: v.dtype)}; convert them in the dataset"
        )
    if len({value.shape for value in values}) > 1:
        raise CollateError(f"{field(name)}: shapes differ: {found(values, lambda v: tuple(v.shape))}; {HOW_TO_PAD}")


def _tensors(values: Sequence[Tensor], name: str, _: Special) -> Tensor:
    if len({value.dtype for value in values}) > 1:  # torch would promote them, in some batches and not in others
        raise_unequal(values, name)
    try:
        return torch.stack(list(values))
    except RuntimeError as error:
        raise_unequal(values, name)
        raise CollateError(f"{field(name)} cannot be stacked: {str(error).splitlines()[0]}") from None


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


def _arrays(values: Sequence[Any], name: str, _: Special) -> Tensor:
    raise_unequal(values, name)
    return from_array(np.stack(values), name)


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


def check_new(made: Iterable[Any], key: Any, path: str, batch: Container[Any], samples: Container[Any]) -> None:
    """Raise where a padded field brings a name that another field has."""
    taken = [new for new in made if new in batch or (new != key and new in samples)]
    if taken:
        raise CollateError(
            f"{field(path)} brings {taken}, but the samples have such fields already; rename one of them"
        )


def _tuples(values: Sequence[tuple[Any, ...]], name: str, special: Special) -> Any:
    names: Sequence[Any] = getattr(values[0], "_fields", range(len(values[0])))
    kind: Any = type(values[0])
    if len({type(value) for value in values}) > 1:
        raise CollateError(f"{field(name)}: types differ: {found(values, kind_of)}; give every sample the same type")
    parts = _columns(values, names, name, special)
    return kind._make(parts) if hasattr(kind, "_make") else kind(parts)


def _columns(values: Sequence[Sequence[Any]], names: Sequence[Any], name: str, special: Special) -> list[Any]:
    if len({len(value) for value in values}) > 1:
        raise CollateError(
            f"{field(name)}: lengths differ: {found(values, len)}; give every sample the same number of entries"
        )
    return [
        join(column, under(name, key), special) for key, column in zip(names, zip(*values, strict=True), strict=True)
    ]


def _lists(values: Sequence[list[Any]], name: str, special: Special) -> Any:
    kinds = set(map(type, _leaves(values)))
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
    ((np.ndarray, np.generic), _arrays),
    ((bool, int, float), _numbers),
    (Mapping, _dicts),
    (tuple, _tuples),
    (list, _lists),
]
