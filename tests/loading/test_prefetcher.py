"""DevicePrefetcher where there is no accelerator: the same batches, true ends, and the order of copies and waits."""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref
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
from torch.utils.data import IterableDataset

from bestiary.loading import DevicePrefetcher, Loader, lanes, prefetch, to_device
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


def test_the_waiting_is_measured_where_the_loop_waits() -> None:
    def slow(batch: Any) -> Any:
        time.sleep(0.02)
        return batch

    prefetcher = DevicePrefetcher(Loader(Plain(20), batch_size=2), "cpu", transform=slow)
    for _ in prefetcher:
        time.sleep(0.002)
    report = prefetcher.report()
    assert (report.batches, report.samples) == (10, 20)
    assert report.wait_s >= 10 * 0.02 and report.total_s >= 10 * 0.022
    assert report.wait_share > 0.5


def test_a_source_that_keeps_no_figures_and_no_state() -> None:
    prefetcher = DevicePrefetcher([torch.zeros(3, 2), torch.zeros(1, 2), "words"], "cpu")
    for epoch in range(2):
        list(prefetcher)
        report = prefetcher.report()
        assert (report.epoch, report.batches, report.samples) == (epoch, 3, 3 + 1 + 1)
    for ask in (prefetcher.state_dict, lambda: prefetcher.load_state_dict({}), lambda: prefetcher.set_epoch(1)):
        with pytest.raises(AttributeError, match="its loader for .*, which a list does not have"):
            ask()


@pytest.mark.parametrize("depth", [1, 3])
def test_what_the_loop_drops_is_free_before_the_next_batch(depth: int) -> None:
    for batch in DevicePrefetcher(Source(5), "cpu", depth=depth):
        dropped = weakref.ref(batch["index"])
        del batch
        assert dropped() is None


class Gone(OSError):
    """One that can be watched."""


def test_an_error_leaves_no_cycle() -> None:
    gc.collect()
    gc.disable()
    try:
        error = Gone("disk is gone")
        seen = weakref.ref(error)
        source = Source(1, error)
        del error
        with pytest.raises(OSError, match="disk is gone"):
            list(DevicePrefetcher(source, "cpu"))
        source.error = None
        assert seen() is None
    finally:
        gc.enable()


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
    """Pretend that a device is an accelerator, and note pins, copies, events, waits and recordings."""
    log: list[str] = []
    side, main = FakeStream("side", log), FakeStream("main", log)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("meta"))
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
        return to_device(batch, device)

    monkeypatch.setattr(lanes, "pin_memory", pinned)
    monkeypatch.setattr(lanes, "to_device", copied)
    yield log
    assert len(made) == 1, "one side stream for the whole life"


def test_case_f18_copies_waits_and_records_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    class Nested(Source):
        def __iter__(self) -> Iterator[Any]:
            for number in range(self.count):
                yield {"index": torch.tensor([number]), "more": [torch.ones(1), {"deep": torch.zeros(1)}], "name": "a"}

    with fakes(monkeypatch) as log:
        prefetcher = DevicePrefetcher(Nested(2), "meta", transform=lambda batch: log.append("transform") or batch)
        running = iter(prefetcher)
        log.append("ask")
        next(running)
        log.append("step")
        next(running)
        assert next(running, None) is None
        list(prefetcher)  # a second pass on the same stream
    begin = ["ask", "record on main", "side waits for event 2"]
    one = ["enter side", "pin", "copy non_blocking=True", "transform", "record on side", "leave side"]
    recorded = ["record_stream main"] * 3
    first, second = f"event {3 + 5}", f"event {3 + 6 + 5}"
    assert log[:15] == [*begin, *one, *one]
    assert log[15:20] == ["record on main", f"main waits for {first}", *recorded]
    assert log[20:26] == ["step", "record on main", f"main waits for {second}", *recorded]


def test_what_is_on_the_device_already_is_waited_for_and_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Made on the loop's stream, read on the side stream: that waits, and the allocator knows both."""
    made = [{"x": torch.ones(2, device="meta"), "y": torch.ones(2)} for _ in range(2)]
    with fakes(monkeypatch) as log:
        next(iter(DevicePrefetcher(made, "meta")))
    copy = ["record on main", "side waits for event 3", "enter side"]
    assert log[2:5] == copy
    assert log[log.index("leave side") + 1] == "record_stream side"


