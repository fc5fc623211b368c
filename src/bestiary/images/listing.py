"""A table of file names and labels, read into columns: a million rows are a few arrays."""

from __future__ import annotations

import re
import warnings
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bestiary.files.names import PackedNames
from bestiary.files.rows import TextColumn, converted, read_rows

if TYPE_CHECKING:
    from bestiary.files.tree import ClassNames

_FILE_COLUMNS = ("file_name", "filename", "file", "path", "image", "name")
_LABEL_COLUMNS = ("label", "class")
_INTEGER = re.compile(r"-?[0-9]+")


class Listing(NamedTuple):
    """Classes by index; file name, label (N,), and line of the table (N,) of each row; further columns by name."""

    classes: ClassNames
    names: PackedNames
    labels: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]
    columns: dict[str, Any]


def read_listing(
    path: Path,
    file_column: str | None,
    label_column: str | None,
    fields: Mapping[str, type] | None,
    classes: object,
) -> Listing:
    """Read the table; the arguments are those of ``ImageManifest``.

    Raises:
        OSError: the table cannot be read.
        ValueError: a column is missing, or a line cannot be read; the message names file and line.
    """
    names, codes, lines = TextColumn(), array("q"), array("q")
    seen: dict[str, int] = {}
    columns: dict[str, tuple[type, Any]] = {}
    file = label = ""
    for line, row in read_rows(path):
        where = f"{path}, line {line}"
        if not lines:
            file = _chosen(where, row, file_column, _FILE_COLUMNS, "file_column")
            label = _chosen(where, row, label_column, _LABEL_COLUMNS, "label_column")
            columns = _columns(where, row, {file, label}, fields)
        pair = converted(where, row, file, str), converted(where, row, label, str)
        if "" in pair:
            raise ValueError(f"{where}: column {(label if pair[0] else file)!r} is empty")
        names.append(pair[0])
        codes.append(seen.setdefault(pair[1], len(seen)))
        lines.append(line)
        for name, (kind, column) in columns.items():
            column.append(converted(where, row, name, kind))
    if not lines:
        raise ValueError(f"{path} has no rows; expected a file name and a label on each line")
    known, labels = _numbered(path, seen, codes, lines, classes)
    further = {
        name: column.packed() if isinstance(column, TextColumn) else np.array(column)
        for name, (_, column) in columns.items()
    }
    return Listing(known, names.packed(), labels, np.array(lines), further)


def _chosen(where: str, row: Mapping[str, Any], given: str | None, usual: tuple[str, ...], option: str) -> str:
    wanted = usual if given is None else (given,)
    for name in wanted:
        if name in row:
            return name
    raise ValueError(
        f"{where}: expected a column {' or '.join(map(repr, wanted))}, but the columns are"
        f" {', '.join(map(repr, row))}; name it by {option}="
    )


def _columns(
    where: str, row: Mapping[str, Any], taken: set[str], fields: Mapping[str, type] | None
) -> dict[str, tuple[type, Any]]:
    """Settle the type of each further column, and begin it."""
    kinds = {name: type(value) for name, value in row.items() if name not in taken} if fields is None else {**fields}
    for name, kind in kinds.items():
        if name in ("image", "label", "name"):
            raise ValueError(
                f"{where}: column {name!r} has the name of a field of each sample; choose columns by fields="
            )
        if name not in row:
            raise ValueError(f"{where}: there is no column {name!r}; the columns are {', '.join(map(repr, row))}")
        if kind not in (str, int, float):
            raise ValueError(f"{where}: column {name!r} is {kind.__name__}; fields= takes str, int or float")
    makers: dict[type, Callable[[], Any]] = {str: TextColumn, int: lambda: array("q"), float: lambda: array("d")}
    return {name: (kind, makers[kind]()) for name, kind in kinds.items()}


def _numbered(
    path: Path, seen: dict[str, int], codes: array[int], lines: array[int], classes: object
) -> tuple[ClassNames, npt.NDArray[np.int64]]:
    """Turn labels into indices of classes; without a class map, integers sort by value and all else as text."""
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
