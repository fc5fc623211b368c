"""Worker processes around a private torch DataLoader: how they start, how they end, and what is said when one dies."""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
import warnings
import weakref
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from typing import Any, Literal, TypeAlias

import torch
from torch.utils.data import DataLoader, get_worker_info

from bestiary.loading.arguments import start_method
from bestiary.loading.deaths import (
    LOSSES,
    DeathWatch,
    end_workers,
    ending,
    lacks_descriptors,
    starting,
    take_charge,
)
from bestiary.loading.errors import WorkerDied
from bestiary.loading.fetch import Fetch, Fetched, Task
from bestiary.loading.onlookers import keep_only
from bestiary.loading.parcels import Parcel
from bestiary.loading.pipe import prepare
from bestiary.loading.rooms import memory_share
from bestiary.loading.seeding import in_worker
from bestiary.loading.slots import MOST_SLOTS, Register, Slots
from bestiary.loading.surroundings import on_cpu
from bestiary.loading.teams import Team
from bestiary.loading.transport import WorkerFetch
from bestiary.loading.witness import Witness, not_begun

Transport: TypeAlias = Literal["slots", "torch"]
UNGUARDED = (
    'Where workers are not forked, the part of a program that starts them stands below: if __name__ == "__main__":'
)
WATCH_EVERY_S = 0.2  # how often a worker looks whether its parent still lives


