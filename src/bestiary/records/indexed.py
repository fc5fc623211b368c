"""Records of text files, found by their number: what JSON lines and CSV have in common."""

from __future__ import annotations

import os
from bisect import bisect_right
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from bestiary.records.faults import too_long
from bestiary.records.handles import Handle, Handles
from bestiary.records.paths import short_names
from bestiary.records.rows import row_number

if TYPE_CHECKING:
    from bestiary.records.line_index import Form, LineIndex

WHOLE = 1 << 24  # bytes; neighbouring records are read at once up to here


class Found(NamedTuple):
    """The indexes of all files, and how many records come up to the end of each.

    ``starts`` are those of the indexes, which give single numbers faster as views; ``gaps`` says whether blank lines
    follow some records of a file.
    """

    indexes: list[LineIndex]
    starts: list[memoryview]
    gaps: list[bool]
    ends: list[int]
    stamps: list[tuple[int, int]]


class IndexedText:
    """The raw records of files, each read when asked for; nothing is opened before."""

    def __init__(self, paths: list[str], form: Form, folder: str | os.PathLike[str] | None, limit: int | None) -> None:
        self.paths, self.form, self.limit = paths, form, limit
        self.folder = None if folder is None else os.fspath(folder)
        self.names = short_names(paths)
        self._handles = Handles()
        self._found: Found | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_found": None}

    def __len__(self) -> int:
        return (self._found or self.find()).ends[-1]

    def find(self) -> Found:
        """Return the indexes, which are made where they are missing or no longer fit their file."""
        if self._found is None:
            from bestiary.records.line_index import find_index

            handles = [self.handle(file) for file in range(len(self.paths))]
            indexes = [
                find_index(handle, self.form, self.folder, name)
                for handle, name in zip(handles, self.names, strict=True)
            ]
            ends = list(accumulate(map(len, indexes)))
            stamps = [(handle.size, handle.changed) for handle in handles]
            starts = [index.starts.data for index in indexes]
            gaps = [len(index.gap_rows) > 0 for index in indexes]
            self._found = Found(indexes, starts, gaps, ends, stamps)
        return self._found

    def handle(self, file: int) -> Handle:
        """Return an open file.

        Raises:
            ValueError: the file is not the one that was indexed.
        """
        handle = self._handles.known(self.paths[file])
        if handle is not None:
            return handle
        from bestiary.records.remote import local_copy

        path = local_copy(self.paths[file])
        handle = self._handles.of(path)
        if self._found is not None and self._found.stamps[file] != (handle.size, handle.changed):
            self._handles.drop(path)
            raise ValueError(f"{self.paths[file]} has changed since it was indexed; make the dataset again")
        return handle

    def place(self, row: int) -> tuple[int, int]:
        """Return the file of a record, and its number in this file."""
        ends = (self._found or self.find()).ends
        file = bisect_right(ends, row)
        return file, row - (ends[file - 1] if file else 0)

    def read(self, index: int) -> tuple[bytes, int]:
        """Return the bytes of a record, and the number of its file; negative indices count from the end.

        Raises:
            IndexError: there is no such record.
            RecordError: it is longer than the limit.
        """
        found = self._found or self.find()
        ends, file = found.ends, 0
        row = index if type(index) is int and 0 <= index < ends[-1] else row_number(index, ends[-1])
        if row >= ends[0]:
            file = bisect_right(ends, row)
            row -= ends[file - 1]
        starts = found.starts[file]
        start = starts[row]
        stop = int(found.indexes[file].stops(np.array([row]))[0]) if found.gaps[file] else starts[row + 1]
        if self.limit is not None and stop - start > self.limit:
            raise too_long(self.locate(row_number(index, ends[-1])), stop - start, self.limit)
        handle = self._handles.known(self.paths[file]) or self.handle(file)
        return handle.read(stop - start, start), file

    def read_many(self, rows: npt.NDArray[np.int64]) -> tuple[list[bytes], int] | None:
        """Return the bytes of many records of one file and its number; None where they lie in several, or are too long."""
        ends = self.find().ends
        file = bisect_right(ends, int(rows[0]))
        rows = rows - (ends[file - 1] if file else 0)
        index = self.find().indexes[file]
        if int(rows.min()) < 0 or int(rows.max()) >= len(index):
            return None
        starts, stops = index.starts[rows], index.stops(rows)
        if self.limit is not None and int((stops - starts).max()) > self.limit:
            return None
        handle = self.handle(file)
        begin, size = int(starts[0]), int(stops[-1] - starts[0])
        if len(rows) > 1 and 0 < size < WHOLE and bool((np.diff(rows) == 1).all()):
            data = handle.read(size, begin)
            pairs = zip((starts - begin).tolist(), (stops - begin).tolist(), strict=True)
            return [data[start:stop] for start, stop in pairs], file
        pairs = zip(starts.tolist(), stops.tolist(), strict=True)
        read = handle.read
        return [read(stop - start, start) for start, stop in pairs], file

    def locate(self, row: int) -> str:
        """Return file, line (from 1) and byte (from 0) of a record."""
        file, number = self.place(row)
        index = self.find().indexes[file]
        return f"{self.names[file]}, line {index.line(number, self.handle(file))}, byte {index.starts[number]}"
