"""A line on the screen for what takes longer than two seconds."""

from __future__ import annotations

import multiprocessing
import sys
import time

QUIET_S = 2.0
EVERY_S = 1.0


class Progress:
    """Shows how far something has come, on the standard error, in the main process only."""

    def __init__(self, what: str, size: int) -> None:
        self.what, self.size = what, size
        self.begun = self.told = time.monotonic()
        self.shown = False

    def at(self, done: int) -> None:
        """Say how many bytes are done."""
        now = time.monotonic()
        if now - self.begun < QUIET_S or now - self.told < EVERY_S or multiprocessing.parent_process() is not None:
            return
        self.told, self.shown = now, True
        share, rate = done / max(self.size, 1), done / (now - self.begun) / 1e6
        bar = "#" * int(30 * share)
        print(f"\r{self.what} [{bar:<30}] {share:4.0%}, {rate:,.0f} MB/s ", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """End the line."""
        if self.shown:
            print(file=sys.stderr)
