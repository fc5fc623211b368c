"""Slots of shared memory: the main process lends one to a worker with a task, and lends it again when the batch is gone.

A slot is a memfd: it has no name, does not count against /dev/shm, grows to the largest batch that was put into it,
and is gone with the last process that holds it, however that ends. The main process knows alone which slots are free,
so there is no lock: a slot is lent with a task, comes back with the batch, and is free when its last tensor is gone.

For ``DevicePrefetcher`` the main process maps slots once more and registers that map with the device's driver, so that
copies leave from it without a further one. Such a batch is for whoever keeps it until its copy is done and for nobody else:
torch waits for the copy only before it reuses pinned memory of its own.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from multiprocessing import reduction
from typing import Any, TypeAlias

import numpy as np

from bestiary.loading.onlookers import Onlookers, known
from bestiary.loading.spares import Spares

MOST_SLOTS = 200  # of a crew: each is a descriptor, of which a process may have few, and a fork server passes on 250
GRAIN = 1 << 20  # bytes; slots grow in steps of this
Slot: TypeAlias = "int | str"
"""The number of a slot, or a spare."""
Register: TypeAlias = Callable[[int, int], "Callable[[], None] | None"]
"""Takes address and bytes of memory of this process; returns what undoes it, or None where it could not be registered."""


class Slots:
    """The slots of a crew of workers, ``each`` for every worker, of ``most`` bytes at most in all."""

    def __init__(self, workers: int, each: int, most: int) -> None:
        self.limit, self.pid = most // max(1, workers * each), os.getpid()
        self.files: list[int] = []
        try:
            self.files += (os.memfd_create("bestiary-slot") for _ in range(workers * each))
        except OSError:  # too many open files
            _close(self.files)
            raise
        self._spares = Spares()
        self._closing = weakref.finalize(self, _close, list(self.files))
        self._maps: dict[int, mmap.mmap] = {}
        self._registered: dict[int, Any] = {}  # other maps of the same slots
        self.register: Register | None = None  # of the pass that runs
        self._each = each
        self._free = [list(range(worker * each, (worker + 1) * each)) for worker in range(workers)]
        self._lent: set[int] = set()
        self.leased: dict[int, set[Onlookers]] = {}  # slots with batches in use, and who was forked meanwhile
        self._kept: list[tuple[int, set[Onlookers]]] = []  # slots that only such processes may still look at
        known.add(self)

    def __getstate__(self) -> dict[str, Any]:
        return {"limit": self.limit, "files": [reduction.DupFd(file) for file in self.files]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.limit, self.files = state["limit"], [file.detach() for file in state["files"]]
        self._maps, self._spares = {}, Spares()

    # -- in the main process

    def lend(self, worker: int) -> Slot | None:
        """Return a free slot of a worker; a spare where all hold batches that are still in use; None without descriptors."""
        if self._kept:
            gone = [slot for slot, looking in self._kept if not any(one.live() for one in looking)]
            self._kept = [(slot, looking) for slot, looking in self._kept if slot not in gone]
            for slot in gone:
                self._free[slot // self._each].append(slot)
        if not self._free[worker]:
            return self._spares.lend()
        slot = self._free[worker].pop()
        self._lent.add(slot)
        return slot

    def take_back(self, slot: Slot | None) -> None:
        """Note that a slot came back unused."""
        if isinstance(slot, str):
            self._spares.drop(slot)
        elif slot in self._lent:
            self._lent.discard(slot)
            self._free[slot // self._each].append(slot)

    def take_all_back(self) -> None:
        """Note that no worker has a slot any more: a pass is over, or was left."""
        for slot in list(self._lent):
            self.take_back(slot)
        self._spares.close()

    def receive(self, slot: Slot, size: int) -> np.ndarray[Any, Any]:
        """Return the bytes of the batches in a slot; the slot is free again when the array and all on it are gone."""
        if isinstance(slot, str):
            return self._spares.receive(slot, size)
        self._lent.discard(slot)
        memory = self._map_registered(slot, size) or self._map(slot, size)
        # not a slice of a larger array: what is made of one holds that, and would not keep the lease
        lease = np.frombuffer(memory, dtype=np.uint8, count=size)
        self.leased[slot] = set()
        weakref.finalize(lease, self._release, slot)
        return lease

    def _release(self, slot: int) -> None:
        looking = self.leased.pop(slot, None)
        if looking:
            self._kept.append((slot, looking))
        elif looking is not None:
            self._free[slot // self._each].append(slot)

    def abandon(self) -> None:
        """In a forked process: let go of the slots, whose memory would otherwise last as long as that process."""
        self._closing()
        self._spares.close()
        self._maps, self._registered = {}, {}

    def _map_registered(self, slot: int, size: int) -> Any:
        """Return a slot as registered memory, None where none is asked for or the driver has no more."""
        if self.register is None:
            return None
        found = self._registered.get(slot)
        if found is None or len(found) < size:
            memory = mmap.mmap(self.files[slot], os.fstat(self.files[slot]).st_size)
            found = (ctypes.c_ubyte * len(memory)).from_buffer(memory)  # a map itself is gone before its finalizer runs
            undo = self.register(ctypes.addressof(found), len(found))
            if undo is None:
                self.register = None
                return None
            weakref.finalize(found, _undo, undo, self.pid).atexit = False  # with the process it ends anyway
            self._registered[slot] = found
        return found

    def size(self) -> int:
        """Return the bytes of all slots."""
        return sum(os.fstat(file).st_size for file in self.files)

    # -- in a worker

    def room(self, slot: Slot, size: int) -> np.ndarray[Any, Any] | None:
        """Return ``size`` bytes of a slot to write to, None where it may not or cannot grow so far."""
        if size > self.limit:
            return None
        try:
            if isinstance(slot, str):
                return self._spares.room(slot, size)
            file, known = self.files[slot], self._maps.get(slot)
            if (known is None or len(known) < size) and os.fstat(file).st_size < size:
                os.posix_fallocate(file, 0, min(-(-size // GRAIN) * GRAIN, self.limit))
            return np.frombuffer(self._map(slot, size), dtype=np.uint8, count=size)
        except OSError:  # no memory left for it, or too many open files: a map takes a descriptor
            return None

    def leave(self, slot: Slot | None) -> None:
        """Let go of a spare that a worker has filled."""
        if isinstance(slot, str):
            self._spares.drop(slot)

    # -- in both

    def _map(self, slot: int, size: int) -> mmap.mmap:
        found = self._maps.get(slot)
        if found is None or len(found) < size:
            file = self.files[slot]
            found = self._maps[slot] = mmap.mmap(file, os.fstat(file).st_size)
        return found


class Board:
    """Where each worker writes which sample it reads, so that it can be told when the worker dies of it."""

    def __init__(self, workers: int) -> None:
        self.file = os.memfd_create("bestiary-board")
        os.ftruncate(self.file, 8 * workers)
        self._closing = weakref.finalize(self, _close, [self.file])
        self._cells: np.ndarray[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"file": reduction.DupFd(self.file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.file, self._cells = state["file"].detach(), None

    @property
    def cells(self) -> np.ndarray[Any, Any]:
        """One int64 for each worker: 1 + the index that it reads, 0 for none."""
        if self._cells is None:
            self._cells = np.frombuffer(mmap.mmap(self.file, os.fstat(self.file).st_size), dtype=np.int64)
        return self._cells

    def read(self, worker: int) -> int | None:
        """Return the index that a worker is reading."""
        return int(self.cells[worker]) - 1 if self.cells[worker] else None


def _undo(undo: Callable[[], None], pid: int) -> None:
    if os.getpid() == pid:  # not in a forked process, which has no say with the driver
        undo()


def _close(files: list[int]) -> None:
    for file in files:
        os.close(file)
