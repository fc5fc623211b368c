"""A table of file names and labels, read into columns: a million rows are a few arrays."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bestiary.files.listing import LABEL_COLUMNS, Columns, add_row, begin_columns, chosen, filled, numbered, packed
from bestiary.files.names import PackedNames
from bestiary.files.rows import TextColumn, read_rows

if TYPE_CHECKING:
    from bestiary.files.tree import ClassNames

_FILE_COLUMNS = ("file_name", "filename", "file", "path", "image", "name")
_TAKEN = ("image", "label", "name")


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
    columns: Columns = {}
    file = label = ""
    for line, row in read_rows(path):
        where = f"{path}, line {line}"
        if not lines:
            file = chosen(where, row, (file_column,) if file_column else _FILE_COLUMNS, "file_column")
            label = chosen(where, row, (label_column,) if label_column else LABEL_COLUMNS, "label_column")
            columns = begin_columns(where, row, {file, label}, fields, _TAKEN)
        names.append(filled(where, row, file))
        codes.append(seen.setdefault(filled(where, row, label), len(seen)))
        lines.append(line)
        add_row(where, row, columns)
    if not lines:
        raise ValueError(f"{path} has no rows; expected a file name and a label on each line")
    known, labels = numbered(path, seen, codes, lines, classes)
    return Listing(known, names.packed(), labels, np.array(lines), packed(columns))
