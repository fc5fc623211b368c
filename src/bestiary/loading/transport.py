"""Batches from a worker to the main process: small ones as bytes in the message, large ones through slots.

torch sends each tensor in a file of its own; a small batch then costs more to hand over than to make. Here a batch is
one message whatever its structure, and several small ones ride together. What fits no parcel (a tensor of another device, a
quantised one) goes as torch would send it.
"""

from __future__ import annotations

import time
from typing import NamedTuple

import torch
from torch.utils.data import get_worker_info

from bestiary.loading.collate import CollateError
from bestiary.loading.desk import Desk
from bestiary.loading.fetch import Fetch, Fetched, Task
from bestiary.loading.parcels import Parcel, pack
from bestiary.loading.rehearsal import rehearse
from bestiary.loading.slots import Board, Slot, Slots


class Bundle(NamedTuple):
    """Tasks for one worker, and the slot that it may put their batches into, one behind the other."""

    tasks: list[Task]
    slot: Slot | None


class WorkerFetch:
    """What a worker's loop indexes: ``fetch[bundle]`` makes the batches of a bundle and packs them."""

    def __init__(self, fetch: Fetch, slots: Slots | None, board: Board | None, packed: bool) -> None:
        self.fetch, self.slots, self.board, self.packed = fetch, slots, board, packed
        self.dtype = torch.get_default_dtype()  # spawned workers would have torch's own

    def __getitem__(self, bundle: Bundle) -> list[Parcel | Fetched]:
        """Make and pack; after an error that ends the pass the rest is left out."""
        torch.set_default_dtype(self.dtype)
        self.fetch.reading = self._reading
        parcels: list[Parcel | Fetched] = []
        desk = Desk(self.slots, bundle.slot, shared=len(bundle.tasks) > 1)
        self.fetch.landlord = desk if self.packed else None
        for task in bundle.tasks:
            fetched = self.fetch[task]
            self._reading(-1)
            parcels.append(self._packed(fetched, desk, task))
            if fetched.failure is not None:
                break
        if self.slots is not None:
            self.slots.leave(bundle.slot)
        return parcels

    def _packed(self, fetched: Fetched, desk: Desk, task: Task) -> Parcel | Fetched:
        begun = time.perf_counter()
        try:
            if not self.packed:
                return rehearse(fetched)
            parcel = pack(fetched, desk)
            return parcel._replace(seconds=time.perf_counter() - begun)
        except Exception as error:  # noqa: BLE001 - whatever it is, it cannot be sent
            failure = CollateError(self.fetch.sentence(task, error, "could not be sent to the main process"))
            return Fetched(None, 0, fetched.errors, failure, fetched.seconds)

    def _reading(self, index: int) -> None:
        worker = get_worker_info()
        if self.board is not None and worker is not None:
            self.board.cells[worker.id] = index + 1
