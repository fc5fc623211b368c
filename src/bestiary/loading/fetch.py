"""What runs for a batch, in a worker or in the main process: seed, call the dataset, apply the error policy, collate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import torch
from torch.utils.data import get_worker_info

from bestiary.keys import mix
from bestiary.loading.collate import Collate, CollateError
from bestiary.loading.errors import SampleError, describe, locate, sample_error
from bestiary.loading.rooms import Landlord, rented_from
from bestiary.loading.seeding import OwnGenerators, borrowed_generators, seed_all, worker_generators
from bestiary.loading.surroundings import NOTHING, Threads, on_cpu
from bestiary.loading.timing import Stages

Policy = Literal["raise", "skip", "replace"]


class Task(NamedTuple):
    """A batch to make: plain integers, so that it is small in a queue and the same on every machine."""

    epoch: int
    number: int  # of the batch in the epoch's global list
    indices: list[int]
    occurrences: list[int] | None  # the n-th time that each index comes in the epoch; None: always 0
    padded: bool  # a repeat that evens out the ranks
    flagged: bool  # the batch carries `is_pad`
    spares: list[int]  # where a good sample may be found if all of the batch are bad; empty: none needed


class Fetched(NamedTuple):
    """What comes back: a batch, or None where every sample was bad, or the error that ends the pass."""

    batch: Any
    samples: int
    errors: list[SampleError]
    failure: Exception | None
    seconds: float
    stages: dict[str, float] = {}  # noqa: RUF012 - never written to


class Fetch:
    """``fetch[task]`` makes one batch; the same object serves the main process and, pickled, every worker."""

    batch_size = 1  # of a stream, whose tasks do not tell what is in a batch
    ahead = 0  # batches that a pass keeps to itself before it hands them on

    def __init__(
        self, dataset: Any, collate: Callable[[Sequence[Any]], Any], seed: int, policy: Policy, threads: int | None
    ) -> None:
        self.dataset, self.collate, self.seed, self.policy, self.threads = dataset, collate, seed, policy, threads
        self._own: tuple[int, OwnGenerators] | None = None
        self.landlord: Landlord | None = None  # where large batches lie
        self.reading: Callable[[int], None] | None = None  # told each index before it is read

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_own": None, "landlord": None, "reading": None}

    def __getitem__(self, task: Task) -> Fetched:
        """Make the batch of a task; what the dataset or the collator raises is returned, not raised."""
        stages = Stages(self.dataset)
        draws = draws_of(self.dataset)
        in_main = get_worker_info() is None
        threads = Threads(self.threads) if in_main and self.threads is not None else NOTHING
        collate_draws = self.collate_draws
        with on_cpu(), threads, self._lend(task.epoch, draws, collate_draws, in_main):
            errors: list[SampleError] = []
            try:
                samples, pads = self._samples(task, draws, errors)
                stages.have_samples()
                batch = self._collate(samples, pads, task, collate_draws) if pads else None
            except (SampleError, CollateError) as error:
                return Fetched(None, 0, errors, error, stages.seconds())
        return Fetched(batch, len(pads), errors, None, stages.seconds(), stages.parts())

    # -- samples

    def _samples(self, task: Task, draws: bool, errors: list[SampleError]) -> tuple[Sequence[Any], list[bool]]:
        """Return the samples that make up the batch and which of them are repeats; append to errors what is bad."""
        many = None if draws or not trusts(self.dataset, "__getitems__") else self.dataset.__getitems__
        if many is not None:
            try:
                samples = many(task.indices)
                whole = type(samples) is not list or not any(sample is None for sample in samples)
                if whole and len(samples) == len(task.indices):
                    return samples, [task.padded] * len(samples)
            except Exception:  # noqa: BLE001, S110 - read again one by one: that finds the bad ones, and raises them
                pass
        read = [self._try(task, place, index, draws, errors) for place, index in enumerate(task.indices)]
        good = [place for place, sample in enumerate(read) if sample is not None]
        if len(good) == len(read):
            return read, [task.padded] * len(read)
        if not good or self.policy == "skip":
            kept = [read[place] for place in good]
            return (kept, [task.padded] * len(kept)) if good else self._rescue(task, draws, errors)
        return self._replaced(task, read, good)

    def _try(self, task: Task, place: int, index: int, draws: bool, errors: list[SampleError]) -> Any:
        """Read one sample; None where it is bad and the policy lets the pass go on."""
        if draws:
            self._seed(mix(self.seed, task.epoch, index, task.occurrences[place] if task.occurrences else 0))
        try:
            if self.reading is not None:
                self.reading(index)
            sample = self.dataset[index]
            if sample is None:
                raise TypeError("the dataset returned None; raise an error for a bad sample instead")
            return sample
        except Exception as error:
            found = sample_error(self.dataset, index, task.epoch, error)
            if self.policy == "raise" or isinstance(error, (ImportError, MemoryError)):
                raise found from error
            errors.append(found)
            return None

    def _replaced(self, task: Task, read: list[Any], good: list[int]) -> tuple[list[Any], list[bool]]:
        """Fill bad places with good samples of the same batch, in an order drawn by key, and flag them."""
        order = sorted(good, key=lambda place: mix(self.seed, task.epoch, task.number, "replace", place))
        bad = [place for place, sample in enumerate(read) if sample is None]
        samples, pads = list(read), [task.padded] * len(read)
        for turn, place in enumerate(bad):
            samples[place], pads[place] = read[order[turn % len(order)]], True
        return samples, pads

    def _rescue(self, task: Task, draws: bool, errors: list[SampleError]) -> tuple[list[Any], list[bool]]:
        """Stand in for a batch without one good sample, where other ranks or the policy count on its coming."""
        tried: list[SampleError] = []
        for index in task.spares:
            sample = self._try(task._replace(occurrences=None), 0, index, draws, tried)
            if sample is not None:
                count = len(task.indices) if self.policy == "replace" else 1
                return [sample] * count, [True] * count
        if task.spares:
            raise errors[-1]
        return [], []

    # -- batch

    def _collate(self, samples: Sequence[Any], pads: list[bool], task: Task, draws: bool) -> Any:
        mixed = task.flagged and len(set(pads)) > 1
        try:
            if draws:
                self._seed(mix(self.seed, task.epoch, task.number, "collate"))
            batch = self._collated(
                [_flag(sample, pad) for sample, pad in zip(samples, pads, strict=True)] if mixed else samples
            )
            return (
                batch
                if mixed or not task.flagged
                else _flag(batch, torch.full((_rows(batch),), pads[0], dtype=torch.bool))
            )
        except Exception as error:
            raise CollateError(self.sentence(task, error, "could not be collated")) from error

    @property
    def collate_draws(self) -> bool:
        """Whether the collator may draw: one of the user's own, which also may keep what it makes."""
        return not isinstance(self.collate, Collate) or type(self.collate).__call__ is not Collate.__call__

    def _collated(self, samples: Sequence[Any]) -> Any:
        if self.landlord is None or self.collate_draws:
            return self.collate(samples)
        with rented_from(self.landlord):
            return self.collate(samples)

    def sentence(self, task: Task, error: Exception, what: str) -> str:
        """Say what happened to a batch, and which samples it was made of."""
        places = [
            f"{index} ({where})" if (where := locate(self.dataset, index)) else str(index) for index in task.indices[:8]
        ]
        rest = f" and {len(task.indices) - 8} more" if len(task.indices) > 8 else ""
        cause = str(error) if isinstance(error, CollateError) else describe(error)
        return f"batch {task.number} of epoch {task.epoch} {what}: {cause}; its samples: {', '.join(places)}{rest}"

    # -- surroundings

    def _seed(self, key: int) -> None:
        seed_all(key)
        if self._own is not None:
            self._own[1].seed(key)

    def _lend(self, epoch: int, draws: bool, collate_draws: bool, in_main: bool) -> AbstractContextManager[object]:
        """Look for generators that dataset and collator keep; in the main process, or inside another fetch, give all back."""
        if not (draws or collate_draws):
            return NOTHING
        if self._own is None or self._own[0] != epoch or self._own[1].quick:  # one may have been made since
            self._own = epoch, OwnGenerators(*([self.dataset] if draws else []), self.collate)
        return borrowed_generators(self._own[1]) if in_main else worker_generators(self._own[1])


