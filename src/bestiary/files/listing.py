"""What tables of files have in common: which column holds what, further columns with their types, labels to class indices."""

from __future__ import annotations

import re
import warnings
from array import array
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from bestiary.files.rows import TextColumn, converted

if TYPE_CHECKING:
    from bestiary.files.tree import ClassNames

Columns: TypeAlias = dict[str, tuple[type, Any]]
LABEL_COLUMNS = ("label", "class")
_INTEGER = re.compile(r"-?[0-9]+")
_MAKERS: dict[type, Callable[[], Any]] = {str: TextColumn, int: lambda: array("q"), float: lambda: array("d")}


def chosen(where: str, row: Mapping[str, Any], wanted: Sequence[str], option: str) -> str:
    """Return the first of the wanted columns that a row has.

    Raises:
        ValueError: it has none; the message names the option that chooses one.
    """
    for name in wanted:
        if name in row:
            return name
    raise ValueError(
        f"{where}: expected a column {' or '.join(map(repr, wanted))}, but the columns are"
        f" {', '.join(map(repr, row))}; name it by {option}="
    )


def filled(where: str, row: dict[str, Any], column: str) -> str:
    """Return a cell as text.

    Raises:
        ValueError: it is empty.
    """
    text = str(converted(where, row, column, str))
    if not text:
        raise ValueError(f"{where}: column {column!r} is empty")
    return text


def begin_columns(
    where: str,
    row: Mapping[str, Any],
    taken: Collection[str],
    fields: Mapping[str, type] | None,
    reserved: Collection[str],
) -> Columns:
    """Begin the further columns of a table: those of ``fields``, or all that are not taken, with the types of this row.

    Raises:
        ValueError: a column is reserved for a field of each sample, is not there, or has another type than str, int, float.
    """
    kinds = {name: type(value) for name, value in row.items() if name not in taken} if fields is None else {**fields}
    for name, kind in kinds.items():
        if name in reserved:
            raise ValueError(
                f"{where}: column {name!r} has the name of a field of each sample; choose columns by fields="
            )
        if name not in row:
            raise ValueError(f"{where}: there is no column {name!r}; the columns are {', '.join(map(repr, row))}")
        if kind not in _MAKERS:
            raise ValueError(f"{where}: column {name!r} is {kind.__name__}; fields= takes str, int or float")
    return {name: (kind, _MAKERS[kind]()) for name, kind in kinds.items()}


def add_row(where: str, row: dict[str, Any], columns: Columns) -> None:
    """Add a row's cells to the further columns."""
    for name, (kind, column) in columns.items():
        column.append(converted(where, row, name, kind))


def packed(columns: Columns) -> dict[str, Any]:
    """Return the further columns as arrays and packed names."""
    return {
        name: column.packed() if isinstance(column, TextColumn) else np.array(column)
        for name, (_, column) in columns.items()
    }


def numbered(
    path: Path, seen: dict[str, int], codes: array[int], lines: array[int], classes: object
) -> tuple[ClassNames, npt.NDArray[np.int64]]:
    """Turn labels into indices of classes; without a class map, integers sort by value and all else as text.

    Args:
        path: the table.
        seen: each label, and the code that stands for it.
        codes: code of each row (N,).
        lines: line of each row (N,).
        classes: a class map as ``bestiary.files.class_names`` takes it, or None.

    Raises:
        ValueError: a label is not in the class map; the message names line and label.
    """
    from bestiary.files.classmap import class_names

    if classes is None:
        whole = all(_INTEGER.fullmatch(name) for name in seen)
        known = class_names(sorted(seen, key=lambda name: (int(name) if whole else 0, name)))
        known.root = str(path)
        odd = [f"{name!r} -> {at}" for at, name in enumerate(known) if whole and int(name) != at]
        if odd:
            text = f"the labels in {path} are integers, but the index is another number: {', '.join(odd[:10])}"
            warnings.warn(f"bestiary: {text}; for index = label give a mapping, classes={{...}}", stacklevel=4)
    else:
        known = class_names(classes)
    index = known.class_to_idx
    labels = np.array([index.get(name, -1) for name in seen], np.int64)[np.frombuffer(codes, np.int64)]
    unknown = np.flatnonzero(labels < 0)
    if len(unknown):
        name = list(seen)[codes[unknown[0]]]
        source = f"the class map of {known.root}" if known.root else "the class map given by classes="
        raise ValueError(
            f"{path}, line {lines[unknown[0]]}: label {name!r} is not in {source}, whose {len(known)} classes are"
            f" {', '.join(map(repr, known[:10]))}{', ...' if len(known) > 10 else ''}"
        )
    return known, labels
