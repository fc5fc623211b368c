"""An order for files on disk: neighbours are read together, and are still well mixed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bestiary.loading.arrays import IntArray, frozen, whole_number
from bestiary.loading.chance import chance, permutation


@dataclass(frozen=True)
class Blocks:
    """Every item once: blocks of neighbours in another order each epoch, and shuffled inside a window of blocks.

    A window reads ``window`` places of a file one after the other, where ``Shuffled`` would read as many as it has items.

    Args:
        size: number of items.
        block: neighbouring items in a block.
        window: blocks that are mixed with each other.

    Raises:
        TypeError, ValueError: a number is no integer, or too small.

    >>> order = Blocks(10, block=2, window=2)
    >>> sorted(order(0, 1).tolist()) == list(range(10)), len(order)
    (True, 10)
    """

    size: int
    block: int = 256
    window: int = 16

    def __post_init__(self) -> None:
        whole_number(self.size, "Blocks' number of items", 0)
        whole_number(self.block, "block", 1)
        whole_number(self.window, "window", 1)

    def __len__(self) -> int:
        return self.size

    def __call__(self, seed: int, epoch: int) -> IntArray:
        """Return the order of an epoch, int64 (size,)."""
        if not self.size:
            return frozen(np.empty(0, np.int64))
        blocks = permutation(chance("blocks", seed, epoch), -(-self.size // self.block))
        places = (blocks[:, None] * self.block + np.arange(self.block)).ravel()
        places = places[places < self.size]  # the last block may be shorter
        bits = np.asarray(chance("in blocks", seed, epoch).random_raw(self.size), dtype=np.uint64)
        inside = self.block * self.window
        for start in range(0, self.size, inside):
            part = slice(start, start + inside)
            places[part] = places[part][np.argsort(bits[part], kind="stable")]
        return frozen(places)
