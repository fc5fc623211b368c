"""Rows of Parquet files, read at random by row groups.

Layout::

    rows.parquet    row groups; one is read whole, and the last two that were read are kept

Sample::

    <column>    what pyarrow makes of it in Python: int, float, str, bytes, list, None
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bestiary.records.parquet_files import ParquetFiles
from bestiary.records.paths import Paths, list_paths, random_access
from bestiary.records.rows import row_number, row_numbers


class ParquetRows:
    """Serve the rows of Parquet files; needs pyarrow, of the extra ``records``.

    A row group is read whole for one row of it: read rows in order, or in the order of ``Blocks``.

    Args:
        paths: a file, a pattern, a URL that fsspec knows, or several of them; read in sorted order.
        transform: sample -> sample.

    Raises:
        FileNotFoundError: a file is not there.
        OSError: when first read: a file is no Parquet file, or cut.

    Example::

        rows = ParquetRows("rows.parquet")
        rows[5], rows.locate(5)
    """

    def __init__(self, paths: Paths, *, transform: Callable[[Any], Any] | None = None) -> None:
        self.transform = transform
        self._files = ParquetFiles(random_access(list_paths(paths)))
        self._ends: np.ndarray[Any, Any] | None = None

    @property
    def paths(self) -> list[str]:
        """The files, in the order in which their rows are numbered."""
        return list(self._files.paths)

    @property
    def draws(self) -> bool:
        """Whether a sample may depend on chance: only where there is a transform."""
        return self.transform is not None

    def __len__(self) -> int:
        if self._ends is None:
            counts = [int(self._files.borders(number)[-1]) for number in range(len(self._files.paths))]
            self._ends = np.cumsum(counts, dtype=np.int64)
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        number, row = self._place(row_number(index, len(self)))
        group, place = self._files.place(number, row)
        sample = {name: column[place] for name, column in self._files.group(number, group).items()}
        return self.transform(sample) if self.transform else sample

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Return the samples of many indices, row group by row group."""
        rows = row_numbers(indices, len(self))
        made: dict[int, dict[str, Any]] = {}
        for place in np.argsort(rows, kind="stable").tolist():
            made[place] = self[int(rows[place])]
        return [made[place] for place in range(len(rows))]

    def locate(self, index: int) -> str:
        """Say where a row stands: file, row, row group."""
        return self._files.where(*self._place(row_number(index, len(self))))

    def _place(self, row: int) -> tuple[int, int]:
        ends: Any = self._ends if self._ends is not None else len(self) and self._ends
        number = int(np.searchsorted(ends, row, side="right"))
        return number, row - (int(ends[number - 1]) if number else 0)
