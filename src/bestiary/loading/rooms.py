"""Where the memory of a large batch comes from: touching fresh pages costs more than filling old ones.

A fresh batch of 38 MB takes four times as long to touch as to fill. Whoever makes a large tensor of a batch asks
``room`` for it; while a landlord is set, the tensor lies in memory that was used before. Memory is let anew only when
the last tensor in it is gone, so a batch that is kept stays as it is for ever.
"""

from __future__ import annotations

import mmap
import os
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

LARGE = 1 << 18  # bytes; below, the allocator keeps pages by itself
ALIGNMENT = 64  # bytes; a cache line, and what the widest vector instructions like


class Landlord(Protocol):
    """Something that lets memory.

    Attributes:
        least: bytes; what is smaller it does not let.
    """

    least: int

    def let(self, size: int) -> np.ndarray[Any, Any] | None:
        """Return ``size`` bytes, uint8 and aligned, or None where there is no room."""


class _Current(threading.local):
    landlord: Landlord | None = None


_current = _Current()


@contextmanager
def rented_from(landlord: Landlord) -> Iterator[None]:
    """Let large tensors made by ``room`` in this block lie in the landlord's memory."""
    before, _current.landlord = _current.landlord, landlord
    try:
        yield
    finally:
        _current.landlord = before


def room(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor | None:
    """Return an uninitialised CPU tensor in used memory, or None where it is small or nobody lets any."""
    landlord = _current.landlord
    if landlord is None:
        return None
    size = dtype.itemsize
    for length in shape:
        size *= length
    memory = landlord.let(size) if size >= landlord.least else None
    return None if memory is None else torch.from_numpy(memory).view(dtype).view(shape)


class Pool:
    """Memory of this process that is let again as soon as the last tensor in it is gone.

    The memory is private: a forked process that still holds a batch sees it unchanged, whatever comes into it here.

    Args:
        most: bytes that it keeps; what does not fit is not its matter.
    """

    least = LARGE

    def __init__(self, most: int) -> None:
        self.most, self.size = most, 0
        self._free: dict[int, np.ndarray[Any, Any]] = {}  # by id: taking one out is a single step, for threads

    def let(self, size: int) -> np.ndarray[Any, Any] | None:
        """Return ``size`` bytes, the smallest free block that is not more than twice as large."""
        block = None
        while block is None:
            fits = [free for free in list(self._free.values()) if size <= free.size <= 2 * size]
            if not fits:
                block = self._fresh(size)
                break
            block = self._free.pop(id(min(fits, key=lambda fit: fit.size)), None)  # None: another thread was quicker
        if block is None:
            return None
        lease = block[:size]
        weakref.finalize(lease, self._free.__setitem__, id(block), block)
        return lease

    def _fresh(self, size: int) -> np.ndarray[Any, Any] | None:
        """Return another block, None where it would be too much; free ones are given up for it."""
        while self._free and self.size + size > self.most:
            self.size -= self._free.popitem()[1].size
        if self.size + size > self.most:
            return None
        room = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        block = np.frombuffer(mmap.mmap(-1, room, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), dtype=np.uint8)
        self.size += block.size
        return block


def memory_share() -> int:
    """Return a quarter of the memory that this process may use, in bytes: what batches are kept in at most."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    return (total if limit == "max" else min(total, int(limit))) // 4