def test_a_failing_transform_leaves_its_copy_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The copy is under way when the transform fails: what it reads is kept behind an event."""

    def fail(batch: Any) -> Any:
        raise RuntimeError("no")

    with fakes(monkeypatch) as log, pytest.raises(RuntimeError, match="no"):
        list(DevicePrefetcher(Source(4), "meta", transform=fail))
    assert log[-3:] == ["copy non_blocking=True", "record on side", "leave side"]


@pytest.mark.filterwarnings("ignore:Sparse")
def test_the_parts_of_sparse_tensors_are_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    sparse = [torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()]
    with fakes(monkeypatch) as log:
        next(iter(DevicePrefetcher([{"x": sparse}], "meta")))
    assert log.count("record_stream main") == 2 + 3


def test_the_loop_waits_for_a_device_that_is_steps_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = []
    monkeypatch.setattr(FakeEvent, "synchronize", lambda self: waited.append(self.name))
    with fakes(monkeypatch) as log:
        for number, _ in enumerate(DevicePrefetcher(Source(8), "meta", depth=2)):
            behind = [f"event {place + 1}" for place, text in enumerate(log) if text == "record on main"][1:]
            past = max(0, min(number, 5) - 3)  # of as many steps as there were when the last copy was asked for
            assert [name for name in waited if name in behind] == behind[:past]


def test_the_next_copy_is_issued_before_the_loop_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    with fakes(monkeypatch) as log:
        for _ in DevicePrefetcher(Source(4), "meta"):
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


class LoopStream(LateStream):
    """Does at once what it is asked for, and waits for copies."""

    def record_event(self) -> FakeEvent:
        return FakeEvent("done")


def late_device(monkeypatch: pytest.MonkeyPatch, lag: int) -> Device:
    """Pretend that there is a device with late copies."""
    device = Device(lag)
    stream, loop = LateStream(device), LoopStream(device)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("xpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "current_stream", lambda device: loop)
    monkeypatch.setattr(torch, "Stream", lambda device: stream)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: None)
    monkeypatch.setattr(lanes, "pin_memory", lambda batch: batch)  # memory that is registered is pinned already
    monkeypatch.setattr(lanes, "to_device", device.to_device)
    monkeypatch.setattr(lanes, "registration", lambda device_: device.register)
    return device


@pytest.mark.parametrize("workers", [1, 2])
def test_slots_are_kept_until_their_copies_are_done(monkeypatch: pytest.MonkeyPatch, workers: int) -> None:
    device = late_device(monkeypatch, lag=3)
    loader = Loader(Pictures(80), batch_size=2, num_workers=workers, persistent_workers=True)
    prefetcher = DevicePrefetcher(loader, "xpu", depth=2)
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


class PictureStream(IterableDataset[dict[str, Any]]):
    """The pictures of ``Pictures`` one after the other."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(Pictures(80)[number] for number in range(80))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_stream_has_a_slot_for_the_batch_that_it_keeps_to_itself(monkeypatch: pytest.MonkeyPatch, depth: int) -> None:
    device = late_device(monkeypatch, lag=3)
    batches = DevicePrefetcher(Loader(PictureStream(), batch_size=2, num_workers=1), "xpu", depth=depth)
    assert [batch["image"][0, 0, 0, 0].item() for batch in batches] == list(range(0, 80, 2))
    places = [(start, start + size) for start, size in device.registered.items()]
    assert all(any(start <= address < end for start, end in places) for address in device.copied)


def test_without_keeping_slots_late_copies_read_other_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that the test above would find."""
    late_device(monkeypatch, lag=3)

    class Forgets(lanes.SideStream):
        def bring(self, batch: Any, transform: Any) -> Any:
            moved = super().bring(batch, transform)
            self.leaving.clear()
            time.sleep(0.02)  # the worker goes on meanwhile
            return moved

    monkeypatch.setattr(prefetch, "lane_to", Forgets)
    loader = Loader(Pictures(80), batch_size=2, num_workers=1)
    seen = [batch["image"][:, 0, 0, 0].tolist() for batch in DevicePrefetcher(loader, "xpu", depth=2)]
    assert seen != [[2 * n % 251, (2 * n + 1) % 251] for n in range(40)]


def test_a_driver_that_refuses_and_a_pass_without_one(monkeypatch: pytest.MonkeyPatch) -> None:
    device = late_device(monkeypatch, lag=0)
    expected = [[2 * n, 2 * n + 1] for n in range(10)]
    loader = Loader(Pictures(20), batch_size=2, num_workers=1, persistent_workers=True, pin_memory=False)
    list(DevicePrefetcher(loader, "xpu"))
    mapped = dict(device.registered)
    plain = [batch["image"] for batch in loader]
    assert [image[:, 0, 0, 0].tolist() for image in plain] == expected
    addresses = [image.data_ptr() for image in plain]
    assert mapped and not [a for a in addresses for start, size in mapped.items() if start <= a < start + size]
    monkeypatch.setattr(lanes, "registration", lambda device_: lambda address, size: None)
    refused = DevicePrefetcher(Loader(Pictures(20), batch_size=2, num_workers=1), "xpu")
    assert [batch["image"][:, 0, 0, 0].tolist() for batch in refused] == expected


def test_what_is_registered_is_for_whoever_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a stream, and of a loader without workers, which has no slots: the same batches."""
    device = late_device(monkeypatch, lag=1)
    here = DevicePrefetcher(Loader(Pictures(20), batch_size=2), "xpu")
    assert [batch["image"][:, 0, 0, 0].tolist() for batch in here] == [[2 * n, 2 * n + 1] for n in range(10)]
    assert device.registered == {}
