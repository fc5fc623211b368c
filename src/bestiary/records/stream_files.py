"""The files of a stream: their format, what is in a piece of them, and the blocks of records that it holds."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from bestiary.records.faults import RecordError, fault
from bestiary.records.handles import Handle, Handles
from bestiary.records.paths import is_pipe, is_url, packing_of, short_names
from bestiary.records.record_blocks import Block, FaultBlock

if TYPE_CHECKING:
    from bestiary.records.csv_form import CsvForm
    from bestiary.records.json_form import JsonForm

Format = Literal["json", "csv", "tar", "parquet"]
ENDINGS: dict[str, Format] = {
    ".jsonl": "json", ".ndjson": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".tab": "csv",
    ".tar": "tar", ".tgz": "tar", ".parquet": "parquet", ".pq": "parquet",
}  # fmt: skip


def format_of(paths: list[str], given: str | None) -> Format:
    """Return the format that all files have, by their names when it is not given.

    Raises:
        ValueError: unknown, or several ones.
    """
    names = {"jsonl": "json", "jsonlines": "json", "ndjson": "json", "tsv": "csv", "webdataset": "tar"}
    if given is not None:
        known: Any = names.get(given, given)
        if known not in ENDINGS.values():
            raise ValueError(f"format should be 'jsonl', 'csv', 'tar' or 'parquet', but is {given!r}")
        found: Format = known
        return found
    kinds = {ENDINGS.get(_ending(path)) for path in paths}
    if len(kinds) != 1 or None in kinds:
        listed = ", ".join(sorted({_ending(path) or path for path in paths})[:5])
        raise ValueError(
            f"the format cannot be told from these names ({listed}); give format='jsonl', 'csv', 'tar' or 'parquet'"
        )
    return next(kind for kind in kinds if kind)


def _ending(path: str) -> str:
    plain = path.split("?")[0] if is_url(path) else path
    root, ending = os.path.splitext(plain.lower())
    return os.path.splitext(root)[1] if ending in (".gz", ".zst", ".zstd") else ending


class StreamFiles:
    """Files that are read in pieces; nothing is opened before."""

    def __init__(
        self,
        paths: list[str],
        form: JsonForm | CsvForm | None,
        format: Format,
        dots: Any,
        limit: int | None,
        folder: str | None,
    ) -> None:
        self.paths, self.names, self.form, self.format = paths, short_names(paths), form, format
        self.limit, self.folder = limit, folder
        self.packing = ["pipe" if is_pipe(path) else packing_of(path.split("?")[0]) for path in paths]
        self._handles = Handles()
        self._ends: dict[int, int] = {}
        self._indexes: dict[int, Any] = {}
        self.box: Any = None
        if format == "tar":
            from bestiary.records.tar_files import TarFiles

            self.box = TarFiles(paths, dots, folder, limit)
        elif format == "parquet":
            from bestiary.records.parquet_files import ParquetFiles

            self.box = ParquetFiles(paths)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_indexes": {}}

    def handle(self, file: int) -> Handle:
        """Return an open file; one from elsewhere is copied first."""
        from bestiary.records.remote import local_copy

        return self._handles.of(local_copy(self.paths[file]))

    def end(self, file: int) -> int:
        """Return the place behind the last record; -1 where only reading finds it."""
        if self.form is None:
            return int(self.box.borders(file)[-1]) if self.format == "parquet" else len(self.box.samples(file))
        return -1 if self.packing[file] else self.handle(file).size

    def records(self, file: int, start: int, stop: int) -> int:
        """Count the records that begin in [start, stop); an index is made where that is needed."""
        if self.form is None:
            return max(0, (self.end(file) if stop < 0 else stop) - start)
        starts = self.index(file).starts[:-1]
        end = len(starts) if stop < 0 else int(np.searchsorted(starts, stop))
        return max(0, end - int(np.searchsorted(starts, start)))

    def index(self, file: int) -> Any:
        """Return the index of a text file, made if need be."""
        if file not in self._indexes:
            from bestiary.records.line_index import find_index

            self._indexes[file] = find_index(
                self.handle(file), self.form, self.folder, self.names[file], self.packing[file]
            )
        return self._indexes[file]

    def has_index(self, file: int) -> bool:
        """Whether records can be counted without another pass over the file."""
        if self.form is None or file in self._indexes:
            return self.packing[file] == "" and not is_url(self.paths[file])
        if self.packing[file] == "pipe" or is_url(self.paths[file]):
            return False
        from bestiary.records.line_index import kept_index

        found = kept_index(self.handle(file), self.form, self.folder)
        if found is not None:
            self._indexes[file] = found
        return found is not None

    def blocks(self, file: int, start: int, stop: int) -> Iterator[Block]:
        """Yield the records of a piece; a file that cannot be read is one record that raises."""
        try:
            yield from self._blocks(file, start, stop)
        except RecordError as error:
            yield FaultBlock(error, start, max(stop, start + 1))
        except OSError as error:
            yield FaultBlock(fault(self.names[file], f"{type(error).__name__}: {error}"), start, max(stop, start + 1))

    def _blocks(self, file: int, start: int, stop: int) -> Iterator[Block]:
        from bestiary.records.tar_blocks import parquet_blocks, tar_blocks

        if self.format == "tar":
            return tar_blocks(self.box, file, start, stop, bool(self.packing[file]))
        if self.format == "parquet":
            return parquet_blocks(self.box, file, start, stop)
        from bestiary.records.feeds import open_feed
        from bestiary.records.text_blocks import text_blocks

        piped = self.packing[file] == "pipe"
        feed = open_feed(self.paths[file], self.packing[file], None if piped else self.handle(file))
        assert_form: Any = self.form
        return text_blocks(assert_form, self.names[file], feed, start, stop, self.limit)
