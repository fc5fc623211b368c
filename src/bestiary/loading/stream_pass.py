"""One pass over a stream: readers in turn, their last samples joined, ranks evened out, and the place behind each batch."""

from __future__ import annotations

import itertools
import time
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from bestiary.loading.errors import SampleError
from bestiary.loading.fetch import Fetched
from bestiary.loading.moving import pin_memory
from bestiary.loading.passes import Pass
from bestiary.loading.seeding import OwnGenerators, borrowed_generators
from bestiary.loading.stream_ends import Evening, steps_of_ranks
from bestiary.loading.stream_fetch import Group, Opening, StreamFetch, StreamTask
from bestiary.loading.stream_places import Mark, Snapshot, mark_in
from bestiary.loading.streams import start_of
from bestiary.loading.timing import Stopwatch

if TYPE_CHECKING:
    from bestiary.loading.loader import Loader

FEWEST = 100  # samples that a share of bad ones is taken of, where their number is not known


class Made(NamedTuple):
    """A batch (None: every sample was bad), and the marks and the turn of readers behind it."""

    batch: Any
    samples: int
    errors: list[SampleError]
    seconds: float
    stages: dict[str, float]
    marks: dict[int, Mark]
    turn: int


class StreamPass(Pass):
    """A pass of a loader over one epoch of a stream, from a place on."""

    def __init__(self, loader: Loader, epoch: int, start: Any) -> None:
        self._loader, self.epoch, self.start = weakref.ref(loader), epoch, start
        self.rank, self.world_size = loader._place()
        self.workers = max(1, loader.num_workers)
        self.readers, self.first = self.world_size * self.workers, self.rank * self.workers
        self.begin = start_of(start, self.rank, self.world_size, self.workers)
        self.turn, self.marks = self.begin.turn, dict[int, Mark]()
        self.done, self.ended, self.running = 0, False, True
        self.watch = Stopwatch(epoch)
        self.stream, self.seed = loader.dataset, loader.plan.seed
        self.steps = steps_of_ranks(loader.plan, self.world_size, self.workers, epoch, self.begin.positions)
        self._notices()
        if not start:
            loader.errors[:] = [error for error in loader.errors if error.epoch != epoch]

    def length(self) -> int | None:
        """Return how many batches come on this rank from the start of this pass; None where that is not known."""
        return None if self.steps is None else Evening(self).target

    @property
    def complete(self) -> bool:
        """Whether the loop has received all that comes."""
        return self.ended

    @property
    def position(self) -> Any:
        """The place behind what the loop has received, as it is noted; ``place_of`` spells it out."""
        return Snapshot(self, dict(self.marks), self.turn)

    def batches(self, loader: Loader) -> Iterator[Any]:
        """Yield batches; each one only when it is known whether another one comes, so that a state knows the end."""
        watch, pins = self.watch, self._pins()
        source = Evening(self).over(self._in_turn())
        try:
            watch.start = asked = time.perf_counter()
            ahead, failure = self._next(source)
            while ahead is not None:
                made = ahead
                ahead, failure = self._next(source)
                self._receive(made, last=ahead is None and failure is None)
                if made.batch is not None:
                    self._look_at_first(made.batch)
                    batch = pin_memory(made.batch) if pins else made.batch
                    watch.waited(asked)
                    watch.batches, watch.samples = watch.batches + 1, watch.samples + made.samples
                    yield batch
                    asked = time.perf_counter()
            if failure is not None:
                raise failure
            self.ended = True
            watch.waited(asked)
            self._conclude()
        finally:
            self.running = False
            source.close()

    def _look_at_first(self, batch: Any) -> None:
        """Where tensors go through /dev/shm: compare what there is with the first batch; a try beforehand might use a stream up."""
        crew, loader = self.loader._crew, self.loader
        if "shared" not in loader._told:
            loader._told.add("shared")
            if crew is not None and not crew.most_bytes():
                self._compare_shared_memory(batch, 1)

    # -- batches

    @staticmethod
    def _next(source: Iterator[Made]) -> tuple[Made | None, Exception | None]:
        try:
            return next(source, None), None
        except Exception as error:  # noqa: BLE001 - raised when the loop has received what came before
            return None, error

    def _receive(self, made: Made, last: bool) -> None:
        self.done += 1
        self.marks |= made.marks
        self.turn, self.ended = made.turn, last
        loader, watch = self.loader, self.watch
        watch.made(made.seconds, made.stages)
        known = [error.as_dict() for error in loader.errors]
        fresh = [error for error in made.errors if error.as_dict() not in known] if made.errors else []
        for error in fresh:
            error.__cause__ = error.__context__ = None  # its frames would keep the batch alive
            loader.errors.append(error)
        watch.errors += len(fresh)
        if fresh:
            self._check_limit(fresh[-1])

    def _check_limit(self, last: SampleError) -> None:
        loader = self.loader
        bad = sum(error.epoch == self.epoch for error in loader.errors)
        known = self.steps[self.rank] * loader.plan.grouping.batch_size if self.steps else 0
        if bad > loader._limit(known or max(FEWEST, self.watch.samples + bad)):
            count = f"{bad} bad {'sample' if bad == 1 else 'samples'}"
            text = f"{count} in epoch {self.epoch}, more than max_errors={loader.max_errors} allows; the last: {last}"
            raise SampleError(text, **last.as_dict())

    def _in_turn(self) -> Generator[Made, None, None]:
        """Yield whole batches, one of each reader in turn, and then those that their last samples make together."""
        queues: list[deque[Fetched]] = [deque() for _ in range(self.workers)]
        rests: dict[int, Fetched] = {}
        turn, raw = self.turn, self._raw(rests)
        try:
            while len(rests) < self.workers:
                if turn in rests:
                    turn = (turn + 1) % self.workers
                    continue
                while not queues[turn]:
                    fetched = next(raw)
                    if fetched.failure is not None and fetched.batch is None:
                        raise fetched.failure  # what could not be sent tells no more
                    queues[fetched.batch.worker].append(fetched)
                fetched = queues[turn].popleft()
                if fetched.failure is not None:
                    raise fetched.failure
                group: Group = fetched.batch
                worker, turn = turn, (turn + 1) % self.workers
                if group.ended:
                    rests[worker] = fetched
                    continue
                mark = Mark(group.behind, 0, group.before + self.loader.plan.grouping.batch_size)
                made = fetched.samples, fetched.errors, fetched.seconds, fetched.stages
                yield Made(group.batch, *made, {worker: mark}, turn)
            for _ in raw:  # let workers finish, so that they can be kept
                pass
        finally:
            raw.close()
        yield from self._joined([rests[worker] for worker in range(self.workers)], turn)

    def _joined(self, rests: list[Fetched], turn: int) -> Iterator[Made]:
        """Make batches of the readers' last samples, in the order of the readers."""
        size, fetch = self.loader.plan.grouping.batch_size, self._fetch
        parts = [(fetched.batch, place) for fetched in rests for place in range(len(fetched.batch.rest))]
        errors = [error for fetched in rests for error in fetched.errors]
        seconds = sum(fetched.seconds for fetched in rests)
        for start in range(0, len(parts), size):
            chosen = parts[start : start + size]
            if len(chosen) < size and self.loader.plan.grouping.drop_last:
                return
            read = [group.rest[place] for group, place in chosen]
            number = -1 - start // size - self.rank * (self.workers + 1)
            samples, pads = fetch.mended(read, self.epoch, number)
            marks = {group.worker: mark_in(group, place + 1) for group, place in chosen}
            marks |= {
                one.batch.worker: mark_in(one.batch, 0)
                for one in rests
                if not one.batch.rest and start == 0 and one.batch.behind
            }
            batch = self.collated(samples, pads, number) if samples else None
            once = (errors, seconds) if start == 0 else ([], 0.0)
            yield Made(batch, len(samples), *once, {}, marks, turn)

    def collated(self, samples: list[Any], pads: list[bool], number: int) -> Any:
        """Collate samples in the main process, as in a worker."""
        fetch = self._fetch
        with borrowed_generators(OwnGenerators(fetch.collate)):
            return fetch.batch(samples, pads, self.epoch, number, self.flagged)

    @property
    def _fetch(self) -> StreamFetch:
        fetch: Any = self.loader._fetch
        found: StreamFetch = fetch
        return found

    @property
    def flagged(self) -> bool:
        """Whether batches carry ``is_pad``."""
        policy, ends = self.loader.on_error, self.loader.plan.ends
        return ends == "pad" or policy == "replace" or (policy == "skip" and self.world_size > 1 and ends != "exact")

    # -- readers

    def _raw(self, rests: dict[int, Fetched]) -> Generator[Fetched, None, None]:
        crew: Any = self.loader._crew
        tasks = self._to_read(rests)
        if crew is not None:
            yield from crew.run(
                tasks, self.worker_seed(), self.register
            )  # one task a bundle at first: each says how to begin
            return
        for task in tasks:
            yield self._fetch[task]

    def _to_read(self, rests: dict[int, Fetched]) -> Iterator[Any]:
        opening = Opening(self.epoch, self.first, self.readers, self.begin.positions, self.begin.counts, self.flagged)
        for number in itertools.count():
            if len(rests) == self.workers:
                return
            yield StreamTask(self.epoch, number, opening if number < self.workers else None)

    def _notices(self) -> None:
        loader = self.loader
        prepare = getattr(self.stream, "prepare", None)
        told = prepare(self.readers, self.epoch, self.seed, self.begin.positions) if prepare is not None else ()
        if self.world_size > 1:
            told = [
                *(told or ()),
                f"{self.world_size} ranks with {self.workers} readers each share the stream: {self.readers} readers",
            ]
        for text in told or ():
            if self.rank == 0:
                loader._tell(text)
        self._check_sendable()
