"""Many CSV records at once, as columns: by pyarrow where it is installed, else by Python's csv."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, overload

from bestiary.records.csv_form import CsvForm


class ColumnRows(Sequence[dict[str, Any]]):
    """Records kept as columns: a collator that knows ``columns()`` need not touch single ones.

    >>> rows = ColumnRows({"id": [1, 2], "text": ["a", "b"]})
    >>> rows[1], rows[:1].columns()
    ({'id': 2, 'text': 'b'}, {'id': [1], 'text': ['a']})
    """

    def __init__(self, columns: Mapping[str, list[Any]]) -> None:
        self._columns = columns

    def columns(self) -> dict[str, Any]:
        """Return field -> list of B values."""
        return dict(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> ColumnRows: ...
    def __getitem__(self, index: int | slice) -> dict[str, Any] | ColumnRows:
        if isinstance(index, slice):
            return ColumnRows({name: column[index] for name, column in self._columns.items()})
        return {name: column[index] for name, column in self._columns.items()}


def csv_block(
    form: CsvForm, names: Sequence[str], data: bytes, starts: list[int], stops: list[int], regular: bool
) -> ColumnRows:
    """Return the records of a block; any error at all means that they have to be read one by one.

    pyarrow is lenient where quotes are odd, so it only gets a text in which counting them explained all.
    """
    quick = regular and form.quotes
    columns = _by_arrow(form, names, data[starts[0] : stops[-1]], len(starts)) if quick else None
    if columns is None:
        rows = form.rows([data[start:stop] for start, stop in zip(starts, stops, strict=True)], len(names))
        columns = [list(column) for column in zip(*rows, strict=True)]
    made = dict(zip(names, columns, strict=True))
    for name, read in (form.types or {}).items():
        made[name] = list(map(read, made[name]))
    return ColumnRows(made)


def _by_arrow(form: CsvForm, names: Sequence[str], text: bytes, count: int) -> list[list[Any]] | None:
    """Return columns of strings; None where pyarrow is missing or does not see as many records."""
    arrow = _arrow()
    if arrow is None or b"\0" in text:
        return None
    pa, csv = arrow
    try:
        table = csv.read_csv(
            pa.BufferReader(text),
            read_options=csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=list(names)),
            parse_options=csv.ParseOptions(delimiter=form.delimiter, newlines_in_values=True),
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys(names, pa.string()),
                strings_can_be_null=False,
                quoted_strings_can_be_null=False,
            ),
        )
    except pa.ArrowInvalid:
        return None
    return [column.to_pylist() for column in table.columns] if table.num_rows == count else None


@cache
def _arrow() -> Any:
    try:
        import pyarrow
        import pyarrow.csv
    except ImportError:
        return None
    return pyarrow, pyarrow.csv
