"""DevicePrefetcher where there is no accelerator: the same batches, true ends, and the order of copies and waits."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from bestiary.loading import DevicePrefetcher, Loader
from bestiary.loading import prefetch as prefetching
from loader_datasets import Noisy, Pictures, Plain


def numbers(batches: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in batches]


class Source:
    """A loader that yields a few batches and then may fail."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count, self.error, self.given = count, error, 0

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number in range(self.count):
            self.given += 1
            yield {"index": torch.tensor([number])}
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("depth", [1, 2, 5])
@pytest.mark.parametrize("count", [0, 1, 2, 7])
def test_every_batch_once_in_order_and_again(count: int, depth: int) -> None:
    prefetcher = DevicePrefetcher(Source(count), "cpu", depth=depth)
    assert len(prefetcher) == count
    for _ in range(2):
        assert numbers(prefetcher) == [[number] for number in range(count)]


def test_the_same_as_without() -> None:
    plain = list(Loader(Noisy(10), batch_size=3, shuffle=True, num_workers=1))
    ahead = list(DevicePrefetcher(Loader(Noisy(10), batch_size=3, shuffle=True, num_workers=1), "cpu"))
    for left, right in zip(plain, ahead, strict=True):
        assert all(torch.equal(left[key], right[key]) for key in left)


def test_case_f21_any_structure_comes_as_it_is() -> None:
    """The overlap of copy and step is tested on a device; the structure is the same everywhere."""
    batch = {
        "many": [torch.ones(2), torch.zeros(3)],
        "name": ["a", "b"],
        "inner": {"label": torch.tensor([1, 2]), "no": None},
    }
    for got in DevicePrefetcher([batch, batch], "cpu", depth=2):
        assert got.keys() == batch.keys() and got["name"] == ["a", "b"] and got["inner"]["no"] is None
        assert [type(got["many"]), type(got["inner"])] == [list, dict]
        assert torch.equal(got["many"][1], torch.zeros(3)) and torch.equal(got["inner"]["label"], torch.tensor([1, 2]))


def test_the_transform_runs_on_every_batch() -> None:
    doubled = DevicePrefetcher(Source(3), "cpu", transform=lambda batch: {"index": batch["index"] * 2})
    assert numbers(doubled) == [[0], [2], [4]]


@pytest.mark.parametrize("depth", [1, 3])
def test_case_f30_an_error_comes_after_the_batches_before_it(depth: int) -> None:
    before = threading.active_count()
    got = []
    with pytest.raises(OSError, match="disk is gone") as caught:
        for batch in DevicePrefetcher(Source(3, OSError("disk is gone")), "cpu", depth=depth):
            got += batch["index"].tolist()
    assert got == [0, 1, 2]
    assert caught.traceback[-1].statement.__str__().strip() == "raise self.error"
    assert threading.active_count() == before


def test_case_f30_a_failing_transfer_is_raised() -> None:
    def fail(batch: dict[str, torch.Tensor]) -> Any:
        if batch["index"].item() == 2:
            raise RuntimeError("transfer failed")
        return batch

    got = []
    with pytest.raises(RuntimeError, match="transfer failed"):
        for batch in DevicePrefetcher(Source(9), "cpu", transform=fail):
            got += batch["index"].tolist()
    assert got == [0, 1]


def test_case_f30_a_consumer_that_stops_early_leaves_nothing() -> None:
    before = threading.active_count()
    source = Source(100)
    for _ in islice(DevicePrefetcher(source, "cpu", depth=2), 3):
        pass
    gc.collect()
    assert source.given <= 3 + 2 + 1
    assert threading.active_count() == before


def test_the_state_counts_what_the_loop_received() -> None:
    straight = numbers(Loader(Plain(20), batch_size=2, shuffle=True))
    for stop in range(11):
        first = DevicePrefetcher(Loader(Plain(20), batch_size=2, shuffle=True, num_workers=1), "cpu", depth=3)
        head = numbers(islice(iter(first), stop))
        second = DevicePrefetcher(Loader(Plain(20), batch_size=2, shuffle=True), "cpu", depth=2)
        second.load_state_dict(first.state_dict())
        if stop < 10:
            assert head + numbers(second) == straight
        else:
            assert second.state_dict()["epoch"] == 1


def test_the_state_of_a_loader_of_another_kind() -> None:
    class Counting(Source):
        def state_dict(self) -> dict[str, int]:
            return {"given": self.given}

    prefetcher = DevicePrefetcher(Counting(5), "cpu", depth=2)
    running = iter(prefetcher)
    next(running), next(running)
    assert prefetcher.state_dict() == {"given": 2}


