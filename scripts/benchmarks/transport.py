"""Handing batches from two workers to the main process: ours beside torch's DataLoader, same dataset, same collator.

    scripts/bench transport
    scripts/bench transport --only small dict20 --rounds 5

Loads:

small    34 KB: ids (64, 60) int64 and a bool mask, made at once
dict20   a dict of 20 small float tensors
uint8    9.6 MB: 64 pictures (3, 224, 224) uint8, stacked by the collator
float    38.5 MB: the same as float32

Each contender is a fresh process; the consumer touches every page. ``alone`` is ours with one batch a message.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from harness import Rows, ratios, run_rounds, table

BATCHES = {"small": 3000, "dict20": 1500, "uint8": 200, "float": 80}
TARGETS = {"small": 8.0, "dict20": 12.0, "uint8": 6.0, "float": 6.0}
SKIP = 20  # batches that start-up and prefetching have made ready


class Made:
    """A sample is a whole batch, made anew: the hand-over is what costs."""

    draws = False

    def __init__(self, load: str, count: int) -> None:
        self.load, self.count = load, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        if self.load == "small":
            return {"ids": torch.zeros(64, 60, dtype=torch.int64), "mask": torch.ones(64, 60, dtype=torch.bool)}
        return {f"field{number}": torch.zeros(64) for number in range(20)}


class Pictures:
    """Ready pictures; 64 of them are stacked by the collator."""

    draws = False

    def __init__(self, dtype: torch.dtype, count: int) -> None:
        self.picture, self.count = torch.zeros(3, 224, 224, dtype=dtype), count

    def __len__(self) -> int:
        return 64 * self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"image": self.picture}


def first(samples: Sequence[Any]) -> Any:
    """Hand on the one sample, which is a batch already."""
    return samples[0]


def source(load: str) -> tuple[Any, int, Callable[[Sequence[Any]], Any]]:
    """Return dataset, batch size and collator of a load."""
    from bestiary.loading import Collate

    if load in ("small", "dict20"):
        return Made(load, BATCHES[load]), 1, first
    return Pictures(torch.uint8 if load == "uint8" else torch.float32, BATCHES[load]), 64, Collate()


def batches(name: str, load: str) -> Iterable[Any]:
    """Return the loader that is measured."""
    from torch.utils.data import DataLoader

    from bestiary.loading import Loader, teams

    data, size, collate = source(load)
    if name == "torch":
        return DataLoader(data, batch_size=size, collate_fn=collate, num_workers=2)
    if name == "alone":
        teams.RIDERS = 1
    return Loader(data, batch_size=size, collate=collate, num_workers=2)


def measure(name: str, load: str) -> dict[str, float]:
    """Run one contender in this process and return its row."""
    begin, count = 0.0, 0
    for batch in batches(name, load):
        for tensor in batch.values():
            tensor.view(-1).view(torch.uint8)[::4096].sum()
        count += 1
        if count == SKIP:
            begin = time.perf_counter()
    seconds = time.perf_counter() - begin
    return {"rate": (count - SKIP) / seconds, "ms": 1000 * seconds / (count - SKIP)}


def show(load: str, rows: Rows) -> None:
    """Print the table of a load, and how it stands to the target."""
    print(f"\n### {load}\n")
    print(
        table(
            rows,
            {"rate": "batches a second", "ms": "ms a batch", "memory_mb": "peak MB"},
            ratio="rate",
            reference="torch",
        )
    )
    found = sorted(ratios(rows, "bestiary", "rate", "torch"))
    if found:
        print(f"\ntarget {TARGETS[load]:g} times torch: {found[len(found) // 2]:.1f} times")


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the loads and print a table for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="*", choices=list(BATCHES), default=list(BATCHES))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    parser.add_argument("--load", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        print(json.dumps(measure(args.measure, args.load)))
        return 0
    for load in args.only:
        names = ["bestiary", "alone", "torch"] if load in ("small", "dict20") else ["bestiary", "torch"]
        show(load, run_rounds(__file__, names, ["--load", load], rounds=args.rounds))
    return 0


if __name__ == "__main__":
    sys.exit(main())
