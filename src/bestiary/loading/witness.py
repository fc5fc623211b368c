"""What is said when a worker dies or takes too long: which one, how it ended, and what it had in hand."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from bestiary.loading.deaths import advice, any_ended, ending
from bestiary.loading.errors import WorkerDied, locate
from bestiary.loading.teams import Team

UNGUARDED = (
    'Where workers are not forked, the part of a program that starts them stands below: if __name__ == "__main__":'
)
OF_WORKERS = "DataLoader worker", "DataLoader timed out"  # how torch's words about them begin


class Witness:
    """Has seen a pass: its workers, what was received from them, and what is under way."""

    def __init__(self, dataset: object, team: Team, workers: list[Any], timeout: float, forked: bool) -> None:
        self.dataset, self.team, self.workers, self.timeout, self.forked = dataset, team, workers, timeout, forked
        self.received = 0  # messages

    def explained(self, error: Exception) -> Exception:
        """Turn torch's words about a worker, or a broken connection to it, into ours; leave any other error alone."""
        text, workers = str(error), self.workers
        if not text.startswith(OF_WORKERS) and not any_ended(workers):
            return error
        if "timed out" in text:
            late = self.received % len(workers)
            waited = f"gave no batch for {self.timeout:g} s (timeout={self.timeout:g})"
            return WorkerDied(f"worker {late} (pid {workers[late].pid}) {waited}; it {self._doing(late)}")
        named = {int(pid) for pid in re.findall(r"\d+", text)}
        dead = [n for n, worker in enumerate(workers) if worker.exitcode is not None] or [
            n for n, worker in enumerate(workers) if worker.pid in named
        ]
        parts = [f"worker {n} (pid {workers[n].pid}, {ending(workers[n])}) {self._doing(n)}" for n in dead]
        codes = [workers[n].exitcode for n in dead]
        unguarded = not self.received and 1 in codes and not self.forked
        return WorkerDied(f"{'; '.join(parts) or text}. {UNGUARDED if unguarded else advice(text, codes)}")

    def _doing(self, number: int) -> str:
        """Say which sample a worker was reading, and what it had in hand: it may have made more than it could send."""
        reading = self.team.board.read(number) if self.team.board is not None else None
        now = "" if reading is None else f"was reading sample {self._named([reading])} and "
        tasks = [
            task
            for turn, bundle in enumerate(self.team.under_way, start=self.received)
            if turn % len(self.workers) == number
            for task in bundle.tasks
        ]
        hand = [f"batch {task.number} of epoch {task.epoch}, samples {self._named(task.indices)}" for task in tasks]
        return f"{now}had in hand {'; '.join(hand) or 'no batch'}"

    def _named(self, indices: Iterable[int]) -> str:
        places = [(index, locate(self.dataset, index)) for index in indices]
        told = ", ".join(f"{index} ({place})" if place else str(index) for index, place in places)
        return told or "not known before they are read"  # of a stream


def not_begun(error: Exception, workers: list[Any], kept: bool) -> WorkerDied | None:
    """Say why a pass did not begin, ``kept`` with workers of the pass before; None where that is not theirs."""
    text = str(error)
    if not text.startswith(OF_WORKERS) and not (kept and any_ended(workers)):
        return None
    if not kept:
        return WorkerDied(f"{text}; it died before its first batch. {UNGUARDED}")
    dead = [f"worker {n} (pid {one.pid}, {ending(one)})" for n, one in enumerate(workers) if one.exitcode is not None]
    when = "while workers finished what they had in hand of the pass before, which was left"
    return WorkerDied(f"{'; '.join(dead) or text} {when}; the next pass starts new ones")
