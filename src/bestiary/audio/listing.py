"""A table of sound files and parts of them, read into columns: a million rows are a few arrays."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bestiary.files.listing import LABEL_COLUMNS, Columns, add_row, begin_columns, chosen, filled, numbered, packed
from bestiary.files.names import PackedNames
from bestiary.files.rows import TextColumn, converted, read_rows, state_of

if TYPE_CHECKING:
    from bestiary.files.tree import ClassNames

Doubles: TypeAlias = npt.NDArray[np.float64]
FILE_COLUMNS = ("file_name", "filename", "file", "path", "audio", "audio_path", "audio_filepath", "name")
_TAKEN = ("waveform", "sample_rate", "label", "name")


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


class _Held(NamedTuple):
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
    columns: Columns = {}
    held = _Held("", "", "", "")
    for line, row in read_rows(path):
        where = f"{path}, line {line}"
        if not lines:
            held = _choose(where, row, file_column, label_column)
            columns = _begin(where, row, held, fields)
        names.append(filled(where, row, held.file))
        if held.label:
            codes.append(seen.setdefault(filled(where, row, held.label), len(seen)))
        starts.append(seconds(where, row, held.start, 0.0))
        durations.append(seconds(where, row, held.duration, float("nan")))
        lines.append(line)
        add_row(where, row, columns)
    if not lines:
        raise ValueError(f"{path} has no rows; expected a file name on each line")
    known, labels = _classes(classes) if not seen else numbered(path, seen, codes, lines, classes)
    spans = (np.array(starts), np.array(durations)) if held.start or held.duration else None
    return Listing(known, names.packed(), labels, spans, np.array(lines), packed(columns))


def _choose(where: str, row: Mapping[str, Any], file_column: str | None, label_column: str | None) -> _Held:
    file = chosen(where, row, (file_column,) if file_column else FILE_COLUMNS, "file_column")
    if label_column:
        label = chosen(where, row, (label_column,), "label_column")
    else:
        label = next((name for name in LABEL_COLUMNS if name in row), "")
    return _Held(file, label, "start" if "start" in row else "", "duration" if "duration" in row else "")


def _begin(where: str, row: Mapping[str, Any], held: _Held, fields: Mapping[str, type] | None) -> Columns:
    """Begin the further columns, ``text`` among them."""
    if fields is not None and "text" in row and "text" not in held:
        fields = {"text": str} | dict(fields)
    return begin_columns(where, row, held, fields, _TAKEN)


def _classes(classes: object) -> tuple[ClassNames, None]:
    """Return the given class map of a table without labels."""
    from bestiary.files.classmap import class_names
    from bestiary.files.tree import ClassNames

    return ClassNames() if classes is None else class_names(classes), None
