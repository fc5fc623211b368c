"""Lab: rows of different lengths, padded to the longest of their own batch, with a mask that says what is real.

    python recipes/lesson/ragged_lab.py
    python recipes/lesson/ragged_lab.py --verbose --no-tests

Every number printed is computed. The two seeds were searched for, so that the lengths of the first rows and the widths
of the first batches are those of the exercise; a batch is exactly as wide as asked about once in 210 shuffles.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

LENGTH_SEED = 25310  # gives lengths 14, 8, 22, ...
ORDER_SEED = 33  # gives batches 24, 21, ... wide
EPOCHS = 3
MOST_WAITING = 0.5  # a loop that waits for data longer than it computes is starved
MOST_GROWTH_MIB = 16.0  # allocators move by a few MiB; a leak of this data set's batches would show as more each epoch


class RaggedSequenceDataset(Dataset[dict[str, Any]]):
    """Make ``size`` samples: ``tokens``, int64 of 5 to 24 ids in [1, 100), and ``label``, 0 or 1.

    All is drawn from one generator of this object's own, seeded with ``seed``: first the lengths of all samples in one
    call of ``torch.randint``, then tokens and label sample by sample. The global generator stays as it was. Id 0 is never
    drawn, it is kept for padding.
    """

    def __init__(self, size: int = 500, seed: int = LENGTH_SEED) -> None:
        """Draw ``lengths`` (size,), and a list of the samples."""
        generator = torch.Generator().manual_seed(seed)
        self.lengths = torch.randint(5, 25, (size,), generator=generator)
        self.samples: list[dict[str, Any]] = [
            {
                "tokens": torch.randint(1, 100, (length,), generator=generator),
                "label": int(torch.randint(0, 2, (1,), generator=generator)),
            }
            for length in self.lengths.tolist()
        ]

    def __len__(self) -> int:
        """Return the number of samples, an int."""
        return len(self.samples)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return sample ``index`` as a dict that the caller may change; its tensor is a copy."""
        sample = self.samples[index]
        return sample | {"tokens": sample["tokens"].clone()}


