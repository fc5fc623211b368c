"""Batches from a worker to the main process: small ones as bytes in the message, large ones through slots.

torch sends each tensor in a file of its own; a small batch then costs more to hand over than to make. Here a batch is
one message whatever its structure: the structure is pickled, its tensors lie one behind the other in one block, which
travels in the message when it is small and lies in a slot of shared memory when it is large. Several small batches
ride together. What fits neither way (another device, a sparse tensor, no slot free) goes as torch would send it.
"""

from __future__ import annotations

import io
import pickle
import time
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from bestiary.loading.collate import CollateError
from bestiary.loading.fetch import Fetch, Fetched, Task
from bestiary.loading.rooms import ALIGNMENT
from bestiary.loading.slots import Board, Slots

INLINE = 1 << 18  # bytes; up to here a batch rides in its message
DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
_NUMBER = {dtype: number for number, dtype in enumerate(DTYPES)}
Place = tuple[int, int, tuple[int, ...], "tuple[int, ...] | None"]  # offset, dtype, shape, order of axes in memory


class Bundle(NamedTuple):
    """Tasks for one worker, and the slot that it may use for each."""

    tasks: list[Task]
    slots: list[int | None]


class Parcel(NamedTuple):
    """One batch under way: a pickle with places instead of tensors, and the block that these lie in."""

    frame: bytes
    block: bytearray | None  # None: in the slot
    slot: int | None
    size: int
    seconds: float = 0.0  # that packing took


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
        for task, slot in zip(bundle.tasks, bundle.slots, strict=True):
            desk = _Desk(self.slots, slot)
            self.fetch.landlord = desk if self.packed else None
            fetched = self.fetch[task]
            self._reading(-1)
            parcels.append(self._packed(fetched, desk, task))
            if fetched.failure is not None:
                break
        return parcels

    def _packed(self, fetched: Fetched, desk: _Desk, task: Task) -> Parcel | Fetched:
        begun = time.perf_counter()
        try:
            if not self.packed:
                return fetched
            parcel = pack(fetched, desk)
            return parcel._replace(seconds=time.perf_counter() - begun)
        except Exception as error:  # noqa: BLE001 - whatever it is, it cannot be sent
            failure = CollateError(self.fetch.sentence(task, error, "could not be sent to the main process"))
            return Fetched(None, 0, fetched.errors, failure, fetched.seconds)

    def _reading(self, index: int) -> None:
        worker = get_worker_info()
        if self.board is not None and worker is not None:
            self.board.cells[worker.id] = index + 1


class _Desk:
    """Lets a slot's memory to the tensors of one batch, one behind the other."""

    def __init__(self, slots: Slots | None, slot: int | None) -> None:
        self.slots, self.slot, self.used = slots, slot, 0
        self.places: dict[int, int] = {}  # address -> offset of what lies here already

    def let(self, size: int) -> np.ndarray[Any, Any] | None:
        """Return ``size`` bytes of the slot."""
        if self.slots is None or self.slot is None:
            return None
        start = _aligned(self.used)
        memory = self.slots.room(self.slot, start + size)
        if memory is None:
            return None
        self.used = start + size
        lease = memory[start : start + size]
        self.places[lease.__array_interface__["data"][0]] = start
        return lease


class _Packer(ForkingPickler):
    """Pickles a batch, and puts plain CPU tensors aside."""

    def __init__(self, file: io.BytesIO, desk: _Desk) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.desk, self.end = desk, desk.used
        self.aside: list[tuple[int, Tensor]] = []
        self.known: dict[int, Place] = {}
        self.kept: list[Tensor] = []

    def persistent_id(self, value: Any) -> Place | None:
        """Return the place of a tensor in the block, None for anything else."""
        if type(value) is not Tensor or not _plain(value):
            return None
        place = self.known.get(id(value))
        if place is None:
            place = self.known[id(value)] = self._put(value)
            self.kept.append(value)  # its id stays its own
        return place

    def _put(self, tensor: Tensor) -> Place:
        tensor, order = tensor.resolve_conj().resolve_neg(), None
        if not tensor.is_contiguous():
            order = _memory_order(tensor)
            tensor = tensor.contiguous() if order is None else tensor.permute(order)
        offset = self.desk.places.get(tensor.data_ptr()) if self.desk.places else None
        if offset is None:
            offset = _aligned(self.end)
            self.end = offset + max(1, tensor.nbytes)  # no two tensors share a place
            self.aside.append((offset, tensor))
        return offset, _NUMBER[tensor.dtype], tuple(tensor.shape), order


def pack(fetched: Fetched, desk: _Desk) -> Parcel:
    """Turn a batch into a parcel: in the slot where it fits, else in the message."""
    file = io.BytesIO()
    packer = _Packer(file, desk)
    packer.dump(fetched)
    if desk.used or packer.end > INLINE:
        memory = desk.slots.room(desk.slot, packer.end) if desk.slots is not None and desk.slot is not None else None
        if memory is not None:
            _write(packer.aside, memory)
            return Parcel(file.getvalue(), None, desk.slot, packer.end)
        if desk.used:  # what lies in the slot already has to come out of it
            return pack(fetched, _Desk(None, None))
    block = bytearray(packer.end)
    _write(packer.aside, np.frombuffer(block, dtype=np.uint8))
    return Parcel(file.getvalue(), block, None, packer.end)


def unpack(parcel: Parcel, slots: Slots | None) -> Fetched:
    """Return the batch of a parcel; its tensors lie in the block, which lives as long as the last of them."""
    memory: Any = parcel.block
    if memory is None and slots is not None and parcel.slot is not None:
        memory = slots.receive(parcel.slot, parcel.size)
    begun = time.perf_counter()
    fetched: Fetched = _Unpacker(io.BytesIO(parcel.frame), memory).load()
    if fetched.stages:
        fetched.stages["hand-over"] = parcel.seconds + time.perf_counter() - begun
    return fetched


class _Unpacker(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, memory: Any) -> None:
        super().__init__(file)
        self.memory = memory
        self.known: dict[Place, Tensor] = {}

    def persistent_load(self, place: Place) -> Tensor:
        """Return the tensor at a place."""
        tensor = self.known.get(place)
        if tensor is None:
            tensor = self.known[place] = _read(place, self.memory)
        return tensor


def _read(place: Place, memory: Any) -> Tensor:
    offset, number, shape, order = place
    count = 1
    for length in shape:
        count *= length
    if count == 0:
        tensor = torch.empty(shape, dtype=DTYPES[number])
    else:
        tensor = torch.frombuffer(memory, dtype=DTYPES[number], count=count, offset=offset).view(shape)
    if order is None:
        return tensor
    back = [order.index(axis) for axis in range(len(order))]
    return tensor.permute(back)


def _write(aside: list[tuple[int, Tensor]], memory: np.ndarray[Any, Any]) -> None:
    for offset, tensor in aside:
        if tensor.numel():
            memory[offset : offset + tensor.nbytes] = tensor.reshape(-1).view(torch.uint8).numpy()


def _plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in _NUMBER
        and not tensor.requires_grad
    )


def _memory_order(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the axes in the order they lie in memory, such as that of channels-last; None where there are gaps."""
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return order if tensor.permute(order).is_contiguous() else None


def _aligned(offset: int) -> int:
    return -(-offset // ALIGNMENT) * ALIGNMENT
