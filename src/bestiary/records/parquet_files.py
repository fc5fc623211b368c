"""Rows of Parquet files, read by row groups; the groups read last are kept."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from typing import Any

import numpy as np

from bestiary.records.paths import short_names

KEPT = 2  # row groups in memory


class ParquetFiles:
    """Open Parquet files of this process; threads take turns, since pyarrow's reader is one for each file."""

    def __init__(self, paths: list[str]) -> None:
        self.paths, self.names = paths, short_names(paths)
        self._reset()

    def __getstate__(self) -> dict[str, Any]:
        return {"paths": self.paths, "names": self.names}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._reset()

    def _reset(self) -> None:
        self._owner, self._lock = os.getpid(), threading.RLock()
        self._files: OrderedDict[int, Any] = OrderedDict()
        self._borders: dict[int, np.ndarray[Any, Any]] = {}
        self._groups: OrderedDict[tuple[int, int], dict[str, list[Any]]] = OrderedDict()

    def file(self, number: int) -> Any:
        """Return an open file."""
        if self._owner != os.getpid():
            self._reset()
        if number not in self._files:
            from bestiary.records.remote import local_copy

            try:
                import pyarrow.parquet as pq
            except ImportError:
                raise ImportError("Parquet needs pyarrow: pip install 'bestiary[records]'") from None
            while len(self._files) >= 32:
                self._files.popitem(last=False)[1].close()
            try:
                self._files[number] = pq.ParquetFile(local_copy(self.paths[number]), memory_map=False)
            except (OSError, ValueError) as error:
                raise OSError(f"{self.paths[number]} cannot be read as Parquet: {error}") from error
        return self._files[number]

    def borders(self, number: int) -> np.ndarray[Any, Any]:
        """Return the first row of each row group and the number of rows, int64 (G + 1,)."""
        with self._lock:
            if number not in self._borders or self._owner != os.getpid():
                about = self.file(number).metadata
                counts = [about.row_group(group).num_rows for group in range(about.num_row_groups)]
                self._borders[number] = np.cumsum([0, *counts], dtype=np.int64)
            return self._borders[number]

    def group(self, number: int, group: int) -> dict[str, list[Any]]:
        """Return a row group as column -> list of values."""
        with self._lock:
            file = self.file(number)
            found = self._groups.get((number, group))
            if found is None:
                table = file.read_row_group(group, use_threads=False)
                found = {name: table.column(place).to_pylist() for place, name in enumerate(table.column_names)}
                while len(self._groups) >= KEPT:
                    self._groups.popitem(last=False)
                self._groups[number, group] = found
            else:
                self._groups.move_to_end((number, group))
            return found

    def place(self, number: int, row: int) -> tuple[int, int]:
        """Return the row group of a row, and its place there."""
        borders = self.borders(number)
        group = int(np.searchsorted(borders, row, side="right")) - 1
        return group, row - int(borders[group])

    def where(self, number: int, row: int) -> str:
        """Return file, row group and row, all from 0."""
        group, place = self.place(number, row)
        return f"{self.names[number]}, row {row} (row group {group}, row {place} in it)"
