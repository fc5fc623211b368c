"""Which reader reads what: files and parts of files, shared out evenly, each record to one reader.

A piece is [file, start, stop], places in a file. A unit is [taken, pieces]: what a reader reads one after the other;
with ``taken`` above 0 it is one window of a shuffled stream, of which so many records have come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

Piece: TypeAlias = list[int]
Unit: TypeAlias = "list[int | list[Piece]]"


class Measure(Protocol):
    """What sharing out needs to know of pieces."""

    def size(self, piece: Piece) -> int:
        """Return how much is in a piece: bytes, or records."""

    def splits(self, piece: Piece) -> bool:
        """Whether a piece can be split."""

    def split(self, piece: Piece, size: int) -> tuple[Piece, Piece]:
        """Return the first so much of a piece, and the rest."""


def deal(
    units: Sequence[tuple[int, list[Piece]]], readers: int, measure: Measure, turn: int, rank: Callable[[Piece], int]
) -> list[list[Unit]]:
    """Share units out to readers.

    What cannot be split goes, largest first, to the reader that has least; the rest is one long row, cut evenly.

    Args:
        turn: rotates who gets what, so that the map of files to readers changes between epochs.
        rank: the order in which a reader reads its pieces.
    """
    closed = [unit for unit in units if unit[0]]
    loose = [piece for taken, pieces in units if not taken for piece in pieces]
    whole = [piece for piece in loose if not measure.splits(piece)]
    row = [piece for piece in loose if measure.splits(piece)]
    dealt: list[list[Unit]] = [[] for _ in range(readers)]
    parts: list[list[Piece]] = [[] for _ in range(readers)]
    loads = [0] * readers
    blocks = [(sum(map(measure.size, pieces)) - taken, number) for number, (taken, pieces) in enumerate(closed)]
    for size, number in sorted(blocks, key=lambda block: (-block[0], block[1])):
        reader = _lightest(loads, turn)
        dealt[reader].append([closed[number][0], closed[number][1]])
        loads[reader] += size
    for size, _, piece in sorted(((measure.size(p), rank(p), p) for p in whole), key=lambda one: (-one[0], one[1])):
        reader = _lightest(loads, turn)
        parts[reader].append(piece)
        loads[reader] += max(size, 1)
    for reader, pieces in enumerate(_cut(row, loads, turn, measure)):
        pieces = sorted(parts[reader] + pieces, key=rank) if parts[reader] else pieces
        if pieces:
            dealt[reader].append([0, pieces])
    return dealt


def _lightest(loads: list[int], turn: int) -> int:
    return min(range(len(loads)), key=lambda reader: (loads[reader], (reader - turn) % len(loads)))


def _cut(row: list[Piece], loads: list[int], turn: int, measure: Measure) -> list[list[Piece]]:
    """Cut a row of pieces so that readers end up with like loads."""
    sizes = list(map(measure.size, row))
    total, readers = sum(sizes), len(loads)
    everything = total + sum(loads)
    wanted = [
        max(0, everything * (reader + 1) // readers - everything * reader // readers - loads[reader])
        for reader in range(readers)
    ]
    row, sizes = _rotated(row, sizes, total * (turn % readers) // readers, measure)
    bounds, sum_wanted, so_far = list[int](), max(sum(wanted), 1), 0
    for want in wanted:
        so_far += want
        bounds.append(total * so_far // sum_wanted)
    shares: list[list[Piece]] = [[] for _ in loads]
    reader, done = 0, 0
    for piece, size in zip(row, sizes, strict=True):
        while reader < readers - 1 and done + size > bounds[reader]:
            room = bounds[reader] - done
            if room > 0:
                first, piece = measure.split(piece, room)
                shares[reader].append(first)
                done, size = done + room, size - room
            reader += 1
        shares[reader].append(piece)
        done += size
    return shares


def _rotated(row: list[Piece], sizes: list[int], by: int, measure: Measure) -> tuple[list[Piece], list[int]]:
    """Return the row as it begins so far behind its start."""
    if by == 0:
        return row, sizes
    at = 0
    while by >= sizes[at]:
        by -= sizes[at]
        at += 1
    if by == 0:
        return row[at:] + row[:at], sizes[at:] + sizes[:at]
    first, second = measure.split(row[at], by)
    return [second, *row[at + 1 :], *row[:at], first], [sizes[at] - by, *sizes[at + 1 :], *sizes[:at], by]
