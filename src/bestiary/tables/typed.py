"""Typed columns of CSV files: numbers scaled, words coded, gaps marked, all learned from the training rows only.

Layout::

    train.csv, or a list of shards    a first row of names, then one row a sample; .tsv has tabs; .gz is unpacked

Sample::

    features    float32 (F,), the numeric columns, then 1.0 for each missing value of a column with an indicator
    categories  int64 (K,), codes of the other columns: 0 missing, 1 unknown, 2 and up as in ``schema.categories``;
                the field is there when the table has such columns
    label       int, index into ``classes``, where a label column is named, or
    target      float32 scalar, where a target column is named

The rows are read when the table is made, as numbers in memory; for a table larger than that see ``MemmapTable``.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bestiary.tables.fitting import Wishes, fit_schema
from bestiary.tables.reading import Array, Sheet, read_sheet, to_codes, to_numbers
from bestiary.tables.rows import Rows, row_number, row_numbers
from bestiary.tables.schema import FIRST, MISSING, UNKNOWN, Schema

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
Sample = dict[str, Any]
MISSING_WORDS = ("NA", "N/A", "NaN", "nan", "null", "NULL")


class TypedTable:
    """Serve the rows of CSV files as numbers.

    Args:
        paths: a file, or a list of shards with the same columns.
        label: column of class labels; any text, also integers.
        target: column of regression values.
        schema: what another table learned: that table, its schema, or the JSON file. Without it this table learns one.
        types: for columns that should not be guessed: "number", "category" or "skip".
        classes: the label's values in the order of their index; without them the sorted values of the fitted rows.
        fit_rows: the rows to learn from; None is all. Give the training part when one file holds all parts.
        scale: bring each numeric column to mean 0 and deviation 1 of the fitted rows.
        indicators: mark missing values of every numeric column (True), of none (False), or of those that miss values in
            the fitted rows (None).
        min_count: values of a category that come less often in the fitted rows are taken as unknown.
        missing: words that stand for a missing value; an empty cell always does.
        delimiter: None is a tab for .tsv files and a comma for others.
        dtype: type of the features and of the target.
        transform: called with each sample; None gives whole batches at once.

    Raises:
        ImportError: pyarrow is not installed.
        OSError: a file cannot be read.
        ValueError: files, columns, values or classes do not fit; the message names the file and the row.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "pets.csv")
        >>> _ = path.write_text("age,colour,kind\\n1,red,cat\\n3,,dog\\n")
        >>> TypedTable(path, label="kind")[1]
        {'features': tensor([3.]), 'categories': tensor([0]), 'label': 1}
    """

    def __init__(
        self,
        paths: Paths,
        *,
        label: str | None = None,
        target: str | None = None,
        schema: Schema | TypedTable | str | os.PathLike[str] | None = None,
        types: Mapping[str, str] | None = None,
        classes: Sequence[str] | None = None,
        fit_rows: Sequence[int] | Array | None = None,
        scale: bool = False,
        indicators: bool | None = None,
        min_count: int = 1,
        missing: Collection[str] = MISSING_WORDS,
        delimiter: str | None = None,
        dtype: torch.dtype = torch.float32,
        transform: Callable[[Sample], Sample] | None = None,
    ) -> None:
        sheet = read_sheet([paths] if isinstance(paths, (str, os.PathLike)) else paths, delimiter, missing)
        wishes = Wishes(label, target, types or {}, classes, scale, indicators, min_count)
        self.schema = _fit(sheet, fit_rows, wishes) if schema is None else _given(schema, fit_rows, wishes)
        self.transform = transform
        self._files, self._ends = sheet.files, sheet.ends
        self._columns = _encode(sheet, self.schema, dtype, quiet=indicators is False)

    @property
    def classes(self) -> list[str]:
        """The label's values in the order of their index."""
        return list(self.schema.classes)

    @property
    def labels(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        """The class index of every row (N,): for weights, balanced orders and stratified splits."""
        if "label" not in self._columns:
            raise AttributeError("this table has no label column; name one with label=")
        return self._columns["label"].numpy().copy()

    @property
    def draws(self) -> bool:
        """Whether a sample may draw random numbers."""
        return self.transform is not None

    def __len__(self) -> int:
        return len(self._columns["features"])

    def __getitem__(self, index: int) -> Sample:
        row = row_number(index, len(self), self._files[0])
        sample = Rows({name: column[row : row + 1].clone() for name, column in self._columns.items()})[0]
        return self.transform(sample) if self.transform else sample

    def __getitems__(self, indices: Sequence[int]) -> Sequence[Sample]:
        """Return copies of many rows at once, as columns where no transform is to be called."""
        rows = torch.from_numpy(row_numbers(indices, len(self), self._files[0]))
        batch = Rows({name: column[rows] for name, column in self._columns.items()})
        return [self.transform(sample) for sample in batch] if self.transform else batch

    def locate(self, index: int) -> str:
        """Say in which file and row a sample lies; the first row below the header is row 1."""
        return Sheet({}, self._files, self._ends).where(row_number(index, len(self), self._files[0]))


def _fit(sheet: Sheet, fit_rows: Sequence[int] | Array | None, wishes: Wishes) -> Schema:
    if wishes.label is not None and wishes.target is not None:
        raise ValueError(f"a table has a label or a target, but label={wishes.label!r} and target={wishes.target!r}")
    rows = np.arange(len(sheet)) if fit_rows is None else row_numbers(list(fit_rows), len(sheet), sheet.files[0])
    if not len(rows):
        raise ValueError(f"{sheet.files[0]}: no row to learn a schema from; give schema= of the training table")
    return fit_schema(sheet, rows, wishes)


def _given(source: Schema | TypedTable | str | os.PathLike[str], fit_rows: object, wishes: Wishes) -> Schema:
    if (
        fit_rows is not None
        or wishes.scale
        or wishes.types
        or any(one is not None for one in (*wishes[:2], wishes.classes))
    ):
        raise ValueError(
            "label, target, types, classes, fit_rows and scale come from schema= here; leave them out, or leave schema out"
        )
    if isinstance(source, Schema):
        return source
    return source.schema if isinstance(source, TypedTable) else Schema.load(source)


def _encode(sheet: Sheet, schema: Schema, dtype: torch.dtype, quiet: bool) -> dict[str, Tensor]:
    """Turn all columns into tensors: features (N, F), categories (N, K), label or target (N,)."""
    _check_columns(sheet, schema)
    columns = {"features": torch.from_numpy(_features(sheet, schema, quiet)).to(dtype)}
    if schema.categories:
        codes = [to_codes(sheet, name, values) for name, values in schema.categories.items()]
        coded = [np.where(one >= 0, one + FIRST, np.where(one == -1, UNKNOWN, MISSING)) for one in codes]
        columns["categories"] = torch.from_numpy(np.stack(coded, axis=1))
    if schema.label is not None:
        columns["label"] = torch.from_numpy(_labels(sheet, schema, schema.label))
    elif schema.target is not None:
        values = to_numbers(sheet, schema.target)
        _all_present(sheet, schema.target, np.isnan(values))
        columns["target"] = torch.from_numpy(values).to(dtype)
    return columns


def _check_columns(sheet: Sheet, schema: Schema) -> None:
    fitted = ", ".join(schema.fitted_on) or "the schema"
    lacks = [name for name in schema.columns if name not in sheet.columns]
    if lacks:
        hint = "; for files without labels use schema.without_target()" if lacks == schema.columns[-1:] else ""
        raise ValueError(f"{sheet.files[0]} lacks {', '.join(map(repr, lacks))}, which {fitted} has{hint}")
    known = {*schema.columns, *schema.skipped}
    more = [name for name in sheet.columns if name not in known]
    if more and (schema.label or schema.target):
        text = f"bestiary: {sheet.files[0]} has columns that {fitted} has not, left out: {', '.join(map(repr, more))}"
        warnings.warn(text, stacklevel=4)


def _features(sheet: Sheet, schema: Schema, quiet: bool) -> Array:
    """Return filled and scaled numbers, then indicators, float64 (N, F)."""
    made, marks = [], []
    for name, number in schema.numbers.items():
        values = to_numbers(sheet, name)
        gone = np.isnan(values)
        if number.indicator:
            marks.append(gone.astype(np.float64))
        elif gone.any() and not quiet:
            text = f"bestiary: {sheet.where(int(np.argmax(gone)))}: column {name!r} lacks values, as the fitted rows did not"
            warnings.warn(f"{text}; {gone.sum()} filled with {number.fill:.6g}, without an indicator", stacklevel=5)
        made.append((np.where(gone, number.fill, values) - number.shift) / number.scale)
    return np.stack([*made, *marks], axis=1) if made else np.empty((len(sheet), 0))


def _labels(sheet: Sheet, schema: Schema, label: str) -> Array:
    codes = to_codes(sheet, label, schema.classes)
    _all_present(sheet, label, codes == -2)
    unknown = np.flatnonzero(codes == -1)
    if len(unknown):
        row = int(unknown[0])
        raise ValueError(
            f"{sheet.where(row)}: class {sheet.columns[label][row].as_py()!r} of column {label!r} is not one of the "
            f"{len(schema.classes)} classes ({', '.join(schema.classes[:10])}) of {', '.join(schema.fitted_on)}; "
            f"{len(unknown)} rows have unknown classes"
        )
    return codes


def _all_present(sheet: Sheet, name: str, gone: Any) -> None:
    rows = np.flatnonzero(gone)
    if len(rows):
        raise ValueError(
            f"{sheet.where(int(rows[0]))}: column {name!r} has no value ({len(rows)} such rows in all); every sample needs "
            f"one, so remove these rows from the file"
        )
