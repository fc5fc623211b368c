"""What runs for a batch of a stream, in a worker or in the main process: read on, apply the error policy, collate."""

from __future__ import annotations

from collections.abc import Sequence
from inspect import isgenerator
from typing import Any, NamedTuple

from torch.utils.data import get_worker_info

from bestiary.keys import mix
from bestiary.loading.collate import CollateError
from bestiary.loading.errors import SampleError, describe
from bestiary.loading.fetch import Fetch, Fetched, Task, draws_of
from bestiary.loading.surroundings import NOTHING, Threads, on_cpu
from bestiary.loading.timing import Stages

MOST_IN_A_ROW = 1_000  # errors without a good sample between them: an iterator that does not go on


class Opening(NamedTuple):
    """How the workers of a rank begin a pass."""

    epoch: int
    first: int  # number of this rank's first reader
    readers: int
    positions: list[Any] | None
    counts: list[int]  # samples that each reader had before
    flagged: bool  # batches carry `is_pad`


class StreamTask(NamedTuple):
    """Make the next batch; the first task of a pass for a worker says how to begin."""

    epoch: int
    number: int
    opening: Opening | None
    indices: tuple[int, ...] = ()  # unknown before they are read


class Group(NamedTuple):
    """What a reader gives for a task: a whole batch; or its last samples, too few for one (None where one is bad)."""

    worker: int
    batch: Any
    rest: list[Any]
    begin: Any  # position before the first of these
    behind: Any  # position behind the last
    before: int  # samples that the reader had before these
    ended: bool


