"""Records as a stream: for pipes, packed and remote files, and for the first sight of a large one.

Layout::

    rows.jsonl, rows.csv, shard.tar, rows.parquet    plain; split within, at the borders of records
    rows.jsonl.gz, rows.csv.zst, shard.tgz           packed; each read from its beginning by one reader
    /dev/stdin                                       a pipe; one reader, and no way back

Sample::

    as JsonLines, CsvRows, TarSamples and ParquetRows give it
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from bestiary.keys import mix, rank_and_world
from bestiary.records.paths import Paths, is_url, list_paths

if TYPE_CHECKING:
    from bestiary.records.stream_files import StreamFiles

Ends = Literal["exact", "trim", "pad"]
WINDOW = {"tar": 1000}  # records of a window where shuffle=True; others have 4096
FRESH = {"unit": 0, "piece": 0, "at": None, "taken": 0, "end": None}


class RecordStream(IterableDataset[Any]):
    """Stream the records of files, each exactly once over all workers of all ranks.

    Give it to ``Loader``, which shares it out, resumes it and evens out ranks. Under a bare ``DataLoader`` each record
    comes once, too.

    Args:
        paths: a file, a pattern, a URL that fsspec knows, a pipe, or several of these; taken in sorted order.
        format: "jsonl", "csv", "tar" or "parquet"; by the names when None.
        shuffle: True, or how many records a window has: pieces of files come in an order drawn for each epoch, and records
            in an order drawn for each window of neighbours. False keeps the order of the files.
        ends: "exact": each record once, ranks may differ in their number of batches; "trim" and "pad": ranks have equal
            steps, by leaving out or by repeating some, flagged in ``is_pad``. Both count the records first.
        transform: sample -> sample.
        types, delimiter, quotes, columns: of CSV, as for ``CsvRows``.
        dots: of tar, as for ``TarSamples``.
        limit: bytes that a record may have; None for any number.
        index_folder: where indexes are kept, when one is needed: for splitting CSV and tar, and for counting.

    Raises:
        FileNotFoundError: a file is not there.
        ValueError: an unknown format; more than one pipe, or a pipe with anything that has to look into it twice.

    Example::

        stream = RecordStream("rows.jsonl", shuffle=10_000)
        loader = Loader(stream, batch_size=64, num_workers=2)
    """

    def __init__(
        self,
        paths: Paths,
        *,
        format: str | None = None,
        shuffle: bool | int = False,
        ends: Ends = "exact",
        transform: Callable[[Any], Any] | None = None,
        types: Mapping[str, Callable[[str], Any]] | None = None,
        delimiter: str | None = None,
        quotes: bool = True,
        columns: Sequence[str] | None = None,
        dots: Literal["first", "last"] = "first",
        limit: int | None = None,
        index_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        from bestiary.records.stream_files import StreamFiles, format_of

        if ends not in ("exact", "trim", "pad"):
            raise ValueError(f"ends should be 'exact', 'trim' or 'pad', but is {ends!r}")
        if shuffle < 0:
            raise ValueError(f"shuffle should be True, False or the records of a window, but is {shuffle}")
        found = list_paths(paths)
        kind = format_of(found, format)
        self.ends, self.transform, self.epoch = ends, transform, 0
        self.window = WINDOW.get(kind, 4096) if shuffle is True else int(shuffle)
        folder = None if index_folder is None else os.fspath(index_folder)
        form = _form(kind, found[0], delimiter, quotes, columns, types)
        self._files: StreamFiles = StreamFiles(found, form, kind, dots, limit, folder)
        if "pipe" in self._files.packing and (len(found) > 1 or ends != "exact" or kind in ("tar", "parquet")):
            raise ValueError(
                "a pipe is read once, from its beginning to its end: it comes alone, as JSON lines or CSV, with ends='exact'"
            )
        self._dealt: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_dealt": None}

    @property
    def paths(self) -> list[str]:
        """The files, in sorted order."""
        return list(self._files.paths)

    @property
    def draws(self) -> bool:
        """Whether a sample may depend on chance: only where there is a transform."""
        return self.transform is not None

    def set_epoch(self, epoch: int) -> None:
        """Make the next ``iter(stream)`` that epoch; under a ``Loader`` its own epochs count."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        """Read this process's share: of the workers of a ``DataLoader``, and of the ranks."""
        worker = get_worker_info()
        rank, world = rank_and_world()
        workers, number = (worker.num_workers, worker.id) if worker is not None else (1, 0)
        epoch, self.epoch = self.epoch, self.epoch + 1
        reader: Iterator[Any] = self.open(rank * workers + number, world * workers, epoch, 0)
        return reader

    # -- what Loader asks

    def open(
        self,
        reader: int,
        readers: int,
        epoch: int,
        seed: int,
        positions: Sequence[Mapping[str, Any] | None] | None = None,
    ) -> Any:
        """Return an iterator over one reader's share, with ``position`` (plain values) before and after each sample.

        Args:
            reader: number of this one among ``readers``: all workers of all ranks.
            epoch: the order, and who reads what, are functions of the epoch and the seed.
            positions: of all readers, from where to go on; their number may differ from ``readers``. None stands for a reader
                that has read all.
        """
        if "pipe" in self._files.packing and readers > 1:
            raise ValueError(
                f"{self._files.paths[0]} is a pipe, which has one reader, but there are {readers}; take num_workers=0"
            )
        from bestiary.records.stream_reader import RecordIterator

        work, start, derived = self._share(reader, readers, epoch, seed, positions)
        return RecordIterator(
            self._files, work, start, derived=derived, window=self.window, key=(seed, epoch), transform=self.transform
        )

    def counts(
        self, readers: int, epoch: int, seed: int, positions: Sequence[Mapping[str, Any] | None] | None = None
    ) -> list[int] | None:
        """Return how many records each reader has; None where only reading could tell."""
        files = self._files
        if "pipe" in files.packing:
            return None
        if self.ends == "exact" and not all(map(files.has_index, range(len(files.paths)))):
            return None
        layout, found = self._layout(), []
        for reader in range(readers):
            work, start, _ = self._share(reader, readers, epoch, seed, positions)
            left = layout.left({**start, "work": work, "reader": reader, "readers": readers}, epoch, seed)
            found.append(sum(sum(files.records(*piece) for piece in pieces) - taken for taken, pieces in left))
        return found

    def prepare(
        self, readers: int, epoch: int, seed: int, positions: Sequence[Mapping[str, Any] | None] | None = None
    ) -> list[str]:
        """Do once, before workers start, what all of them need, and return what is odd."""
        files, told = self._files, list[str]()
        if "pipe" in files.packing:
            return told
        self._share(0, readers, epoch, seed, positions)
        packed = [name for name, packing in zip(files.names, files.packing, strict=True) if packing]
        if len(files.paths) < readers:
            how = (
                f"{len(packed)} of them packed, which are not split"
                if packed
                else "they are split at borders of records"
            )
            count = f"{len(files.paths)} file{'s' * (len(files.paths) > 1)}"
            told.append(f"{count} for {readers} readers (workers on all ranks): {how}")
        at = max((position["at"] or 0 for position in positions or () if position is not None), default=0)
        if at and packed:
            told.append(
                f"packed files are read from their beginning to go on, up to byte {at:,} of their text: {packed[0]}"
            )
        return told

    def fingerprint(self) -> dict[str, Any]:
        """Return what a position depends on, as plain values."""
        files = self._files
        sizes = [
            os.stat(path).st_size if not (is_url(path) or packing == "pipe") else 0
            for path, packing in zip(files.paths, files.packing, strict=True)
        ]
        digest = f"{mix(*(part for pair in zip(map(os.path.basename, files.paths), sizes, strict=True) for part in pair)):016x}"
        return {
            "format": files.format,
            "files": len(files.paths),
            "names and sizes": digest,
            "window": self.window,
            "ends": self.ends,
        }

    # -- inside

    def _layout(self) -> Any:
        from bestiary.records.stream_layout import Layout

        return Layout(self._files, self.ends != "exact", bool(self.window))

    def _share(self, reader: int, readers: int, epoch: int, seed: int, positions: Any) -> tuple[Any, Any, bool]:
        """Return the work of a reader, where in it to begin, and whether the work follows from the epoch alone."""
        own = positions[reader] if positions is not None and len(positions) == readers else None
        if own is not None and (own["reader"], own["readers"]) == (reader, readers):
            if own["work"] is not None:
                return own["work"], own, False
            return self._deal(readers, epoch, seed, None)[reader], own, True
        start = {"reader": reader, "readers": readers, "work": None, **FRESH}
        if positions is not None and len(positions) == readers and any(_same(p, readers) for p in positions):
            return [], start, False  # this reader had read all
        dealt = self._deal(readers, epoch, seed, positions)[reader]
        return dealt, start, positions is None

    def _deal(self, readers: int, epoch: int, seed: int, positions: Any) -> Any:
        key = (readers, epoch, seed, positions)
        if self._dealt is None or self._dealt[0] != key:
            self._dealt = key, self._layout().work(readers, epoch, seed, positions)
        return self._dealt[1]


def _same(position: Any, readers: int) -> bool:
    return position is not None and position["readers"] == readers


def _form(kind: str, path: str, delimiter: str | None, quotes: bool, columns: Sequence[str] | None, types: Any) -> Any:
    if kind == "csv":
        from bestiary.records.csv_rows import csv_form

        return csv_form(path, delimiter, quotes, columns, types)
    if kind == "json":
        from bestiary.records.json_form import JsonForm

        return JsonForm()
    return None
