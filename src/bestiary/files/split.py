"""Splits into train, val and test, as index arrays: random, stratified, grouped, and by a stable hash of the name.

Chance comes from hashes and a private stream of bits, so a split is a function of its arguments: the same on every rank
and machine, and no generator of the caller's moves. Take a part as ``Shuffled(split.train)``, and give each part a
dataset of its own, so that validation never gets the augmentation of training.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bestiary.keys import mix

_SIDES = np.arange(3, dtype=np.int8)  # train, val, test
_EPSILON = 1e-9  # 0.1 * 30 is 3.0000000000000004, and means 3


class Split(NamedTuple):
    """Indices of the three parts, int64, sorted; each index is in exactly one part."""

    train: npt.NDArray[np.int64]
    val: npt.NDArray[np.int64]
    test: npt.NDArray[np.int64]


def random_split(n: int, *, val: float = 0.2, test: float = 0.0, seed: int = 0) -> Split:
    """Split n items by chance; no part with a share stays empty where n allows it.

    >>> [part.size for part in random_split(20, val=0.2)]
    [16, 4, 0]

    Raises:
        ValueError: n is negative, or the shares are not in [0, 1] or sum to more than 1.
    """
    if n < 0:
        raise ValueError(f"the number of items should not be negative, but is {n}")
    shares = _shares(val, test)
    counts = _apportion(n, shares, np.zeros(3))
    for side in np.flatnonzero((counts == 0) & (shares > 0)):
        if counts.max() > 1:
            counts[counts.argmax()] -= 1
            counts[side] = 1
    sides = np.empty(n, np.int8)
    sides[_shuffled(n, "random split", seed)] = _SIDES.repeat(counts)
    return _parts(sides)


def stratified_split(
    labels: Iterable[Hashable] | npt.NDArray[Any], *, val: float = 0.2, test: float = 0.0, seed: int = 0
) -> Split:
    """Split items by chance so that each class meets the shares to within one item; labels (N,) may be any values.

    Classes too small for a whole item take turns, so that the shares of all items together are met, too.

    >>> split = stratified_split(["cat"] * 10 + ["dog"] * 5)
    >>> split.val.size, int((split.val >= 10).sum())
    (3, 1)

    Raises:
        ValueError: the shares are not in [0, 1] or sum to more than 1.
    """
    shares, codes = _shares(val, test), _codes(labels)
    shuffled = _shuffled(len(codes), "stratified split", seed)
    by_class = shuffled[codes[shuffled].argsort(kind="stable")]
    sides, owed, start = np.empty(len(codes), np.int8), np.zeros(3), 0
    for size in np.bincount(codes).tolist():
        counts = _apportion(size, shares, owed)
        owed += size * shares - counts
        sides[by_class[start : start + size]] = _SIDES.repeat(counts)
        start += size
    return _parts(sides)


def grouped_split(
    groups: Iterable[Hashable] | npt.NDArray[Any], *, val: float = 0.2, test: float = 0.0, seed: int = 0
) -> Split:
    """Split whole groups by chance: the items of one group (N,), a speaker or a patient, stay together.

    Groups come in an order that their names and the seed decide, and each goes where most items are missing. No part with
    a share stays empty where the number of groups allows it.

    >>> split = grouped_split(["ann", "bob", "ann", "bob", "ann", "bob"], val=0.5)
    >>> sorted([split.train.tolist(), split.val.tolist()])
    [[0, 2, 4], [1, 3, 5]]

    Raises:
        ValueError: the shares are not in [0, 1] or sum to more than 1.
    """
    items = _listed(groups)
    shares, codes = _shares(val, test), _codes(items)
    sizes, key = np.bincount(codes), mix("grouped split", seed)
    missing, side_of = len(codes) * shares, np.zeros(len(sizes), np.int8)
    order = np.argsort([_hash(str(group), key) for group in dict.fromkeys(items)], kind="stable")
    for group in order:
        side_of[group] = np.where(shares > 0, missing, -np.inf).argmax()
        missing[side_of[group]] -= sizes[group]
    for side in _SIDES[shares > 0]:
        counts = np.bincount(side_of, minlength=3)
        if not counts[side] and counts.max() > 1:
            donors = order[side_of[order] == counts.argmax()]
            side_of[donors[sizes[donors].argmin()]] = side
    return _parts(side_of[codes])


def hash_split(
    names: Iterable[str],
    *,
    val: float = 0.2,
    test: float = 0.0,
    labels: Iterable[Hashable] | npt.NDArray[Any] | None = None,
    seed: int = 0,
) -> Split:
    """Split by a stable hash of each name (N,): a new file never moves an old one, and the order of the names is no matter.

    The shares are met on average only. With ``labels`` (N,), a class of two or more that would have nothing in val gives
    its lowest hash to val, and one that would have nothing in train its highest to train; in such a class, and only
    there, a new file may take that place and send the old one back.

    >>> few, more = hash_split(["a", "b", "c"]), hash_split(["c", "new", "a", "b"])
    >>> [[0, 1, 2][i] in few.val for i in range(3)] == [[2, 3, 0][i] in more.val for i in range(3)]
    True

    Raises:
        ValueError: the shares are not in [0, 1] or sum to more than 1, or names and labels differ in number.
        TypeError: ``names`` is one string.
    """
    if isinstance(names, (str, bytes)):
        raise TypeError(f"hash_split takes an iterable of names, but got the single name {names!r}")
    shares, key = _shares(val, test), mix("hash split", seed)
    hashes = np.fromiter((_hash(name, key) for name in names), np.uint64)
    place = (hashes >> np.uint64(11)) * 2.0**-53  # in [0, 1)
    sides = np.where(place < val, _SIDES[1], np.where(place < val + test, _SIDES[2], _SIDES[0]))
    if labels is not None:
        codes = _codes(labels)
        if len(codes) != len(hashes):
            raise ValueError(f"there are {len(hashes)} names, but {len(codes)} labels; each name needs one")
        _fill_classes(sides, hashes, codes, shares)
    return _parts(sides)


def _fill_classes(
    sides: npt.NDArray[np.int8], hashes: npt.NDArray[np.uint64], codes: npt.NDArray[np.int64], shares: npt.NDArray[Any]
) -> None:
    """Give val the lowest and train the highest hash of each class that has two or more and none there."""
    order = np.lexsort((hashes, codes))
    sizes = np.bincount(codes)
    last = sizes.cumsum() - 1
    for side, ends in ((1, last - sizes + 1), (0, last)):
        lacks = (np.bincount(codes, sides == side, len(sizes)) == 0) & (sizes > 1)
        if shares[side] > 0:
            sides[order[ends[lacks]]] = side


def _hash(name: str, key: int) -> int:
    """Hash a name to 64 bits; names that are not valid UTF-8 have hashes, too."""
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8, key=key.to_bytes(8, "little"))
    return int.from_bytes(digest.digest(), "little")


def _shares(val: float, test: float) -> npt.NDArray[np.float64]:
    """Check the shares and return those of train, val and test, (3,)."""
    if not (val >= 0 and test >= 0 and val + test <= 1 + _EPSILON):
        raise ValueError(f"val and test are shares in [0, 1] with a sum of at most 1, but val={val} and test={test}")
    train = 1 - val - test
    return np.array([train if train > _EPSILON else 0, val, test], np.float64)


def _apportion(size: int, shares: npt.NDArray[np.float64], owed: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Round the parts (3,) of size items up or down so that they sum to it; who is owed most is rounded up first."""
    exact = size * shares
    counts = np.floor(exact + _EPSILON).astype(np.int64)
    broken = exact - counts > _EPSILON
    first = np.where(broken, owed + exact - counts, -np.inf)
    counts[np.argsort(-first, kind="stable")[: size - counts.sum()]] += 1
    return counts


def _shuffled(n: int, purpose: str, seed: int) -> npt.NDArray[np.int64]:
    """Permute n indices; numpy keeps a bit generator's raw stream for good, unlike what ``permutation`` makes of it."""
    keys = np.asarray(np.random.PCG64(mix(purpose, seed)).random_raw(n), np.uint64)
    return keys.argsort(kind="stable")


def _listed(values: Iterable[Hashable] | npt.NDArray[Any]) -> list[Hashable]:
    """List the values as plain Python ones: elements of a tensor would each be a group of their own."""
    return list(values.tolist() if hasattr(values, "tolist") else values)


def _codes(values: Iterable[Hashable] | npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """Number the distinct values in order of appearance, (N,)."""
    seen: dict[Hashable, int] = {}
    return np.array([seen.setdefault(value, len(seen)) for value in _listed(values)], np.int64)


def _parts(sides: npt.NDArray[np.int8]) -> Split:
    return Split(*(np.flatnonzero(sides == side) for side in range(3)))
