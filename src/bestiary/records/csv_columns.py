"""Many CSV records at once, as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from typing import Any, overload

from bestiary.records.csv_form import CsvForm
from bestiary.records.csv_split import split_fields


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

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rows = zip(*self._columns.values(), strict=True)
        return map(dict, map(zip, repeat(tuple(self._columns)), rows))

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

    ``regular`` says that counting quotes explained all of them.
    """
    columns = None
    if regular:
        whole = stops[-1] - starts[0] == sum(stops) - sum(starts)  # no blank lines between
        text = data[starts[0] : stops[-1]] if whole else b"".join(_records(data, starts, stops))
        columns = split_fields(text, form.delimiter.encode(), len(names), len(starts), form.quotes)
    if columns is None:
        rows = form.rows(_records(data, starts, stops), len(names))
        columns = [list(column) for column in zip(*rows, strict=True)]
    made = dict(zip(names, columns, strict=True))
    for name, read in (form.types or {}).items():
        made[name] = list(map(read, made[name]))
    return ColumnRows(made)


def _records(data: bytes, starts: list[int], stops: list[int]) -> list[bytes]:
    return [data[start:stop] for start, stop in zip(starts, stops, strict=True)]
