"""One pass over the data: what it was dealt, how far it has come, and the loop that drives it."""

from __future__ import annotations

import time
import weakref
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from bestiary.keys import mix
from bestiary.loading.arguments import check_population, start_method
from bestiary.loading.dealing import Dealt
from bestiary.loading.errors import SampleError
from bestiary.loading.fetch import Fetched, Task, draws_of
from bestiary.loading.moving import can_pin, pin_memory
from bestiary.loading.probing import shared_memory_notice
from bestiary.loading.seeding import OwnGenerators
from bestiary.loading.sending import check_sendable
from bestiary.loading.slots import Register
from bestiary.loading.timing import Stopwatch

if TYPE_CHECKING:
    from bestiary.loading.loader import Loader

SPARES = 8  # samples tried in the place of a batch that has no good one


class Pass:
    """A pass of a loader over one epoch, from global batch ``start`` on, for the rank that this process is now."""

    register: Register | None = None  # slots with the device's driver, for DevicePrefetcher

    def __init__(self, loader: Loader, epoch: int, start: int) -> None:
        self._loader, self.epoch, self.start = weakref.ref(loader), epoch, start
        self.rank, self.world_size = loader._place()
        self.dealt: Dealt = loader.plan.deal(epoch, start, self.rank, self.world_size)
        self.done = 0  # batches that the loop has received, or that were skipped whole
        self.running = True
        self.watch = Stopwatch(epoch)
        self._check()
        if start == 0:  # a pass made again lists its bad samples again
            loader.errors[:] = [error for error in loader.errors if error.epoch != epoch]

    @property
    def loader(self) -> Loader:
        """The loader, which lives as long as a loop over its batches does, and holds the pass."""
        loader = self._loader()
        if loader is None:
            raise RuntimeError("the loader of this pass is gone")
        return loader

    @property
    def position(self) -> int:
        """The next global batch: every rank has come as far as this one."""
        return self.start + self.done * self.world_size

    def length(self) -> int | None:
        """Return how many batches this pass has on this rank."""
        return len(self.dealt.batches)

    @property
    def complete(self) -> bool:
        """Whether the loop has received all that it was dealt."""
        return self.done >= len(self.dealt.batches)

    def batches(self, loader: Loader) -> Iterator[Any]:
        """Yield the batches, and keep account of them."""
        watch, pins = self.watch, self._pins()
        source = self._source()
        try:
            watch.start = asked = time.perf_counter()
            for fetched in source:
                self._account(fetched)
                if not fetched.samples:
                    continue  # every one was bad
                batch = pin_memory(fetched.batch) if pins else fetched.batch
                watch.waited(asked)
                watch.batches, watch.samples = watch.batches + 1, watch.samples + fetched.samples
                yield batch
                asked = time.perf_counter()
            watch.waited(asked)
            self._conclude()
        finally:
            self.running = False
            source.close()

    def _source(self) -> Generator[Fetched, None, None]:
        crew, tasks = self.loader._crew, self._tasks()
        if crew is not None:
            return crew.run(tasks, self.worker_seed(), self.register)
        return self._here(tasks)

    def worker_seed(self) -> int:
        """Return what torch seeds workers from: only what is drawn outside of samples depends on it."""
        return mix(self.loader.plan.seed, self.epoch, "workers") >> 1

    def _here(self, tasks: Iterator[Task]) -> Generator[Fetched, None, None]:
        """Make the batches in this process, large ones in memory that was used before."""
        for task in tasks:
            yield self.loader._fetch[task]

    def _tasks(self) -> Iterator[Task]:
        plan, policy = self.loader.plan, self.loader.on_error
        flagged = plan.ends == "pad" or policy == "replace" or (policy == "skip" and self.world_size > 1)
        stand_in = policy == "replace" or (policy == "skip" and self.world_size > 1)
        every = np.concatenate(plan.batches(self.epoch)) if stand_in and self.dealt.batches else np.empty(0, np.int64)
        for turn, (indices, number, padded) in enumerate(
            zip(self.dealt.batches, self.dealt.numbers, self.dealt.padded, strict=True)
        ):
            occurrences = None if self.dealt.occurrences is None else self.dealt.occurrences[turn].tolist()
            spares = [
                int(every[mix(plan.seed, self.epoch, int(number), "spare", n) % len(every)])
                for n in range(SPARES if stand_in else 0)
            ]
            yield Task(self.epoch, int(number), indices.tolist(), occurrences, bool(padded), flagged, spares)

    def _account(self, fetched: Fetched) -> None:
        """Take over what a batch brought besides its samples; raise what ends the pass."""
        loader, watch = self.loader, self.watch
        if fetched.failure is not None:
            raise fetched.failure
        self.done += 1
        watch.made(fetched.seconds, fetched.stages)
        for error in fetched.errors:
            error.__cause__ = error.__context__ = None  # its frames would keep the batch alive
            loader.errors.append(error)
        watch.errors += len(fetched.errors)
        if fetched.errors:
            self._check_limit(fetched.errors[-1])

    def _check_limit(self, last: SampleError) -> None:
        """Stop the pass when it has met more bad samples than max_errors allows."""
        loader = self.loader
        bad = sum(error.epoch == self.epoch for error in loader.errors)
        if bad > loader._limit(sum(map(len, loader.plan.batches(self.epoch))) / self.world_size):
            raise SampleError(
                f"{bad} bad {'sample' if bad == 1 else 'samples'} in epoch {self.epoch}, more than max_errors={loader.max_errors} allows; the last: {last}",
                **last.as_dict(),
            )

    def _conclude(self) -> None:
        """At the end of a pass: an epoch of nothing but bad samples is an error, any bad ones are told."""
        loader, watch = self.loader, self.watch
        found = [error for error in loader.errors if error.epoch == self.epoch]
        if found and not watch.samples and not self.start:
            text = f"epoch {self.epoch} had no good sample: all {len(found)} failed; the first: {found[0]}"
            raise SampleError(text, **found[0].as_dict())
        if found:
            names = ", ".join(error.where or str(error.index) for error in found[:5]) + (
                ", …" if len(found) > 5 else ""
            )
            done = "skipped" if loader.on_error == "skip" else "replaced"
            loader._tell(
                f"{len(found)} bad {'sample was' if len(found) == 1 else 'samples were'} {done} in epoch {self.epoch}: {names}; loader.errors lists them with their causes"
            )

    def _pins(self) -> bool:
        if self.register is not None:  # whoever copies the batches pins what is not registered
            return False
        if self.loader.pin_memory and not can_pin():
            self.loader._tell("pin_memory=True, but there is no accelerator to pin memory for; batches stay unpinned")
        return self.loader.pin_memory is not False and can_pin()

    def _check(self) -> None:
        """Before the first batch: what would fail late or in silence is said now."""
        loader, plan = self.loader, self.loader.plan
        size = len(loader.dataset)
        check_population(plan, size)
        top = max((int(batch.max()) for batch in self.dealt.batches if len(batch)), default=-1)
        if top >= size:
            raise ValueError(f"the plan asks for index {top}, but the dataset has {size} samples (0 to {size - 1})")
        if not self.dealt.batches and not self.start:
            loader._tell(
                f"the plan has no batch for rank {self.rank} of {self.world_size}: {len(plan.order)} indices, {plan.grouping!r}, "
                f"ends={plan.ends!r}; take a smaller batch_size, drop_last=False or ends='pad'"
            )
        if self.world_size > 1 and self.rank == 0:
            loader._tell(
                f"each of {self.world_size} ranks takes every {self.world_size}-th batch; rank 0 has {len(self.dealt.batches)} of "
                f"{len(plan.batches(self.epoch))}. BatchPlan(..., rank=0, world_size=1) reads all on every rank"
            )
        self._check_sendable()
        self._check_shared_memory()

    def _check_sendable(self) -> None:
        loader = self.loader
        walk = OwnGenerators(loader.dataset, loader.collate) if draws_of(loader.dataset) else None
        if walk is not None and walk.stopped:
            loader._tell(
                "the dataset holds so many objects that not all were searched for random generators of its own; one that "
                "was missed is not seeded: keep it as a direct attribute, or draw from the global generators"
            )
        own = walk.names() if walk is not None else []
        if own:
            loader._tell(
                f"random generators kept by the dataset are seeded for each sample, like the global ones: {', '.join(own)}"
            )
        if loader.num_workers and "sendable" not in loader._told:
            loader._told.add("sendable")
            method = start_method(loader.multiprocessing_context)
            if method != "fork":
                check_sendable(method, {"dataset": loader.dataset, "collate": loader.collate})

    def _check_shared_memory(self) -> None:
        """Where tensors go through /dev/shm: compare what a first sample lets expect with what there is."""
        crew, loader = self.loader._crew, self.loader
        if crew is None or crew.most_bytes() or not self.dealt.batches or "shared" in loader._told:
            return
        loader._told.add("shared")
        first, task = self.dealt.batches[0], next(self._tasks())
        fetched = crew.trial(task._replace(indices=task.indices[:1], spares=[]))
        if fetched is not None:
            self._compare_shared_memory(fetched.batch, len(first))

    def _compare_shared_memory(self, batch: Any, times: int) -> None:
        """Say so where shared memory will not hold the batches under way, of so many times this one's size."""
        loader, crew = self.loader, self.loader._crew
        if crew is not None:
            notice = shared_memory_notice(batch, times, loader.num_workers, crew.prefetch_factor)
            if notice is not None:
                loader._tell(notice)
