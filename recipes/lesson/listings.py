"""The lesson's three listings, written anew: its names and its results, without its faults.

    python recipes/lesson/listings.py

Ids are int64, so that an embedding takes them; masks are boolean, True where a token is real; lengths that differ are a
ValueError, which ``python -O`` does not remove; the global generator is left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

Pair = tuple[Tensor, int]


class TabularDataset(Dataset[tuple[Tensor, Tensor]]):
    """Serve row i of the features with target i."""

    def __init__(self, features: Tensor, targets: Tensor, dtype: torch.dtype = torch.float32) -> None:
        if len(features) != len(targets):
            raise ValueError(
                f"there are {len(features)} features and {len(targets)} targets; each row needs one of both"
            )
        self.features = features.to(dtype)
        self.targets = targets if targets.is_floating_point() else targets.to(torch.int64)

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.features[index], self.targets[index]


def pad_collate_fn(batch: Sequence[Pair]) -> dict[str, Tensor]:
    """Join (tokens, label) pairs: ``input_ids`` int64 (B, T), ``attention_mask`` bool (B, T), ``labels`` int64 (B,)."""
    rows = [tokens for tokens, _ in batch]
    lengths = torch.tensor([len(row) for row in rows])
    ids = pad_sequence(rows, batch_first=True, padding_value=0)  # 0 is kept for padding
    return {
        "input_ids": ids,
        "attention_mask": torch.arange(ids.shape[1])[None, :] < lengths[:, None],
        "labels": torch.tensor([label for _, label in batch]),
    }


class SyntheticTextDataset(Dataset[Pair]):
    """Give (tokens, label) pairs of 5 to 24 ids in [1, 100), drawn from a generator of its own, sample by sample."""

    def __init__(self, num_samples: int = 1000, seed: int = 42) -> None:
        generator = torch.Generator().manual_seed(seed)

        def draw(low: int, high: int, size: int = 1) -> Tensor:
            return torch.randint(low, high, (size,), generator=generator)

        self.data: list[Pair] = [(draw(1, 100, int(draw(5, 25))), int(draw(0, 2))) for _ in range(num_samples)]

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> Pair:
        return self.data[index]


def custom_batch_collator(batch: Sequence[Pair]) -> dict[str, Tensor]:
    """Join (tokens, label) pairs: ``inputs`` (B, T), ``mask`` bool (B, T), ``lengths`` (B,), ``labels`` (B,)."""
    joined = pad_collate_fn(batch)
    mask = joined["attention_mask"]
    return {"inputs": joined["input_ids"], "mask": mask, "lengths": mask.sum(1), "labels": joined["labels"]}


def main() -> None:
    """Print the shapes of the first batch of 500 samples."""
    loader: DataLoader[Any] = DataLoader(
        SyntheticTextDataset(500), batch_size=32, shuffle=True, collate_fn=custom_batch_collator, drop_last=True
    )
    batch = next(iter(loader))
    shapes = (f"{name.title()} Shape: {batch[name].shape}" for name in ("inputs", "mask", "labels"))
    print("Batch 0 " + ", ".join(shapes))


if __name__ == "__main__":
    main()
