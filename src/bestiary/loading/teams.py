"""What one pass has to itself: its tasks in bundles, the slots for their batches, and what is under way."""

from __future__ import annotations

import itertools
import os
import warnings
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from bestiary.loading.deaths import DeathWatch
from bestiary.loading.desk import INLINE
from bestiary.loading.fetch import Fetched, Task
from bestiary.loading.parcels import SMALL, Parcel, unpack
from bestiary.loading.rooms import memory_share
from bestiary.loading.slots import Board, Register, Slot, Slots
from bestiary.loading.transport import Bundle

RIDERS = 8  # batches in one message, when they are small and quickly made
RIDER_S = 0.002  # seconds to make one


class Team:
    """What one pass has to itself: the sampler of its private DataLoader, the slots, and what is under way.

    It hands out the pass's tasks in bundles. While a pass runs, another one of the same loader gets a team of its own.
    """

    def __init__(self, workers: int, each: int, packed: bool) -> None:
        self.workers, self.packed, self.pid = workers, packed, os.getpid()
        self.slots = _slots(workers, each) if packed and hasattr(os, "memfd_create") else None
        self.board = Board(workers) if hasattr(os, "memfd_create") else None
        self.chance = torch.Generator(device="cpu")  # without one torch would draw from the caller's
        self.coming: Iterable[Task] = ()
        self.riders = 1  # tasks in a bundle
        self.told = False  # that batches are too large for slots
        self.watch: DeathWatch | None = None  # over workers that are kept
        self.under_way: deque[Bundle] = deque()

    def __iter__(self) -> Iterator[Bundle]:
        self.under_way.clear()
        coming = iter(self.coming)
        for turn in itertools.count():  # torch gives bundle n to worker n modulo their number
            tasks = list(itertools.islice(coming, self.riders))
            if not tasks:
                return
            slot = self.slots.lend(turn % self.workers) if self.slots is not None else None
            self.under_way.append(Bundle(tasks, slot))
            yield self.under_way[-1]

    def begin(self, tasks: Iterable[Task], seed: int, register: Register | None) -> None:
        """Take a pass's tasks; its workers seed what they draw from before the first sample with ``seed``."""
        self.coming, self.riders = tasks, 1
        self.chance.manual_seed(seed)
        if self.slots is not None:
            self.slots.take_all_back()
            self.slots.register = register

    def do_without_slots(self, why: Exception) -> None:
        """Give the slots' descriptors back; large batches travel in messages."""
        if self.slots is not None:
            self.slots.abandon()
            self.slots = None
        warnings.warn(f"bestiary: no slots of shared memory ({why}); large batches travel in messages", stacklevel=7)

    def unpacked(self, parcels: list[Parcel | Fetched], slot: Slot | None) -> Iterator[Fetched]:
        """Yield what a worker sent, and learn from it whether batches may ride together."""
        lease = self._lease(parcels, slot)
        parcels.reverse()
        while parcels:
            parcel = parcels.pop()
            if isinstance(parcel, Fetched):
                fetched, small = parcel, False
            else:
                self._check_room(parcel, slot)
                fetched, small = unpack(parcel, lease), parcel.size <= SMALL
            self.riders = RIDERS if small and fetched.seconds < RIDER_S else 1
            if not parcels:
                lease = None  # the batch alone keeps it
            del parcel
            yield fetched
            del fetched

    def _lease(self, parcels: list[Parcel | Fetched], slot: Slot | None) -> Any:
        """Return the memory of a slot as far as batches lie in it; take the slot back if none does."""
        if self.slots is None or slot is None:
            return None
        ends = [parcel.end for parcel in parcels if isinstance(parcel, Parcel) and parcel.block is None]
        if ends:
            return self.slots.receive(slot, max(ends))
        self.slots.take_back(slot)
        return None

    def _check_room(self, parcel: Parcel, slot: Slot | None) -> None:
        """Say so once where a batch that was meant for a slot came in the message."""
        if self.slots is None or slot is None or parcel.block is None or parcel.size <= INLINE or self.told:
            return
        self.told = True
        size, most = parcel.size / 1e6, self.slots.limit
        why = (
            f"find no room in slots of shared memory of {most / 1e6:.0f} MB"
            if parcel.size > most
            else "find no shared memory left"
        )
        warnings.warn(
            f"bestiary: batches of {size:.0f} MB {why}; they travel in messages, which is slower", stacklevel=7
        )


def _slots(workers: int, each: int) -> Slots | None:
    try:
        return Slots(workers, each, memory_share())
    except OSError as error:
        warnings.warn(f"bestiary: no slots of shared memory ({error}); large batches travel in messages", stacklevel=6)
        return None
