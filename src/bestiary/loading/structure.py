"""Walk through a batch of any structure and change its tensors; everything else stays as it is."""

from __future__ import annotations

import copy
import dataclasses
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from torch import Tensor

_LEAVES = frozenset({type(None), str, bytes, bool, int, float, complex})


def map_tensors(batch: Any, change: Callable[[Tensor], Tensor], *, method: str, arguments: tuple[Any, ...]) -> Any:
    """Return the batch with ``change`` applied to each tensor once, structure and types kept.

    Objects that are no container and have a method of this name are asked by ``method(*arguments)``.
    """
    done: dict[int, Tensor] = {}  # by id: the batch keeps its tensors alive meanwhile

    def walk(value: Any) -> Any:
        """Change what is in ``value``."""
        kind = type(value)
        if kind in _LEAVES:
            return value
        if isinstance(value, Tensor):
            if id(value) not in done:
                done[id(value)] = change(value)
            return done[id(value)]
        if kind is dict:
            return {key: walk(part) for key, part in value.items()}
        if kind is list:
            return [walk(part) for part in value]
        if kind is tuple:
            return tuple(map(walk, value))
        return _rebuild(value, walk, method, arguments)

    return walk(batch)


def _rebuild(value: Any, walk: Callable[[Any], Any], method: str, arguments: tuple[Any, ...]) -> Any:
    """Rebuild what is not one of Python's plain containers."""
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
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _with_attributes(
            value, {part.name: walk(getattr(value, part.name)) for part in dataclasses.fields(value)}
        )
    held = [name for name, part in getattr(value, "__dict__", {}).items() if isinstance(part, Tensor)]
    if held or (isinstance(value, (AbstractSet, deque)) and any(isinstance(part, Tensor) for part in value)):
        raise TypeError(
            f"a {type(value).__name__} holds tensors but has no method '{method}'; "
            "make it a list, a dict, a named tuple or a dataclass, or give it the method"
        )
    return value


def _refilled(mapping: Mapping[Any, Any], parts: dict[Any, Any]) -> Any:
    """Return a mapping of the same type with other values (a plain dict where the type cannot be written to)."""
    try:
        fresh: Any = copy.copy(mapping)
        for key, part in parts.items():
            fresh[key] = part
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
    todo, seen = [batch], set[int]()
    while todo:
        value = todo.pop()
        if type(value) in _LEAVES or id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            todo.extend(value.values())
        elif isinstance(value, (list, tuple, set, frozenset)):
            todo.extend(value)
        else:
            todo.extend(getattr(value, "__dict__", {}).values())
