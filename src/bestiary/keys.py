"""Keys for chance, and who this process is among its ranks: the two facts that every room may need.

Chance here is a function of integers. ``mix`` hashes a seed with what it is for, so that (seed 0, epoch 1) has
nothing in common with (seed 1, epoch 0), and a key can be computed anywhere without a state that has to be kept.
"""

from __future__ import annotations

import os
import sys
from hashlib import blake2b


def mix(*parts: int | str) -> int:
    """Hash integers and words to a key of 64 bits, the same on every machine and in every process.

    >>> mix(0, 1) == mix(0, 1), mix(0, 1) == mix(1, 0), 0 <= mix("order", 7) < 2**64
    (True, False, True)
    """
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little")


def rank_and_world(rank: int | None = None, world_size: int | None = None) -> tuple[int, int]:
    """Return this process's rank and the number of ranks.

    What is given wins; else torch.distributed's where a process group is up; else ``RANK`` and ``WORLD_SIZE`` of the
    environment; else 0 of 1. Call it when a pass begins and in the main process: workers started by spawn have no
    process group.

    Raises:
        ValueError: only one of the two is known, or rank is not in [0, world_size).

    >>> rank_and_world(1, 4)
    (1, 4)
    """
    if rank is None and world_size is None:
        rank, world_size = _surroundings()
    if rank is None or world_size is None:
        raise ValueError(
            f"rank and world_size go together, but rank={rank} and world_size={world_size}; give both or none"
        )
    if world_size < 1 or not 0 <= rank < world_size:
        raise ValueError(f"rank must lie in [0, world_size), but rank={rank} and world_size={world_size}")
    return int(rank), int(world_size)


def _surroundings() -> tuple[int | None, int | None]:
    """Ask torch.distributed (only where somebody has imported it), then the environment."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    names = ("RANK", "WORLD_SIZE")
    texts = [os.environ.get(name) for name in names]
    if texts == [None, None]:
        return 0, 1
    values: list[int | None] = []
    for name, text in zip(names, texts, strict=True):
        try:
            values.append(None if text is None else int(text))
        except ValueError:
            raise ValueError(f"environment variable {name} should be an integer, but is {text!r}") from None
    return values[0], values[1]
