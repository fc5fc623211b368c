"""JSON lines, read at random by an index of line starts.

Layout::

    rows.jsonl            {"id": 7, "text": "..."}, one object a line
    rows.jsonl.index      where records begin; made by one pass when first needed, or kept in the cache folder

Sample::

    whatever fields the objects have
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from bestiary.records.indexed import IndexedText
from bestiary.records.json_form import JsonForm
from bestiary.records.paths import Paths, list_paths, random_access
from bestiary.records.rows import row_number, row_numbers


class JsonLines:
    """Serve the objects of JSON-lines files.

    Only a line feed, with or without a carriage return before it, ends a record; blank lines are none; a byte-order
    mark is stripped at the start of each file. ``orjson`` reads where it is installed, Python's ``json`` elsewhere.

    Args:
        paths: a file, a pattern, a URL that fsspec knows, or several of them; read in sorted order.
        transform: sample -> sample.
        limit: bytes that a record may have; None for any number.
        index_folder: where indexes are kept; beside each file, or else in the cache folder, when None.

    Raises:
        FileNotFoundError: a file is not there.
        RecordError: from ``dataset[i]``: the record is no JSON object; names file, line and byte.

    Example::

        rows = JsonLines("rows-*.jsonl")
        rows[5], rows.locate(5)       # {"id": 5, ...}, "rows-0.jsonl, line 6, byte 340"
    """

    def __init__(
        self,
        paths: Paths,
        *,
        transform: Callable[[Any], Any] | None = None,
        limit: int | None = None,
        index_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.transform, self._form = transform, JsonForm()
        self._text = IndexedText(random_access(list_paths(paths)), self._form, index_folder, limit)

    @property
    def paths(self) -> list[str]:
        """The files, in the order in which their records are numbered."""
        return list(self._text.paths)

    @property
    def draws(self) -> bool:
        """Whether a sample may depend on chance: only where there is a transform."""
        return self.transform is not None

    def __len__(self) -> int:
        return len(self._text)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self._form.one(self._text.read(index)[0], lambda: self.locate(index))
        return self.transform(sample) if self.transform else sample

    def __getitems__(self, indices: list[int]) -> Sequence[dict[str, Any]]:
        """Return the samples of many indices."""
        rows = row_numbers(indices, len(self))
        found = self._text.read_many(rows) if len(rows) else ([], 0)
        if found is None:
            return [self[row] for row in rows.tolist()]
        try:
            samples = self._form.many(found[0])
        except ValueError:  # the bad one is named when they are read one by one
            return [self[row] for row in rows.tolist()]
        return [self.transform(sample) for sample in samples] if self.transform else samples

    def locate(self, index: int) -> str:
        """Say where a record stands: file, line (from 1), byte (from 0)."""
        return self._text.locate(row_number(index, len(self)))
