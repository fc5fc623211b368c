"""Where buckets end and batches begin: arithmetic on ranks and costs, for a whole epoch at once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from bestiary.loading.arrays import IntArray
from bestiary.loading.chance import permutation
from bestiary.loading.lengths import Numbers

RUN = 8  # batches of one bucket in a row: without, eight ranks were busy half the time
FEWEST = 4  # batches in a bucket, in sets of fewer than 64 batches
MOST_BUCKETS = 250  # a few more parts, and a byte still tells them apart


class Layout(NamedTuple):
    """How N items become batches of one size.

    Attributes:
        borders: the ranks by length at which parts end, the last one N.
        buckets: uint8, the bucket of each part, numbered in the order in which buckets are cut into batches.
        bounds: (batches + 1,), where batches begin and end once the items stand bucket by bucket.
        sequence: the batches in the order in which they come.
        run: so many of these in a row belong to one bucket.
    """

    borders: IntArray
    buckets: npt.NDArray[np.uint8]
    bounds: IntArray
    sequence: IntArray
    run: int


def batches_in_bucket(batches: float) -> int:
    """Return a power of two: about half the root of the number of batches, at least eight, four in small sets.

    >>> batches_in_bucket(3), batches_in_bucket(100), batches_in_bucket(4_000), batches_in_bucket(25_000)
    (4, 8, 16, 128)
    """
    size = RUN if batches >= RUN**2 else FEWEST
    while (4 * size) ** 2 <= batches or size * MOST_BUCKETS < batches:
        size *= 2
    return size


def by_count(items: int, batch_size: int, drop_last: bool, bits: np.random.PCG64) -> Layout:
    """Lay out batches of one size; buckets are whole runs of batches, so that only one batch in all is smaller.

    What does not fill a run is a bucket of its own, taken out of the ranks at a place that changes every epoch. Its batches
    come last, the smaller one at the very end: no length is the one that a drop or a trim always hits.
    """
    width = batches_in_bucket(items / batch_size)
    run = min(RUN, width)
    rest = items % (run * batch_size)
    body = items - rest
    ends = np.minimum(np.arange(1, -(-body // (width * batch_size)) + 1) * width * batch_size, body)
    cut = int(bits.random_raw() % (body + 1))
    borders = np.unique([*(ends + rest * (ends > cut)), cut, cut + rest]).astype(np.int64)
    borders = borders[borders > 0]
    after = borders > cut
    inside = after & (borders <= cut + rest)
    buckets = np.where(inside, len(ends), np.searchsorted(ends, borders - 1 - rest * after, side="right")).astype(
        np.uint8
    )
    bounds = np.append(np.arange(0, items, batch_size), items)
    full = body // batch_size
    runs = np.arange(full).reshape(-1, run)[permutation(bits, full // run)].ravel()
    late = full + permutation(bits, rest // batch_size)
    short = np.arange(len(late) + full, len(bounds) - 1)
    return Layout(borders, buckets, bounds, np.concatenate([runs, late, short[: 0 if drop_last else 1]]), run)


def cost_borders(counts: IntArray, tops: Numbers, cap: float) -> IntArray:
    """Return the ranks at which buckets of equal cost end, for draws that count so many in each bin and cost up to ``tops``."""
    spent = np.cumsum(counts * tops.astype(np.float64))
    items = np.cumsum(counts)
    batches = spent[-1] / cap
    buckets = max(1, min(MOST_BUCKETS, int(batches / batches_in_bucket(batches))))
    targets = spent[-1] * np.arange(1, buckets) / buckets
    inner = np.interp(targets, np.append(0.0, spent), np.append(0, items)).astype(np.int64)
    borders = np.unique(np.append(inner, items[-1]))
    return borders[borders > 0]


def by_padded(borders: IntArray, tops: Numbers, cap: float) -> IntArray:
    """Return the bounds of batches whose items times their bucket's top cost stay within the cap, each bucket cut evenly."""
    sizes = np.diff(borders, prepend=0)
    most = np.maximum(cap / np.maximum(tops, cap / sizes), 1).astype(np.int64)
    most -= (most > 1) & (most * tops > cap)  # the division may have rounded up
    parts = -(-sizes // most)
    bucket = np.repeat(np.arange(len(parts)), parts)
    part = np.arange(len(bucket)) - np.repeat(np.cumsum(parts) - parts, parts)
    return np.append((borders - sizes)[bucket] + sizes[bucket] * part // parts[bucket], borders[-1:])


def by_total(borders: IntArray, costs: Numbers, cap: float) -> IntArray:
    """Return the bounds of batches whose costs (N,) sum to at most the cap, each as full as its bucket's sequence allows.

    Costs become whole numbers, rounded up, since a running sum of floats would let a batch slip over the cap. All buckets
    are walked at once, a batch of each at a time.
    """
    scale = 2.0 ** (61 - np.ceil(np.log2(max(cap, 1e-300))) - len(costs).bit_length())
    if costs.dtype.kind == "i" and scale >= 1:
        scale = 1.0
    units = costs * scale
    np.ceil(units, out=units)
    spent = np.zeros(len(units) + 1, dtype=np.int64)
    spent[1:] = units
    del units  # and with it, at a million items, 8 MB
    np.cumsum(spent, out=spent)
    most = int(np.floor(cap * scale))
    stops = borders
    begins = np.concatenate([[0], borders[:-1]])
    bounds = [begins]
    while len(begins):
        ends = np.searchsorted(spent, spent[begins] + most, side="right") - 1
        ends = np.minimum(np.maximum(ends, begins + 1), stops)
        begins, stops = ends[ends < stops], stops[ends < stops]
        bounds.append(begins)
    return np.sort(np.concatenate([*bounds, borders[-1:]]))


def forward(sequence: IntArray, first: int, run: int) -> IntArray:
    """Return a sequence of batches in which number ``first`` comes first, and its run with it where that is a whole one.

    >>> forward(np.array([3, 2, 0, 1, 4]), 1, run=2).tolist(), forward(np.array([3, 2, 0, 1, 4]), 4, run=2).tolist()
    ([1, 0, 3, 2, 4], [4, 2, 0, 1, 3])
    """
    moved = sequence.copy()
    place = int(np.argmax(moved == first))
    block = place // run * run
    if block + run <= len(moved):
        moved[:run], moved[block : block + run] = sequence[block : block + run], sequence[:run]
        place -= block
    moved[[0, place]] = moved[[place, 0]]
    return moved
