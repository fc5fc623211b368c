"""Samples of tar archives and rows of Parquet files on their way through a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bestiary.records.faults import fault
from bestiary.records.record_blocks import FaultBlock

if TYPE_CHECKING:
    from bestiary.records.parquet_files import ParquetFiles
    from bestiary.records.tar_files import TarFiles

AT_ONCE = 64  # samples in a block


class NumberBlock:
    """Records [first, first + count) of a file that are known by their number."""

    def __init__(self, read: Callable[[int], dict[str, Any]], first: int, count: int) -> None:
        self.read, self.first, self.count = read, first, count

    def __len__(self) -> int:
        return self.count

    def at(self, row: int) -> int:
        """Return the number of a record."""
        return self.first + row

    def many(self, start: int, stop: int) -> Sequence[dict[str, Any]]:
        """Return records; any error at all means that they have to be read one by one."""
        return [self.read(self.first + row) for row in range(start, stop)]

    def one(self, row: int) -> dict[str, Any]:
        """Return one record, or raise what is wrong with it."""
        return self.read(self.first + row)


def tar_blocks(tars: TarFiles, file: int, start: int, stop: int, packed: bool) -> Iterator[NumberBlock | FaultBlock]:
    """Yield samples [start, stop) of an archive; -1 means its end."""
    count = len(tars.samples(file))
    stop = count if stop < 0 else min(stop, count)
    if packed:
        yield from _packed_blocks(tars, file, start, stop)
        return
    for first in range(start, stop, AT_ONCE):
        yield NumberBlock(lambda number: tars.read(file, number), first, min(AT_ONCE, stop - first))


def _packed_blocks(tars: TarFiles, file: int, start: int, stop: int) -> Iterator[NumberBlock | FaultBlock]:
    """Read an archive forwards, one sample after the other."""
    from bestiary.records.tar_files import reading

    read, behind = reading(tars.handle(file)), 0
    samples = tars.samples(file)
    for number in range(start, stop):
        fields = slice(2 * int(samples.starts[number]), 2 * int(samples.starts[number + 1]))
        places = samples.places[fields].reshape(-1, 2)
        if len(places) and (int(places[:, 0].min()) < behind or bool((np.diff(places[:, 0]) <= 0).any())):
            text = (
                f"the members of sample {samples.word(number)!r} are not neighbours, and a packed archive is read forwards; "
                "pack it again in order (tar --sort=name), or unpack it"
            )
            yield FaultBlock(fault(tars.where(file, number), text), number, number + 1)
            continue
        data = {(offset, size): read(size, offset) for offset, size in places.tolist()}
        behind = int(places.sum(1).max()) if len(places) else behind
        yield NumberBlock(_reader(tars, file, data), number, 1)


def _reader(tars: TarFiles, file: int, data: dict[tuple[int, int], bytes]) -> Callable[[int], dict[str, Any]]:
    return lambda number: tars.read(file, number, data)


def parquet_blocks(files: ParquetFiles, number: int, start: int, stop: int) -> Iterator[NumberBlock]:
    """Yield rows [start, stop) of a file, row group by row group; -1 means its end."""
    borders = files.borders(number)
    stop = int(borders[-1]) if stop < 0 else min(stop, int(borders[-1]))
    while start < stop:
        group, _ = files.place(number, start)
        first, end = int(borders[group]), min(stop, int(borders[group + 1]))
        yield NumberBlock(_row_of(files.group(number, group), first), start, end - start)
        start = end


def _row_of(columns: dict[str, list[Any]], first: int) -> Callable[[int], dict[str, Any]]:
    return lambda row: {name: column[row - first] for name, column in columns.items()}
