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
    assert len(set(places)) <= 5, "as many as there are slots: no batch came in a message"


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
