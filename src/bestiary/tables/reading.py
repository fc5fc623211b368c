"""CSV files as columns of text, and text as numbers: the only place of this room that knows pyarrow."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]


class Sheet(NamedTuple):
    """The rows of all files: each column as Arrow text without blanks around it, null where a value is missing."""

    columns: dict[str, Any]
    files: list[str]
    ends: Array  # for each file the number of rows up to its end

    def __len__(self) -> int:
        return int(self.ends[-1])

    def where(self, row: int) -> str:
        """Say in which file a row lies; the first row below the header is row 1."""
        which = int(np.searchsorted(self.ends, row, side="right"))
        before = int(self.ends[which - 1]) if which else 0
        return f"{self.files[which]}, row {row - before + 1}"


def _arrow() -> tuple[Any, Any, Any]:
    """Return pyarrow and the two parts of it that are used here; they are loaded at the first call."""
    try:
        import pyarrow
        from pyarrow import compute, csv
    except ImportError as error:
        raise ImportError("reading CSV tables needs pyarrow: pip install 'bestiary[tables]'") from error
    return pyarrow, compute, csv


def read_sheet(files: Sequence[str | os.PathLike[str]], delimiter: str | None, missing: Collection[str]) -> Sheet:
    """Read CSV files that share one set of columns; their order may differ from file to file.

    Raises:
        ImportError: pyarrow is not installed.
        OSError: a file cannot be read.
        ValueError: a file is no CSV table, or lacks a column that the first file has, or has another one.
    """
    names = [os.fspath(one) for one in files]
    if not names:
        raise ValueError("no CSV file was given; give one path, or a list of paths with the same columns")
    tables = [_read_one(name, delimiter, missing) for name in names]
    for name, table in zip(names, tables, strict=True):
        _same_columns(names[0], tables[0].column_names, name, table.column_names)
    joined = _arrow()[0].concat_tables([table.select(tables[0].column_names) for table in tables])
    ends = np.cumsum([table.num_rows for table in tables])
    return Sheet({name: joined.column(name).combine_chunks() for name in joined.column_names}, names, ends)


def _read_one(path: str, delimiter: str | None, missing: Collection[str]) -> Any:
    """Read one file as text; what a value means is decided over all files together."""
    pyarrow, compute, csv = _arrow()

    delimiter = delimiter or ("\t" if path.endswith((".tsv", ".tsv.gz", ".tab")) else ",")
    parse = csv.ParseOptions(delimiter=delimiter, newlines_in_values=True)
    try:
        with csv.open_csv(
            path, parse_options=parse, convert_options=csv.ConvertOptions(strings_can_be_null=False)
        ) as head:
            names = [name.strip() for name in head.schema.names]
        as_text = csv.ConvertOptions(column_types=dict.fromkeys(names, pyarrow.string()), strings_can_be_null=False)
        reading = csv.ReadOptions(column_names=names, skip_rows_after_names=1)
        table = csv.read_csv(path, read_options=reading, parse_options=parse, convert_options=as_text)
    except pyarrow.ArrowInvalid as error:
        told = "".join(char if char.isprintable() else " " for char in str(error))[:300]
        raise ValueError(f"{path} is no CSV table with {delimiter!r} between its columns: {told}") from error
    double = sorted({name for name in names if names.count(name) > 1})
    if double:
        raise ValueError(
            f"{path} has more than one column named {', '.join(map(repr, double))}; rename them in its first row"
        )
    for place, name in enumerate(names):
        text = compute.utf8_trim_whitespace(table.column(name))
        gone = compute.is_in(text, value_set=pyarrow.array(sorted(set(missing) | {""}), pyarrow.string()))
        table = table.set_column(place, name, compute.if_else(gone, pyarrow.scalar(None, pyarrow.string()), text))
    return table


def _same_columns(first: str, wanted: list[str], path: str, found: list[str]) -> None:
    lacks, more = [n for n in wanted if n not in found], [n for n in found if n not in wanted]
    if lacks or more:
        said = [f"lacks {', '.join(map(repr, lacks))}"] * bool(lacks) + [f"adds {', '.join(map(repr, more))}"] * bool(
            more
        )
        raise ValueError(
            f"{path} {' and '.join(said)}, compared with the columns of {first}; all files need the same ones"
        )


def numeric_share(column: Any) -> float:
    """Return the share of present values that are finite numbers; 0.0 where one is a code with leading zeros (``007``)."""
    _, compute, _ = _arrow()
    present = compute.drop_null(column)
    if compute.any(compute.match_substring_regex(present, r"^[+-]?0[0-9]")).as_py():
        return 0.0
    return float(np.isfinite([_number(value) for value in compute.unique(present).to_pylist()]).mean())


def to_numbers(sheet: Sheet, name: str) -> Array:
    """Return a column as float64 (N,), NaN where a value is missing.

    Raises:
        ValueError: a value is no finite number; names the file, the row and the value.
    """
    pyarrow, compute, _ = _arrow()

    column = sheet.columns[name]
    try:
        values: Array = compute.cast(column, pyarrow.float64()).to_numpy(zero_copy_only=False).astype(np.float64)
    except pyarrow.ArrowInvalid:
        values = np.array([_number(value) for value in column.to_pylist()])
    wrong = np.flatnonzero(np.isinf(values) | (np.isnan(values) & ~_null(column)))
    if len(wrong):
        row = int(wrong[0])
        raise ValueError(
            f"{sheet.where(row)}: column {name!r} holds {column[row].as_py()!r}, which is no finite number; mend the file, "
            f"name it in missing=, or declare types={{{name!r}: 'category'}}"
        )
    return values


def _number(text: str | None) -> float:
    """Return a value as pyarrow would; infinite where it is none, so that the row can be found."""
    try:
        return float("nan") if text is None else float(text.replace("_", "?"))  # Python alone takes 1_000
    except ValueError:
        return float("inf")


def to_codes(sheet: Sheet, name: str, values: Sequence[str]) -> Array:
    """Return a column as int64 (N,): the place of each value in ``values``, -1 where it is not there, -2 where missing."""
    pyarrow, compute, _ = _arrow()

    column = sheet.columns[name]
    places = compute.index_in(column, value_set=pyarrow.array(list(values), pyarrow.string()))
    codes: Array = compute.fill_null(places, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    return np.where(_null(column), -2, codes)


def _null(column: Any) -> Array:
    compute = _arrow()[1]

    return np.asarray(compute.is_null(column))


def distinct(column: Any, rows: Array, min_count: int) -> list[str]:
    """Return the values that come at least ``min_count`` times in ``rows``, integers by size and all else by spelling."""
    pyarrow, compute, _ = _arrow()

    counts = compute.value_counts(compute.drop_null(column.take(pyarrow.array(rows))))
    values = [one["values"].as_py() for one in counts if one["counts"].as_py() >= min_count]
    whole = all(value.lstrip("+-").isdecimal() for value in values)
    return sorted(values, key=(lambda value: (int(value), value)) if whole else None)