def draws_of(dataset: object) -> bool:
    """Tell whether reading a sample may draw: not where the dataset says so, and means this very ``__getitem__``."""
    if "draws" in getattr(dataset, "__dict__", ()):
        return dataset.__dict__["draws"] is not False
    return not (trusts(dataset, "draws") and dataset.draws is False)  # type: ignore[attr-defined]


def trusts(dataset: object, name: str) -> bool:
    """Tell whether what a class says by ``name`` was said with its ``__getitem__`` in view, not by a base class of it."""
    kind: type = type(dataset)
    return _said_for(kind, name)


@lru_cache(maxsize=256)
def _said_for(kind: type, name: str) -> bool:
    where = {word: place for place, base in reversed(list(enumerate(kind.__mro__))) for word in base.__dict__}
    reads = min(where.get(word, len(kind.__mro__)) for word in ("__getitem__", "__iter__"))
    return where.get(name, len(kind.__mro__)) <= reads


def _flag(thing: Any, value: Any) -> Any:
    if not isinstance(thing, dict):
        raise CollateError(
            f"repeated samples are flagged in a field is_pad, which needs dict samples, not {type(thing).__name__}; "
            "let the dataset return dicts, or take ends='trim' or 'exact' and on_error='raise'"
        )
    return thing | {"is_pad": value}


def _rows(batch: Any) -> int:
    """Return B of a batch: the length of its first field."""
    return len(next(iter(batch.values()))) if isinstance(batch, dict) and batch else 0
