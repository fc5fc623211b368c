"""How a stream is shared out: pieces of files for any number of readers, at the beginning or from where others stopped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bestiary.keys import mix
from bestiary.records.dealing import Piece, Unit, deal
from bestiary.records.paths import is_url

if TYPE_CHECKING:
    from bestiary.records.stream_files import StreamFiles

PIECES = 4096  # a shuffled stream is cut into so many pieces at most
FEWEST_BYTES, FEWEST_RECORDS = 1 << 18, 256  # of a piece of a shuffled stream
MANY_FILES = 16  # for each reader; a shuffled stream does not cut its files then


class Measured:
    """Sizes of pieces, in bytes or in records."""

    def __init__(self, files: StreamFiles, counted: bool, fine: bool) -> None:
        self.files, self.counted, self.fine = files, counted, fine
        self.by_bytes = files.format == "json" and not counted

    def size(self, piece: Piece) -> int:
        """Return how much is in a piece."""
        file, start, stop = piece
        if self.counted or (self.splits(piece) and not self.by_bytes):
            return self.files.records(file, start, stop)
        if is_url(self.files.paths[file]) and not self.fine:
            return 1
        if self.splits(piece):
            return max(0, self._end(piece) - start)
        return 0 if self.files.packing[file] == "pipe" else self.files.handle(file).size

    def splits(self, piece: Piece) -> bool:
        """Whether a piece can be split: a plain file can, where its borders are known or easily found."""
        file = piece[0]
        if self.files.packing[file]:
            return False
        return self.fine or self.counted or (self.by_bytes and not is_url(self.files.paths[file]))

    def split(self, piece: Piece, size: int) -> tuple[Piece, Piece]:
        """Return the first so much of a piece, and the rest."""
        file, start, _ = piece
        if self.files.form is not None and not self.by_bytes:
            starts = self.files.index(file).starts
            middle = int(starts[int(np.searchsorted(starts[:-1], start)) + size])
        else:
            middle = start + size
        return [file, start, middle], [file, middle, self._end(piece)]

    def _end(self, piece: Piece) -> int:
        return piece[2] if piece[2] >= 0 else self.files.end(piece[0])


class Layout:
    """Shares out the files of a stream.

    Args:
        files: what is read.
        counted: share by the count of records, so that readers differ by one at most.
        shuffle: whether pieces come in another order each epoch.
    """

    def __init__(self, files: StreamFiles, counted: bool, shuffle: bool) -> None:
        self.files, self.counted, self.shuffle = files, counted, shuffle

    def work(
        self, readers: int, epoch: int, seed: int, positions: Sequence[Mapping[str, Any] | None] | None
    ) -> list[list[Unit]]:
        """Return the units of each reader: of the whole, or of what the positions of another layout have left."""
        if positions is None:
            units: list[Any] = [[0, self._pieces(readers, epoch, seed)]]
        else:
            units = [
                unit for position in positions if position is not None for unit in self.left(position, epoch, seed)
            ]
        count = sum(len(pieces) for taken, pieces in units if not taken)
        measure = Measured(self.files, self.counted, self.counted or count < readers)
        turn = 0 if positions is not None or self.shuffle else epoch
        return deal(units, readers, measure, turn, self._rank(epoch, seed))

    def left(self, position: Mapping[str, Any], epoch: int, seed: int) -> list[Unit]:
        """Return what a reader has not read yet, as units."""
        work: Any = position["work"]
        if work is None:
            work = self.work(position["readers"], epoch, seed, None)[position["reader"]]
        if position["unit"] >= len(work):
            return []
        closed, pieces = work[position["unit"]]
        rest = list(work[position["unit"] + 1 :])
        taken, begin, end = position["taken"], (position["piece"], position["at"]), position["end"]
        if closed:
            return [[taken or closed, pieces], *rest]
        if taken:
            window = _between(pieces, begin, (end[0], end[1]))
            return [[taken, window], [0, _between(pieces, (end[0], end[1]), None)], *rest]
        return [[0, _between(pieces, begin, None)], *rest]

    def _pieces(self, readers: int, epoch: int, seed: int) -> list[Piece]:
        whole = [[file, 0, -1] for file in range(len(self.files.paths))]
        if not self.shuffle:
            return whole
        cut = self.counted or len(whole) < MANY_FILES * readers
        measure = Measured(self.files, self.counted, cut)
        pieces = self._chunks(whole, measure) if cut else whole
        return sorted(pieces, key=self._rank(epoch, seed))

    def _chunks(self, whole: list[Piece], measure: Measured) -> list[Piece]:
        sizes = [measure.size(piece) if measure.splits(piece) else 0 for piece in whole]
        step = max(FEWEST_BYTES if measure.by_bytes else FEWEST_RECORDS, sum(sizes) // PIECES)
        pieces: list[Piece] = []
        for piece, size in zip(whole, sizes, strict=True):
            while size > step:
                first, piece = measure.split(piece, step)
                pieces.append(first)
                size -= step
            pieces.append(piece)
        return pieces

    def _rank(self, epoch: int, seed: int) -> Any:
        if self.shuffle:
            return lambda piece: mix("piece", seed, epoch, piece[0], piece[1])
        return lambda piece: (piece[0], piece[1])


def _between(pieces: list[Piece], begin: tuple[int, int | None], end: tuple[int, int | None] | None) -> list[Piece]:
    """Return the pieces from one place to another; a place is the number of a piece and where in it (None: its start)."""
    found: list[Piece] = []
    for number in range(begin[0], len(pieces) if end is None else min(end[0] + 1, len(pieces))):
        file, start, stop = pieces[number]
        if number == begin[0] and begin[1] is not None:
            start = max(start, begin[1])
        if end is not None and number == end[0]:
            stop = start if end[1] is None else end[1]
        if stop < 0 or start < stop:
            found.append([file, start, stop])
    return found
