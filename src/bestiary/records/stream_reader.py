"""One reader of a stream: its pieces one after the other, or in shuffled windows, and its position after each record."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from operator import length_hint
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from bestiary.keys import mix

if TYPE_CHECKING:
    from bestiary.records.dealing import Unit
    from bestiary.records.record_blocks import Block
    from bestiary.records.stream_files import StreamFiles

AHEAD = 128  # records of a text read at once where they are asked for one by one


class Place(NamedTuple):
    """Where a reader is: unit, piece in it, place in the file (None: where the piece begins)."""

    unit: int
    piece: int
    at: int | None


class Walk:
    """Goes through the raw records of units, block by block."""

    def __init__(self, files: StreamFiles, work: Sequence[Unit], place: Place) -> None:
        self.files, self.work, self.place = files, work, place
        self.source: Iterator[Block] | None = None
        self.block: Block | None = None
        self.row = 0

    def here(self, left: int = 0) -> Place:
        """Return the place of the next record, or of one so far before it in the same block."""
        return self.place if self.block is None else self.place._replace(at=self.block.at(self.row - left))

    def ready(self) -> Block | None:
        """Return the block in which the next record of the unit lies; None at the end of the unit."""
        while self.block is None or self.row >= len(self.block):
            pieces: Any = self.work[self.place.unit][1] if self.place.unit < len(self.work) else []
            if self.place.piece >= len(pieces):
                return None
            if self.source is None:
                file, start, stop = pieces[self.place.piece]
                at = self.place.at
                self.source = self.files.blocks(file, start if at is None else max(start, at), stop)
            self.block, self.row = next(self.source, None), 0
            if self.block is None:
                self.source, self.place = None, Place(self.place.unit, self.place.piece + 1, None)
        return self.block

    def next_unit(self) -> bool:
        """Go on to the next unit; False where there is none."""
        self.place = Place(self.place.unit + 1, 0, None)
        self.source = self.block = None
        return self.place.unit < len(self.work)


class RecordIterator:
    """Yields records; ``position`` is where reading goes on, whatever was read ahead of it.

    An error of a record is raised once; the next call goes on behind the record.
    """

    def __init__(
        self,
        files: StreamFiles,
        work: Sequence[Unit],
        start: Mapping[str, Any],
        *,
        derived: bool,
        window: int,
        key: tuple[int, int],
        transform: Callable[[Any], Any] | None,
    ) -> None:
        self._walk = Walk(files, work, Place(int(start["unit"]), int(start["piece"]), start["at"]))
        self._about = {"reader": start["reader"], "readers": start["readers"], "work": None if derived else work}
        self._window, self._key, self._transform = window, key, transform
        self._start: Mapping[str, Any] | None = start if start["taken"] else None  # a window that is not held yet
        self._held: list[tuple[Block, int]] = []
        self._taken, self._begin = int(start["taken"]), self._walk.place
        self._ahead: Iterator[Any] = iter(())  # read, but not asked for yet; all of them lie in one block or window
        self._at_most = 1 if files.format == "tar" else AHEAD

    def __iter__(self) -> RecordIterator:
        return self

    def __next__(self) -> Any:
        for sample in self._ahead:
            return sample if self._transform is None else self._transform(sample)
        self._ahead = iter(list(self._more(self._at_most)))
        for sample in self._ahead:
            return sample if self._transform is None else self._transform(sample)
        raise StopIteration

    @property
    def position(self) -> dict[str, Any] | None:
        """Where reading goes on, as plain values; None for a pipe."""
        if "pipe" in self._walk.files.packing:
            return None
        if self._start is not None:
            return dict(self._start)
        left = length_hint(self._ahead)
        if not left:
            self._leave_window()
        here, taken, end = self._walk.here(0 if self._window else left), self._taken, None
        if self._held:
            taken -= left
            here, end = self._begin, [here.piece, here.at] if taken else None
        return self._about | {**here._asdict(), "taken": taken, "end": end}

    def take(self, count: int) -> Sequence[Any]:
        """Return the next records, 1 to ``count`` of them (one, where there is a transform); none at the end.

        Raises:
            RecordError: the next record is bad; the call after this one goes on behind it.
        """
        if self._transform is not None:
            return list(islice(self, 1))
        return list(islice(self._ahead, count)) or self._more(count)

    def _more(self, count: int) -> Sequence[Any]:
        """Return the next records as they are in the file, where none are held ahead."""
        return self._from_window(count) if self._window else self._from_block(count)

    def _from_block(self, count: int) -> Sequence[Any]:
        walk = self._walk
        while (block := walk.ready()) is None:
            if not walk.next_unit():
                return []
        start, stop = walk.row, min(walk.row + count, len(block))
        try:
            found = block.many(start, stop)
        except Exception:  # noqa: BLE001 - the bad one is found when they are read one by one
            return self._one_by_one([(block, row) for row in range(start, stop)])
        walk.row = stop
        return found

    def _from_window(self, count: int) -> Sequence[Any]:
        self._leave_window()
        while not self._held:
            if not self._fill() and not self._walk.next_unit():
                return []
        return self._at_once(self._held[self._taken : self._taken + count])

    def _leave_window(self) -> None:
        """Let go of a window of which all records have come."""
        if self._held and self._taken >= len(self._held):
            self._held, self._taken = [], 0
            if self._closed():
                self._walk.next_unit()

    def _at_once(self, wanted: list[tuple[Block, int]]) -> Sequence[Any]:
        from bestiary.records.text_blocks import several

        if len(wanted) > 1:
            try:
                found = several(wanted)
            except Exception:  # noqa: BLE001 - the bad one is found when they are read one by one
                return self._one_by_one(wanted)
            self._taken += len(wanted)
            return found
        return self._one_by_one(wanted)

    def _one_by_one(self, wanted: list[tuple[Block, int]]) -> list[Any]:
        """Read up to the first bad record, which raises where it is the first of all."""
        found: list[Any] = []
        for block, row in wanted:
            try:
                sample = block.one(row)
            except Exception:
                if found:
                    break
                self._step()
                raise
            self._step()
            found.append(sample)
        return found

    def _step(self) -> None:
        if self._window:
            self._taken += 1
        else:
            self._walk.row += 1

    def _closed(self) -> int:
        """Return how much of the unit had come when its window was closed; 0 where it is open."""
        walk = self._walk
        found: Any = walk.work[walk.place.unit][0] if walk.place.unit < len(walk.work) else 0
        return int(found)

    def _fill(self) -> bool:
        """Hold the raw records of the next window, in an order that is a function of where it begins."""
        walk, closed = self._walk, self._closed()
        held: list[tuple[Block, int]] = []
        begin: Place | None = None
        while (closed or len(held) < self._window) and (block := walk.ready()) is not None:
            begin = begin or walk.here()
            room = len(block) - walk.row if closed else min(len(block) - walk.row, self._window - len(held))
            held += [(block, row) for row in range(walk.row, walk.row + room)]
            walk.row += room
        if begin is None:
            return False
        pieces: Any = walk.work[begin.unit][1]
        bits = np.random.PCG64(mix("window", *self._key, pieces[begin.piece][0], begin.at or 0))
        order = np.argsort(bits.random_raw(len(held)), kind="stable")
        self._held, self._begin = [held[place] for place in order.tolist()], begin
        self._taken, self._start = self._taken or closed, None
        return True
