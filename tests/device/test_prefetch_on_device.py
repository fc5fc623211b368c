"""DevicePrefetcher on an accelerator: exact data behind slow kernels, overlap, flat memory."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from bestiary.images import normalize
from bestiary.loading import DevicePrefetcher, Loader, lanes, pin_memory, prefetch, to_device
from loader_datasets import Pictures

tv_tensors = pytest.importorskip("torchvision.tv_tensors")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
SIZE = 1 << 22


class Numbered:
    """Batch i is i everywhere."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for number in range(self.count):
            yield {"x": torch.full((SIZE,), float(number % 97))}


def sums(batches: Any, cycles: int) -> list[float]:
    """Queue a long kernel, then a sum, and drop the batch at once."""
    found = []
    for batch in batches:
        torch.cuda._sleep(cycles)
        found.append(batch["x"].sum())
        del batch
    return [float(value) for value in found]


def test_case_f18_500_batches_are_exact_behind_long_kernels() -> None:
    expected = [float(SIZE * (number % 97)) for number in range(500)]
    assert sums(DevicePrefetcher(Numbered(500), "cuda", depth=2), 30_000_000) == expected


def test_case_f18_two_consumers_on_streams_of_their_own() -> None:
    """Each batch is read on another stream than the one before: it waits, and the allocator knows of both."""
    streams = [torch.cuda.Stream(), torch.cuda.Stream()]
    batches, found = iter(DevicePrefetcher(Numbered(60), "cuda")), []
    for number in range(60):
        with torch.cuda.stream(streams[number % 2]):
            batch = next(batches)
            torch.cuda._sleep(30_000_000)
            found.append(batch["x"].sum())
            del batch
    torch.cuda.synchronize()
    assert [float(value) for value in found] == [float(SIZE * (number % 97)) for number in range(60)]


def test_case_f18_what_the_transform_reads_is_waited_for() -> None:
    """Weights of the loop's stream at the start of a pass, and batches that are made on the device."""
    torch.cuda._sleep(100_000_000)
    weight = torch.full((SIZE,), 2.0, device="cuda")
    twice = DevicePrefetcher(Numbered(4), "cuda", transform=lambda batch: {"x": batch["x"] * weight})
    assert sums(twice, 1000) == [float(SIZE * 2 * number) for number in range(4)]

    def made_there() -> Iterator[dict[str, torch.Tensor]]:
        for number in range(20):
            torch.cuda._sleep(20_000_000)
            yield {"x": torch.full((SIZE,), float(number), device="cuda")}

    more = DevicePrefetcher(made_there(), "cuda", transform=lambda batch: {"x": batch["x"] + 1})
    assert sums(more, 1000) == [float(SIZE * (number + 1)) for number in range(20)]


