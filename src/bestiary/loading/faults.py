"""What the errors of a batch say: which field, where in the batch, and what was found there."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from typing import Any, NoReturn

from bestiary.loading.errors import portable

HOW_TO_PAD = "make them equal in the transform, or pad the last axis with Collate(pad={field: value})"


class CollateError(ValueError):
    """Samples that do not fit together: the text names the field, the positions in the batch, and what was found.

    It pickles with its cause, whose traceback in a worker travels as text.
    """

    def __reduce__(self) -> tuple[Callable[..., CollateError], tuple[Any, ...]]:
        return _with_cause, (type(self), self.args, portable(self.__cause__))


def _with_cause(kind: type[CollateError], arguments: tuple[Any, ...], cause: BaseException | None) -> CollateError:
    error = kind(*arguments)
    error.__cause__ = cause
    return error


def under(name: str, key: Any) -> str:
    """Return the dotted path of an entry."""
    return f"{name}.{key}" if name else str(key)


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


def raise_unequal(values: Sequence[Any], name: str) -> None:
    """Raise where dtypes or shapes differ, naming both."""
    if len({value.dtype for value in values}) > 1:
        raise CollateError(
            f"{field(name)}: dtypes differ: {found(values, lambda v: v.dtype)}; convert them in the dataset"
        )
    if len({value.shape for value in values}) > 1:
        raise CollateError(f"{field(name)}: shapes differ: {found(values, lambda v: tuple(v.shape))}; {HOW_TO_PAD}")


def check_new(made: Iterable[Any], key: Any, path: str, batch: Container[Any], samples: Container[Any]) -> None:
    """Raise where a padded field brings a name that another field has."""
    taken = [new for new in made if new in batch or (new != key and new in samples)]
    if taken:
        raise CollateError(
            f"{field(path)} brings {taken}, but the samples have such fields already; rename one of them"
        )
