"""Where a worker lays its batches: in the slot that it was lent, one behind the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from bestiary.loading.rooms import ALIGNMENT
from bestiary.loading.slots import Slot, Slots

INLINE = 1 << 16  # bytes; up to here a batch rides in its message
LET = 1 << 14  # bytes; tensors from here on are collated into the slot, where there is one


class Desk:
    """Lets a slot's memory to the tensors of batches, one behind the other."""

    least = LET

    def __init__(self, slots: Slots | None, slot: Slot | None, shared: bool = False) -> None:
        self.slots, self.slot = slots, slot
        self.inline = 0 if shared else INLINE  # bytes; up to here a batch had better ride in the message
        self.start = self.used = 0  # where the batch at hand begins in the slot, and what it uses already ends
        self.places: dict[int, int] = {}  # address -> offset of what lies here already

    def let(self, size: int) -> np.ndarray[Any, Any] | None:
        """Return ``size`` bytes of the slot."""
        start = aligned(self.used)
        memory = self.room(start + size)
        if memory is None:
            return None
        self.used = start + size
        lease = memory[start : start + size]
        self.places[lease.__array_interface__["data"][0]] = start
        return lease

    def room(self, end: int) -> np.ndarray[Any, Any] | None:
        """Return the slot's first bytes up to ``end``."""
        return None if self.slots is None or self.slot is None else self.slots.room(self.slot, end)

    def close(self, end: int) -> None:
        """Begin another batch behind what ends here."""
        self.start, self.used = aligned(end), aligned(end)
        self.places.clear()


def aligned(offset: int) -> int:
    """Return the next offset where a tensor may begin."""
    return -(-offset // ALIGNMENT) * ALIGNMENT
