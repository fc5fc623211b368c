"""A batch as a parcel: its tensors one behind the other in one block, and the rest of it with places in their stead.

The block travels in the message when it is small, and lies in a slot of shared memory when it is large or when several
batches share one. A flat dict, which most batches are, goes as it is; any other structure is pickled.
"""

from __future__ import annotations

import ctypes
import io
import math
import pickle
import time
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from bestiary.loading.desk import Desk, aligned
from bestiary.loading.fetch import Fetched
from bestiary.loading.kinds import taken_apart
from bestiary.loading.slots import Slot

SMALL = 1 << 18  # bytes; up to here several batches share a message, and a slot
PART = 4  # a tensor that is a smaller part of its batch than this may get memory of its own
OWN = 1 << 16  # bytes; up to here it does, and up to any size where the batch lies in no slot, of which there are few
CRUMBS = 1 << 13  # bytes; so small a batch may be kept for the sake of any part of it
DTYPES = [
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.bfloat16, torch.float32,
    torch.float64, torch.bool, torch.complex64, torch.complex128, torch.uint16, torch.uint32, torch.uint64,
    torch.float8_e4m3fn, torch.float8_e5m2,
]  # fmt: skip
_NUMBER = {dtype: number for number, dtype in enumerate(DTYPES)}
_NUMPYS = [getattr(np, str(dtype).removeprefix("torch.").replace("bool", "bool_"), None) for dtype in DTYPES]
Place = tuple[int, int, tuple[int, ...], "tuple[int, ...] | None"]  # offset, dtype, shape, order of axes in memory
LEAVES = frozenset({str, bytes, int, float, complex, bool, type(None)})


class Flat(NamedTuple):
    """What most batches are, a dict of tensors, words and numbers: cheaper to send as it is than to walk through twice."""

    fields: dict[str, Any]  # places, which are tuples, instead of tensors
    samples: int
    seconds: float
    stages: dict[str, float]


class Parcel(NamedTuple):
    """One batch under way: what was fetched with places instead of tensors, pickled or flat, and the block of these."""

    frame: bytes | Flat
    block: bytearray | None  # None: in the slot
    slot: Slot | None
    size: int
    end: int  # of the batch in the slot, which may hold others before it
    seconds: float = 0.0  # that packing took


class _Goods:
    """The plain CPU tensors of a batch, and the places that they get in its block."""

    def __init__(self, desk: Desk) -> None:
        self.desk, self.end = desk, desk.used
        self.aside: list[tuple[int, Tensor]] = []
        self.known: dict[int, Place] = {}
        self.kept: list[Tensor] = []

    def place(self, value: Any) -> Place | None:
        """Return the place of a tensor in the block, None for anything else."""
        if type(value) is not Tensor or not _plain(value):
            return None
        place = self.known.get(id(value))
        if place is None:
            place = self.known[id(value)] = self._put(value)
            self.kept.append(value)  # its id stays its own
        return place

    def write(self, memory: Any) -> None:
        """Copy what does not lie in the block yet to there."""
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        for offset, tensor in self.aside:
            ctypes.memmove(address + offset, tensor.data_ptr(), tensor.nbytes)

    def _put(self, tensor: Tensor) -> Place:
        tensor, order = tensor.resolve_conj().resolve_neg(), None
        if not tensor.is_contiguous():
            order = _memory_order(tensor)
            tensor = tensor.contiguous() if order is None else tensor.permute(order)
        offset = self.desk.places.get(tensor.data_ptr()) if self.desk.places else None
        if offset is None:
            offset = aligned(self.end)
            self.end = offset + max(1, tensor.nbytes)  # no two tensors share a place
            self.aside.append((offset, tensor))
        return offset, _NUMBER[tensor.dtype], tuple(tensor.shape), order


class _Packer(ForkingPickler):
    """Pickles a batch, and puts plain CPU tensors aside, also those that others are taken apart into."""

    def __init__(self, file: io.BytesIO, goods: _Goods) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.goods = goods

    def persistent_id(self, value: Any) -> Place | None:
        """Return the place of a tensor in the block, None for anything else."""
        return self.goods.place(value)

    def reducer_override(self, value: Any) -> Any:
        """Take a tensor apart that is not plain; leave all else to the usual ways."""
        return (taken_apart(value) if isinstance(value, Tensor) else None) or NotImplemented


