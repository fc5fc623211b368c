"""Batches on the device, the next ones on their way while the loop computes; ``to_device`` for one at a time."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable, Generator, Iterator
from time import perf_counter
from typing import Any, NamedTuple

import torch

from bestiary.loading.lanes import Lane, lane_to
from bestiary.loading.moving import pin_memory, to_device
from bestiary.loading.structure import tensors_in
from bestiary.loading.timing import LoaderReport, Stopwatch

__all__ = ["DevicePrefetcher", "pin_memory", "to_device"]


class DevicePrefetcher:
    """Iterate over the batches of a loader on a device, with the next ones on their way while the loop computes.

    Copying while the device computes takes some care, and leaving out any of it gives wrong data without an error::

        loop's stream   | step 0      | step 1      | step 2
        side stream     | copy 1      | copy 2      | copy 3

    1. The copy runs on a stream of its own, from page-locked memory; from ordinary memory it would wait for the host.
    2. The loop's stream waits for the copy's event, or a step reads memory that the copy has not filled yet.
    3. Every tensor is recorded on the loop's stream. Its memory belongs to the side stream, whose allocator gives it to the
       next copy as soon as the loop drops the batch, while kernels that read it may still be queued.
    4. What a copy reads is kept until the event behind it. torch does so for pinned memory of its own; a ``Loader`` with
       workers hands over shared memory that they have written, pinned where it lies, and fill anew when the batch is gone.
    5. What comes from the loop's stream is waited for: tensors of a batch that are on the device already, and, at the start
       of a pass, whatever the transform may read, such as weights.
    6. The loop may ask for steps faster than the device takes them: it waits when the device is ``depth`` + 1 steps behind,
       or batches would fill its memory.

    On the CPU, and on devices without streams, it is a plain loop with the same results. It starts no thread; one side
    stream serves it for its whole life. An error of the loader comes after the batches before it. The next batch is asked of
    the loader before the last one is handed over: it overlaps with a step that runs on the device, and with workers that make
    it; a loader without workers beside a step that the host waits for takes the sum of both times.

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
        self._passes, self._watch = 0, Stopwatch(0)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass of the loader."""
        if self._lane is None:
            self._lane = lane_to(self.device, self.depth)
        ready: deque[_Ready] = deque()
        source = self._source(self._lane)
        self._mark = None
        self._watch, self._passes = watch, _ = Stopwatch(self._passes), self._passes + 1
        asked = watch.start
        try:
            while True:
                while len(ready) <= self.depth and (not ready or ready[-1].event is not None):
                    ready.append(next(source))
                if ready[0].event is None:
                    watch.waited(asked)
                    self._mark = None
                    _raise(ready.pop().error)
                    return
                self._mark = ready[0].mark
                watch.batches, watch.samples = watch.batches + 1, watch.samples + ready[0].samples
                watch.waited(asked)
                yield self._lane.hand_over(ready[0].batch, ready.popleft().event)  # held by nobody but the loop
                asked = perf_counter()
        finally:
            source.close()
            self._lane.settle()

    def _source(self, lane: Lane) -> Generator[_Ready, None, None]:
        """Yield batches on their way; at the end, or after an error, one item without an event."""
        mark = getattr(self.loader, "bookmark", getattr(self.loader, "state_dict", None))
        counts = not hasattr(self.loader, "report")
        try:
            for batch in lane.batches(self.loader):
                samples = _samples(batch) if counts else 0
                moved, event = lane.bring(batch, self.transform)
                del batch
                yield _Ready(moved, event, mark() if mark else None, None, samples)
                del moved
        except Exception as error:  # noqa: BLE001 - it is raised in the loop, after the batches before it
            yield _Ready(None, None, None, error, 0)
        else:
            yield _Ready(None, None, None, None, 0)

    def set_epoch(self, epoch: int) -> None:
        """Make the loader's next pass that epoch."""
        self._mark = None
        self._asked_of_loader("set_epoch")(epoch)

    def report(self) -> Any:
        """Return the loader's figures, with the time that the loop waited here: for data, for copies, and for the transform's start.

        Of a loader that keeps none: passes, batches, and samples by the first dimension of a batch's first tensor.
        """
        ours = self._watch.report()
        if not hasattr(self.loader, "report"):
            return ours
        theirs = self.loader.report()
        if not isinstance(theirs, LoaderReport):
            return theirs
        return dataclasses.replace(theirs, wait_s=ours.wait_s, total_s=ours.total_s)

    def state_dict(self) -> Any:
        """Return the loader's state behind the batch that the loop received last, not behind those on their way."""
        state_dict = self._asked_of_loader("state_dict")
        if self._mark is None:
            return state_dict()
        return state_dict(self._mark) if hasattr(self.loader, "bookmark") else self._mark

    def load_state_dict(self, state: Any) -> None:
        """Make the loader's next pass go on where the state was taken."""
        self._mark = None
        self._asked_of_loader("load_state_dict")(state)

    def _asked_of_loader(self, name: str) -> Any:
        method = getattr(self.loader, name, None)
        if method is None:
            kind = type(self.loader).__name__
            raise AttributeError(f"DevicePrefetcher asks its loader for {name}, which a {kind} does not have")
        return method


class _Ready(NamedTuple):
    """A batch on its way to the device; the event None tells the end."""

    batch: Any
    event: Any
    mark: Any
    error: Exception | None
    samples: int


def _raise(error: Exception | None) -> None:
    try:
        if error is not None:
            raise error
    finally:
        del error  # its frames hold this one


def _samples(batch: Any) -> int:
    first = next(iter(batch.values()), None) if type(batch) is dict else batch
    if isinstance(first, torch.Tensor) and first.dim():
        return len(first)
    return next((len(tensor) for tensor in tensors_in(batch) if tensor.dim()), 1)
