"""What goes on around a training loop: its end on wrong input, generators, lines of metrics, a bar.

Layout::

    metrics.jsonl    a JSON object a line
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch

from bestiary.loading import Loader


def stop(program: str, error: object, *, quiet: bool = False) -> NoReturn:
    """End with exit code 2 and one short message: what was given is not what is needed. ``quiet`` leaves out the message."""
    if not quiet:
        print(f"{program}: {error}", file=sys.stderr, flush=True)
    raise SystemExit(2)


def program(name: str, main: Callable[[], object]) -> None:
    """Run a recipe as a program: Ctrl-C ends it with a line that tells how to go on, and exit code 130."""
    try:
        main()
    except KeyboardInterrupt:
        told = "stopped; the same command with --resume goes on from the last checkpoint"
        print(f"\n{name}: {told}", file=sys.stderr, flush=True)
        raise SystemExit(130) from None


def usable_cores() -> int:
    """Return how many processor cores this process may use: its share, where ``torchrun`` runs several ranks here.

    >>> usable_cores() >= 1
    True
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))


def calm_threads(workers: int = 0) -> int:
    """Let torch compute with half of the cores that ``workers`` leave, one at least; return how many these are.

    On a machine that others use, too, threads of one computation wait for those that are not running: a small network was
    six times slower with two threads than with one.

    >>> calm_threads(workers=1000)
    1
    """
    threads = max(1, min(torch.get_num_threads(), (usable_cores() - workers) // 2))
    torch.set_num_threads(threads)
    return threads


def check_device(name: str) -> None:
    """Raise ValueError unless this machine has such a device.

    >>> check_device("cpu")
    """
    try:
        kind = torch.device(name).type
    except RuntimeError as error:
        raise ValueError(f"{name!r} is no device; give cpu, cuda or cuda:0") from error
    found = torch.accelerator.current_accelerator(check_available=True)
    if kind not in ("cpu", found.type if found else "cpu"):
        raise ValueError(f"there is no {kind} device that torch can use here; give {found.type if found else 'cpu'}")


def generator_states() -> dict[str, Any]:
    """Return the states of torch's, numpy's and Python's global generators as plain values and tensors."""
    name, keys, position, has_gauss, gauss = np.random.get_state(legacy=True)
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (str(name), torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "python": random.getstate(),
    }


def restore_generators(states: Mapping[str, Any]) -> None:
    """Set the global generators to what ``generator_states`` returned."""
    torch.set_rng_state(states["torch"])
    if states["cuda"] and torch.cuda.device_count() == len(states["cuda"]):
        torch.cuda.set_rng_state_all(states["cuda"])
    name, keys, position, has_gauss, gauss = states["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), position, has_gauss, gauss))
    random.setstate(states["python"])


class Metrics:
    """Lines of JSON in a file, each on the disk's side at once, so that a killed run keeps them.

    Args:
        path: the file; None writes nowhere, as on all ranks but one.
        at: bytes to keep of what is there already. A run that goes on from a checkpoint gives the ``place`` that stands
            in it: what was written after it comes again.
    """

    def __init__(self, path: str | os.PathLike[str] | None, at: int = 0) -> None:
        self._file = None
        if path is not None:
            Path(path).touch()
            self._file = open(path, "r+b")  # noqa: SIM115 - open as long as the run
            self._file.truncate(min(at, os.path.getsize(path)))
            self._file.seek(0, os.SEEK_END)

    def write(self, row: Mapping[str, Any]) -> None:
        """Add a line."""
        if self._file is not None:
            self._file.write(json.dumps(dict(row)).encode() + b"\n")
            self._file.flush()

    def place(self) -> int:
        """Return the number of bytes written, after they have reached the disk."""
        if self._file is None:
            return 0
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def __del__(self) -> None:
        self.close()


def progress(loader: Loader, label: str, total: int, *, unit: str = "images", quiet: bool = False) -> Iterator[Any]:
    """Yield the batches of a loader's next pass and show on stderr how far it has come, how fast, and how long it waits.

    Args:
        label: such as "epoch 3/20".
        total: batches in the whole epoch; a pass that goes on in its middle has fewer.
        unit: what the samples are called.
        quiet: show nothing.

    On a terminal this is a bar of tqdm; elsewhere, and without tqdm, a line every 30 s.
    """
    passing = iter(loader)
    done = total - len(loader)
    bar = None if quiet or not sys.stderr.isatty() else _bar(label, done, total)
    shown = time.monotonic() if bar is None else 0.0
    try:
        for batch in passing:
            yield batch
            done += 1
            now = time.monotonic()
            if quiet or now - shown < (30 if bar is None else 0.2):
                continue
            shown, report = now, loader.report()
            speed = f"{report.samples_per_s:.0f} {unit}/s, waiting for data {report.wait_share:.0%}"
            if bar is None:
                print(f"{label}: {done}/{total} batches, {speed}", file=sys.stderr, flush=True)
            else:
                bar.n = done
                bar.set_postfix_str(speed)
    finally:
        if bar is not None:
            bar.close()


def _bar(label: str, done: int, total: int) -> Any:
    """Return a bar of tqdm that is gone when it is closed, or None where tqdm is missing."""
    try:
        tqdm = import_module("tqdm")
    except ImportError:
        return None
    return tqdm.tqdm(
        desc=label, initial=done, total=total, unit="batch", leave=False, dynamic_ncols=True, file=sys.stderr
    )
