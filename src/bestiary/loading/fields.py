"""Give a batch the names, or the order, that a model or a loop wants."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


def rename(names: Mapping[str, str]) -> Rename:
    """Return a step that renames fields, old name to new; other fields stay, and so does the order.

    Raises:
        ValueError: two fields get the same name. The step raises it for a field that the batch lacks, and for a new name
            that another field of the batch has.

    >>> rename({"tokens": "input_ids", "label": "labels"})({"tokens": 1, "label": 2, "name": 3})
    {'input_ids': 1, 'labels': 2, 'name': 3}
    """
    return Rename(dict(names))


def as_tuple(*fields: str) -> AsTuple:
    """Return a step that picks fields from a batch: ``for image, label in map(as_tuple("image", "label"), loader)``.

    Raises:
        ValueError: no fields. The step raises it for a field that the batch lacks.

    >>> as_tuple("image", "label")({"label": 2, "image": 1, "name": 3})
    (1, 2)
    """
    return AsTuple(fields)


@dataclass(frozen=True)
class Rename:
    """What ``rename`` returns: a call gives the batch with its new names."""

    names: Mapping[str, str]

    def __post_init__(self) -> None:
        new = list(self.names.values())
        twice = sorted({name for name in new if new.count(name) > 1})
        if twice:
            raise ValueError(f"rename gives {twice} to several fields: {dict(self.names)}; choose different names")

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """Return a dict with the new names."""
        _check(self.names, batch, "rename")
        taken = [new for old, new in self.names.items() if new in batch and new not in self.names and new != old]
        if taken:
            raise ValueError(f"rename cannot use {taken}, which the batch has already: {list(batch)}; rename these too")
        return {self.names.get(name, name): value for name, value in batch.items()}


@dataclass(frozen=True)
class AsTuple:
    """What ``as_tuple`` returns: a call gives the chosen fields of a batch."""

    fields: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise ValueError("as_tuple needs the names of fields, such as as_tuple('image', 'label')")

    def __call__(self, batch: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the fields in the order asked for."""
        _check(self.fields, batch, "as_tuple")
        return tuple(batch[name] for name in self.fields)


def _check(names: Any, batch: Mapping[str, Any], step: str) -> None:
    missing = [name for name in names if name not in batch]
    if missing:
        raise ValueError(f"{step} finds no {missing} in the batch, which has {list(batch)}; correct the names")