def test_depth_of_nothing_is_an_error() -> None:
    with pytest.raises(ValueError, match="depth.*to_device"):
        DevicePrefetcher(Source(1), "cpu", depth=0)


# -- the order of things, with fakes that note what is asked of them


class FakeEvent:
    """An event that has come at once."""

    def __init__(self, name: str) -> None:
        self.name = name

    def query(self) -> bool:
        return True

    def synchronize(self) -> None:
        return None


class FakeStream:
    """A stream that notes what happens on it."""

    def __init__(self, name: str, log: list[str]) -> None:
        self.name, self.log = name, log

    def __enter__(self) -> None:
        self.log.append(f"enter {self.name}")

    def __exit__(self, *error: object) -> None:
        self.log.append(f"leave {self.name}")

    def record_event(self) -> FakeEvent:
        self.log.append(f"record on {self.name}")
        return FakeEvent(f"event {len(self.log)}")

    def wait_event(self, event: FakeEvent) -> None:
        self.log.append(f"{self.name} waits for {event.name}")


@contextmanager
def fakes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Pretend that the CPU is an accelerator, and note pins, copies, events, waits and recordings."""
    log: list[str] = []
    side, main = FakeStream("side", log), FakeStream("main", log)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: main)
    made: list[FakeStream] = []
    monkeypatch.setattr(torch, "Stream", lambda device: made.append(side) or side)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: log.append(f"record_stream {stream.name}"))

    def pinned(batch: Any) -> Any:
        log.append("pin")
        return batch

    def copied(batch: Any, device: Any, *, non_blocking: bool = False) -> Any:
        log.append(f"copy non_blocking={non_blocking}")
        return batch

    monkeypatch.setattr(prefetching, "pin_memory", pinned)
    monkeypatch.setattr(prefetching, "to_device", copied)
    yield log
    assert len(made) == 1, "one side stream for the whole life"


def test_case_f18_copies_waits_and_records_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nested(Source):
        def __iter__(self) -> Iterator[Any]:
            for number in range(self.count):
                yield {"index": torch.tensor([number]), "more": [torch.ones(1), {"deep": torch.zeros(1)}], "name": "a"}

    with fakes(monkeypatch) as log:
        prefetcher = DevicePrefetcher(Nested(2), "cpu", transform=lambda batch: log.append("transform") or batch)
        running = iter(prefetcher)
        log.append("ask")
        next(running)
        log.append("step")
        next(running)
        assert next(running, None) is None
        list(prefetcher)  # a second pass on the same stream
    copied = ["pin", "copy non_blocking=True", "record on side"]  # until then what was pinned is kept
    one = ["enter side", *copied, "transform", "record on side", "leave side"]
    hand_over = ["record_stream main"] * 3
    first, second = f"event {1 + 6}", f"event {1 + 7 + 6}"
    assert log[: 1 + 14 + 4] == ["ask", *one, *one, f"main waits for {first}", *hand_over]
    assert log[19:24] == ["step", f"main waits for {second}", *hand_over]


def test_the_next_copy_is_issued_before_the_loop_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    with fakes(monkeypatch) as log:
        for _ in DevicePrefetcher(Source(4), "cpu"):
            log.append("step")
    copies = [place for place, text in enumerate(log) if text.startswith("copy")]
    steps = [place for place, text in enumerate(log) if text == "step"]
    assert all(copies[number + 1] < steps[number] for number in range(3))


# -- slots of shared memory, registered with a driver


class Device:
    """A device whose copies are late: each is done when its event is waited for, or when ``lag`` others were asked for."""

    def __init__(self, lag: int) -> None:
        self.lag = lag
        self.queue: deque[Callable[[], None]] = deque()
        self.asked = self.done = 0
        self.registered: dict[int, int] = {}
        self.copied: list[int] = []  # addresses

    def to_device(self, batch: dict[str, Tensor], device: Any, *, non_blocking: bool = False) -> dict[str, Tensor]:
        moved = {}
        for key, tensor in batch.items():
            self.copied.append(tensor.data_ptr())
            moved[key], late = torch.empty_like(tensor), torch.from_numpy(self.memory_of(tensor))
            self.queue.append(partial(moved[key].view(-1).view(torch.uint8).copy_, late))
            self.asked += 1
        while len(self.queue) > self.lag:
            self.work()
        return moved

    @staticmethod
    def memory_of(tensor: Tensor) -> Any:
        """Return the memory of a tensor as a device sees it: by address, without a hold on it."""
        return np.ctypeslib.as_array((ctypes.c_ubyte * tensor.nbytes).from_address(tensor.data_ptr()))

    def work(self) -> None:
        self.queue.popleft()()
        self.done += 1

    def register(self, address: int, size: int) -> Callable[[], None]:
        self.registered[address] = size
        return partial(self.registered.pop, address)


class LateEvent:
    """Comes when all copies asked for before it are done."""

    def __init__(self, device: Device) -> None:
        self.device, self.behind = device, device.asked

    def query(self) -> bool:
        return self.device.done >= self.behind

    def synchronize(self) -> None:
        while not self.query():
            self.device.work()


class LateStream:
    def __init__(self, device: Device) -> None:
        self.device = device

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None

    def record_event(self) -> LateEvent:
        return LateEvent(self.device)

    def wait_event(self, event: LateEvent) -> None:
        event.synchronize()


def late_device(monkeypatch: pytest.MonkeyPatch, lag: int) -> Device:
    """Pretend that the CPU is a device with late copies."""
    device = Device(lag)
    stream = LateStream(device)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: stream)
    monkeypatch.setattr(torch, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(prefetching, "pin_memory", lambda batch: batch)  # memory that is registered is pinned already
    monkeypatch.setattr(prefetching, "to_device", device.to_device)
    monkeypatch.setattr(prefetching, "registration", lambda device_: device.register)
    return device


@pytest.mark.parametrize("workers", [1, 2])
def test_slots_are_kept_until_their_copies_are_done(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    device = late_device(monkeypatch, lag=3)
    loader = Loader(Pictures(80), batch_size=2, num_workers=workers, persistent_workers=True)
    prefetcher = DevicePrefetcher(loader, "cpu", depth=2)
    for _ in range(2):
        seen = [batch["image"][:, 0, 0, 0].tolist() for batch in prefetcher]
        assert seen == [[2 * n % 251, (2 * n + 1) % 251] for n in range(40)]
        assert not device.queue
    inside = [
        any(start <= address < start + size for start, size in device.registered.items()) for address in device.copied
    ]
    assert all(inside), "every copy left from registered memory"
    del prefetcher, loader
    gc.collect()
    assert device.registered == {}, "what was registered is given back"


def test_without_keeping_slots_late_copies_read_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the test above would find."""
    late_device(monkeypatch, lag=3)

    class Forgets(prefetching._SideStream):
        def copy(self, batch: Any) -> Any:
            moved = super().copy(batch)
            self.leaving.clear()
            time.sleep(0.02)  # the worker goes on meanwhile
            return moved

    monkeypatch.setattr(prefetching, "lane_to", Forgets)
    loader = Loader(Pictures(80), batch_size=2, num_workers=1)
    seen = [batch["image"][:, 0, 0, 0].tolist() for batch in DevicePrefetcher(loader, "cpu", depth=2)]
    assert seen != [[2 * n % 251, (2 * n + 1) % 251] for n in range(40)]


