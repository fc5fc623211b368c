"""Worker processes around a private torch DataLoader: how they start, how they end, and what is said when one dies."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any, Literal, TypeAlias

import torch
from torch.utils.data import DataLoader

from bestiary.loading.deaths import DeathWatch, advice, ending
from bestiary.loading.errors import WorkerDied, locate
from bestiary.loading.fetch import Fetch, Fetched, Task, on_cpu
from bestiary.loading.rooms import memory_share
from bestiary.loading.seeding import own_bits
from bestiary.loading.slots import Slots
from bestiary.loading.transport import Bundle, Parcel, WorkerFetch, unpack

Transport: TypeAlias = Literal["slots", "torch"]
RIDERS = 8  # batches in one message, when they are small and quickly made
RIDER_SIZE = 1 << 16  # bytes
RIDER_S = 0.002  # seconds to make one
WATCH_EVERY_S = 0.2  # how often a worker looks whether its parent still lives


class Tasks:
    """The sampler of the private DataLoader: hands out a pass's tasks in bundles, and remembers what is under way."""

    def __init__(self, workers: int, slots: Slots | None) -> None:
        self.workers, self.slots = workers, slots
        self.coming: Iterable[Task] = ()
        self.riders = 1  # tasks in a bundle
        self.under_way: deque[Bundle] = deque()

    def __iter__(self) -> Iterator[Bundle]:
        self.under_way.clear()
        coming = iter(self.coming)
        for turn in itertools.count():  # torch gives bundle n to worker n modulo their number
            tasks = list(itertools.islice(coming, self.riders))
            if not tasks:
                return
            slots = [self._slot(turn % self.workers) for _ in tasks]
            self.under_way.append(Bundle(tasks, slots))
            yield self.under_way[-1]

    def _slot(self, worker: int) -> int | None:
        return self.slots.lend(worker) if self.slots is not None and self.riders == 1 else None