def dynamic_padding_collate(batch: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
    """Join B samples: ``tokens`` int64 (B, T) with zeros at the end, T the longest of this batch; ``mask`` bool (B, T).

    The mask is True where a token is real and comes from the lengths, never from the values. Also ``lengths`` int64 (B,)
    and ``labels`` int64 (B,). The samples stay as they were.
    """
    lengths = torch.tensor([len(sample["tokens"]) for sample in batch])
    tokens = nn.utils.rnn.pad_sequence([sample["tokens"] for sample in batch], batch_first=True, padding_value=0)
    mask = torch.arange(tokens.shape[1])[None, :] < lengths[:, None]  # (1, T) < (B, 1)
    labels = torch.tensor([sample["label"] for sample in batch])
    return {"tokens": tokens, "mask": mask, "lengths": lengths, "labels": labels}


def make_loader(dataset: RaggedSequenceDataset, seed: int = ORDER_SEED) -> DataLoader[dict[str, Any]]:
    """Batch 32 shuffled samples with the collate above; drop the last short batch; shuffle by a generator of ``seed``."""
    generator = torch.Generator().manual_seed(seed)
    return DataLoader(
        dataset, batch_size=32, shuffle=True, drop_last=True, collate_fn=dynamic_padding_collate, generator=generator
    )


class MeanClassifier(nn.Module):  # given
    """Embed the tokens, take two layers over each and the mean over the real ones: enough of a model to wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(100, 256, padding_idx=0)
        self.body = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 2))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        hidden = self.body(self.embed(tokens))  # (B, T, 2)
        real = mask[:, :, None]
        mean: Tensor = (hidden * real).sum(1) / real.sum(1)
        return mean


def peak_memory_mib() -> float | None:  # given
    """Return the most memory that this process has held, or None where the system does not tell."""
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def run_epochs(loader: Iterable[dict[str, Tensor]], epochs: int = EPOCHS) -> tuple[int, float, float | None]:
    """Train for some epochs; return the samples seen, the share of time spent waiting for batches, and memory growth.

    Growth is the peak memory after the last epoch less that after the first, in MiB; None where it cannot be measured.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = MeanClassifier().to(device)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    samples, waited, peaks, start = 0, 0.0, [], time.perf_counter()
    for _ in range(epochs):
        asked = time.perf_counter()
        for batch in loader:
            waited += time.perf_counter() - asked
            tokens, mask, labels = (batch[name].to(device) for name in ("tokens", "mask", "labels"))
            loss = nn.functional.cross_entropy(model(tokens, mask), labels)
            optimiser.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            samples += len(labels)
            asked = time.perf_counter()
        peaks.append(peak_memory_mib())
    growth = None if peaks[0] is None or peaks[-1] is None else peaks[-1] - peaks[0]
    return samples, waited / (time.perf_counter() - start), growth


def verdict(samples: int, waiting: float, growth: float | None) -> str:
    """Say how many samples came; claim that nothing starved or leaked only where both measurements allow it."""
    said = f"Processed {samples:,} samples"
    if growth is None or waiting > MOST_WAITING or growth > MOST_GROWTH_MIB:
        grown = "memory was not measured" if growth is None else f"memory grew by {growth:.1f} MiB"
        return f"{said}; the loop waited {waiting:.0%} of its time for data and {grown}."
    return f"{said} without GPU starvation or memory leakage."


def report(verbose: bool = False) -> Iterable[str]:  # given
    """Run the lab and give its lines."""
    yield "[PyTorch Datasets & DataLoaders Pipeline Suite]"
    dataset = RaggedSequenceDataset()
    yield f"Constructing Custom RaggedSequenceDataset ({len(dataset)} samples):"
    yield "  " + ", ".join(f"Sample {i} Length: {len(dataset[i]['tokens'])}" for i in range(3))
    yield "Executing DataLoader with Custom Dynamic Padding collate_fn:"
    loader = make_loader(dataset)
    yield f"  Batch Size: {loader.batch_size}, Total Batches: {len(loader)}"
    for number, batch in zip(range(2), loader):  # the range comes first: it stops there
        tokens, mask = tuple(batch["tokens"].shape), tuple(batch["mask"].shape)
        yield f"  Batch {number}: Tensor Shape = {tokens}, Mask Shape = {mask} [DYNAMICALLY PADDED]"
    yield f"Verifying Pipeline Integrity across {EPOCHS} Epochs:"
    samples, waiting, growth = run_epochs(make_loader(dataset))
    yield "  " + verdict(samples, waiting, growth)
    if verbose:
        device = "accelerator" if torch.cuda.is_available() else "no accelerator"
        yield f"  ({device}, wait share {waiting:.1%}, memory growth {growth} MiB)"


def suite_line() -> str | None:  # given
    """Run the lab's tests, which lie beside this file or in the project; return their count and time, None if absent."""
    here = Path(__file__).resolve()
    found = [p for p in (here.parent, here.parents[2] / "tests" / "lesson") if (p / "test_ragged_lab.py").exists()]
    if not found:
        return None
    command = [sys.executable, "-m", "pytest", "-q", "--import-mode=importlib", str(found[0] / "test_ragged_lab.py")]
    lines = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().splitlines() or [""]
    return f"Test Suite: {lines[-1].strip('= ').partition(' (')[0]}"  # past a minute pytest adds (0:01:08)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the lab's lines and the outcome of its tests."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--verbose", action="store_true", help="also print what was measured")
    parser.add_argument("--no-tests", action="store_true", help="leave the test suite out")
    args = parser.parse_args(argv)
    for line in report(args.verbose):
        print(line)
    last = None if args.no_tests else suite_line()
    if last:
        print(last)
    return 0


if __name__ == "__main__":
    sys.exit(main())

# The same with bestiary:
#
# from bestiary.loading import Collate, Loader
# loader = Loader(RaggedSequenceDataset(), batch_size=32, shuffle=True, drop_last=True, collate=Collate(pad={"tokens": 0}))
