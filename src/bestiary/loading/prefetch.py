"""Bring batches to the device: whatever their structure, with their type kept, and one ahead of the loop.

Copying while the device computes takes three things, and leaving out any of them gives wrong data without an error::

    loop's stream   | step 0      | step 1      | step 2
    side stream     | copy 1      | copy 2      | copy 3

1. The copy runs on a stream of its own, from page-locked memory; from ordinary memory it would wait for the host.
2. The loop's stream waits for the copy's event, or a step reads memory that the copy has not filled yet.
3. Every tensor is recorded on the loop's stream. Its memory belongs to the side stream, whose allocator gives it to the
   next copy as soon as the loop drops the batch, while kernels that read it may still be queued.

The other end of a copy has the same hazard: memory that is filled anew before the copy has read it. torch waits for the copy
before it reuses pinned memory of its own. A ``Loader`` can hand over batches in shared memory that its workers have written
and that is pinned where it lies; these are kept here until the event behind their copy has come.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from bestiary.loading.structure import map_tensors, tensors_in

if TYPE_CHECKING:
    from bestiary.loading.slots import Register

Batch = TypeVar("Batch")
UNDER_WAY = 2  # copies; with more, workers would run out of slots


def to_device(batch: Batch, device: torch.device | str | int, *, non_blocking: bool = False) -> Batch:
    """Return the batch with every tensor on ``device``; types stay, and the batch given is left as it was.

    Dicts, lists, tuples, named tuples and dataclasses are walked through; other objects are asked by their own
    ``.to(device)``. Strings, numbers, None and numpy arrays stay. A tensor that stands in two places is moved once and
    stands in both again.

    Raises:
        TypeError: an object holds tensors but has no ``.to``.

    >>> to_device({"image": torch.zeros(2, 3), "name": ["a", "b"]}, "meta")["image"].device
    device(type='meta')
    """
    moved: Batch = map_tensors(
        batch, partial(_move, device=device, non_blocking=non_blocking), method="to", arguments=(device,)
    )
    return moved


def pin_memory(batch: Batch) -> Batch:
    """Return the batch with every CPU tensor in pinned memory, by the structure rules of ``to_device``."""
    pinned: Batch = map_tensors(batch, _pin, method="pin_memory", arguments=())
    return pinned


def _move(tensor: Tensor, *, device: torch.device | str | int, non_blocking: bool) -> Tensor:
    return tensor.to(device, non_blocking=non_blocking)


def _pin(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor


class DevicePrefetcher:
    """Iterate over the batches of a loader on a device, with the next ones on their way while the loop computes.

    On the CPU it is a plain loop with the same results. It starts no thread; one side stream serves it for its whole
    life. An error of the loader comes after the batches before it. ``state_dict`` counts what the loop has received.

    Args:
        loader: any iterable of batches.
        device: where the batches go.
        transform: batch to batch, run on the device, such as ``normalize``.
        depth: batches on their way beside the one in use.

    Raises:
        ValueError: depth is less than 1.

    >>> batches = DevicePrefetcher([{"image": torch.zeros(2)}], "cpu", transform=lambda batch: {"x": batch["image"] + 1})
    >>> list(batches), len(batches)
    ([{'x': tensor([1., 1.])}], 1)
    """

    def __init__(
        self,
        loader: Any,
        device: torch.device | str | int,
        transform: Callable[[Any], Any] | None = None,
        depth: int = 1,
    ) -> None:
        if depth < 1:
            raise ValueError(f"depth should be at least 1, but is {depth}; to copy without prefetching use to_device")
        self.loader, self.device, self.transform, self.depth = loader, torch.device(device), transform, depth
        self._lane: Lane | None = None
        self._mark: Any = None

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass of the loader."""
        if self._lane is None:
            self._lane = lane_to(self.device)
        ready: deque[_Ready] = deque()
        source = self._source(self._lane)
        self._mark = None
        more = True
        try:
            while True:
                while more and len(ready) <= self.depth:
                    ready.append(next(source))
                    more = ready[-1].event is not None
                item = ready.popleft()
                if item.event is None:
                    if item.error is not None:
                        raise item.error
                    self._mark = None
                    return
                self._mark = item.mark
                yield self._lane.hand_over(item.batch, item.event)
                del item  # what the loop drops is free
        finally:
            source.close()
            self._lane.settle()

    def _source(self, lane: Lane) -> Generator[_Ready, None, None]:
        """Yield batches on their way; at the end, or after an error, one item without an event."""
        mark = getattr(self.loader, "bookmark", getattr(self.loader, "state_dict", None))
        try:
            for batch in lane.batches(self.loader):
                with lane.aside():
                    moved = lane.copy(batch)
                    moved = moved if self.transform is None else self.transform(moved)
                    event = lane.event()
                yield _Ready(moved, event, mark() if mark else None, None)
                del batch, moved
        except Exception as error:  # noqa: BLE001 - it is raised in the loop, after the batches before it
            yield _Ready(None, None, None, error)
        else:
            yield _Ready(None, None, None, None)

    def set_epoch(self, epoch: int) -> None:
        """Make the loader's next pass that epoch."""
        self._mark = None
        self.loader.set_epoch(epoch)

    def report(self) -> Any:
        """Return the loader's figures."""
        return self.loader.report()

    def state_dict(self) -> Any:
        """Return the loader's state behind the batch that the loop received last, not behind those on their way."""
        if self._mark is None:
            return self.loader.state_dict()
        return self.loader.state_dict(self._mark) if hasattr(self.loader, "bookmark") else self._mark

    def load_state_dict(self, state: Any) -> None:
        """Make the loader's next pass go on where the state was taken."""
        self._mark = None
        self.loader.load_state_dict(state)


