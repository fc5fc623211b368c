"""Batches of like lengths, so that little is padded: a fixed number of items, or as many as a budget holds.

Items are sorted by length and cut into buckets of neighbours; each epoch, every bucket is shuffled and cut into batches,
and the batches come in random order. A bucket holds four batches in small sets, eight in larger ones, and more from a
thousand on: wide enough that the same items seldom meet twice, narrow enough that they are alike.
"""

from __future__ import annotations

import pickle
import warnings
from dataclasses import KW_ONLY, dataclass, field
from numbers import Real
from typing import Literal

import numpy as np
import numpy.typing as npt

from bestiary.loading.arrays import IntArray, Values, digest, frozen, whole_number
from bestiary.loading.chance import chance, mixed, permutation, uniform
from bestiary.loading.cutting import by_count, by_padded, by_total, cost_borders, forward
from bestiary.loading.lengths import Cost, Numbers, checked_costs, checked_lengths
from bestiary.loading.ranking import Ranking, bucket_of, sort_once

BUDGETS = ("batch_size", "max_total", "max_padded")


@dataclass(frozen=True, eq=False, repr=False)
class LengthBuckets:
    """Batches of items of like lengths; exactly one of ``batch_size``, ``max_total`` and ``max_padded`` is given.

    Args:
        lengths: one for each item of the dataset (N,), in any unit: seconds, frames, tokens.
        batch_size: items in a batch. Batches of one bucket come in runs of eight (of four, in small sets), so that ranks
            have like work at the same time.
        max_total: the most that the items' costs may sum to in a batch.
        max_padded: the most that a batch may cost once padded: its items times the cost of the longest.
        cost: what an item of a length costs, as a function on an array, such as ``lambda n: n + n**2 / 500``; None takes
            the length itself. It must not fall as lengths grow.
        drop_last: leave out the one smaller batch that remains with ``batch_size``; under a budget none remains.
        noise: blur lengths by up to this share before sorting, so that more different items meet; 0.1 is a tenth.
        longest_first: begin with the batch of the longest item, so that memory runs out at once or never.
        too_long: what to do with items that alone exceed the budget: "error", "drop" (said once, and counted in
            ``plan.report()``), or "alone", each a batch by itself.

    Raises:
        TypeError, ValueError: not exactly one budget; a length or a cost is negative or not finite; an item exceeds the
            budget. The first such position is named.

    >>> grouping = LengthBuckets([3, 1, 2, 9, 8, 7], max_padded=12)
    >>> all(len(batch) * max(grouping.costs[batch]) <= 12 for batch in grouping(np.arange(6), seed=0, epoch=0))
    True
    """

    lengths: Values
    _: KW_ONLY
    batch_size: int | None = None
    max_total: float | None = None
    max_padded: float | None = None
    cost: Cost | None = None
    drop_last: bool = False
    noise: float = 0.0
    longest_first: bool = False
    too_long: Literal["error", "drop", "alone"] = "error"
    costs: Numbers = field(init=False)
    ranking: Ranking = field(init=False)

    def __post_init__(self) -> None:
        self._check_options()
        lengths = checked_lengths(self.lengths)
        costs = lengths if self.cost is None else checked_costs(self.cost, lengths)
        object.__setattr__(self, "lengths", lengths)
        object.__setattr__(self, "costs", costs)
        object.__setattr__(self, "ranking", sort_once(lengths, costs))
        self._meet_too_long()

    @property
    def cap(self) -> float:
        """Return what a batch may cost; without a budget, anything."""
        caps = [float(cap) for cap in (self.max_total, self.max_padded) if cap is not None]
        return caps[0] if caps else float("inf")

    def __call__(self, indices: IntArray, seed: int, epoch: int) -> list[IntArray]:
        """Cut indices (N,) into batches, composed anew for each (seed, epoch)."""
        self._check_indices(indices)
        bits = chance("buckets", seed, epoch)
        kept, alone = self._part(mixed(bits, indices))
        items, bounds, sequence, run = self._lay_out(kept, bits)
        if len(alone):
            items = np.concatenate([items, alone])
            bounds = np.append(bounds, np.arange(len(kept) + 1, len(items) + 1))
            sequence = permutation(bits, len(bounds) - 1)
        if self.longest_first and len(sequence):
            longest = int(np.searchsorted(bounds, int(np.argmax(self.costs[items])), side="right")) - 1
            sequence = forward(sequence, longest, run)
        frozen(items)
        begins, ends = bounds[sequence].tolist(), bounds[sequence + 1].tolist()
        return [items[begin:end] for begin, end in zip(begins, ends, strict=True)]

    def _lay_out(self, kept: IntArray, bits: np.random.PCG64) -> tuple[IntArray, IntArray, IntArray, int]:
        """Return the items sorted into buckets, the bounds of batches, their order, and how many make a run."""
        if not len(kept):
            return kept, np.zeros(1, dtype=np.int64), kept, 1
        codes = self._codes(kept, bits)
        counts = np.bincount(codes, minlength=len(self.ranking.edges))
        if self.batch_size is not None:
            borders, names, bounds, sequence, run = by_count(len(kept), self.batch_size, self.drop_last, bits)
            parts = names[bucket_of(codes, counts, borders)]
            return kept[np.argsort(parts, kind="stable")], bounds, sequence, run
        borders = cost_borders(counts, self.ranking.tops, self.cap)
        items = kept[np.argsort(bucket_of(codes, counts, borders), kind="stable")]
        if self.max_total is not None:
            bounds = by_total(borders, self.costs[items], self.cap)
        else:
            bounds = by_padded(borders, self._tops(items, counts, borders), self.cap)
        return items, bounds, permutation(bits, len(bounds) - 1), 1

    def _codes(self, kept: IntArray, bits: np.random.PCG64) -> npt.NDArray[np.uint16]:
        if not self.noise:
            return self.ranking.codes[kept]
        blur = 1 + self.noise * (2 * uniform(bits, len(kept)) - 1)
        return self.ranking.coded(np.asarray(self.lengths)[kept] * blur)

    def _tops(self, items: IntArray, counts: IntArray, borders: IntArray) -> Numbers:
        """Return the highest cost in each bucket; noise may have put a long item into any."""
        if self.noise:
            return np.asarray(np.maximum.reduceat(self.costs[items], np.append(0, borders[:-1])))
        return self.ranking.tops[np.searchsorted(np.cumsum(counts), borders - 1, side="right")]

    def _part(self, indices: IntArray) -> tuple[IntArray, IntArray]:
        """Part the items that fit from those that come alone; the ones to drop are in neither."""
        if not len(self.ranking.tops) or self.ranking.tops[-1] <= self.cap:
            return indices, indices[:0]
        long = self.costs[indices] > self.cap
        return indices[~long], indices[long] if self.too_long == "alone" else indices[:0]

    def _check_options(self) -> None:
        given = [name for name in BUDGETS if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(
                f"give one of batch_size, max_total and max_padded, but got {' and '.join(given) or 'none'}"
            )
        if self.batch_size is not None:
            object.__setattr__(self, "batch_size", whole_number(self.batch_size, "batch_size", 1))
            if self.cost is not None:
                raise ValueError(
                    "cost needs a budget, max_total or max_padded; with batch_size it would change nothing"
                )
        for name, value in (("max_total", self.max_total), ("max_padded", self.max_padded)):
            if value is not None and (
                isinstance(value, bool) or not isinstance(value, Real) or not 0 < value < float("inf")
            ):
                raise ValueError(f"{name} should be a positive number, but is {value!r}")
        if not isinstance(self.noise, Real) or not 0 <= self.noise < 1:
            raise ValueError(f"noise should lie in [0, 1), a share of the length, but is {self.noise!r}")
        if self.too_long not in ("error", "drop", "alone"):
            raise ValueError(f"too_long should be 'error', 'drop' or 'alone', but is {self.too_long!r}")

    def _meet_too_long(self) -> None:
        long = np.flatnonzero(self.costs > self.cap)
        if not len(long) or self.too_long == "alone":
            return
        budget = f"max_total={self.max_total}" if self.max_total is not None else f"max_padded={self.max_padded}"
        first = f"the first is item {long[0]} of length {np.asarray(self.lengths)[long[0]]}"
        text = f"{len(long)} of {len(self.costs)} items alone exceed {budget}; {first}"
        if self.too_long == "error":
            raise ValueError(f"{text}; raise the budget, or choose too_long='drop' or 'alone'")
        warnings.warn(f"bestiary: LengthBuckets drops items: {text}", stacklevel=4)

    def _check_indices(self, indices: IntArray) -> None:
        if len(indices) and not 0 <= indices.min() <= indices.max() < len(self.costs):
            span = f"{indices.min()} to {indices.max()}"
            raise ValueError(f"the order gives indices from {span}, but there are lengths for {len(self.costs)} items")

    def __repr__(self) -> str:
        lengths = np.asarray(self.lengths)
        parts = [f"{len(lengths)} lengths", f"digest {digest(lengths)}"]
        parts += [f"{name}={getattr(self, name)}" for name in BUDGETS if getattr(self, name) is not None]
        parts += [f"costs' digest {digest(self.costs)}"] if self.cost is not None else []
        parts += [f"{name}={getattr(self, name)!r}" for name in ("drop_last", "noise", "longest_first", "too_long")]
        return f"LengthBuckets({', '.join(parts)})"

    def __getstate__(self) -> dict[str, object]:
        try:
            pickle.dumps(self.cost)
        except (pickle.PicklingError, AttributeError, TypeError) as error:
            text = f"LengthBuckets(cost={self.cost!r}) cannot be pickled; give cost= a function that a module defines"
            raise TypeError(text) from error
        return self.__dict__