@pytest.mark.parametrize(("missing", "cycles"), [("wait", 1000), ("record_stream", 100_000_000)])
def test_case_f18_without_wait_or_record_the_data_is_wrong(
    missing: str, cycles: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What each line is for: taken out, the same loop reads other data.

    Every copy is late. A loop that does not wait reads memory before it; one that is later still finds the next copy in it.
    """

    class Slow(lanes.SideStream):
        def bring(self, batch: Any, transform: Any) -> Any:
            with self.stream:
                torch.cuda._sleep(50_000_000)
            return super().bring(batch, transform)

    class Broken(Slow):
        def hand_over(self, batch: Any, event: Any) -> Any:
            current = torch.accelerator.current_stream(self.device)
            if missing != "wait":
                current.wait_event(event)
            if missing != "record_stream":
                batch["x"].record_stream(current)
            return batch

    expected = [float(SIZE * (number % 97)) for number in range(60)]
    for lane, right in ((Slow, True), (Broken, False)):
        monkeypatch.setattr(prefetch, "lane_to", lane)
        assert (sums(DevicePrefetcher(Numbered(60), "cuda:0"), cycles) == expected) == right


@pytest.mark.parametrize("overlaps", [True, False])
def test_case_f21_copies_end_while_steps_before_them_run(overlaps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the device's own clock: copy n + 2 is done before step n is, though it was asked for behind it; not so on one stream."""
    copies: list[Any] = []

    class Timed(lanes.SideStream):
        def bring(self, batch: Any, transform: Any) -> Any:
            if not overlaps:
                self.stream = torch.accelerator.current_stream(self.device)
            brought = super().bring(batch, transform)
            with self.stream:
                copies.append(torch.cuda.Event(enable_timing=True))
                copies[-1].record(torch.cuda.current_stream())
            return brought

    monkeypatch.setattr(prefetch, "lane_to", Timed)
    steps = []
    for _ in DevicePrefetcher(Numbered(20), "cuda:0"):
        torch.cuda._sleep(100_000_000)
        steps.append(torch.cuda.Event(enable_timing=True))
        steps[-1].record()
    torch.cuda.synchronize()
    ahead = [copies[number + 2].elapsed_time(steps[number]) > 0 for number in range(1, 18)]
    assert all(ahead) if overlaps else not any(ahead)


def test_reserved_memory_is_flat_over_40_epochs() -> None:
    prefetcher = DevicePrefetcher(Numbered(10), "cuda")
    reserved = []
    for _ in range(40):
        sums(prefetcher, 1000)
        torch.cuda.synchronize()
        reserved.append(torch.cuda.memory_reserved())
    assert max(reserved[10:]) <= max(reserved[:10])


def test_a_device_that_is_behind_holds_few_batches() -> None:
    """Steps are asked for faster than they are done, and nothing in the loop waits for them."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    prefetcher, before = DevicePrefetcher(Numbered(60), "cuda"), torch.cuda.memory_reserved()
    for batch in prefetcher:
        torch.cuda._sleep(100_000_000)
        batch["x"].add_(1)
        del batch
    assert torch.cuda.max_memory_reserved() - before <= 8 * SIZE * 4 + (64 << 20)
    torch.cuda.synchronize()


def test_case_f16_pinning_keeps_what_a_batch_is() -> None:
    class Own:
        def __init__(self, x: torch.Tensor) -> None:
            self.x = x

        def to(self, device: Any) -> Own:
            return Own(self.x.to(device))

    image = tv_tensors.Image(torch.zeros(3, 4, 4, dtype=torch.uint8))
    batch = {
        "x": torch.ones(3),
        "own": Own(torch.ones(2)),
        "name": ["a", None],
        "image": image,
        "sparse": torch.eye(3).to_sparse(),
    }
    batch["again"] = batch["x"]
    pinned = pin_memory(batch)
    assert pinned["x"].is_pinned() and pinned["image"].is_pinned() and pinned["again"] is pinned["x"]
    assert type(pinned["image"]) is tv_tensors.Image and pinned["own"] is batch["own"] and pinned["name"] == ["a", None]
    (moved,) = DevicePrefetcher([batch], "cuda")
    assert type(moved["image"]) is tv_tensors.Image and moved["own"].x.device.type == "cuda"
    assert torch.equal(moved["sparse"].to_dense().cpu(), torch.eye(3)) and moved["again"] is moved["x"]
    assert to_device(batch, "cuda")["x"].device.type == "cuda"


def test_normalising_on_arrival() -> None:
    pictures = [{"image": torch.arange(256, dtype=torch.uint8).repeat(3, 1)[None, :, None]} for _ in range(4)]
    for batch in DevicePrefetcher(pictures, "cuda", transform=normalize):
        assert batch["image"].device.type == "cuda"
        image = batch["image"].cpu()
        torch.testing.assert_close(image, normalize(pictures[0])["image"])
        assert (image.min(), image.max()) == (-1.0, 1.0)


class SlowCopies(lanes.SideStream):
    """Every copy waits for 50 million cycles on the side stream, while workers go on."""

    def bring(self, batch: Any, transform: Any) -> Any:
        with self.stream:
            torch.cuda._sleep(50_000_000)
        return super().bring(batch, transform)


class Forgets(SlowCopies):
    """Lets go of what a copy reads as soon as it is asked for."""

    def bring(self, batch: Any, transform: Any) -> Any:
        brought = super().bring(batch, transform)
        self.leaving.clear()
        return brought


@pytest.mark.parametrize("lane", [SlowCopies, Forgets])
def test_registered_slots_are_kept_behind_a_delayed_stream(lane: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers fill slots anew while copies from them are late: exact with the slots kept, wrong without."""
    monkeypatch.setattr(prefetch, "lane_to", lane)
    loader = Loader(Pictures(200), batch_size=2, num_workers=1)
    seen = []
    for batch in DevicePrefetcher(loader, "cuda:0", depth=2):
        time.sleep(0.01)
        seen.append(batch["image"][:, 0, 0, 0])
    exact = [row.tolist() for row in seen] == [[2 * n % 251, (2 * n + 1) % 251] for n in range(100)]
    assert exact == (lane is SlowCopies)


def test_copies_leave_from_the_slots_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the workers wrote is pinned where it lies: nothing is copied on the way."""
    pinned: list[bool] = []

    class Looks(lanes.SideStream):
        def bring(self, batch: Any, transform: Any) -> Any:
            pinned.append(batch["image"].is_pinned())
            return super().bring(batch, transform)

    monkeypatch.setattr(prefetch, "lane_to", Looks)
    list(DevicePrefetcher(Loader(Pictures(20), batch_size=2, num_workers=1), "cuda:0"))
    assert pinned == [True] * 10


def test_batches_of_a_loader_without_a_prefetcher_are_torchs_own_pinned_memory() -> None:
    """A caller's ``non_blocking=True`` is safe: torch guards that memory."""
    found = []
    for number, batch in enumerate(Loader(Pictures(80), batch_size=2, num_workers=1)):
        assert batch["image"].is_pinned(), number
        torch.cuda._sleep(20_000_000)
        found.append(batch["image"].to("cuda", non_blocking=True)[:, 0, 0, 0])
        del batch
    assert [row.tolist() for row in found] == [[2 * n, 2 * n + 1] for n in range(40)]
