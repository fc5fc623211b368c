"""Datasets that the loader's tests read; in a module of their own, so that spawned workers can import them."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch


class Noisy:
    """Sample i: its index, and a draw from each global generator."""

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < self.size:
            raise IndexError(index)
        return {
            "index": index,
            "torch": torch.rand(3),
            "numpy": int(np.random.randint(1 << 30)),
            "python": random.random(),
        }


class KeepsGenerators(Noisy):
    """Draws from generators of its own, which forked workers would share."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.rng = np.random.default_rng(5)
        self.parts = [random.Random(1), torch.Generator().manual_seed(2), np.random.RandomState(3)]

    def __getitem__(self, index: int) -> dict[str, Any]:
        python, generator, state = self.parts
        return {
            "index": index,
            "numpy": float(self.rng.random()),
            "python": python.random(),  # type: ignore[union-attr]
            "torch": torch.rand(2, generator=generator),  # type: ignore[arg-type, call-overload]
            "state": float(state.random_sample()),  # type: ignore[union-attr]
        }


class Plain:
    """Sample i is {"index": i}; it draws nothing and says so."""

    draws = False

    def __init__(self, size: int) -> None:
        self.size = size

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"index": index}

    def locate(self, index: int) -> str:
        return f"row {index}.txt"


class Faulty(Plain):
    """Some samples raise."""

    def __init__(self, size: int, bad: tuple[int, ...], error: Exception | None = None) -> None:
        super().__init__(size)
        self.bad, self.error = bad, error or OSError("image file is truncated")

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index in self.bad:
            raise self.error
        return super().__getitem__(index)


class Batched(Faulty):
    """Has ``__getitems__``, which fails as a whole where one sample is bad."""

    draws = False

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index)

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return [self[index] for index in indices]


class Dies(Plain):
    """The worker that reads one of the samples is killed."""

    def __init__(self, size: int, at: int, number: int = signal.SIGKILL) -> None:
        super().__init__(size)
        self.at, self.number = at, number

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == self.at:
            time.sleep(0.3)
            os.kill(os.getpid(), self.number)
            time.sleep(60)
        return super().__getitem__(index)


class Slow(Plain):
    """Every sample takes a while."""

    def __init__(self, size: int, seconds: float) -> None:
        super().__init__(size)
        self.seconds = seconds

    def __getitem__(self, index: int) -> dict[str, Any]:
        time.sleep(self.seconds)
        return super().__getitem__(index) | {"pid": os.getpid()}


class TwoArguments(Exception):
    """An error that cannot be rebuilt from its text."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


class KeywordOnly(Exception):
    """An error with a keyword-only argument."""

    def __init__(self, *, name: str) -> None:
        super().__init__(f"bad {name}")


class HasMessage(Exception):
    """An error with a class attribute that torch's rebuilding trips over."""

    message = "class attribute"

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


def doubling_collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Collate by hand, and draw: the draw is keyed by the batch."""
    return {"index": torch.tensor([sample["index"] for sample in samples]), "mix": torch.rand(1)}


def failing_collate(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Fail as a user's collate would."""
    raise KeyError("no such field")


def note(folder: str, rank: int, indices: torch.Tensor) -> None:
    """Append the indices of a batch to the rank's file, a line a batch."""
    with Path(folder, f"rank{rank}.txt").open("a") as file:
        file.write(" ".join(map(str, indices.tolist())) + "\n")


class Pictures(Plain):
    """Sample i is a picture of 192 kB that is i everywhere: two of them are too large for a message."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": torch.full((3, 256, 256), index % 251, dtype=torch.uint8)}


class Structures(Plain):
    """Sample i is the number i."""

    def __getitem__(self, index: int) -> Any:
        return index


class Pair(NamedTuple):
    """A named tuple in a batch."""

    left: Any
    right: Any


@dataclass
class Record:
    """A dataclass in a batch."""

    values: torch.Tensor
    inner: Any


def structure(samples: list[int]) -> dict[str, Any]:
    """Make a batch of everything that a batch may be made of; every third one is large."""
    first = samples[0]
    image = torch.arange(first, first + 24).view(2, 3, 4)
    return {
        "image": image,
        "again": image,
        "large": torch.full((1 << 17,), float(first)) if first % 12 == 0 else None,
        "last": torch.arange(24.0).view(2, 2, 2, 3).permute(0, 3, 1, 2),
        "scalar": torch.tensor(first),
        "empty": torch.empty(0, 3),
        "half": torch.full((3,), first, dtype=torch.bfloat16),
        "flags": torch.tensor([True, False]),
        "pair": Pair(torch.ones(2), "text"),
        "record": Record(torch.zeros(3, dtype=torch.int32), [torch.ones(1), None, b"bytes"]),
        "names": ["a", "b"],
        "numbers": (1, 2.5, None),
        "strided": torch.arange(12).view(3, 4)[:, ::2],
    }


class Caching(Plain):
    """Keeps what it stacked, as a dataset that reads slowly would."""

    draws = False

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.kept: dict[int, torch.Tensor] = {}

    def __getitem__(self, index: int) -> dict[str, Any]:
        from bestiary.loading import stack

        if index not in self.kept:
            self.kept[index] = stack([torch.full((1 << 17,), float(index))] * 2)
        return {"index": index, "rows": self.kept[index]}


class Drawing(Plain):
    """A subclass that draws, of a class that says it does not."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        return super().__getitem__(index) | {"torch": float(torch.rand(())), "numpy": float(np.random.rand())}


class Nested(Plain):
    """Reads from a loader of its own, then draws."""

    draws = True

    def __getitem__(self, index: int) -> dict[str, Any]:
        from bestiary.loading import Loader

        inner = next(iter(Loader(Noisy(4), batch_size=2, shuffle=True)))
        return {"index": index, "inner": inner["numpy"], "numpy": float(np.random.rand()), "torch": torch.rand(1)}


class ManyWithNone(Plain):
    """Answers for a whole batch, with None for what it cannot read."""

    draws = False

    def __getitem__(self, index: int) -> dict[str, Any]:
        if index == 3:
            raise OSError("gone")
        return {"index": index}

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any] | None]:
        return [None if index == 3 else {"index": index} for index in indices]


class HiddenGenerators(Plain):
    """Keeps generators where they are not easily found."""

    draws = True
    of_the_class = np.random.default_rng(1)

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.first = random.Random(2)
        self.later = None
        self.annotations = [{"box": [number, number]} for number in range(300)]
        self.queue = deque([np.random.default_rng(3)])

    @property
    def args(self) -> None:
        raise RuntimeError("not yet parsed")

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {
            "class": float(self.of_the_class.random()),
            "first": self.first.random(),
            "queue": float(self.queue[0].random()),
        }


def none_collate(samples: list[Any]) -> None:
    """Give nothing, for a loop that only wants the reading."""


def unsendable_collate(samples: list[Any]) -> Any:
    """Give something that no other process can have."""
    return {"index": torch.zeros(2), "generator": (number for number in range(3))}


def views_collate(samples: list[Any]) -> dict[str, torch.Tensor]:
    """Give tensors whose values are kept as a promise: conjugate and negative views."""
    numbers = torch.tensor([complex(sample["index"], 2) for sample in samples])
    return {"conjugate": numbers.conj(), "negative": numbers.conj().imag}


def dtypes_collate(samples: list[Any]) -> dict[str, torch.Tensor]:
    """Give dtypes that few have."""
    indices = torch.tensor([sample["index"] for sample in samples])
    kinds = (torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16)
    return {str(kind): indices.to(kind) for kind in kinds}
