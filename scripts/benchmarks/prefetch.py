"""Bringing batches to the device: DevicePrefetcher beside a plain loop with to_device and normalize.

    scripts/bench prefetch
    scripts/bench prefetch --device cuda --rounds 5

Batches of 64 pictures (3, 224, 224) uint8 from a loader that takes ``--load-ms`` for each, normalised on the device, and a step
that takes ``--step-ms``: on the CPU by waiting, on a device by products of matrices of which as many are queued as fill that
time. On the CPU the prefetcher is a plain loop and should cost nothing; on a device loading and step should overlap, so that
the time of a batch comes near to the longer of the two. What the prefetcher itself takes on the CPU is far below the noise of
such a run, so it is measured by itself, over batches that lie ready.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence

import torch
from harness import run_rounds, table


class Made:
    """A loader of batches that take a while."""

    def __init__(self, count: int, seconds: float) -> None:
        self.count, self.seconds = count, seconds
        self.images = torch.randint(0, 256, (64, 3, 224, 224), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[dict[str, torch.Tensor]]:
        for _ in range(self.count):
            time.sleep(self.seconds)
            yield {"image": self.images}


def step_of(device: str, seconds: float) -> Callable[[], None]:
    """Return what keeps the device busy for so long."""
    if device == "cpu":
        return lambda: time.sleep(seconds)
    matrix = torch.randn(2048, 2048, device=device)
    for _ in range(50):  # the first products load libraries and wake the clocks
        matrix @ matrix
    torch.accelerator.synchronize()
    begin, trial = time.perf_counter(), 50
    for _ in range(trial):
        matrix @ matrix
    torch.accelerator.synchronize()
    count = max(1, round(seconds * trial / (time.perf_counter() - begin)))

    def step() -> None:
        for _ in range(count):
            matrix @ matrix

    return step


def measure(name: str, args: argparse.Namespace) -> dict[str, float]:
    """Go through all batches and return the milliseconds of one, by the clock and of the processor."""
    from bestiary.images import normalize
    from bestiary.loading import DevicePrefetcher, to_device

    loader, step = Made(args.batches, args.load_ms / 1000), step_of(args.device, args.step_ms / 1000)
    prefetched = name == "prefetcher"
    source = DevicePrefetcher(loader, args.device, transform=normalize) if prefetched else loader
    begin, busy = time.perf_counter(), time.process_time()
    for batch in source:
        if not prefetched:
            batch = normalize(to_device(batch, args.device))
        step()
    if args.device != "cpu":
        torch.accelerator.synchronize()
    count = args.batches / 1000
    return {"ms": (time.perf_counter() - begin) / count, "cpu_ms": (time.process_time() - busy) / count}


def own_us(batches: int = 20_000, tries: int = 7) -> float:
    """Return the microseconds that the prefetcher adds to a batch on the CPU: ready batches with and without it, in turn."""
    from bestiary.loading import DevicePrefetcher, to_device

    ready = [{"image": torch.zeros(1), "label": torch.zeros(1)}] * batches
    plain, prefetched = [], []
    for _ in range(tries):
        begin = time.perf_counter()
        for batch in ready:
            to_device(batch, "cpu")
        middle = time.perf_counter()
        for batch in DevicePrefetcher(ready, "cpu"):
            pass
        plain.append(middle - begin)
        prefetched.append(time.perf_counter() - middle)
    return (min(prefetched) - min(plain)) * 1e6 / batches


def main(argv: Sequence[str] | None = None) -> int:
    """Measure both and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batches", type=int, default=100)
    parser.add_argument("--load-ms", type=float, default=20.0)
    parser.add_argument("--step-ms", type=float, default=20.0)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.measure:
        print(json.dumps(measure(args.measure, args)))
        return 0
    given = ["--device", args.device, "--batches", str(args.batches)]
    given += ["--load-ms", str(args.load_ms), "--step-ms", str(args.step_ms)]
    rows = run_rounds(__file__, ["plain", "prefetcher"], given, rounds=args.rounds)
    print(f"{args.device}: loading {args.load_ms:g} ms, step {args.step_ms:g} ms\n")
    print(table(rows, {"ms": "ms a batch", "cpu_ms": "CPU ms a batch"}, ratio="ms", reference="plain"))
    times = [row["ms"] for row in rows["prefetcher"] if "ms" in row]
    if times and args.device != "cpu":
        longer = max(args.load_ms, args.step_ms)
        print(f"\nprefetcher: {statistics.median(times) / longer - 1:+.1%} beside the longer of the two, {longer:g} ms")
    if args.device == "cpu":
        cost, batch_ms = own_us(), args.load_ms + args.step_ms
        print(f"\nitself {cost:.1f} us a batch, {cost / 10 / batch_ms:.4f} % of {batch_ms:g} ms")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
