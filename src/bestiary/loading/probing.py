"""What a short try tells before the first epoch: how many workers pay, and whether shared memory will do."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Callable, Iterable
from contextlib import closing
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from bestiary.loading.streams import StreamPlan
from bestiary.loading.structure import tensors_in

if TYPE_CHECKING:
    from bestiary.loading.loader import Loader
    from bestiary.loading.workers import Transport

TRY_S = 1.0  # seconds for each try
MOST_BATCHES = 200  # of a try
MOST_WORKERS = 8
GAIN = 1.1  # by which workers have to be faster
SHARED = "/dev/shm"
MEGABYTE = 1 << 20  # bytes; as the options for the size of /dev/shm count


class Try(NamedTuple):
    """A short pass: batches a second, the seconds that it took, and whether that was the whole epoch."""

    rate: float
    seconds: float
    whole: bool


def workers_for(loader: Loader, threads: int | None, transport: Transport, prefetch_factor: int | None) -> int:
    """Try a loader's data out without workers and with some; say which are taken, and why.

    Raises:
        ValueError: the data is a stream.
    """
    if isinstance(loader.plan, StreamPlan):
        told = "num_workers='auto' tries the data out, which may use up a stream; give a number"
        raise ValueError(told)  # noqa: TRY004 - of the argument's value
    options: dict[str, Any] = {"on_error": loader.on_error, "threads": threads, "transport": transport}
    options |= {"multiprocessing_context": loader.multiprocessing_context, "pin_memory": False}
    from bestiary.loading.loader import Loader  # a subclass may be made in another way

    make = partial(Loader, loader.dataset, plan=loader.plan, collate=loader.collate, **options)
    count, reason = choose_workers(
        lambda count: make(num_workers=count, prefetch_factor=prefetch_factor), prefetch_factor
    )
    warnings.warn(f"bestiary: num_workers='auto' took {count}: {reason}", stacklevel=3)
    return count


def choose_workers(make: Callable[[int], Loader], prefetch_factor: int | None) -> tuple[int, str]:
    """Return a number of workers, none or one for each core (8 at most), and the reason in a line.

    First one worker tells what a batch takes without handing it over, then several are tried, each for a second at most. These
    have to be a tenth faster, since they cost memory and time to start. A try that meets an error ends there: the pass itself
    will tell it. Nothing is read in this process: a dataset may keep a file that it opens, and workers would share its place.

    Args:
        make: gives a loader with so many workers.
        prefetch_factor: batches that each worker makes ahead; 2 when None.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = min(MOST_WORKERS, cores // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    if count < 2:
        return 0, "this process has one core, which workers would only share"
    none = _alone(make(1))
    if none.whole:
        return 0, f"an epoch takes {none.seconds:.2g} s without workers, and starting them takes as long"
    some = _try(make(count), count * (prefetch_factor or 2))
    told = f"{none.rate:.3g} batches/s without workers, {some.rate:.3g} with {count}"
    return (count, told) if some.rate > GAIN * none.rate else (0, f"{told}: handing batches over costs what it saves")


def _alone(loader: Loader) -> Try:
    """Go through the first batches in one worker, and count only the time in which it made them."""
    whole = _try(loader, 1).whole
    report = loader.report()
    return Try(report.batches / max(1e-9, report.fetch_s), report.fetch_s, whole)


def _try(loader: Iterable[Any], ahead: int) -> Try:
    """Go through the first batches; the clock starts behind those that workers made ahead while they started."""
    begun = started = time.perf_counter()
    count, whole = 0, True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the pass itself will tell
        with closing(iter(loader)) as batches:  # type: ignore[type-var]
            try:
                for place, _ in enumerate(islice(batches, ahead + MOST_BATCHES), 1):
                    now = time.perf_counter()
                    count = place
                    if place == ahead:
                        started = now
                    if now - started > TRY_S and place > ahead:
                        whole = False
                        break
                else:
                    whole = count < ahead + MOST_BATCHES
            except Exception:  # noqa: BLE001 - told by the pass itself
                whole = False
    now = time.perf_counter()
    if count > ahead:
        return Try((count - ahead) / max(1e-9, now - started), now - begun, whole)
    return Try(count / max(1e-9, now - begun), now - begun, whole)


def shared_memory_notice(batch: Any, times: int, workers: int, prefetch_factor: int | None) -> str | None:
    """Return a notice where batches on their way will not fit into /dev/shm, through which torch sends tensors.

    Args:
        batch: a batch, or a part of one.
        times: such parts in a batch.
        workers: processes that make batches.
        prefetch_factor: batches that each of them makes ahead; 2 when None.
    """
    try:
        found = os.statvfs(SHARED)
    except (OSError, AttributeError):  # no such folder here
        return None
    have = found.f_bavail * found.f_frsize
    dense = [tensor for tensor in tensors_in(batch) if tensor.layout == torch.strided]  # sparse ones tell no size
    need = sum(tensor.nbytes for tensor in dense) * times * workers * (prefetch_factor or 2)
    if need <= have:
        return None
    return (
        f"batches on their way from {workers} workers need about {need / MEGABYTE:.0f} MB of shared memory, but {SHARED} has "
        f"{have / MEGABYTE:.0f} MB, and a worker that finds none left dies of a bus error; take transport='slots', which does "
        "without it, or fewer workers or a smaller prefetch_factor, or a larger one (docker run --shm-size=1g)"
    )
