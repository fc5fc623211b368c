"""Processes that are forked while batches are in use: they see what they were given, and hold nothing up."""

from __future__ import annotations

import gc
import multiprocessing
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from bestiary.loading import Loader
from loader_datasets import Pictures, Plain

FORK = multiprocessing.get_context("fork")


def first_values(batch: dict[str, Tensor]) -> list[int]:
    return batch["image"][:, 0, 0, 0].tolist()


def looks_twice(batch: dict[str, Tensor], answers: Any, again: Any) -> None:
    before = first_values(batch)
    again.wait(60)
    answers.put((before, first_values(batch)))


@pytest.mark.parametrize("workers", [0, 1])
def test_a_batch_in_a_forked_process_stays_as_it_was(workers: int) -> None:
    answers, again = FORK.Queue(), FORK.Event()
    child = None
    for number, batch in enumerate(Loader(Pictures(80), batch_size=2, num_workers=workers)):
        if number == 2:
            child = FORK.Process(target=looks_twice, args=(batch, answers, again))
            child.start()
    again.set()
    assert answers.get(timeout=60) == ([4, 5], [4, 5])
    assert child is not None
    child.join(60)


def test_slots_are_used_again_when_such_a_process_has_ended() -> None:
    loader = Loader(Pictures(400), batch_size=2, num_workers=1)
    places = []
    for number, batch in enumerate(loader):
        if number % 10 == 0:
            child = FORK.Process(target=first_values, args=(batch,))
            child.start()
            child.join()
        places.append(batch["image"].data_ptr())
    assert len(set(places)) <= 5, "as many as there are slots: no batch has memory of its own"


class Mine(Plain):
    """Every sample is the number of the process."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.full((1, 1 << 19), os.getpid())}


def goes_through(loader: Loader, answers: Any) -> None:
    held = [batch["image"] for batch, _ in zip(loader, range(3), strict=False)]
    time.sleep(0.5)
    values = {int(value) for image in held for value in (image.min(), image.max())}
    answers.put((os.getpid(), values))


@pytest.mark.parametrize("workers", [0, 1])
def test_processes_that_share_a_loader_by_forking_have_memory_of_their_own(workers: int) -> None:
    loader, answers = Loader(Mine(12), batch_size=2, num_workers=workers), FORK.Queue()
    list(loader)
    children = [FORK.Process(target=goes_through, args=(loader, answers)) for _ in range(2)]
    for child in children:
        child.start()
    found = dict(answers.get(timeout=60) for _ in children)
    for child in children:
        child.join(60)
    if workers == 0:
        assert all(values == {pid} for pid, values in found.items())
    else:
        (one, other) = found.values()
        assert len(one) == len(other) == 1 and one != other


class Rows(Plain):
    """Sample i is 1.2 MB of i: too large for a message."""

    def __getitem__(self, index: int) -> Any:
        return torch.full((300, 1000), float(index))


class Buffer(Plain):
    """Every sample is the mean of a batch of another loader, which the main process does not hold any more."""

    rows: Any = None

    def __getitem__(self, index: int) -> float:
        time.sleep(0.02)
        return float(self.rows.mean())


@pytest.mark.parametrize("own", [False, True])
def test_a_batch_that_a_workers_dataset_holds_stays_as_it_was(own: bool) -> None:
    buffer = Buffer(40)
    first = Loader(Rows(200), batch_size=1, num_workers=1)
    batches = iter(first)
    buffer.rows = next(batches)
    seen = set()
    for number, batch in enumerate(Loader(buffer, batch_size=1, num_workers=1, multiprocessing_context="fork")):
        seen.add(batch.item())
        buffer.rows = None
        if number < 20:
            next(batches) if not own else next(iter(first))
    assert seen == {0.0}


def test_a_batch_in_a_process_whose_parent_is_gone_stays_as_it_was() -> None:
    batches = iter(Loader(Rows(60), batch_size=1, num_workers=1))
    batch = next(batches)
    (wait, go), (answer, tell) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            os.read(wait, 1)
            os.write(tell, repr(batch.unique().tolist()).encode())
        os._exit(0)
    os.waitpid(child, 0)
    del batch
    for _ in range(30):
        next(batches)
    os.write(go, b"x")
    assert os.read(answer, 100) == b"[0.0]"
    for end in (wait, go, answer, tell):
        os.close(end)


def begins_and_goes_on(held: list[Any], answers: Any) -> None:
    try:
        next(held[0])
    except RuntimeError as error:
        answers.put(str(error))


def test_a_pass_is_not_gone_on_with_in_a_forked_process() -> None:
    answers, held = FORK.Queue(), [iter(Loader(Plain(40), batch_size=2, num_workers=1))]
    first = next(held[0])["index"].tolist()
    child = FORK.Process(target=begins_and_goes_on, args=(held, answers))
    child.start()
    assert "belongs to the process that began it" in answers.get(timeout=60)
    child.join(60)
    assert first + [index for batch in held[0] for index in batch["index"].tolist()] == list(range(40))


def lets_go(held: list[Any]) -> None:
    held.clear()
    gc.collect()


@pytest.mark.parametrize("persistent", [False, True])
def test_a_forked_process_that_drops_a_running_pass_leaves_its_workers_alone(persistent: bool) -> None:
    loader = Loader(Plain(40), batch_size=2, num_workers=2, persistent_workers=persistent)
    held = [iter(loader)]
    seen = [next(held[0])["index"]]
    child = FORK.Process(target=lets_go, args=(held,))
    child.start()
    child.join(60)
    seen += [batch["index"] for batch in held[0]]
    assert child.exitcode == 0
    assert torch.cat(seen).tolist() == list(range(40))


class Descriptors(Plain):
    """Sample i tells how many slots the process has open that reads it."""

    def __getitem__(self, index: int) -> int:
        links = [Path("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
        slots = [link for link in links if link.is_symlink() and "bestiary-slot" in os.readlink(link)]
        return len({link.stat().st_ino for link in slots})


def test_workers_hold_no_slots_of_other_loaders() -> None:
    other = Loader(Pictures(40), batch_size=2, num_workers=2)
    for _ in other:
        pass
    del _
    counts = [int(count) for batch in Loader(Descriptors(4), batch_size=2, num_workers=1) for count in batch]
    assert set(counts) == {5}
    del other
