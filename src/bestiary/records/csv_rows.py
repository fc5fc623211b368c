"""CSV, read at random by an index of record starts; quoted fields may hold line ends.

Layout::

    rows.csv, rows.tsv    a head line with the names of the columns, then records
    rows.csv.index        where records begin; made by one pass when first needed, or kept in the cache folder

Sample::

    <column>    str, or what ``types`` makes of it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bestiary.records.csv_form import CsvForm
from bestiary.records.faults import RecordError
from bestiary.records.indexed import IndexedText
from bestiary.records.paths import Paths, list_paths, random_access
from bestiary.records.rows import row_number, row_numbers


def csv_form(
    path: str,
    delimiter: str | None = None,
    quotes: bool = True,
    columns: Sequence[str] | None = None,
    types: Mapping[str, Callable[[str], Any]] | None = None,
) -> CsvForm:
    """Return the form of a table: parted by tabs where its name says so, by commas elsewhere.

    Raises:
        ValueError: the delimiter is not one character of ASCII.
    """
    ending = os.path.basename(path).lower().removesuffix(".gz").removesuffix(".zst").removesuffix(".zstd")
    chosen = ("\t" if ending.endswith((".tsv", ".tab")) else ",") if delimiter is None else delimiter
    if len(chosen) != 1 or not chosen.isascii() or chosen in '"\r\n':
        raise ValueError(f"delimiter should be one character of ASCII and no quote or line end, but is {chosen!r}")
    return CsvForm(chosen, quotes, None if columns is None else tuple(columns), types)


class CsvRows:
    """Serve the records of CSV files as dicts of strings, by the names in their head line.

    Quoted fields may hold delimiters, line ends and doubled quotes, and be of any length: Python's limit on fields is
    neither needed nor changed. Blank lines are none; a byte-order mark is stripped at the start of each file.

    Args:
        paths: a file, a pattern, a URL that fsspec knows, or several of them; read in sorted order.
        transform: sample -> sample.
        types: column -> function of its text, such as ``{"id": int}``; other columns stay strings.
        delimiter: parts the fields; a tab in .tsv and .tab, else a comma.
        quotes: whether ``"`` quotes a field; False where it is a plain character.
        columns: their names, for files without a head line.
        limit: bytes that a record may have; None for any number.
        index_folder: where indexes are kept; beside each file, or else in the cache folder, when None.

    Raises:
        FileNotFoundError: a file is not there.
        RecordError: from ``dataset[i]``: short or long rows, quotes that are not closed, bytes that are not UTF-8;
            names file, line and byte.

    Example::

        rows = CsvRows("rows.csv", types={"id": int})
        rows[5], rows.locate(5)       # {"id": 5, "text": "..."}, "rows.csv, line 12, byte 340"
    """

    def __init__(
        self,
        paths: Paths,
        *,
        transform: Callable[[Any], Any] | None = None,
        types: Mapping[str, Callable[[str], Any]] | None = None,
        delimiter: str | None = None,
        quotes: bool = True,
        columns: Sequence[str] | None = None,
        limit: int | None = None,
        index_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        found = random_access(list_paths(paths))
        self.transform, self._form = transform, csv_form(found[0], delimiter, quotes, columns, types)
        self._text = IndexedText(found, self._form, index_folder, limit)
        self._names: dict[int, list[str]] = {}

    @property
    def paths(self) -> list[str]:
        """The files, in the order in which their records are numbered."""
        return list(self._text.paths)

    @property
    def columns(self) -> list[str]:
        """The names in the head line of the first file."""
        return list(self._columns(0))

    @property
    def draws(self) -> bool:
        """Whether a sample may depend on chance: only where there is a transform."""
        return self.transform is not None

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, index: int) -> dict[str, Any]:
        record, file = self._text.read(index)
        sample = self._form.one(record, self._columns(file), lambda: self.locate(index))
        return self.transform(sample) if self.transform else sample

    def __getitems__(self, indices: list[int]) -> Sequence[dict[str, Any]]:
        """Return the samples of many indices."""
        rows = row_numbers(indices, len(self))
        found = self._text.read_many(rows) if len(rows) else None
        if found is None or self.transform is not None or self._form.types:
            return [self[row] for row in rows.tolist()]
        names = self._columns(found[1])
        try:
            return [dict(zip(names, values, strict=True)) for values in self._form.rows(found[0], len(names))]
        except Exception:  # noqa: BLE001 - the bad one is named when they are read one by one
            return [self[row] for row in rows.tolist()]

    def locate(self, index: int) -> str:
        """Say where a record stands: file, line of its first byte (from 1), byte (from 0)."""
        return self._text.locate(row_number(index, len(self)))

    def _columns(self, file: int) -> list[str]:
        """Return the columns of a file, which have to be those of the first one."""
        if file not in self._names:
            try:
                self._names[file] = self._form.read_head(self._text.handle(file))[1]
            except RecordError as error:
                raise RecordError(f"{self._text.names[file]}: {error}", where=self._text.names[file]) from None
            if file and self._names[file] and sorted(self._names[file]) != sorted(self._columns(0)):
                ours, first = self._names[file], self._columns(0)
                raise ValueError(
                    f"{self._text.names[file]} has the columns {ours}, but {self._text.names[0]} has {first}; "
                    "files of one dataset need the same ones"
                )
        return self._names[file]
