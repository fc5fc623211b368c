"""Streams that the loader's tests read; in a module of their own, so that spawned workers can import them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.utils.data import IterableDataset, get_worker_info


class Bare(IterableDataset[dict[str, Any]]):
    """A stream as torch's documentation has it: it shares itself out, and cannot say where it is."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __iter__(self) -> Iterator[dict[str, Any]]:
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info is not None else (0, 1)
        for i in range(first, self.size, step):
            yield {"id": i}


class Counting:
    """An iterator with a position."""

    def __init__(self, numbers: list[int]) -> None:
        self.numbers, self.position = numbers, numbers

    def __iter__(self) -> Counting:
        return self

    def __next__(self) -> dict[str, Any]:
        if not self.position:
            raise StopIteration
        first, *self.position = self.position
        return {"id": first, "draw": torch.rand(1)}


class Open(IterableDataset[dict[str, Any]]):
    """The smallest stream that can be resumed: a position is what is left. It counts nothing and says no length."""

    def __init__(self, size: int, ends: str = "exact") -> None:
        self.size, self.ends = size, ends

    def open(self, reader: int, readers: int, epoch: int, seed: int, positions: Any = None) -> Counting:
        """Share out every so-manieth number, or what is left of them."""
        if positions is not None and len(positions) == readers:
            return Counting(list(positions[reader] or []))
        left = list(range(self.size)) if positions is None else sorted(i for p in positions if p for i in p)
        return Counting(left[reader::readers])

    def __iter__(self) -> Counting:
        return self.open(0, 1, 0, 0)


def doubled(sample: dict[str, Any]) -> dict[str, Any]:
    """Draw from torch's generator, as a random transform would."""
    return sample | {"draw": torch.rand(2)}
