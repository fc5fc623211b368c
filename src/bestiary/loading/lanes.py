"""The way of batches to a device: what a copy, a wait and a hand-over are there, for ``DevicePrefetcher``."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch

from bestiary.loading.kinds import strided_parts
from bestiary.loading.moving import pin_memory, to_device
from bestiary.loading.structure import tensors_in

if TYPE_CHECKING:
    from bestiary.loading.slots import Register

UNDER_WAY = 2  # copies; with more, workers would run out of slots
PORTABLE = 1  # cudaHostRegisterPortable: pinned for all devices
Transform = Callable[[Any], Any]


class Lane(Protocol):
    """The way to a device."""

    def batches(self, loader: Any) -> Iterator[Any]:
        """Begin a pass of a loader."""

    def bring(self, batch: Any, transform: Transform | None) -> tuple[Any, Any]:
        """Start the copy of a batch and what is done to it there; return it, and an event behind all that, never None."""

    def hand_over(self, batch: Any, event: Any) -> Any:
        """Return a batch that the loop's stream may read."""

    def settle(self) -> None:
        """Wait for what is on its way."""


class Here:
    """The way to the CPU, and to devices without streams: one thing after the other."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def batches(self, loader: Any) -> Iterator[Any]:
        """Begin a pass of a loader."""
        return iter(loader)

    def bring(self, batch: Any, transform: Transform | None) -> tuple[Any, Any]:
        """Copy a batch, and do what is done to it."""
        moved = to_device(batch, self.device)
        return moved if transform is None else transform(moved), True

    def hand_over(self, batch: Any, event: Any) -> Any:
        """Return the batch."""
        return batch

    def settle(self) -> None:
        """Do nothing: a copy is done when it returns."""


class SideStream:
    """The way to an accelerator: copies on a stream of their own, ``depth`` ahead of the loop."""

    def __init__(self, device: torch.device, depth: int) -> None:
        self.device, self.stream = device, torch.Stream(device)
        self.behind = depth + 1  # steps that the device may be behind the loop
        self.register = registration(device)
        self.leaving: deque[tuple[Any, Any]] = deque()  # events, and what is read before them
        self.steps: deque[Any] = deque()  # events behind the loop's steps

    def batches(self, loader: Any) -> Iterator[Any]:
        """Begin a pass of a loader, in registered memory where it has any; behind all that the loop has asked for before."""
        self.stream.wait_event(torch.accelerator.current_stream(self.device).record_event())
        begin = getattr(loader, "iter_registered", None)
        registered: Iterator[Any] = iter(loader) if begin is None or self.register is None else begin(self.register)
        return registered

    def bring(self, batch: Any, transform: Transform | None) -> tuple[Any, Any]:
        """Start the copy of a batch, from pinned memory that is kept until the device has read it, and the transform."""
        self._keep_pace()
        made_there = [tensor for tensor in tensors_in(batch) if tensor.device.type == self.device.type]
        if made_there:  # on the loop's stream, whose kernels may still write it
            self.stream.wait_event(torch.accelerator.current_stream(self.device).record_event())
        with self.stream:
            pinned = pin_memory(batch)
            try:
                moved = to_device(pinned, self.device, non_blocking=True)
                moved = moved if transform is None else transform(moved)
            finally:
                event = self.stream.record_event()
                self.leaving.append((event, pinned))
        _record(made_there, self.stream)
        return moved, event

    def _keep_pace(self) -> None:
        """Wait for what is long past, so that neither pinned nor device memory piles up before a slow device."""
        while self.leaving and (len(self.leaving) >= UNDER_WAY or self.leaving[0][0].query()):
            self.leaving.popleft()[0].synchronize()  # copies are done in turn: waiting for an old one holds up none
        while len(self.steps) > self.behind:
            self.steps.popleft().synchronize()

    def hand_over(self, batch: Any, event: Any) -> Any:
        """Let the loop's stream wait for the copy, and tell the allocator who reads the memory."""
        current = torch.accelerator.current_stream(self.device)
        self.steps.append(current.record_event())
        current.wait_event(event)
        _record([tensor for tensor in tensors_in(batch) if tensor.device.type == self.device.type], current)
        return batch

    def settle(self) -> None:
        """Wait for the copies that are on their way, and let go of what they read."""
        self.steps.clear()
        while self.leaving:
            self.leaving.popleft()[0].synchronize()


def _record(tensors: list[torch.Tensor], stream: Any) -> None:
    for tensor in tensors:
        for part in strided_parts(tensor):
            part.record_stream(stream)


def registration(device: torch.device) -> Register | None:
    """Return what makes the driver of a device pin memory where it lies; None where torch has no call for it."""
    return partial(_register, device=device) if device.type == "cuda" else None


def _register(address: int, size: int, *, device: torch.device) -> Callable[[], None] | None:
    runtime = torch.cuda.cudart()  # type: ignore[no-untyped-call]
    with torch.cuda.device(device):  # else the first device would get a context, too
        if int(runtime.cudaHostRegister(address, size, PORTABLE)) == 0:
            return partial(_unregister, address, device)
        with suppress(RuntimeError):
            torch.zeros(
                1, device=device
            )  # takes the driver's last error away, which the next kernel would tell as its own
    return None


def _unregister(address: int, device: torch.device) -> None:
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(address)  # type: ignore[no-untyped-call]


def lane_to(device: torch.device, depth: int) -> Lane:
    """Return the way to a device: a side stream where the device has streams."""
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if accelerator is None or device.type != accelerator.type or device.type == "mps":
        return Here(device)
    index = torch.accelerator.current_device_index() if device.index is None else device.index
    return SideStream(torch.device(device.type, index), depth)
