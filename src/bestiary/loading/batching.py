"""Batches: an order cut into groups, and the groups dealt out to ranks.

An epoch is one global list of batches, a function of (seed, epoch) alone. Rank r of W takes batches r, r + W, ...;
what happens at the end of the list is the plan's choice::

    7 batches on 3 ranks     trim             pad                    exact
    rank 0                   0 3              0 3 6                  0 3 6
    rank 1                   1 4              1 4 0 (a repeat)       1 4
    rank 2                   2 5              2 5 1 (a repeat)       2 5

So a resume is the same list from a later batch on, for any number of ranks.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from bestiary.keys import rank_and_world
from bestiary.loading.arrays import IntArray, frozen, whole_number
from bestiary.loading.dealing import Dealt, Ends, deal_out, share
from bestiary.loading.occurrences import occurrences
from bestiary.loading.report import PlanReport, report_plan
from bestiary.loading.samplers import Order, Sequential


class Grouping(Protocol):
    """What a plan asks of a grouping; one of your own needs no more than this."""

    def __call__(self, indices: IntArray, seed: int, epoch: int) -> list[IntArray]:
        """Return the indices of an epoch (N,) cut into batches."""


@dataclass(frozen=True)
class FixedSize:
    """Batches of ``batch_size``, in the order that comes; the last one may be smaller.

    Args:
        batch_size: items in a batch.
        drop_last: leave a smaller last batch out.
        min_last: leave a last batch of fewer items out; 2 spares a batch norm the batch of one.

    >>> [batch.tolist() for batch in FixedSize(2)(np.arange(5), seed=0, epoch=0)]
    [[0, 1], [2, 3], [4]]
    """

    batch_size: int
    drop_last: bool = False
    min_last: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", whole_number(self.batch_size, "batch_size", 1))
        object.__setattr__(self, "min_last", whole_number(self.min_last, "min_last", 1))
        if self.min_last > self.batch_size:
            raise ValueError(
                f"min_last={self.min_last} is more than batch_size={self.batch_size}; no batch would be left"
            )

    def __call__(self, indices: IntArray, seed: int, epoch: int) -> list[IntArray]:
        """Cut indices (N,) into batches; seed and epoch change nothing."""
        least = self.batch_size if self.drop_last else self.min_last
        stop = len(indices) - least + 1
        return [indices[start : start + self.batch_size] for start in range(0, stop, self.batch_size)]


class BatchPlan:
    """The batches of every epoch, and this rank's share of them; also a ``batch_sampler`` for a torch DataLoader.

    Args:
        order: which items, one after the other: ``Shuffled(len(dataset))``.
        grouping: how they are cut into batches: ``FixedSize(32)``.
        seed: another seed, other orders.
        rank, world_size: this process's; None asks torch.distributed, then the environment, when a pass begins.
        ends: "trim" leaves out the last batches that not all ranks would get (fewer than ``world_size``), "pad" repeats
            the epoch's first ones, "exact" does neither, so that ranks may differ by one batch: for evaluation.

    >>> plan = BatchPlan(Sequential(10), FixedSize(4), rank=1, world_size=2, ends="exact")
    >>> list(plan), len(plan), [batch.tolist() for batch in plan.batches(0)]
    ([[4, 5, 6, 7]], 1, [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]])
    """

    def __init__(
        self,
        order: Order,
        grouping: Grouping,
        *,
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        ends: Ends = "trim",
    ) -> None:
        if not (callable(order) and hasattr(order, "__len__")):
            raise TypeError(f"order should be one such as Shuffled(len(dataset)), but is {type(order).__name__}")
        if not callable(grouping):
            raise TypeError(f"grouping should be one such as FixedSize(32), but is {type(grouping).__name__}")
        if ends not in ("trim", "pad", "exact"):
            raise ValueError(f"ends should be 'trim', 'pad' or 'exact', but is {ends!r}")
        if (rank is None) != (world_size is None) or rank is not None:
            rank, world_size = rank_and_world(rank, world_size)
        self.order, self.grouping, self.ends = order, grouping, ends
        self.seed, self.rank, self.world_size = whole_number(seed, "seed", -(2**63)), rank, world_size
        self.epoch = 0
        self._passes = 0
        self._kept: tuple[int, list[IntArray]] | None = None
        self._counted: tuple[list[IntArray], list[IntArray] | None] | None = None
        self._counts: dict[int, int] = {}

    def batches(self, epoch: int) -> list[IntArray]:
        """Return all batches of an epoch, before any rank takes its share; the arrays are read-only."""
        return list(self._all(epoch))

    def _all(self, epoch: int) -> list[IntArray]:
        """Return the list itself, kept until another epoch is asked for."""
        if self._kept is None or self._kept[0] != epoch:
            whole_number(epoch, "epoch", 0)
            made = self.grouping(self.order(self.seed, epoch), self.seed, epoch)
            self._kept = epoch, _sealed(made)
            self._counts[epoch] = len(made)
        return self._kept[1]

    def steps(self, epoch: int) -> int:
        """Return how many batches this rank gets in an epoch."""
        if epoch not in self._counts:
            self._all(epoch)
        return len(share(self._counts[epoch], 0, *self._place(None, None), self.ends))

    def __len__(self) -> int:
        return self.steps(self.epoch)

    def __iter__(self) -> Iterator[list[int]]:
        """Yield this rank's batches of ``self.epoch`` as lists of int; the epoch does not move on by itself."""
        self._notice_repeat()
        for batch in self.deal(self.epoch).batches:
            yield batch.tolist()

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that ``iter`` and ``len`` speak of."""
        self.epoch = whole_number(epoch, "epoch", 0)
        self._passes = 0

    def deal(self, epoch: int, start: int = 0, rank: int | None = None, world_size: int | None = None) -> Dealt:
        """Return a rank's share of an epoch's list from global batch ``start`` on; the rank defaults to the plan's."""
        batches = self._all(epoch)
        if self._counted is None or self._counted[0] is not batches:
            self._counted = batches, occurrences(batches)
        start = whole_number(start, "start", 0)
        return deal_out(
            batches, self._counted[1], share(len(batches), start, *self._place(rank, world_size), self.ends)
        )

    def report(self, epoch: int | None = None) -> PlanReport:
        """Return what an epoch (``self.epoch`` by default) amounts to over all ranks; print it for one line of text."""
        return report_plan(self, self.epoch if epoch is None else whole_number(epoch, "epoch", 0))

    def who(self, rank: int | None = None, world_size: int | None = None) -> str:
        """Say in words which batches of an epoch a rank takes; the rank defaults to the plan's."""
        rank, world = self._place(rank, world_size)
        if world == 1:
            return "rank 0 of 1 takes all batches"
        numbers = f"{rank}, {rank + world}, {rank + 2 * world}, ..."
        return f"rank {rank} of {world} takes batches {numbers} of each epoch, with ends={self.ends!r}"

    def _place(self, rank: int | None, world_size: int | None) -> tuple[int, int]:
        if rank is None and world_size is None:
            rank, world_size = self.rank, self.world_size
        return rank_and_world(rank, world_size)

    def fingerprint(self) -> dict[str, int | str]:
        """Return what makes the batches what they are, as plain values: plans that differ here must not share a state."""
        return {
            "seed": self.seed,
            "indices": len(self.order),
            "order": _text(self.order),
            "grouping": _text(self.grouping),
        }

    def __repr__(self) -> str:
        return f"BatchPlan({_text(self.order)}, {_text(self.grouping)}, seed={self.seed}, ends={self.ends!r})"

    def _notice_repeat(self) -> None:
        """Say once that a training epoch is read a second time: a bare DataLoader never calls ``set_epoch``."""
        self._passes += 1
        still = self.ends == "exact" or (isinstance(self.order, Sequential) and isinstance(self.grouping, FixedSize))
        if self._passes == 2 and not still:
            text = f"bestiary: the plan gives the batches of epoch {self.epoch} a second time; call plan.set_epoch(epoch) before"
            warnings.warn(f"{text} each pass, or let bestiary.loading.Loader count the epochs", stacklevel=3)

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_kept": None, "_counted": None, "_counts": {}, "_passes": 0}


def _sealed(batches: list[IntArray]) -> list[IntArray]:
    """Return batches that nobody can write into; those of a grouping of the caller's own are copied."""
    int64 = np.dtype(np.int64)
    if all(type(batch) is np.ndarray and batch.dtype == int64 and not batch.flags.writeable for batch in batches):
        return batches
    return [frozen(np.array(batch, dtype=np.int64)) for batch in batches]


def _text(part: object) -> str:
    """Return a part's repr, or its type's name where the repr would hold a memory address."""
    kind = type(part)
    return f"{kind.__module__}.{kind.__qualname__}" if kind.__repr__ is object.__repr__ else repr(part)