def test_a_driver_that_refuses_and_a_pass_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device = late_device(monkeypatch, lag=0)
    expected = [[2 * n, 2 * n + 1] for n in range(10)]
    loader = Loader(Pictures(20), batch_size=2, num_workers=1, persistent_workers=True, pin_memory=False)
    list(DevicePrefetcher(loader, "cpu"))
    mapped = dict(device.registered)
    plain = [batch["image"] for batch in loader]
    assert [image[:, 0, 0, 0].tolist() for image in plain] == expected
    addresses = [image.data_ptr() for image in plain]
    assert mapped and not [a for a in addresses for start, size in mapped.items() if start <= a < start + size]
    monkeypatch.setattr(prefetching, "registration", lambda device_: lambda address, size: None)
    refused = DevicePrefetcher(Loader(Pictures(20), batch_size=2, num_workers=1), "cpu")
    assert [batch["image"][:, 0, 0, 0].tolist() for batch in refused] == expected


def test_what_is_registered_is_for_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stream, and of a loader without workers, which has no slots: the same batches."""
    device = late_device(monkeypatch, lag=1)
    here = DevicePrefetcher(Loader(Pictures(20), batch_size=2), "cpu")
    assert [batch["image"][:, 0, 0, 0].tolist() for batch in here] == [[2 * n, 2 * n + 1] for n in range(10)]
    assert device.registered == {}
