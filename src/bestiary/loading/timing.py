"""Where the time of a pass goes: waiting for data, or the caller's own step."""

from __future__ import annotations

import time
from dataclasses import dataclass


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
    """

    epoch: int
    batches: int
    samples: int
    errors: int
    wait_s: float
    total_s: float
    fetch_s: float

    @property
    def wait_share(self) -> float:
        """Share of the time that was spent waiting for data, 0 to 1."""
        return self.wait_s / self.total_s if self.total_s > 0 else 0.0

    @property
    def samples_per_s(self) -> float:
        """Samples received a second."""
        return self.samples / self.total_s if self.total_s > 0 else 0.0

    def __str__(self) -> str:
        bad = f", {self.errors} bad samples" if self.errors else ""
        return (
            f"epoch {self.epoch}: {self.batches} batches, {self.samples} samples in {self.total_s:.1f} s "
            f"({self.samples_per_s:.0f} samples/s), {self.wait_share:.0%} of the time spent waiting for data{bad}"
        )


class Stopwatch:
    """Adds up the figures of one pass."""

    def __init__(self, epoch: int) -> None:
        self.epoch, self.batches, self.samples, self.errors = epoch, 0, 0, 0
        self.wait_s = self.fetch_s = 0.0
        self.start = self.last = time.perf_counter()

    def waited(self, since: float) -> None:
        """Count the time since then as waiting."""
        self.last = time.perf_counter()
        self.wait_s += self.last - since

    def report(self) -> LoaderReport:
        """Return the figures so far."""
        total = self.last - self.start
        return LoaderReport(self.epoch, self.batches, self.samples, self.errors, self.wait_s, total, self.fetch_s)