def pack(fetched: Fetched, desk: Desk) -> Parcel:
    """Turn a batch into a parcel: in the slot where it fits, else in the message."""
    goods = _Goods(desk)
    frame = _flat(fetched, goods) or _pickled(fetched, goods)
    started, size = desk.used > desk.start, goods.end - desk.start
    memory = desk.room(goods.end) if size and (started or size > desk.inline) else None
    if memory is not None:
        goods.write(memory)
        desk.close(goods.end)
        return Parcel(frame, None, desk.slot, size, goods.end)
    if desk.used:  # what lies in the slot already, and the places behind it, do not count in the message
        desk.close(desk.start)
        return pack(fetched, Desk(None, None))
    block = bytearray(size)
    if goods.aside:
        goods.write(block)
    return Parcel(frame, block, None, size, size)


def _flat(fetched: Fetched, goods: _Goods) -> Flat | None:
    if type(fetched.batch) is not dict or fetched.errors or fetched.failure is not None:
        return None
    fields: dict[str, Any] = {}
    for key, value in fetched.batch.items():
        place = goods.place(value)
        known = (
            place is not None or type(value) in LEAVES or (type(value) is list and LEAVES.issuperset(map(type, value)))
        )
        if type(key) is not str or not known:
            return None
        fields[key] = place or (list(value) if type(value) is list else value)  # it is pickled later than here
    return Flat(fields, fetched.samples, fetched.seconds, fetched.stages)


def _pickled(fetched: Fetched, goods: _Goods) -> bytes:
    file = io.BytesIO()
    _Packer(file, goods).dump(fetched)
    return file.getvalue()


def unpack(parcel: Parcel, lease: Any = None) -> Fetched:
    """Return the batch of a parcel; its tensors lie in the block, or the slot's lease, which lives as long as they do."""
    begun, shelf = time.perf_counter(), _Shelf(parcel, lease)
    if isinstance(parcel.frame, bytes):
        fetched: Fetched = _Unpacker(parcel.frame, shelf).load()
    else:
        fields, samples, seconds, stages = parcel.frame
        batch = {key: shelf.tensor(part) if type(part) is tuple else part for key, part in fields.items()}
        fetched = Fetched(batch, samples, [], None, seconds, stages)
    if fetched.stages:
        fetched.stages["hand-over"] = parcel.seconds + time.perf_counter() - begun
    return fetched


class _Shelf:
    """The tensors in a block, each made once; small ones beside large ones get memory of their own.

    A caller who keeps a batch's labels would otherwise keep its pictures too.
    """

    def __init__(self, parcel: Parcel, lease: Any) -> None:
        self.memory = lease if parcel.block is None else parcel.block
        part = parcel.size // PART if parcel.size > CRUMBS else 0
        self.own = part if parcel.block is not None else min(part, OWN)
        self.known: dict[Place, Tensor] = {}

    def tensor(self, place: Place) -> Tensor:
        """Return the tensor at a place."""
        tensor = self.known.get(place)
        if tensor is None:
            tensor = _read(place, self.memory)
            if 0 < tensor.nbytes < self.own:
                tensor = tensor.clone()
            self.known[place] = tensor
        return tensor


class _Unpacker(pickle.Unpickler):
    def __init__(self, frame: bytes, shelf: _Shelf) -> None:
        super().__init__(io.BytesIO(frame))
        self.shelf = shelf

    def persistent_load(self, place: Place) -> Tensor:
        """Return the tensor at a place."""
        return self.shelf.tensor(place)


def _read(place: Place, memory: Any) -> Tensor:
    offset, number, shape, order = place
    dtype = _NUMPYS[number]
    if 0 in shape:
        tensor = torch.empty(shape, dtype=DTYPES[number])
    elif dtype is not None:  # less than half the time of the other way
        tensor = torch.from_numpy(np.ndarray(shape, dtype, memory, offset))
    else:
        tensor = torch.frombuffer(memory, dtype=DTYPES[number], count=math.prod(shape), offset=offset).view(shape)
    if order is None:
        return tensor
    back = [order.index(axis) for axis in range(len(order))]
    return tensor.permute(back)


def _plain(tensor: Tensor) -> bool:
    return (
        tensor.layout == torch.strided
        and tensor.device.type == "cpu"
        and tensor.dtype in _NUMBER
        and not tensor.requires_grad
        and not tensor.is_nested
    )


def _memory_order(tensor: Tensor) -> tuple[int, ...] | None:
    """Return the axes in the order they lie in memory, such as that of channels-last; None where there are gaps."""
    order = tuple(sorted(range(tensor.dim()), key=tensor.stride, reverse=True))
    return order if tensor.permute(order).is_contiguous() else None
