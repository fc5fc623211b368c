"""Learn a schema from the training rows of a sheet."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from bestiary.tables.reading import Array, Sheet, distinct, numeric_share, to_numbers
from bestiary.tables.schema import Number, Schema

KINDS = ("number", "category", "skip")


class Wishes(NamedTuple):
    """What a schema should be like; the arguments of ``TypedTable`` explain each."""

    label: str | None
    target: str | None
    types: Mapping[str, str]
    classes: Sequence[str] | None
    scale: bool
    indicators: bool | None
    min_count: int


def fit_schema(sheet: Sheet, rows: Array, wishes: Wishes) -> Schema:
    """Look at ``rows`` of the sheet and at no other for vocabularies, means, scales and classes.

    Only whether a column is numeric is decided over all rows: what it is does not depend on a split.

    Raises:
        ValueError: a named column does not exist, a kind is unknown, or a column has no value in these rows.
    """
    label, target = wishes.label, wishes.target
    _check_names(sheet, [label, target, *wishes.types], wishes.types)
    kinds = {n: wishes.types.get(n) or _scan(sheet, n) for n in sheet.columns if n not in (label, target)}
    values = {n: distinct(sheet.columns[n], rows, wishes.min_count) for n, kind in kinds.items() if kind == "category"}
    classes = wishes.classes
    if label is not None and classes is None:
        classes = distinct(sheet.columns[label], rows, 1)
    return Schema(
        {n: _fit_number(sheet, n, rows, wishes) for n, kind in kinds.items() if kind == "number"},
        values,
        [str(one) for one in classes or []],
        label,
        target,
        skipped=[n for n, kind in kinds.items() if kind == "skip"],
        fitted_on=[sheet.files[i] for i in np.unique(np.searchsorted(sheet.ends, rows, side="right"))],
    )


def _check_names(sheet: Sheet, names: Sequence[str | None], types: Mapping[str, str]) -> None:
    for name in names:
        if name is not None and name not in sheet.columns:
            raise ValueError(f"{sheet.files[0]} has no column {name!r}; it has {', '.join(map(repr, sheet.columns))}")
    for name, kind in types.items():
        if kind not in KINDS:
            raise ValueError(f"column {name!r}: a type is one of {', '.join(map(repr, KINDS))}, not {kind!r}")


def _scan(sheet: Sheet, name: str) -> str:
    column = sheet.columns[name]
    if column.null_count == len(column):
        raise ValueError(
            f"column {name!r} of {sheet.files[0]} has no value at all; leave it out: types={{{name!r}: 'skip'}}"
        )
    share = numeric_share(column)
    if 0.5 <= share < 1.0:
        text = (
            f"bestiary: {sheet.files[0]}: {share:.1%} of the values of column {name!r} are numbers and the rest are not"
        )
        warnings.warn(f"{text}; taken as a category, say types={{{name!r}: 'category'}} or mend the file", stacklevel=6)
    return "number" if share == 1.0 else "category"


def _fit_number(sheet: Sheet, name: str, rows: Array, wishes: Wishes) -> Number:
    """Take mean and population deviation of the present values; a constant column is only shifted."""
    values = to_numbers(sheet, name)[rows]
    gone: Any = np.isnan(values)
    if gone.all():
        raise ValueError(
            f"column {name!r} has no value in the {len(values)} rows to fit on; leave it out: types={{{name!r}: 'skip'}}"
        )
    mean, spread = float(values[~gone].mean()), float(values[~gone].std())
    marked = bool(gone.any()) if wishes.indicators is None else wishes.indicators
    if not wishes.scale:
        return Number(fill=mean, indicator=marked)
    return Number(fill=mean, shift=mean, scale=spread if spread > 0 else 1.0, indicator=marked)
