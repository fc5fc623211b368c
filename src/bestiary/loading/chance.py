"""Chance for orders and batches: permutations and uniform numbers that are functions of a key.

Made from the raw stream of a bit generator, which numpy promises to keep for good; it does not promise that for
``Generator.permutation`` and its like, and a resume may happen under another numpy.
"""

from __future__ import annotations

import numpy as np

from bestiary.keys import mix
from bestiary.loading.arrays import FloatArray, IntArray


def chance(purpose: str, seed: int, epoch: int) -> np.random.PCG64:
    """Return the bits for one purpose in one epoch: whoever asks again draws the same, and purposes share nothing."""
    return np.random.PCG64(mix(purpose, seed, epoch))


def permutation(bits: np.random.PCG64, count: int) -> IntArray:
    """Return the numbers below ``count`` in random order, by sorting random keys that carry the numbers in their low bits.

    >>> sorted(permutation(chance("doctest", 0, 0), 5).tolist())
    [0, 1, 2, 3, 4]
    """
    width = max(1, count - 1).bit_length()
    keys = np.asarray(bits.random_raw(count), dtype=np.uint64)
    keys &= np.uint64(
        2**64 - 2**width
    )  # in place throughout: fresh memory for millions costs as much as the arithmetic
    keys |= np.arange(count, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64(2**width - 1)
    return keys.view(np.int64)


def mixed(bits: np.random.PCG64, items: IntArray) -> IntArray:
    """Return items (N,) in another order: single ones up to 32,768 of them, short blocks beyond.

    For what is sorted into many buckets afterwards: in each, hardly two items of a block remain. Ten times faster.
    """
    block = 1 + (len(items) >> 15)
    whole = len(items) // block * block
    made = np.empty_like(items)
    rows = permutation(bits, whole // block)
    np.take(items[:whole].reshape(-1, block), rows, axis=0, out=made[:whole].reshape(-1, block), mode="clip")
    made[whole:] = items[whole:]
    return made


def uniform(bits: np.random.PCG64, count: int) -> FloatArray:
    """Return numbers between 0 and 1, neither of them included, float64 with 52 random bits each."""
    return np.asarray(((bits.random_raw(count) >> np.uint64(12)) + 0.5) * 2.0**-52, dtype=np.float64)
