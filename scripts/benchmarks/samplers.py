"""Length-aware batch samplers at a million lengths: time of an epoch's batches, padding waste, memory.

    python scripts/benchmarks/samplers.py                       bestiary beside lhotse and SpeechBrain, where installed
    python scripts/benchmarks/samplers.py --items 100000 --epochs 3
    python scripts/benchmarks/samplers.py --only max_padded,max_total,batch_size

Lengths are seconds of audio, log-normal around 5.2 s and clipped to 1 to 20 s; the budget is 240 s a batch. Each sampler runs
in a process of its own, one after the other. Time is that of one epoch's batches: ``plan.batches(epoch)`` of a shuffled
plan, all of the peers' iterator, lhotse's cuts being made beforehand. Waste is 1 - real / padded seconds, counted alike for
all. Memory is the peak while building the sampler and running its epochs, less what the process held before.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from bestiary.loading import BatchPlan, LengthBuckets, Shuffled

Epoch = Callable[[int], Sequence[Any]]
OURS = ("max_padded", "max_total", "batch_size")
PEERS = {"lhotse": "lhotse", "speechbrain": "speechbrain"}


def make_lengths(items: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return seconds of audio (N,)."""
    return np.clip(np.random.default_rng(0).lognormal(np.log(5.2), 0.55, items), 1, 20)


def ours(name: str, seconds: Any, budget: float) -> Callable[[], Epoch]:
    """Return what builds a shuffled plan over length buckets."""

    def build() -> Epoch:
        options: dict[str, Any] = {name: round(budget / 5.9) if name == "batch_size" else budget}
        return BatchPlan(Shuffled(len(seconds)), LengthBuckets(seconds, **options)).batches

    return build


def lhotse(seconds: Any, budget: float) -> Callable[[], Epoch]:
    """Return what builds lhotse's sampler over cuts that are made beforehand; a batch is a list of positions."""
    module, sampling = import_module("lhotse"), import_module("lhotse.dataset")
    rate, source = 16_000, [module.AudioSource("file", [0], "none.flac")]

    def cut(place: int, samples: int) -> Any:
        length = samples / rate
        recording = module.Recording(
            id=str(place), sources=source, sampling_rate=rate, num_samples=samples, duration=length
        )
        return module.MonoCut(id=str(place), start=0, duration=length, channel=0, recording=recording)

    cuts = module.CutSet.from_cuts(cut(place, int(length * rate)) for place, length in enumerate(seconds.tolist()))

    def build() -> Epoch:
        sampler = sampling.DynamicBucketingSampler(
            cuts, max_duration=budget, num_buckets=30, shuffle=True, drop_last=False
        )

        def run(epoch: int) -> list[Any]:
            sampler.set_epoch(epoch)
            return list(sampler)

        return run

    return build


def speechbrain(seconds: Any, budget: float) -> Callable[[], Epoch]:
    """Return what builds SpeechBrain's sampler."""
    module, lengths = import_module("speechbrain.dataio.sampler"), seconds.tolist()

    def build() -> Epoch:
        sampler = module.DynamicBatchSampler(
            range(len(lengths)), max_batch_length=budget, num_buckets=30, lengths_list=lengths, shuffle=True
        )

        def run(epoch: int) -> list[Any]:
            sampler.set_epoch(epoch)
            return list(sampler)

        return run

    return build


def memory(field: str) -> int:
    """Return a line of this process's status in bytes: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def measure(name: str, items: int, budget: float, epochs: int) -> dict[str, float | list[float]]:
    """Build one sampler, run its epochs, and look at the last one's batches."""
    seconds = make_lengths(items)
    build = (
        ours(name, seconds, budget)
        if name in OURS
        else {"lhotse": lhotse, "speechbrain": speechbrain}[name](seconds, budget)
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = memory("VmRSS")
    start = time.perf_counter()
    run = build()
    made, times = time.perf_counter() - start, []
    batches: Sequence[Any] = []
    for epoch in range(epochs if name in OURS else 1):
        batches = []  # the last epoch's go before the next one's come
        start = time.perf_counter()
        batches = run(epoch)
        times.append(time.perf_counter() - start)
    peak = memory("VmHWM") - before
    return {"build": made, "times": times, "peak": peak, **look(batches, seconds)}


def look(batches: Iterable[Any], seconds: Any) -> dict[str, float]:
    """Return number, coverage, padding waste and largest padded size of batches of positions or of cuts."""
    places = [[int(getattr(item, "id", item)) for item in batch] for batch in batches]
    flat = np.concatenate([np.asarray(batch, dtype=np.int64) for batch in places])
    if not np.array_equal(np.sort(flat), np.arange(len(seconds))):
        raise ValueError(f"{len(np.unique(flat))} of {len(seconds)} items came")
    padded = np.array([seconds[batch].max() * len(batch) for batch in places])
    return {"batches": len(places), "waste": 1 - seconds.sum() / padded.sum(), "largest": padded.max()}


def alone(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measure one sampler in a process of its own."""
    command = [sys.executable, __file__, "--only", name, "--measure", "--items", str(args.items)]
    command += ["--budget", str(args.budget), "--epochs", str(args.epochs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main(argv: Sequence[str] | None = None) -> int:
    """Print one row for each sampler; the ratio is to ``plan.batches`` with ``max_padded``."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--budget", type=float, default=240.0, help="seconds of audio in a batch")
    parser.add_argument("--epochs", type=int, default=9, help="epochs of ours, the middle one counts; peers run one")
    parser.add_argument("--only", default=",".join([*OURS, *PEERS]), help="names, with commas between them")
    parser.add_argument("--measure", action="store_true", help="measure in this process and print JSON")
    args = parser.parse_args(argv)
    names = args.only.split(",")
    if args.measure:
        print(json.dumps(measure(names[0], args.items, args.budget, args.epochs)))
        return 0
    print(f"{args.items:,} lengths, budget {args.budget:g} s")
    print("sampler        build s   epoch s  (quickest, slowest)   times ours   batches   waste   largest   peak MB")
    first = 0.0
    for name in names:
        if name in PEERS and importlib.util.find_spec(PEERS[name]) is None:
            print(f"{name:<12}   not installed")
            continue
        row = alone(name, args)
        middle = statistics.median(row["times"])
        first = first or middle
        print(
            f"{name:<12} {row['build']:9.3f} {middle:9.4f}  ({min(row['times']):.4f}, {max(row['times']):.4f}) {middle / first:15.1f}"
            f" {row['batches']:9,} {row['waste']:7.2%} {row['largest']:9.1f} {row['peak'] / 1e6:9.1f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
