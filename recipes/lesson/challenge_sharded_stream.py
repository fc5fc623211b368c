"""Challenge: stream the records of one CSV or JSON-lines file with several workers, each record exactly once.

    python recipes/lesson/challenge_sharded_stream.py            (writes a file of 200,000 rows, reads it both ways)
    python recipes/lesson/challenge_sharded_stream.py rows.csv

One pass over the file notes where each record begins. Workers (and ranks) then take equal runs of records, jump to the
first of theirs and read on. A quoted CSV cell may hold line ends, so records are told apart by quotes and not by lines.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tempfile
import time
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

WORKERS = 4


def record_offsets(path: Path) -> array[int]:
    """Return the byte at which each record begins, and the end of the file as one more: N + 1 numbers, 8 bytes each.

    A ``.csv`` file's first record holds the names of the columns and is left out. A record ends at a line end outside
    quotes, which is where an even number of quotes has been seen; JSON lines end at each line end. Empty lines belong to
    no record of their own. The file is read line by line, never as a whole. Without records there is one number.
    """
    offsets, position, quotes, fresh = array("q"), 0, 0, True
    is_csv = path.suffix == ".csv"
    with path.open("rb") as file:
        for line in file:
            if fresh and line.strip():
                offsets.append(position)
            quotes += line.count(b'"') if is_csv else 0
            fresh = quotes % 2 == 0
            position += len(line)
    begins = offsets[1:] if is_csv else offsets
    begins.append(position)
    return begins


def share(count: int, reader: int, readers: int) -> range:
    """Return the records of one reader: consecutive ones, all readers' together each of ``count`` once, sizes even to 1."""
    return range(count * reader // readers, count * (reader + 1) // readers)


def parse_record(text: str, names: Sequence[str] | None) -> dict[str, Any]:
    """Return one record: a JSON object where there are no column names, else the CSV cells under their names."""
    if names is None:
        found: dict[str, Any] = json.loads(text)
        return found
    return dict(zip(names, next(csv.reader(io.StringIO(text, newline=""))), strict=True))


def column_names(path: Path) -> list[str] | None:  # given
    """Return the names in the first record of a CSV file, None for JSON lines."""
    if path.suffix != ".csv":
        return None
    with path.open(encoding="utf-8-sig", newline="") as file:
        return next(csv.reader(file), [])


def read_records(path: Path, offsets: Sequence[int], wanted: range) -> Iterator[dict[str, Any]]:
    """Open the file, jump to the first wanted record and give one after the other; nothing wanted, nothing opened."""
    if not wanted:
        return
    names = column_names(path)
    with path.open("rb") as file:
        file.seek(offsets[wanted.start])
        for index in wanted:
            size = offsets[index + 1] - offsets[index]
            yield parse_record(file.read(size).decode("utf-8-sig"), names)


class ShardedRecords(IterableDataset[dict[str, Any]]):
    """Stream the records of a file; each comes once over all workers of all ranks."""

    def __init__(self, path: str | Path, rank: int = 0, world_size: int = 1) -> None:
        """Note where the records begin; keep no file open."""
        self.path, self.rank, self.world_size = Path(path), rank, world_size
        self.offsets = record_offsets(self.path)

    def __len__(self) -> int:
        """Return the number of this rank's records, over all its workers."""
        return len(share(len(self.offsets) - 1, self.rank, self.world_size))

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """Give this worker's part of this rank's part; in the main process all of this rank's."""
        info = get_worker_info()
        worker, workers = (0, 1) if info is None else (info.id, info.num_workers)
        mine = share(len(self.offsets) - 1, self.rank, self.world_size)
        part = share(len(mine), worker, workers)
        yield from read_records(self.path, self.offsets, mine[part.start : part.stop])


class MapRecords(Dataset[dict[str, Any]]):  # given
    """The ordinary reader to compare with: open, jump, read one record, for each index."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.offsets = record_offsets(self.path)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> dict[str, Any]:
        return next(read_records(self.path, self.offsets, range(len(self))[index : index + 1]))


def records_per_second(dataset: Any, workers: int) -> tuple[int, float]:
    """Read the data set once in batches of 256; return the number of records that came, and how many a second."""
    start, count = time.perf_counter(), 0
    for batch in DataLoader(dataset, batch_size=256, num_workers=workers, collate_fn=list):
        count += len(batch)
    return count, count / (time.perf_counter() - start)


def main(argv: Sequence[str] | None = None) -> int:
    """Compare the stream with the map-style reader, without workers and with four."""
    arguments = sys.argv[1:] if argv is None else argv
    with tempfile.TemporaryDirectory() as folder:
        path = Path(arguments[0]) if arguments else Path(folder, "rows.csv")
        if not arguments:
            with path.open("w", encoding="utf-8", newline="") as file:
                csv.writer(file).writerows([("id", "text"), *((i, f'say "{i}",\nthen go on') for i in range(200_000))])
        print("reader   workers   records   records/s")
        for workers in (0, WORKERS):
            for name, dataset in (("stream", ShardedRecords(path)), ("map", MapRecords(path))):
                count, rate = records_per_second(dataset, workers)
                print(f"{name:8} {workers:7} {count:9,} {rate:11,.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# The same with bestiary, which also resumes in the middle and deals records out to ranks by itself:
#
# from bestiary.loading import Loader
# from bestiary.records import RecordStream
# loader = Loader(RecordStream(path), batch_size=256, num_workers=4)