class StreamFetch(Fetch):
    """``fetch[task]`` reads on and makes one batch; the same object serves the main process and, pickled, every worker."""

    ahead = 1  # each batch is handed on when it is known whether another one comes
    _opening: Opening | None = None
    _iterator: Any = None
    _count = 0

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_iterator": None, "_opening": None}

    def __getitem__(self, task: StreamTask) -> Fetched:  # type: ignore[override]
        """Make the next batch; what the stream or the collator raises is returned, not raised."""
        stages = Stages(self.dataset)
        worker = get_worker_info()
        number, draws = (0 if worker is None else worker.id), draws_of(self.dataset)
        collate_draws = self.collate_draws
        threads = Threads(self.threads) if worker is None and self.threads is not None else NOTHING
        errors: list[SampleError] = []
        group = Group(number, None, [], None, None, 0, True)
        with on_cpu(), threads, self._lend(task.epoch, draws, collate_draws, worker is None):
            try:
                if task.opening is not None:
                    self._begin(task.opening, number)
                if self._iterator is None or self._opening is None:  # it has ended
                    return Fetched(group, 0, [], None, 0.0)
                group, pads = self._group(number, draws, errors)
                stages.have_samples()
                if group.rest and not group.ended:
                    batch = self.batch(group.rest, pads, task.epoch, self._number(), self._opening.flagged)
                    group = group._replace(batch=batch, rest=[])
            except Exception as error:  # noqa: BLE001 - it is handed on
                known = isinstance(error, (SampleError, CollateError))
                failure = error if known else RuntimeError(f"the stream could not be opened: {describe(error)}")
                failure.__cause__ = failure.__cause__ or (None if known else error)
                return Fetched(group, 0, errors, failure, stages.seconds())
        return Fetched(group, len(pads), errors, None, stages.seconds(), stages.parts())

    def batch(self, samples: Sequence[Any], pads: list[bool], epoch: int, number: int, flagged: bool) -> Any:
        """Collate samples to a batch."""
        task = Task(epoch, number, [], None, False, flagged, [])
        return self._collate(samples, pads, task, self.collate_draws)

    def mended(self, read: Sequence[Any], epoch: int, number: int) -> tuple[Any, list[bool]]:
        """Return samples without the bad ones (None), or with others in their place, and which of them are repeats."""
        good = [place for place, sample in enumerate(read) if sample is not None]
        if self.policy == "replace" and 0 < len(good) < len(read):
            return self._replaced(Task(epoch, number, [], None, False, False, []), list(read), good)
        return [read[place] for place in good], [False] * len(good)

    # -- reading

    def _begin(self, opening: Opening, worker: int) -> None:
        self._opening, self._iterator = opening, None
        reader = opening.first + worker
        self._count = opening.counts[reader]
        self._iterator = open_reader(self.dataset, reader, opening.readers, opening.epoch, self.seed, opening.positions)

    def _group(self, worker: int, draws: bool, errors: list[SampleError]) -> tuple[Group, list[bool]]:
        begin, count = getattr(self._iterator, "position", None), self._count
        read = self._read(draws, errors)
        self._count += len(read)
        behind, ended = getattr(self._iterator, "position", None), len(read) < self.batch_size
        if ended:
            self._iterator = None
            return Group(worker, None, list(read), begin, behind, count, True), [False] * len(read)
        made, pads = self.mended(read, 0, self._number()) if errors else (read, [False] * len(read))
        return Group(worker, None, made, begin, behind, count, False), pads  # type: ignore[arg-type]

    def _read(self, draws: bool, errors: list[SampleError]) -> Sequence[Any]:
        """Read as many samples as a batch has, fewer at the end; None stands for a bad one."""
        take = None if draws else getattr(self._iterator, "take", None)
        read: list[Any] = []
        while len(read) < self.batch_size:
            try:
                found = take(self.batch_size - len(read)) if take is not None else [self._one(draws, len(read))]
            except StopIteration:
                break
            except Exception as error:
                errors.append(self._bad(error, len(read)))
                if (
                    self.policy == "raise"
                    or isinstance(error, (ImportError, MemoryError))
                    or isgenerator(self._iterator)
                ):
                    raise errors.pop() from error
                self._check_row(errors, read, error)
                read.append(None)
                continue
            if len(found) == self.batch_size:
                return found if take is not None else list(found)
            if not len(found):
                break
            read.extend(found)
        return read

    def _one(self, draws: bool, place: int) -> Any:
        opening: Any = self._opening
        if draws:
            worker = get_worker_info()
            reader = opening.first + (0 if worker is None else worker.id)
            self._seed(mix(self.seed, opening.epoch, "reader", reader, self._count + place))
        sample = next(self._iterator)
        if sample is None:
            raise TypeError("the stream returned None; raise an error for a bad sample instead")
        return sample

    def _bad(self, error: Exception, place: int) -> SampleError:
        opening: Any = self._opening
        index, where, cause = self._count + place, str(getattr(error, "where", "")), describe(error)
        told = {"index": index, "where": where, "epoch": opening.epoch, "cause": cause}
        found = SampleError.from_dict(told)
        found.__cause__ = error
        return found

    def _check_row(self, errors: list[SampleError], read: list[Any], error: Exception) -> None:
        self._in_a_row = 1 if read and read[-1] is not None else self._in_a_row + 1
        if self._in_a_row > MOST_IN_A_ROW and len({one.where for one in errors}) == 1:
            raise errors[-1] from error

    _in_a_row = 0

    def _number(self) -> int:
        """Return a number for a batch that no other of the epoch has: of its reader, and of its samples."""
        opening: Any = self._opening
        worker = get_worker_info()
        return int(self._count * opening.readers + opening.first + (0 if worker is None else worker.id))

    def sentence(self, task: Any, error: Exception, what: str) -> str:
        """Say what happened to a batch, and where in the stream it ends."""
        cause = str(error) if isinstance(error, CollateError) else describe(error)
        place = getattr(self._iterator, "position", None)
        return f"a batch of epoch {task.epoch} {what}: {cause}{'' if place is None else f'; it ends at {place}'}"


def open_reader(stream: Any, reader: int, readers: int, epoch: int, seed: int, positions: list[Any] | None) -> Any:
    """Return a stream's iterator for one reader; a stream without ``open`` shares itself out by ``get_worker_info``."""
    if hasattr(stream, "open"):
        return stream.open(reader, readers, epoch, seed, positions)
    if hasattr(stream, "set_epoch"):
        stream.set_epoch(epoch)
    return iter(stream)
