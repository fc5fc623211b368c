"""A table of sound files and parts of them, read into columns: a million rows are a few arrays."""

from __future__ import annotations

import math
import re
import warnings
from array import array
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bestiary.files.names import PackedNames
from bestiary.files.rows import TextColumn, converted, read_rows, state_of

if TYPE_CHECKING:
    from bestiary.files.tree import ClassNames

Doubles: TypeAlias = npt.NDArray[np.float64]
FILE_COLUMNS = ("file_name", "filename", "file", "path", "audio", "audio_path", "audio_filepath", "name")
_LABEL_COLUMNS = ("label", "class")
_TAKEN = ("waveform", "sample_rate", "label", "name")
_INTEGER = re.compile(r"-?[0-9]+")


def seconds(where: str, row: dict[str, Any], column: str, empty: float) -> float:
    """Return a cell as seconds, 0 or more; ``empty`` where it is missing, null or blank.

    Raises:
        ValueError: it is no number, negative or not finite; the message says where.
    """
    value = row.get(column)
    if value is None or value == "":
        return empty
    found = float(converted(where, row, column, float))
    if not 0 <= found < math.inf:
        raise ValueError(f"{where}: column {column!r} {state_of(row, column)}, expected seconds, 0 or more")
    return found


class Listing(NamedTuple):
    """Classes by index; file, label, span in seconds and line of each row (N,); further columns by name."""

    classes: ClassNames
    names: PackedNames
    labels: npt.NDArray[np.int64] | None
    spans: tuple[Doubles, Doubles] | None
    lines: npt.NDArray[np.int64]
    columns: dict[str, Any]


class _Chosen(NamedTuple):
    """Which column holds what; "" where there is none."""

    file: str
    label: str
    start: str
    duration: str


def read_listing(
    path: Path,
    file_column: str | None,
    label_column: str | None,
    fields: Mapping[str, type] | None,
    classes: object,
) -> Listing:
    """Read the table; the arguments are those of ``AudioManifest``.

    Raises:
        OSError: the table cannot be read.
        ValueError: a column is missing, or a line cannot be read; the message names file and line.
    """
    names, codes, lines = TextColumn(), array("q"), array("q")
    starts, durations = array("d"), array("d")
    seen: dict[str, int] = {}
    columns: dict[str, tuple[type, Any]] = {}
    chosen = _Chosen("", "", "", "")
    for line, row in read_rows(path):
        where = f"{path}, line {line}"
        if not lines:
            chosen = _choose(where, row, file_column, label_column)
            columns = _further(where, row, set(chosen), fields)
        names.append(_filled(where, row, chosen.file))
        if chosen.label:
            codes.append(seen.setdefault(_filled(where, row, chosen.label), len(seen)))
        starts.append(seconds(where, row, chosen.start, 0.0))
        durations.append(seconds(where, row, chosen.duration, float("nan")))
        lines.append(line)
        for name, (kind, column) in columns.items():
            column.append(converted(where, row, name, kind))
    if not lines:
        raise ValueError(f"{path} has no rows; expected a file name on each line")
    known, labels = _numbered(path, seen, codes, lines, classes)
    spans = (np.array(starts), np.array(durations)) if chosen.start or chosen.duration else None
    further = {
        name: col.packed() if isinstance(col, TextColumn) else np.array(col) for name, (_, col) in columns.items()
    }
    return Listing(known, names.packed(), labels, spans, np.array(lines), further)


def _choose(where: str, row: Mapping[str, Any], file_column: str | None, label_column: str | None) -> _Chosen:
    wanted = FILE_COLUMNS if file_column is None else (file_column,)
    file = next((name for name in wanted if name in row), "")
    usual = _LABEL_COLUMNS if label_column is None else (label_column,)
    label = next((name for name in usual if name in row), "")
    for name, option, columns in (
        (file, "file_column", wanted),
        (label or label_column is None, "label_column", usual),
    ):
        if not name:
            raise ValueError(
                f"{where}: expected a column {' or '.join(map(repr, columns))}, but the columns are"
                f" {', '.join(map(repr, row))}; name it by {option}="
            )
    return _Chosen(file, label, "start" if "start" in row else "", "duration" if "duration" in row else "")


def _filled(where: str, row: dict[str, Any], column: str) -> str:
    text = str(converted(where, row, column, str))
    if not text:
        raise ValueError(f"{where}: column {column!r} is empty")
    return text


def _further(
    where: str, row: Mapping[str, Any], taken: set[str], fields: Mapping[str, type] | None
) -> dict[str, tuple[type, Any]]:
    """Settle the type of each further column, ``text`` among them, and begin it."""
    kinds = {name: type(value) for name, value in row.items() if name not in taken} if fields is None else {**fields}
    if "text" in row and "text" not in taken:
        kinds = {"text": str} | kinds
    for name, kind in kinds.items():
        if name in _TAKEN:
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
) -> tuple[ClassNames, npt.NDArray[np.int64] | None]:
    """Turn labels into indices of classes; without a class map, integers sort by value and all else as text."""
    from bestiary.files.classmap import class_names
    from bestiary.files.tree import ClassNames

    if not seen:
        return ClassNames() if classes is None else class_names(classes), None
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
