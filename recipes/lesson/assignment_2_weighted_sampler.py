"""Assignment 2: draw the rare class as often as the frequent one, with a WeightedRandomSampler.

    python recipes/lesson/assignment_2_weighted_sampler.py

Weights balance the batches in expectation only: samples are drawn with replacement, so rare ones repeat within an epoch
and some frequent ones do not come at all. The sampler keeps no more than 2**24 weights.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler


def sample_weights(labels: Sequence[int]) -> Tensor:
    """Return a float64 weight for each sample, one over the size of its class: every class weighs 1 in sum.

    Without labels there is nothing to draw from: ValueError.
    """
    if len(labels) == 0:
        raise ValueError("there are no labels, so there is nothing to draw from")
    sizes = Counter(labels)
    return torch.tensor([1.0 / sizes[label] for label in labels], dtype=torch.float64)


def balanced_sampler(labels: Sequence[int], seed: int, num_samples: int | None = None) -> WeightedRandomSampler:
    """Draw ``num_samples`` indices (as many as there are labels by default), with replacement, each class alike.

    The order comes from a generator of the sampler's own with this seed; the global one stays as it was.
    """
    generator = torch.Generator().manual_seed(seed)
    count = len(labels) if num_samples is None else num_samples
    return WeightedRandomSampler(sample_weights(labels).tolist(), count, replacement=True, generator=generator)


def class_shares(labels: Iterable[int]) -> dict[int, float]:
    """Return the share of each class in the labels that came, classes in order; the shares add up to 1."""
    counts = Counter(labels)
    total = sum(counts.values())
    return {label: counts[label] / total for label in sorted(counts)}


def make_loader(dataset: TensorDataset, labels: Sequence[int], seed: int) -> DataLoader[tuple[Tensor, ...]]:
    """Batch 32 samples in the sampler's order. A sampler shuffles already: torch refuses ``shuffle=True`` beside it."""
    return DataLoader(dataset, batch_size=32, sampler=balanced_sampler(labels, seed))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the shares of 1,900 against 100 samples before and after."""
    labels = [0] * 1900 + [1] * 100
    dataset = TensorDataset(torch.arange(len(labels)), torch.tensor(labels))
    drawn = list(make_loader(dataset, labels, seed=0))
    came = [int(label) for _, batch in drawn for label in batch]
    distinct = len({int(index) for batch, _ in drawn for index in batch})
    for name, shares in (("in the data", class_shares(labels)), ("in the batches", class_shares(came))):
        print(f"{name}: " + ", ".join(f"class {label} {share:.1%}" for label, share in shares.items()))
    print(f"{len(came)} drawn, {distinct} different ones of {len(labels)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# The same with bestiary, also over several ranks, with more than 2**24 samples and after a resume:
#
# from bestiary.loading import BatchPlan, ClassBalanced, FixedSize, Loader
# loader = Loader(dataset, plan=BatchPlan(ClassBalanced(labels), FixedSize(32), seed=0))
