"""Walk through a batch of any structure and change its tensors; everything else stays as it is."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping, ValuesView
from collections.abc import Set as AbstractSet
from typing import Any

from torch import Tensor

_LEAVES = frozenset({type(None), str, bytes, bool, int, float, complex})


def map_tensors(
    batch: Any, change: Callable[[Tensor], Tensor], *, method: str, arguments: tuple[Any, ...], strict: bool = True
) -> Any:
    """Return the batch with ``change`` applied to each tensor once, structure and types kept.

    Objects that are no container and have a method of this name are asked by ``method(*arguments)``; without it they are
    an error where they hold tensors, or stay as they are if not ``strict``.
    """
    return _Walk(change, method, arguments, strict)(batch)


class _Walk:
    """Changes the tensors of a batch; an object and not a function within, which would hold itself and all that it met."""

    def __init__(
        self, change: Callable[[Tensor], Tensor], method: str, arguments: tuple[Any, ...], strict: bool
    ) -> None:
        self.change, self.method, self.arguments, self.strict = change, method, arguments, strict
        self.done: dict[int, tuple[Tensor, Tensor]] = {}  # by id, with the tensor itself: its id has to stay its own

    def __call__(self, value: Any) -> Any:
        """Change what is in ``value``."""
        kind = type(value)
        if kind in _LEAVES:
            return value
        if isinstance(value, Tensor):
            if id(value) not in self.done:
                self.done[id(value)] = value, self.change(value)
            return self.done[id(value)][1]
        if kind is dict:
            return {key: self(part) for key, part in value.items()}
        if kind is list:
            return [self(part) for part in value]
        if kind is tuple:
            return tuple(map(self, value))
        return _rebuild(value, self, self.method, self.arguments, self.strict)


def _rebuild(value: Any, walk: Callable[[Any], Any], method: str, arguments: tuple[Any, ...], strict: bool) -> Any:
    """Rebuild what is not one of Python's plain containers."""
    if isinstance(value, type):
        return value
    own = getattr(value, method, None)
    if callable(own):  # of a copy: transformers' batches change themselves
        return getattr(copy.copy(value), method)(*arguments)
    if isinstance(value, tuple):
        parts: Any = map(walk, value)
        return type(value)._make(parts) if hasattr(value, "_make") else type(value)(parts)
    if isinstance(value, Mapping):
        return _refilled(value, {key: walk(part) for key, part in value.items()})
    if isinstance(value, list):
        fresh = copy.copy(value)
        fresh[:] = [walk(part) for part in value]
        return fresh
    if dataclasses.is_dataclass(value):
        names = [part.name for part in dataclasses.fields(value) if hasattr(value, part.name)]
        return _with_attributes(value, {name: walk(getattr(value, name)) for name in names})
    if strict and any(True for _ in tensors_in(value)):
        raise TypeError(
            f"a {type(value).__name__} holds tensors but has no method '{method}'; "
            "make it a list, a dict, a named tuple or a dataclass, or give it the method"
        )
    return value


def _refilled(mapping: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with other values (a plain dict where the type cannot be written to)."""
    before = {key: mapping[key] for key in parts}
    try:
        fresh: Any = copy.copy(mapping)
        for key, part in parts.items():
            fresh[key] = part
    except TypeError:
        return parts
    if any(mapping[key] is not before[key] for key in parts):  # the copy shares what is inside
        for key, part in before.items():
            mapping[key] = part  # type: ignore[index]
        try:
            return type(mapping)(parts)  # type: ignore[call-arg]
        except TypeError:
            return parts
    return fresh


def _with_attributes(value: Any, parts: dict[str, Any]) -> Any:
    """Return a copy of an object with other attributes, frozen or not."""
    fresh = copy.copy(value)
    for name, part in parts.items():
        object.__setattr__(fresh, name, part)
    return fresh


def tensors_in(batch: Any) -> Iterator[Tensor]:
    """Yield every tensor that a batch holds, each once: in containers, dataclasses and attributes of objects."""
    todo, seen = [batch], dict[int, Any]()
    while todo:
        value = todo.pop()
        if type(value) in _LEAVES or id(value) in seen or isinstance(value, type):
            continue
        seen[id(value)] = value  # which keeps its id its own
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            todo.extend(value.values())
        elif isinstance(value, (list, tuple, AbstractSet, deque, ValuesView)):
            todo.extend(value)
        else:
            todo.extend(getattr(value, "__dict__", {}).values())
            names = [name for kind in type(value).__mro__ for name in _slots(kind)]
            todo.extend(getattr(value, name) for name in names if hasattr(value, name))


def _slots(kind: type) -> tuple[str, ...]:
    named = kind.__dict__.get("__slots__", ())
    return (named,) if isinstance(named, str) else tuple(named)
