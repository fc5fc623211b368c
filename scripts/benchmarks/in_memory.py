"""Numbers that are in memory already: slicing tensors against loaders.

    python scripts/benchmarks/in_memory.py                    100,000 rows of 32 float32, batches of 256
    python scripts/benchmarks/in_memory.py --rows 10000 --rounds 1

Each way gives every row once in a new order, as (features, labels). Rounds alternate between the ways; the middle one is
printed with the slowest and the quickest. One torch thread, so that none waits for another. The start of worker processes
counts, as it does in every epoch of a training without persistent workers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from bestiary.loading import Loader
from bestiary.tables import TabularDataset

Pair = tuple[Tensor, Tensor]


def sliced(features: Tensor, labels: Tensor, batch_size: int) -> Iterator[Pair]:
    """Shuffle the row numbers once and take rows by them: no data set, no loader."""
    for rows in torch.split(torch.randperm(len(features)), batch_size):
        yield features[rows], labels[rows]


def ways(features: Tensor, labels: Tensor, batch_size: int) -> dict[str, Callable[[], Iterator[Pair]]]:
    """Name each way to run an epoch."""
    plain, table = TensorDataset(features, labels), TabularDataset(features, labels)

    def torch_loader(workers: int) -> Iterator[Pair]:
        yield from DataLoader(plain, batch_size=batch_size, shuffle=True, num_workers=workers)

    def own_loader(workers: int) -> Iterator[Pair]:
        for batch in Loader(table, batch_size=batch_size, shuffle=True, num_workers=workers):
            yield batch["features"], batch["label"]

    return {
        "slices of tensors": lambda: sliced(features, labels, batch_size),
        "Loader, TabularDataset, 0 workers": lambda: own_loader(0),
        "DataLoader, TensorDataset, 0 workers": lambda: torch_loader(0),
        "Loader, TabularDataset, 2 workers": lambda: own_loader(2),
        "DataLoader, TensorDataset, 2 workers": lambda: torch_loader(2),
    }


def seconds(run: Callable[[], Iterator[Pair]], rows: int) -> float:
    """Time one epoch and check that every row came."""
    start = time.perf_counter()
    count = sum(len(labels) for _, labels in run())
    if count != rows:
        raise ValueError(f"{count} rows came instead of {rows}")
    return time.perf_counter() - start


def main(argv: Sequence[str] | None = None) -> int:
    """Print rows a second for each way."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--columns", type=int, default=32)
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    features, labels = torch.randn(args.rows, args.columns), torch.randint(0, 2, (args.rows,))
    contenders = ways(features, labels, args.batch_size)
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(args.rounds):
        for name, run in contenders.items():
            times[name].append(seconds(run, args.rows))
    print(f"{args.rows:,} rows of {args.columns} float32, batches of {args.batch_size}, {args.rounds} rounds")
    print("| way | rows a second: middle (slowest to quickest) |\n| --- | --- |")
    for name, measured in times.items():
        middle, slow, quick = (args.rows / t for t in (statistics.median(measured), max(measured), min(measured)))
        print(f"| {name} | {middle:,.0f} ({slow:,.0f} to {quick:,.0f}) |")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
