"""Where the time of a pass goes: waiting for data, or the caller's own step; and what making the batches took."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

MEGABYTE = 1e6


@dataclass(frozen=True)
class LoaderReport:
    """Figures of one pass, as far as it has come.

    Attributes:
        epoch: the pass.
        batches: batches received.
        samples: samples in them.
        errors: bad samples met.
        wait_s: seconds in which the loop waited for the next batch.
        total_s: seconds from the start of the pass to the last batch asked for.
        fetch_s: seconds spent in reading and collating, summed over workers.
        stages: seconds of making batches by stage, summed over workers: what the dataset tells of itself in an attribute
            ``spent`` (``ImageFolder``: "read", "decode", "transform"), "sample" for the rest of its samples, "collate",
            and "hand-over", packing in the worker and unpacking here.
        held_bytes: memory that batches on their way lie in: slots shared with workers, or blocks used again.
        most_bytes: the bound of that, a share of the memory of this machine.
    """

    epoch: int
    batches: int
    samples: int
    errors: int
    wait_s: float
    total_s: float
    fetch_s: float
    stages: Mapping[str, float] = field(default_factory=dict)
    held_bytes: int = 0
    most_bytes: int = 0

    @property
    def wait_share(self) -> float:
        """Share of the time that was spent waiting for data, 0 to 1."""
        return self.wait_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples received a second."""
        return self.samples / self.total_s if self.total_s > 0 else 0.0

    @property
    def line(self) -> str:
        """The figures in a line: how fast it goes, how much of the time was spent waiting, and for what most of all."""
        bad = f", {self.errors} bad {'sample' if self.errors == 1 else 'samples'}" if self.errors else ""
        most = max(self.stages, key=self.stages.__getitem__, default="")
        return (
            f"epoch {self.epoch}: {self.batches} batches, {self.samples} samples in {self.total_s:.1f} s "
            f"({self.samples_per_s:.0f} samples/s), {self.wait_share:.0%} of the time spent waiting for data"
            f"{f' (most of the work: {most})' if most else ''}{bad}"
        )

    def __str__(self) -> str:
        """Return the line, and below it a table of the stages."""
        total, rows = sum(self.stages.values()), [self.line]
        for name, seconds in sorted(self.stages.items(), key=lambda item: -item[1]):
            rows.append(f"  {name:<10} {seconds:9.2f} s {seconds / total if total else 0.0:6.1%}")
        if self.most_bytes:
            held, most = (f"{size / MEGABYTE:,.0f} MB" for size in (self.held_bytes, self.most_bytes))
            rows.append(f"  memory for batches on their way: {held}, bound {most}")
        return "\n".join(rows)


class Stopwatch:
    """Adds up the figures of one pass."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.batches, self.samples, self.errors = epoch, 0, 0, 0
        self.wait_s = self.fetch_s = 0.0
        self.stages: dict[str, float] = {}
        self.held_bytes = self.most_bytes = 0
        self.start = self.last = time.perf_counter()

    def made(self, seconds: float, stages: Mapping[str, float]) -> None:
        """Count what making a batch took."""
        self.fetch_s += seconds
        for name, part in stages.items():
            self.stages[name] = self.stages.get(name, 0.0) + part

    def waited(self, since: float) -> None:
        """Count the time since then as waiting."""
        self.last = time.perf_counter()
        self.wait_s += self.last - since

    def report(self) -> LoaderReport:
        """Return the figures so far."""
        total = self.last - self.start
        counts = self.epoch, self.batches, self.samples, self.errors
        return LoaderReport(
            *counts, self.wait_s, total, self.fetch_s, dict(self.stages), self.held_bytes, self.most_bytes
        )


class Stages:
    """Takes apart what a batch takes: what the dataset tells in ``spent``, the rest of its samples, and collating."""

    def __init__(self, dataset: object) -> None:
        told = getattr(dataset, "spent", None)
        self.told: Mapping[str, float] = told if isinstance(told, dict) else {}
        self.before = dict(self.told)
        self.begun = self.sampled = time.perf_counter()

    def have_samples(self) -> None:
        """Note that the samples are there, and collating begins."""
        self.sampled = time.perf_counter()

    def seconds(self) -> float:
        """Return the seconds since the beginning."""
        return time.perf_counter() - self.begun

    def parts(self) -> dict[str, float]:
        """Return the seconds of each stage."""
        parts = {name: value - self.before.get(name, 0.0) for name, value in self.told.items()}
        parts["sample"] = max(0.0, self.sampled - self.begun - sum(parts.values()))
        parts["collate"] = time.perf_counter() - self.sampled
        return parts