class Crew:
    """Workers that make batches: ``crew.run(tasks)`` yields what they made, in the order of the tasks."""

    def __init__(
        self,
        fetch: Fetch,
        num_workers: int,
        context: Any,
        persistent: bool,
        prefetch_factor: int | None,
        timeout: float,
        transport: Transport,
    ) -> None:
        self.fetch, self.num_workers, self.persistent, self.timeout = fetch, num_workers, persistent, timeout
        self.packed = transport != "torch"
        each = 2 + (
            2 if prefetch_factor is None else prefetch_factor
        )  # besides those made ahead: in use, and used before
        self.slots = Slots(num_workers, each, memory_share()) if self.packed and hasattr(os, "memfd_create") else None
        self.tasks = Tasks(num_workers, self.slots)
        self._settings = {"multiprocessing_context": context, "prefetch_factor": prefetch_factor}
        self._loader: DataLoader[Any] | None = None

    def run(self, tasks: Iterable[Task]) -> Generator[Fetched, None, None]:
        """Yield a result for each task. A worker's death or a time-out is an error that names the samples in hand."""
        self.tasks.coming = tasks
        if self.slots is not None:
            self.slots.take_all_back()
        with on_cpu():
            source = iter(self._open())
        workers = list(getattr(source, "_workers", []))
        watch = DeathWatch([worker.pid for worker in workers])
        keep = self.persistent
        try:
            yield from self._results(source, workers, watch)
        except GeneratorExit:  # the loop was left: persistent workers finish what they have in hand and go on
            raise
        except BaseException:
            keep = False
            for worker in workers:
                worker.terminate()  # do not wait for a slow sample
            raise
        finally:
            watch.close()
            if not keep:
                self._loader = None
                source._shutdown_workers()  # type: ignore[attr-defined]  # an error's frames would keep it alive

    def _results(self, source: Iterator[Any], workers: list[Any], watch: DeathWatch) -> Iterator[Fetched]:
        received = 0
        while True:
            self._check_alive(workers, received)
            try:
                with watch, on_cpu():
                    parcels: list[Parcel | Fetched] = next(source)
            except StopIteration:
                return
            except RuntimeError as error:
                raise self._explained(error, workers, received) from error
            bundle = self.tasks.under_way.popleft()
            received += 1
            for parcel, slot in zip(parcels, bundle.slots, strict=False):
                yield self._unpacked(parcel, slot)

    def _unpacked(self, parcel: Parcel | Fetched, slot: int | None) -> Fetched:
        if isinstance(parcel, Fetched):
            fetched, small = parcel, False
        else:
            fetched, small = unpack(parcel, self.slots), parcel.size <= RIDER_SIZE and parcel.slot is None
        if self.slots is not None:
            self.slots.take_back(slot)  # unless it holds the batch
        self.tasks.riders = RIDERS if small and fetched.seconds < RIDER_S else 1
        return fetched

    def _open(self) -> DataLoader[Any]:
        if self._loader is None:
            self._loader = DataLoader(
                WorkerFetch(self.fetch, self.slots, self.packed),  # type: ignore[arg-type]  # it is indexed by a bundle
                batch_size=None,
                sampler=self.tasks,
                collate_fn=_same,
                num_workers=self.num_workers,
                persistent_workers=self.persistent,
                timeout=self.timeout,
                worker_init_fn=_start,
                generator=torch.Generator(device="cpu"),  # else the caller's global one is drawn from
                **self._settings,
            )
        return self._loader

    def _check_alive(self, workers: list[Any], received: int) -> None:
        """Raise if a worker has died since the last batch, during the caller's step for instance."""
        if self.tasks.under_way and any(worker.exitcode is not None for worker in workers):
            raise self._explained(RuntimeError("DataLoader worker exited"), workers, received)

    def _explained(self, error: RuntimeError, workers: list[Any], received: int) -> Exception:
        """Turn torch's words about a worker into ours, which name the samples; leave any other error alone."""
        text = str(error)
        if not text.startswith(("DataLoader worker", "DataLoader timed out")):
            return error
        if "timed out" in text:
            number = received % self.num_workers
            return WorkerDied(
                f"worker {number} (pid {workers[number].pid}) gave no batch for {self.timeout:g} s (timeout={self.timeout:g}); "
                f"it has in hand {self._in_hand(number, received)}"
            )
        named = {int(pid) for pid in re.findall(r"\d+", text)}
        dead = [n for n, worker in enumerate(workers) if worker.exitcode is not None] or [
            n for n, worker in enumerate(workers) if worker.pid in named
        ]
        parts = [
            f"worker {n} (pid {workers[n].pid}, {ending(workers[n])}) had in hand {self._in_hand(n, received)}"
            for n in dead
        ]
        return WorkerDied(f"{'; '.join(parts) or text}. {advice(text, [workers[n].exitcode for n in dead])}")

    def _in_hand(self, number: int, received: int) -> str:
        """Name the samples of the oldest bundle that worker ``number`` has not delivered."""
        for turn, bundle in enumerate(self.tasks.under_way, start=received):
            if turn % self.num_workers == number:
                return "; ".join(
                    f"batch {task.number} of epoch {task.epoch}, samples {self._named(task)}" for task in bundle.tasks
                )
        return "no batch"

    def _named(self, task: Task) -> str:
        if not task.indices:  # of a stream
            return "not known before they are read"
        places = [(index, locate(self.fetch.dataset, index)) for index in task.indices]
        return ", ".join(f"{index} ({place})" if place else str(index) for index, place in places)


def _same(batch: Any) -> Any:
    """Hand on what ``Fetch`` made; torch's own default would convert it."""
    return batch


def _start(number: int) -> None:
    """Prepare a worker: it ends with its parent, and its generators can be seeded."""
    own_bits()
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True, name="bestiary-parent-watch").start()


def _end_with_parent(started_by: int) -> None:
    """Wait for the parent's end: a forked worker gets another parent then, and a fork server's has the parent's pipe."""
    parent = multiprocessing.parent_process()
    while os.getppid() == started_by and (parent is None or parent.is_alive()):
        time.sleep(WATCH_EVERY_S)
    os._exit(1)
