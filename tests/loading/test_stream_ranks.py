"""Ranks of a stream that cannot count its samples: real processes, which agree on every step through torch.distributed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

PROGRAM = '''
import json, sys
import torch.distributed as dist
from torch.utils.data import IterableDataset
from bestiary.loading import Loader

class Numbers(IterableDataset):
    """Each rank reads numbers of its own; how many, nobody knows beforehand."""

    def __init__(self, ends, sizes):
        self.ends, self.sizes = ends, sizes

    def open(self, reader, readers, epoch, seed, positions=None):
        return ({"n": 1000 * reader + k} for k in range(self.sizes[reader]))

    def __iter__(self):
        return self.open(0, 1, 0, 0)

if __name__ == "__main__":
    rank, world, ends, sizes, meeting, workers = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:5], *sys.argv[5:7]
    dist.init_process_group("gloo", init_method="file://" + meeting, rank=rank, world_size=world)
    loader = Loader(Numbers(ends, json.loads(sizes)), batch_size=2, num_workers=int(workers))
    passes = []
    for _ in range(2):
        passes.append([[batch["n"].tolist(), batch["is_pad"].tolist() if "is_pad" in batch else None] for batch in loader])
    print(json.dumps(passes))
    dist.destroy_process_group()
'''


def run(tmp_path: Path, ends: str, sizes: list[int], workers: int = 0) -> list[list[list[Any]]]:
    """Return what each rank got in each of two passes."""
    script = tmp_path / "rank.py"
    script.write_text(PROGRAM)
    world = len(sizes) // max(1, workers)
    command = [str(world), ends, json.dumps(sizes), str(tmp_path / "meeting"), str(workers)]
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE")}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(script), str(rank), *command],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for rank in range(world)
    ]
    told = [process.communicate(timeout=200) for process in ranks]
    assert [process.returncode for process in ranks] == [0] * world, told
    return [json.loads(out) for out, _ in told]


@pytest.mark.parametrize("workers", [0, 2])
def test_trim_ends_all_ranks_with_the_first(tmp_path: Path, workers: int) -> None:
    sizes = [6, 10] if workers == 0 else [4, 2, 6, 4]
    found = run(tmp_path, "trim", sizes, workers)
    for passes in zip(*found, strict=True):
        assert [len(batches) for batches in passes] == [3, 3]
        numbers = [n for batches in passes for values, _ in batches for n in values]
        assert len(set(numbers)) == len(numbers) == 12


def test_pad_goes_on_with_flagged_repeats_until_the_last_is_through(tmp_path: Path) -> None:
    first, second = run(tmp_path, "pad", [3, 9])
    for short, long in zip(first, second, strict=True):
        assert len(short) == len(long) == 5
        assert [n for values, pads in long for n, pad in zip(values, pads, strict=True) if not pad] == [
            *range(1000, 1009)
        ]
        assert [n for values, pads in short for n, pad in zip(values, pads, strict=True) if not pad] == [0, 1, 2]
        assert all(all(pads) for _, pads in short[2:])
