"""Make a batch of samples: equal tensors stack, named fields are padded, strings stay lists.

Batch::

    <field>          (B, ...), dtype of the samples; numbers int64 or float32; strings a list of B
    <field>_mask     bool (B, T), True where real: beside each padded field, from lengths and never from values
    <field>_length   int64 (B,)
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import Any, Literal, cast

import numpy as np

from bestiary.loading.columns import (
    Columns,
    check_columns,
    column_lengths,
    has_columns,
    padded_column,
    plain_column,
    take,
)
from bestiary.loading.faults import CollateError, check_new, field, kind_of, positions
from bestiary.loading.padding import pad, padded_field, row_lengths
from bestiary.loading.stacking import join, stack

__all__ = ["Collate", "CollateError", "Columns", "pad", "stack"]


@dataclass(frozen=True)
class Collate:
    """Make a batch of samples; what becomes of each kind of field stands in ``bestiary.loading.stacking``.

    Args:
        pad: field to pad value, for dict samples (``"meta.tokens"`` for a nested dict). Such a field is padded at the end
            of its last axis and brings ``<field>_mask`` and ``<field>_length``.
        pad_to_multiple: pad to a multiple of this, at least one, so that fewer shapes occur.
        empty: what to do with samples that have a padded field of length 0. ``"keep"``: length 0 and a mask of False;
            ``"drop"``: leave the sample out, with one notice in each process (also of workers); ``"error"``.

    Raises:
        ValueError: "empty batch", where there are no samples or all of them were dropped.
        CollateError: samples do not fit together; names the field, the positions in the batch, and what differs.

    >>> samples = [{"tokens": [5, 6], "name": "a"}, {"tokens": [7], "name": "b"}]
    >>> batch = Collate(pad={"tokens": 0})(samples)
    >>> batch["tokens"].tolist(), batch["tokens_mask"].tolist(), batch["name"]
    ([[5, 6], [7, 0]], [[True, True], [True, False]], ['a', 'b'])
    """

    pad: Mapping[str, float] | None = None
    pad_to_multiple: int | None = None
    empty: Literal["keep", "drop", "error"] = "keep"

    def __post_init__(self) -> None:
        if self.empty not in ("keep", "drop", "error"):
            raise ValueError(f"empty should be 'keep', 'drop' or 'error', but is {self.empty!r}")
        if self.pad_to_multiple is not None and self.pad_to_multiple < 1:
            raise ValueError(f"pad_to_multiple should be 1 or more, but is {self.pad_to_multiple!r}")
        fills = self.pad if self.pad is not None else {}
        if not isinstance(fills, Mapping) or not all(isinstance(fill, Real) for fill in fills.values()):
            raise TypeError(f"pad should map fields to pad values, such as {{'tokens': 0}}, but is {self.pad!r}")

    def __call__(self, samples: Sequence[Any]) -> Any:
        """Return the batch of the samples, whose order is kept."""
        if len(samples) == 0:
            raise ValueError("empty batch")
        if has_columns(type(samples)):
            return self._from_columns(cast(Columns, samples).columns(), len(samples))
        if not self.pad:
            return join(samples)
        kept = self._kept({path: row_lengths(_column(samples, path), path) for path in self._to_check(samples)})
        samples = samples if kept is None else [samples[place] for place in kept.tolist()]
        fills, multiple = self.pad, self.pad_to_multiple
        special = {path: partial(padded_field, fill=fill, multiple=multiple) for path, fill in fills.items()}
        return join(samples, "", special)

    def _to_check(self, samples: Sequence[Any]) -> Mapping[str, float]:
        """Return the padded fields, of which the samples have each; none where empty ones need no look beforehand."""
        for path in self.pad or ():
            _entry(samples[0], path)
        return self.pad if self.pad and self.empty != "keep" else {}

    def _kept(self, lengths: Mapping[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any] | None:
        """Return the positions that stay, or None for all."""
        if self.empty == "keep" or all(counts.all() for counts in lengths.values()):
            return None
        if self.empty == "error":
            path, counts = next((path, counts) for path, counts in lengths.items() if not counts.all())
            raise CollateError(
                f"{field(path)} has length 0 at {positions(np.flatnonzero(counts == 0).tolist())} of the batch; "
                "filter such samples, or choose empty='keep' or 'drop'"
            )
        warnings.warn(
            f"bestiary: Collate(empty='drop') leaves out samples in which one of {list(lengths)} has length 0",
            stacklevel=3,
        )
        kept = np.flatnonzero(np.logical_and.reduce([counts > 0 for counts in lengths.values()]))
        if kept.size == 0:
            raise ValueError("empty batch")
        return kept

    def _from_columns(self, columns: Mapping[str, Any], count: int) -> dict[str, Any]:
        """Make the batch from columns: the same batch as from the samples."""
        check_columns(columns, count)
        fills = self.pad or {}
        for path in fills:
            _entry(columns, path)
        lengths = {path: column_lengths(columns[path], path) for path in fills}
        kept = self._kept(lengths)
        if kept is not None:
            columns = {name: take(column, kept) for name, column in columns.items()}
            lengths = {path: counts[kept] for path, counts in lengths.items()}
        batch: dict[str, Any] = {}
        for name, column in columns.items():
            if name in fills:
                made = padded_column(name, column, lengths[name], fills[name], self.pad_to_multiple)
                check_new(made, name, name, batch, columns)
                batch.update(made)
            else:
                batch[name] = plain_column(column, name)
        return batch


def _column(samples: Sequence[Any], path: str) -> list[Any]:
    """Return what stands at a dotted path in each sample."""
    return [_entry(sample, path, place) for place, sample in enumerate(samples)]


def _entry(sample: Any, path: str, place: int = 0) -> Any:
    """Return what stands at a dotted path, a key with dots in it before a nested one."""
    at, rest = sample, path
    while isinstance(at, Mapping) and rest not in at and rest.partition(".")[0] in at and "." in rest:
        head, _, rest = rest.partition(".")
        at = at[head]
    if isinstance(at, Mapping) and rest in at:
        return at[rest]
    fields = f"has the fields {list(at)}" if isinstance(at, Mapping) else f"is of type {kind_of(at)}, not a dict"
    raise CollateError(
        f"{field(path)} is to be padded, but the sample at {positions([place])} {fields}; correct Collate(pad=...)"
    )