class Crew:
    """Workers that make batches: ``crew.run(tasks, seed, None)`` yields what they made, in the order of the tasks."""

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
        self.prefetch_factor = prefetch_factor
        # slots: besides batches made ahead, the one in use and two that are copied
        wanted = 3 + fetch.ahead + (prefetch_factor or 2)
        self.each = max(1, min(wanted, MOST_SLOTS // num_workers))
        self._settings = {"multiprocessing_context": context, "prefetch_factor": prefetch_factor}
        self._idle: tuple[Team, DataLoader[Any] | None] | None = None  # of the pass before
        self._slots: weakref.WeakSet[Slots] = weakref.WeakSet()  # of passes under way, and of the idle team

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_idle", "_slots")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_idle": None, "_slots": weakref.WeakSet()}

    def held_bytes(self) -> int:
        """Return the memory that slots take now."""
        return sum(slots.size() for slots in self._slots)

    def most_bytes(self) -> int:
        """Return the most memory that slots may take: the share of one pass, times the passes that are under way at once."""
        slots = self.num_workers * self.each
        share = memory_share() // slots * slots if self.packed and hasattr(os, "memfd_create") else 0
        return share * max(1, len(self._slots))

    def run(self, tasks: Iterable[Task], seed: int, register: Register | None) -> Generator[Fetched, None, None]:
        """Yield a result for each task, in registered slots if asked. A worker's death or a time-out is an error that names the samples in hand."""
        team, loader = self._claim()
        if team.slots is not None:
            self._slots.add(team.slots)
        team.begin(tasks, seed, register)
        loader, source = self._begun(team, loader)
        prepare(source)
        take_charge(source)
        workers = list(getattr(source, "_workers", []))
        watch = team.watch or DeathWatch([worker.pid for worker in workers])
        watch.install()
        keep, forked = self.persistent, start_method(self._settings["multiprocessing_context"]) == "fork"
        try:
            yield from self._results(
                team, source, watch, Witness(self.fetch.dataset, team, workers, self.timeout, forked)
            )
        except BaseException as error:
            keep = keep and isinstance(error, GeneratorExit)  # the loop was left: they finish what they have in hand
            if not keep:
                end_workers(source, workers, at_once=True)  # do not wait for a slow sample
            raise
        finally:
            if keep and team.watch is None:
                team.watch = watch  # over workers that may die between passes
                weakref.finalize(source, watch.close)  # behind its own end
            if not keep:
                watch.close()
                loader = team.watch = None
                end_workers(source, workers)  # an error's frames would keep it alive
            if self._idle is None:
                self._idle = team, loader

    def _begun(self, team: Team, loader: DataLoader[Any] | None) -> tuple[DataLoader[Any], Any]:
        """Start the workers, or have those of the pass before begin another one."""
        kept = loader is not None
        with on_cpu(), starting():
            loader = self._open(team) if loader is None else loader
            try:
                return loader, iter(loader)
            except (*LOSSES, ValueError) as error:
                failure = error
            if not kept and team.slots is not None and lacks_descriptors(failure):
                team.do_without_slots(failure)
                loader = self._open(team)
                return loader, iter(loader)
        source = getattr(loader, "_iterator", None)
        workers = list(getattr(source, "_workers", []))
        told = not_begun(failure, workers, kept)
        if told is None:
            raise failure
        if kept:
            end_workers(source, workers, at_once=True)
        if team.watch is not None:
            team.watch.close()
        raise told from failure

    def trial(self, task: Task) -> Fetched | None:
        """Make one batch in a worker of its own: read here, a file that the dataset keeps open would be shared by workers."""
        crew = Crew(self.fetch, 1, self._settings["multiprocessing_context"], False, 1, self.timeout, "slots")
        with closing(crew.run([task], 0, None)) as made:
            try:
                return next(made)
            except WorkerDied:  # so will the pass's own
                return None

    def _results(self, team: Team, source: Iterator[Any], watch: DeathWatch, witness: Witness) -> Iterator[Fetched]:
        while True:
            if team.pid != os.getpid():
                raise RuntimeError(
                    "this pass belongs to the process that began it; after a fork begin another one: iter(loader)"
                )
            if team.under_way and watch.due() and any(worker.exitcode is not None for worker in witness.workers):
                raise witness.explained(RuntimeError("DataLoader worker exited"))
            try:
                with watch, on_cpu():
                    parcels: list[Parcel | Fetched] = _next(source)
            except StopIteration:
                return
            except LOSSES as error:
                raise witness.explained(error) from error
            for fetched in self._unpacked(team, parcels, witness):
                yield fetched
                del fetched
            team.under_way.popleft()
            witness.received += 1

    @staticmethod
    def _unpacked(team: Team, parcels: list[Any], witness: Witness) -> Iterator[Fetched]:
        """Unpack a bundle; what travels torch's way is fetched from the worker only now, if that still lives."""
        arrived = team.unpacked(parcels, team.under_way[0].slot)
        while True:
            try:
                fetched = next(arrived)
            except StopIteration:
                return
            except LOSSES as error:
                raise witness.explained(error) from error
            yield fetched
            del fetched

    def _claim(self) -> tuple[Team, DataLoader[Any] | None]:
        """Take over what the pass before has left; new workers where one has died since, all anew in a forked process."""
        team, loader = self._idle or (Team(self.num_workers, self.each, self.packed), None)
        self._idle = None
        if team.pid != os.getpid():
            _not_ours.append((team, loader))
            return Team(self.num_workers, self.each, self.packed), None
        source = getattr(loader, "_iterator", None)
        workers = list(getattr(source, "_workers", []))
        dead = [worker for worker in workers if worker.exitcode is not None]
        if dead:
            told = ", ".join(f"worker {workers.index(worker)} (pid {worker.pid}, {ending(worker)})" for worker in dead)
            warnings.warn(f"bestiary: {told} ended between two passes; all are started anew", stacklevel=4)
            end_workers(source, workers, at_once=True)
            loader = team.watch = None
        return team, loader

    def _open(self, team: Team) -> DataLoader[Any]:
        return DataLoader(
            WorkerFetch(self.fetch, team.slots, team.board, self.packed),  # type: ignore[arg-type]  # see Bundle
            batch_size=None,
            sampler=team,
            collate_fn=_same,
            num_workers=self.num_workers,
            persistent_workers=self.persistent,
            timeout=self.timeout,
            worker_init_fn=_start,
            generator=team.chance,
            **self._settings,
        )


_not_ours: list[object] = []  # crews of the parent of this forked process: their end here would end them there


def _next(source: Iterator[Any]) -> Any:
    """Take the next message; without the range that torch enters for a profiler while none runs, which takes 40 us."""
    take = getattr(source, "_next_data", None)
    return next(source) if take is None or torch.autograd.profiler._is_profiler_enabled else take()


def _same(batch: Any) -> Any:
    """Hand on what ``Fetch`` made; torch's own default would convert it."""
    return batch


def _start(number: int) -> None:
    """Prepare a worker: it ends with its parent, and its generators can be seeded."""
    in_worker()
    info = get_worker_info()
    keep_only(getattr(None if info is None else info.dataset, "slots", None))
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True, name="bestiary-parent-watch").start()


def _end_with_parent(started_by: int) -> None:
    """Wait for the parent's end: a forked worker gets another parent then, and a fork server's has the parent's pipe."""
    parent = multiprocessing.parent_process()
    while os.getppid() == started_by and (parent is None or parent.is_alive()):
        time.sleep(WATCH_EVERY_S)
    os._exit(1)
