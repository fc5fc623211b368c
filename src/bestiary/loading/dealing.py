"""An epoch's list of batches dealt out to ranks, one in turn: arithmetic on places in the list."""

from __future__ import annotations

from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bestiary.loading.arrays import IntArray
from bestiary.loading.occurrences import times

Ends: TypeAlias = Literal["trim", "pad", "exact"]


class Dealt(NamedTuple):
    """What one rank reads of an epoch.

    Attributes:
        batches: its batches, int64 indices.
        numbers: int64, which batch of the global list each one is.
        padded: bool, True where a batch repeats one for the sake of equal steps.
        occurrences: for each batch, the how-manieth time each index comes in the epoch, counted from 0 over all
            ranks; None where no index comes twice.
    """

    batches: list[IntArray]
    numbers: IntArray
    padded: npt.NDArray[np.bool_]
    occurrences: list[IntArray] | None


def share(count: int, start: int, rank: int, world: int, ends: Ends) -> IntArray:
    """Return a rank's places in a list of ``count`` batches from ``start`` on; those past its end repeat its beginning.

    Repeats begin with the epoch's first batch, wherever a pass starts, so that a resumed pass ends like an unbroken one.

    >>> [share(7, 0, rank, 3, "pad").tolist() for rank in range(3)]
    [[0, 3, 6], [1, 4, 7], [2, 5, 8]]
    """
    left = max(0, count - start)
    if ends == "trim":
        left -= left % world
    elif ends == "pad":
        left += -left % world
    return np.arange(start + rank, start + left, world)


def deal_out(batches: list[IntArray], known: list[IntArray] | None, places: IntArray) -> Dealt:
    """Return the batches at the places of a share; ``known`` are the occurrences in all batches, where any index repeats."""
    numbers, padded = places % max(1, len(batches)), places >= len(batches)
    share = [batches[number] for number in numbers.tolist()]
    if known is None and not padded.any():
        return Dealt(share, numbers, padded, None)
    return Dealt(share, numbers, padded, [_occurrence(batches, known, place) for place in places.tolist()])


def _occurrence(batches: list[IntArray], known: list[IntArray] | None, place: int) -> IntArray:
    """Return the occurrences in one batch; a repeat for padding counts on from those that the epoch has."""
    rounds, number = divmod(place, len(batches))
    if known is None:
        return np.full(len(batches[number]), rounds, dtype=np.int64)
    return known[number] + rounds * times(batches, batches[number]) if rounds else known[number]
