"""What a plan amounts to: batches, items, what is left out or repeated, padding, shares of classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from bestiary.keys import rank_and_world
from bestiary.loading.arrays import IntArray, Values, plain_array
from bestiary.loading.waste import padding_waste

if TYPE_CHECKING:
    from bestiary.loading.batching import BatchPlan

MOST_CLASSES = 12  # shown in one line


@dataclass(frozen=True)
class PlanReport:
    """One epoch of a plan, over all ranks.

    Attributes:
        epoch: which one.
        ranks: how many share it.
        batches: batches of the global list.
        items: items in these, repeated draws counted each time.
        dropped: draws that come on no rank: smaller last batches, items too long, batches trimmed at the end.
        padded: items that come once more on some rank, in batches repeated for equal steps.
        waste: share of padding in all padded batches, 0 to 1; None where the grouping knows no lengths.
        shares: share of each class among the items, 0 to 1; None where the order knows no labels.
    """

    epoch: int
    ranks: int
    batches: int
    items: int
    dropped: int
    padded: int
    waste: float | None = None
    shares: dict[int | str, float] | None = None

    def __str__(self) -> str:
        ranks = f" on {self.ranks} ranks" if self.ranks > 1 else ""
        text = f"epoch {self.epoch}: {self.batches:,} batches{ranks}, {self.items:,} items"
        text += f" ({self.dropped:,} dropped, {self.padded:,} repeated)"
        text += f"; padding waste {self.waste:.1%}" if self.waste is not None else ""
        return text + (f"; classes {_listed(self.shares)}" if self.shares is not None else "")


def report_plan(plan: BatchPlan, epoch: int) -> PlanReport:
    """Report one epoch of a plan."""
    _, ranks = rank_and_world(plan.rank, plan.world_size)
    batches = plan.batches(epoch)
    sizes = [len(batch) for batch in batches]
    trimmed = sum(sizes[len(sizes) - len(sizes) % ranks :]) if plan.ends == "trim" else 0
    missing = -len(sizes) % ranks if plan.ends == "pad" and sizes else 0
    lengths, labels = getattr(plan.grouping, "lengths", None), getattr(plan.order, "labels", None)
    return PlanReport(
        epoch=epoch,
        ranks=ranks,
        batches=len(batches),
        items=sum(sizes),
        dropped=len(plan.order) - sum(sizes) + trimmed,
        padded=sum(sizes[place % len(sizes)] for place in range(missing)),
        waste=None if lengths is None else padding_waste(lengths, batches),
        shares=None if labels is None else _shares(labels, batches),
    )


def _shares(labels: Values, batches: list[IntArray]) -> dict[int | str, float]:
    """Return each class's share of the items, classes that never come included."""
    classes, codes = np.unique(plain_array(labels, "labels"), return_inverse=True)
    drawn = np.concatenate([np.empty(0, dtype=np.int64), *batches])
    counts = np.bincount(codes.reshape(-1)[drawn], minlength=len(classes))
    return dict(zip(classes.tolist(), (counts / max(1, len(drawn))).tolist(), strict=True))


def _listed(shares: dict[Any, float]) -> str:
    shown = [f"{name}: {share:.1%}" for name, share in list(shares.items())[:MOST_CLASSES]]
    return ", ".join(shown) + (f" and {len(shares) - MOST_CLASSES} more" if len(shares) > MOST_CLASSES else "")
