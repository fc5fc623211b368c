"""Worker processes around a private torch DataLoader: how they start, how they end, and what is said when one dies."""

from __future__ import annotations

import multiprocessing
import os
import re
import threading
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator
from typing import Any

import torch
from torch.utils.data import DataLoader

from bestiary.loading.deaths import DeathWatch, advice, ending
from bestiary.loading.errors import WorkerDied, locate
from bestiary.loading.fetch import Fetch, Fetched, Task, on_cpu
from bestiary.loading.seeding import own_bits

WATCH_EVERY_S = 0.2  # how often a worker looks whether its parent still lives


class Tasks:
    """The sampler of the private DataLoader: hands out what was put in for this pass, and remembers what is under way."""

    def __init__(self) -> None:
        self.coming: Iterable[Task] = ()
        self.under_way: deque[Task] = deque()

    def __iter__(self) -> Iterator[Task]:
        self.under_way.clear()
        for task in self.coming:
            self.under_way.append(task)
            yield task


class Crew:
    """Workers that make batches: ``crew.run(tasks)`` yields what they made, in the order of the tasks."""

    def __init__(
        self,
        fetch: Fetch,
        num_workers: int,
        *,
        context: Any,
        persistent: bool,
        prefetch_factor: int | None,
        timeout: float,
    ) -> None:
        self.fetch, self.num_workers, self.persistent, self.timeout = fetch, num_workers, persistent, timeout
        self.tasks = Tasks()
        self._settings = {"multiprocessing_context": context, "prefetch_factor": prefetch_factor}
        self._loader: DataLoader[Any] | None = None

    def run(self, tasks: Iterable[Task]) -> Generator[Fetched, None, None]:
        """Yield a result for each task. A worker's death or a time-out is an error that names the samples in hand."""
        self.tasks.coming = tasks
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
                    fetched: Fetched = next(source)
            except StopIteration:
                return
            except RuntimeError as error:
                raise self._explained(error, workers, received) from error
            self.tasks.under_way.popleft()
            received += 1
            yield fetched

    def _open(self) -> DataLoader[Any]:
        if self._loader is None:
            self._loader = DataLoader(
                self.fetch,  # type: ignore[arg-type]  # it is indexed by a task
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
        """Name the samples of the oldest batch that worker ``number`` has not delivered; tasks go round the workers."""
        for turn, task in enumerate(self.tasks.under_way, start=received):
            if turn % self.num_workers == number:
                places = [locate(self.fetch.dataset, index) for index in task.indices]
                named = [
                    f"{index} ({place})" if place else str(index)
                    for index, place in zip(task.indices, places, strict=True)
                ]
                return f"batch {task.number} of epoch {task.epoch}, samples {', '.join(named)}"
        return "no batch"


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