class _Ready(NamedTuple):
    """A batch on its way to the device; the event None tells the end."""

    batch: Any
    event: Any
    mark: Any
    error: Exception | None


class Lane(Protocol):
    """The way to a device: what a copy, a wait and a hand-over are there."""

    def batches(self, loader: Any) -> Iterator[Any]:
        """Begin a pass of a loader."""

    def aside(self) -> AbstractContextManager[Any]:
        """Issue what is inside on the side stream."""

    def copy(self, batch: Any) -> Any:
        """Start the copy of a batch."""

    def event(self) -> Any:
        """Return an event behind all that was issued aside, never None."""

    def hand_over(self, batch: Any, event: Any) -> Any:
        """Return a batch that the loop's stream may read."""

    def settle(self) -> None:
        """Wait for the copies that are on their way."""


class _Here:
    """The way to the CPU, and to devices without streams: one thing after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def batches(self, loader: Any) -> Iterator[Any]:
        """Begin a pass of a loader."""
        return iter(loader)

    def aside(self) -> AbstractContextManager[Any]:
        """Issue what is inside now."""
        return nullcontext()

    def copy(self, batch: Any) -> Any:
        """Copy a batch."""
        return to_device(batch, self.device)

    def event(self) -> Any:
        """Return something that is not None."""
        return True

    def hand_over(self, batch: Any, event: Any) -> Any:
        """Return the batch."""
        return batch

    def settle(self) -> None:
        """Do nothing: a copy is done when it returns."""


class _SideStream:
    """The way to an accelerator: copies on a stream of their own."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.stream = device, torch.Stream(device)
        self.register = registration(device)
        self.leaving: deque[tuple[Any, Any]] = deque()  # events, and what is read before them

    def batches(self, loader: Any) -> Iterator[Any]:
        """Begin a pass of a loader, in registered memory where it has any."""
        begin = getattr(loader, "iter_registered", None)
        registered: Iterator[Any] = iter(loader) if begin is None or self.register is None else begin(self.register)
        return registered

    def aside(self) -> AbstractContextManager[Any]:
        """Issue what is inside on the side stream."""
        return self.stream

    def copy(self, batch: Any) -> Any:
        """Start the copy of a batch, from pinned memory that is kept until the copy has read it."""
        while self.leaving and (len(self.leaving) >= UNDER_WAY or self.leaving[0][0].query()):
            self.leaving.popleft()[0].synchronize()  # copies are done in turn: waiting for an old one holds up none
        pinned = pin_memory(batch)
        moved = to_device(pinned, self.device, non_blocking=True)
        self.leaving.append((self.stream.record_event(), pinned))
        return moved

    def event(self) -> Any:
        """Return an event behind what was issued aside."""
        return self.stream.record_event()

    def hand_over(self, batch: Any, event: Any) -> Any:
        """Let the loop's stream wait for the copy, and tell the allocator who reads the memory."""
        current = torch.accelerator.current_stream(self.device)
        current.wait_event(event)
        for tensor in tensors_in(batch):
            if tensor.device.type == self.device.type:
                tensor.record_stream(current)
        return batch

    def settle(self) -> None:
        """Wait for the copies that are on their way, and let go of what they read."""
        while self.leaving:
            self.leaving.popleft()[0].synchronize()


def registration(device: torch.device) -> Register | None:
    """Return what makes the driver of a device pin memory where it lies; None where torch has no call for it."""
    return partial(_register, device=device) if device.type == "cuda" else None


def _register(address: int, size: int, *, device: torch.device) -> Callable[[], None] | None:
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    if int(runtime.cudaHostRegister(address, size, 0)) == 0:
        return lambda: runtime.cudaHostUnregister(address)
    with suppress(RuntimeError):
        torch.zeros(1, device=device)  # takes the driver's last error away, which the next kernel would tell as its own
    return None


def lane_to(device: torch.device) -> Lane:
    """Return the way to a device: a side stream where the device has streams."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or device.type != accelerator.type or device.type == "mps":
        return _Here(device)
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    return _SideStream(torch.device(device.type, index))
