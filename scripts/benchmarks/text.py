"""Token batches: tokens a second, first batch and memory, against a list of tensors with pad_sequence and a mask loop.

    scripts/bench text
    scripts/bench text --workers 2 --epochs 10 --rounds 1      private memory of workers over ten epochs

Made once: 200,000 sequences of log-normal lengths, mean 60, at most 512. All contenders get the same batches of 64 from one
plan and deliver ids int64 (B, T) and a mask, bool (B, T). The rate is that of the epochs after the first.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from harness import processor_s, run_rounds, table

CONTENDERS = ["lists", "lists_arange", "bestiary"]
FIELDS = {
    "tokens_per_s": "tokens a second",
    "sequences_per_s": "sequences a second",
    "cpu_us": "CPU us a batch",
    "first_batch_s": "first batch, s",
    "memory_mb": "peak MB",
    "growth_mb": "growth of workers' private MB",
}


def make(path: Path, count: int) -> None:
    """Write the sequences, unless they are there."""
    from bestiary.text import write_tokens

    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    lengths = np.clip(rng.lognormal(np.log(60) - 0.32, 0.8, count), 1, 512).astype(np.int64)
    write_tokens(path, (rng.integers(1, 30_000, length) for length in lengths))


def plan_for(count: int) -> Any:
    """Return the batches, the same for everybody."""
    from bestiary.loading import BatchPlan, FixedSize, Shuffled

    return BatchPlan(Shuffled(count), FixedSize(64), seed=0, rank=0, world_size=1)


def ours(path: Path, workers: int) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """Rows of the mapped file, gathered and padded a batch at a time."""
    from bestiary.loading import Collate, Loader
    from bestiary.text import RaggedTokens

    tokens = RaggedTokens.open(path)
    collate = Collate(pad={"tokens": 0})
    loader = Loader(
        tokens, plan=plan_for(len(tokens)), collate=collate, num_workers=workers, persistent_workers=workers > 0
    )
    return loader, lambda batch: (batch["tokens"], batch["tokens_mask"])


class Lists:
    """What lessons teach: a list of tensors."""

    def __init__(self, path: Path) -> None:
        import torch

        with path.open("rb") as file:
            values, offsets = np.load(file), np.load(file)
        borders = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
        self.rows = [torch.from_numpy(values[start:stop].astype(np.int64)) for start, stop in borders]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Any:
        return self.rows[index]


def pad_with_a_loop(rows: list[Any]) -> tuple[Any, Any]:
    """Pad, and mark what is real row by row."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    padded = pad_sequence(rows, batch_first=True)
    mask = torch.zeros(padded.shape, dtype=torch.bool)
    for place, row in enumerate(rows):
        mask[place, : len(row)] = True
    return padded, mask


def pad_with_arange(rows: list[Any]) -> tuple[Any, Any]:
    """Pad, and mark what is real by one comparison."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    padded = pad_sequence(rows, batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return padded, torch.arange(padded.shape[1]) < lengths[:, None]


def lists(path: Path, workers: int, collate: Callable[[Any], Any]) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
    """Return torch's own loader over a list of tensors."""
    from torch.utils.data import DataLoader

    rows: Any = Lists(path)
    options: dict[str, Any] = {"num_workers": workers, "persistent_workers": workers > 0}
    return DataLoader(rows, batch_sampler=plan_for(len(rows)), collate_fn=collate, **options), lambda batch: batch


def private_mb() -> Any:
    """Return what the workers hold for themselves alone."""
    psutil: Any = import_module("psutil")
    return sum(child.memory_full_info().uss for child in psutil.Process().children(recursive=True)) / 1e6


def epochs(loader: Any, parts: Callable[[Any], tuple[Any, Any]], count: int) -> Iterator[dict[str, float]]:
    """Yield what each epoch took."""
    for _ in range(count):
        start, cpu, first = time.perf_counter(), processor_s(), 0.0
        sequences = places = batches = 0
        for batch in loader:
            ids, mask = parts(batch)
            first = first or time.perf_counter() - start
            sequences, places, batches = sequences + len(ids), places + mask.numel(), batches + 1
        seconds = time.perf_counter() - start
        yield {
            "seconds": seconds,
            "cpu": processor_s() - cpu,
            "first": first,
            "sequences": sequences,
            "batches": batches,
        }


def measure(name: str, path: Path, workers: int, count: int) -> dict[str, Any]:
    """Run one contender in this process."""
    import torch

    torch.set_num_threads(1)
    began = time.perf_counter()
    make_loader: dict[str, Callable[[], Any]] = {
        "bestiary": lambda: ours(path, workers),
        "lists": lambda: lists(path, workers, pad_with_a_loop),
        "lists_arange": lambda: lists(path, workers, pad_with_arange),
    }
    if name == "bestiary":
        import bestiary.loading.loader
        import bestiary.text.ragged  # noqa: F401
    else:
        import torch.utils.data
    imported = time.perf_counter()
    loader, parts = make_loader[name]()
    made = time.perf_counter() - imported
    rows, private = [], []
    for row in epochs(loader, parts, count):
        rows.append(row)
        private.append(round(private_mb(), 1))
    later = rows[1:] or rows
    seconds, batches = sum(row["seconds"] for row in later), sum(row["batches"] for row in later)
    tokens = int(np.load(path, mmap_mode="r").shape[0])
    return {
        "tokens_per_s": tokens * len(later) / seconds,
        "sequences_per_s": sum(row["sequences"] for row in later) / seconds,
        "cpu_us": 1e6 * sum(row["cpu"] for row in later) / batches,
        "first_batch_s": made + rows[0]["first"],
        "import_s": imported - began,
        "private_mb": private,
        "growth_mb": private[-1] - private[0] if workers else None,
    }


def main() -> None:
    """Measure one contender, or all of them in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bestiary-bench" / "tokens.npy")
    parser.add_argument("--count", type=int, default=200_000)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 2])
    parser.add_argument("--only", nargs="*", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--measure", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    path = args.data.with_stem(f"{args.data.stem}-{args.count}")
    make(path, args.count)
    if args.measure:
        print(json.dumps(measure(args.measure, path, args.workers[0], args.epochs)))
        return
    print(f"{args.count} sequences, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    for workers in args.workers:
        options = ["--data", str(args.data), "--count", str(args.count), "--epochs", str(args.epochs)]
        rows = run_rounds(__file__, args.only, [*options, "--workers", str(workers)], rounds=args.rounds)
        print(f"\n{workers} workers\n\n{table(rows, FIELDS, ratio='tokens_per_s', reference=args.only[0])}")
        for name, measured in rows.items():
            if workers and "private_mb" in measured[-1]:
                print(f"\n{name}: private MB of the workers after each epoch: {measured[-1]['private_mb']}")


if __name__ == "__main__":
    main()
