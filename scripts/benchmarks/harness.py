"""Compare contenders fairly: each run in a fresh process, in turn (A B C A B C ...), medians, ratios within a round.

A benchmark calls itself: ``run_rounds`` starts ``python FILE --measure NAME ...`` for each contender, which does its work and
prints one row, a JSON object, as its last line. The memory of its whole process tree is watched from outside.

    rows = run_rounds(__file__, ["ours", "peer"], ["--workers", "2"], rounds=5)
    print(table(rows, {"rate": "images a second", "memory_mb": "peak MB"}, ratio="rate", reference="peer"))

A machine that others use, too, has slow spells. The ratio is taken between runs of one round and the median of these is
shown, with the least and the greatest, so that a slow spell meets all contenders. ``cpu_ms`` (see ``processor_s``) hardly
depends on what else is running.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import statistics
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any

Row = dict[str, Any]
Rows = dict[str, list[Row]]
MEMORY_EVERY_S = 0.1


def run_rounds(
    script: str, names: Sequence[str], arguments: Sequence[str], *, rounds: int = 5, timeout_s: float = 300
) -> Rows:
    """Run every contender once a round and return its rows; one that fails has a row {"error": text} and is left out then."""
    rows: Rows = {name: [] for name in names}
    for turn in range(rounds):
        for name in names:
            if "error" in (rows[name] or [{}])[-1]:
                continue
            print(f"\r\x1b[Kround {turn + 1} of {rounds}: {name}", end="", file=sys.stderr, flush=True)
            rows[name].append(run_once([sys.executable, script, "--measure", name, *arguments], timeout_s))
    print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    return rows


def run_once(command: Sequence[str], timeout_s: float) -> Row:
    """Run one command in a session of its own and return the row that it prints, with its peak ``memory_mb``."""
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    watch = MemoryWatch(process.pid)
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        return {"error": f"not done within {timeout_s:g} s"}
    finally:
        _end(process)  # nothing that it left behind slows the next one
        peak = watch.stop()
    row = last_row(out)
    if process.returncode or row is None:
        return {"error": (err.strip().splitlines() or [f"exit code {process.returncode}"])[-1][:200]}
    return {"memory_mb": peak / 1e6} | row


def _end(process: subprocess.Popen[str]) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()
    for pipe in (process.stdout, process.stderr):
        _close(pipe)


def _close(pipe: IO[str] | None) -> None:
    if pipe is not None:
        pipe.close()


def last_row(text: str) -> Row | None:
    """Return the JSON object in the last line that holds one."""
    for line in reversed(text.splitlines()):
        if line.startswith("{"):
            row: Row = json.loads(line)
            return row
    return None


class MemoryWatch:
    """Ask every tenth of a second how much memory a process tree holds, and remember the most."""

    def __init__(self, pid: int) -> None:
        self.peak, self._pid, self._over = 0, pid, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(MEMORY_EVERY_S):
            self.peak = max(self.peak, tree_memory(self._pid))

    def stop(self) -> int:
        """End the watch and return the peak in bytes."""
        self._over.set()
        self._thread.join()
        return self.peak


def tree_memory(pid: int) -> int:
    """Return what a process and all below it hold, in bytes; pages that several share are counted once in all."""
    import psutil

    try:
        family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return 0
    total = 0
    for process in family:
        try:
            info = process.memory_full_info()
            total += getattr(info, "pss", info.uss)
        except psutil.Error:  # it has ended meanwhile
            continue
    return total


def processor_s() -> float:
    """Return the processor time of this process and of its children that have ended, in seconds."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in usage)


def ratios(rows: Rows, name: str, field: str, reference: str) -> list[float]:
    """Return a contender's ratio to the reference in each round that both finished."""
    pairs = zip(rows[name], rows[reference], strict=False)
    return [one[field] / other[field] for one, other in pairs if one.get(field) and other.get(field)]


def median(rows: Sequence[Row], field: str) -> float | None:
    """Return the median of a field over the rounds that have it."""
    values = [row[field] for row in rows if row.get(field) is not None]
    return statistics.median(values) if values else None


def table(rows: Rows, fields: Mapping[str, str], *, ratio: str, reference: str) -> str:
    """Return a markdown table: a line for each contender, a column for each field (by its heading), and the ratio.

    >>> rows = {"ours": [{"rate": 20.0}, {"rate": 30.0}], "peer": [{"rate": 10.0}, {"rate": 10.0}]}
    >>> print(table(rows, {"rate": "images a second"}, ratio="rate", reference="peer"))
    | contender | images a second | times peer, median (least to greatest) |
    | --- | --- | --- |
    | ours | 25 (20 to 30) | 2.50 (2.00 to 3.00) |
    | peer | 10 (10 to 10) | 1.00 (1.00 to 1.00) |
    """
    heads = ["contender", *fields.values(), f"times {reference}, median (least to greatest)"]
    lines = ["| " + " | ".join(heads) + " |", "| --- " * len(heads) + "|"]
    for name, measured in rows.items():
        failed = next((row["error"] for row in measured if "error" in row), None)
        cells = [f"failed: {failed}"] if failed else [_cell(measured, field, field == ratio) for field in fields]
        found = ratios(rows, name, ratio, reference)
        times = f"{statistics.median(found):.2f} ({min(found):.2f} to {max(found):.2f})" if found else "-"
        lines.append(f"| {name} | " + " | ".join(cells + ["-"] * (len(fields) - len(cells)) + [times]) + " |")
    return "\n".join(lines)


def _cell(rows: Sequence[Row], field: str, spread: bool) -> str:
    middle = median(rows, field)
    if middle is None:
        return "-"
    values = [row[field] for row in rows if row.get(field) is not None]
    return _number(middle) + (f" ({_number(min(values))} to {_number(max(values))})" if spread else "")


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.3g}"
