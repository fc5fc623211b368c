"""Tell what a text is about, or in which language it is: hashed n-grams of bytes, an embedding, and their mean.

    python recipes/text_classify.py
    python recipes/text_classify.py --data reviews.csv --text review --label stars --out runs/reviews
    torchrun --nproc-per-node 2 recipes/text_classify.py --data texts/

``--data`` is a CSV, TSV or JSON-lines table, or a folder with one folder of .txt files per class, or holds ``train`` and
``val``, each of them such a folder. Writes ``checkpoint.pt`` (``--resume`` goes on from it, in the middle of an epoch too),
``classes.json``, ``tokens.npy``, ``metrics.jsonl``, ``result.json`` and ``confusion.png`` to ``--out``.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bestiary.files import grouped_split, hash_split, save_classes, stratified_split
from bestiary.keys import rank_and_world
from bestiary.loading import BatchPlan, Collate, LengthBuckets, Loader, Sequential, Shuffled, to_device
from bestiary.text import LabelledText, RaggedTokens, write_tokens
from bestiary.tools import Checkpoint, class_folders, draw_confusion, ranks, run

NAME = Path(__file__).stem
DATA = Path(__file__).resolve().parent / "data" / "udhr" / "udhr.jsonl"


@dataclass(frozen=True)
class HashedNgrams:
    """Text to ids of its byte n-grams up to a length; two n-grams may share an id, and 0 is left for padding."""

    size: int = 1 << 15
    longest: int = 3

    def __call__(self, text: str) -> np.ndarray[Any, Any]:
        """Return ids (T,); a space on either side marks where the text begins and ends."""
        data = np.frombuffer(f" {text} ".encode("utf-8", "surrogatepass"), np.uint8).astype(np.uint64)
        key, parts = np.zeros(len(data) + 1, np.uint64), []
        for length in range(1, min(self.longest, len(data)) + 1):
            key = key[:-1] * np.uint64(257) + data[length - 1 :] + np.uint64(1)
            mixed = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
            parts.append(mixed % np.uint64(self.size - 1) + np.uint64(1))
        return np.concatenate(parts).astype(np.int64)


class MeanNet(nn.Module):
    """The mean of a text's embedded n-grams, and two layers behind it."""

    def __init__(self, size: int, classes: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(size, width, padding_idx=0)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 128), nn.GELU(), nn.Linear(128, classes))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return logits (B, classes) of tokens (B, T) with mask (B, T), True where real."""
        total = (self.embed(tokens) * mask.unsqueeze(-1)).sum(1)  # (B, T, E) to (B, E)
        logits: Tensor = self.head(total / mask.sum(1, keepdim=True).clamp(min=1))
        return logits


class Data(NamedTuple):
    """Token rows with labels, which of them train, which are held out, and what the labels are called."""

    tokens: RaggedTokens
    train: np.ndarray[Any, Any]
    val: np.ndarray[Any, Any]
    classes: list[str]


def read(path: Path, args: argparse.Namespace) -> tuple[list[LabelledText], Any]:
    """Open the texts, and split them into a part to learn from and a part to measure on."""
    if not path.exists():
        raise ValueError(f"found nothing at {path}; expected a table (.csv, .tsv, .jsonl) or a folder of class folders")
    if path.is_dir():
        root, other = class_folders(path, endings=(".txt",), what="texts")
        texts = LabelledText.from_folder(root)
        if other is not None:
            val = LabelledText.from_folder(other, classes=texts)
            return [texts, val], (np.arange(len(texts)), np.arange(len(texts), len(texts) + len(val)))
        split = hash_split(texts.names, val=0.2, labels=texts.labels, seed=args.seed)
    elif args.group:
        texts = LabelledText.from_table(path, text=args.text, label=args.label, name=args.group)
        split = grouped_split(list(texts.names), val=0.2, seed=args.seed)
    else:
        texts = LabelledText.from_table(path, text=args.text, label=args.label)
        split = stratified_split(texts.labels, val=0.2, seed=args.seed)
    return [texts], (split.train, split.val)


def encode(args: argparse.Namespace) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], list[str]]:
    """Read the texts once, keep their ids in one file, and return the rows of both parts and the classes."""
    parts, (train, val) = read(args.data, args)
    classes = parts[0].classes
    if len(classes) < 2:
        raise ValueError(f"{args.data} holds the one class {classes[0]!r}; a classifier needs two or more")
    if not len(train) or not len(val):
        raise ValueError(f"{args.data} gives {len(train)} texts to learn from and {len(val)} held out; give more texts")
    args.out.mkdir(parents=True, exist_ok=True)
    ngrams = HashedNgrams()
    rows = (ngrams(part[index]["text"]) for part in parts for index in range(len(part)))
    labels = [int(label) for part in parts for label in part.labels]
    write_tokens(args.out / "tokens.npy", rows, labels=labels, dtype=np.uint16)
    save_classes(args.out / "classes.json", classes)
    return train, val, list(classes)


def prepare(args: argparse.Namespace) -> Data:
    """Have rank 0 read and encode the texts; every rank maps the file that it wrote."""
    failed, found = "", None
    if rank_and_world()[0] == 0:
        try:
            found = encode(args)
        except (ValueError, OSError, ImportError) as error:
            failed = str(error)
    failed, found = ranks.gathered((failed, found))[0]
    if found is None:
        raise ValueError(failed)
    return Data(RaggedTokens.open(args.out / "tokens.npy"), *found)


def build(classes: int) -> MeanNet:
    """Make the model."""
    return MeanNet(HashedNgrams().size, classes)


@torch.no_grad()
def evaluate(net: nn.Module, loader: Loader, classes: int, device: torch.device) -> dict[str, Any]:
    """Measure ``val_loss`` and the ``table`` (true class, predicted class) over all ranks; every text counts once."""
    net.eval()
    table = torch.zeros(classes, classes, dtype=torch.int64, device=device)
    loss = torch.zeros((), device=device)
    for batch in loader:
        batch = to_device(batch, device)
        logits = net(batch["tokens"], batch["tokens_mask"])
        loss += F.cross_entropy(logits, batch["label"], reduction="sum")
        ones = torch.ones_like(batch["label"])
        table.view(-1).index_add_(0, batch["label"] * classes + logits.argmax(1), ones)
    table = ranks.summed(table)
    return {"val_loss": float(ranks.summed(loss) / table.sum()), "table": table.cpu()}


def accuracy(at: dict[str, Any]) -> float:
    """Return the share of texts whose class was told rightly."""
    return int(at["table"].diag().sum()) / int(at["table"].sum())


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="table or folder (default: paragraphs in 28 languages)")
    parser.add_argument("--text", default="text", help="a table's column of texts")
    parser.add_argument("--label", default="label", help="a table's column of classes")
    parser.add_argument("--group", help="a table's column; rows that share its value stay on one side of the split")
    parser.add_argument("--out", type=Path, default=Path("runs/text_classify"), help="folder for all that is written")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--workers", type=int, default=0, help="0 is quickest here: a row is a look into one array")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="besides every epoch and every 30 s")
    args = parser.parse_args(argv)
    if min(args.epochs, args.batch_size) < 1 or min(args.workers, args.save_every) < 0:
        parser.error("--epochs and --batch-size should be 1 or more, --workers and --save-every 0 or more")
    try:
        run.check_device(args.device)
    except ValueError as error:
        parser.error(f"--device: {error}")
    if args.data is None:
        args.data, args.label, args.group = DATA, "language", "article"
    args.workers = min(args.workers, run.usable_cores())
    return args


def loaders(args: argparse.Namespace, data: Data) -> tuple[Loader, Loader]:
    """Make the loader to learn from and the one to measure with."""
    # index: which texts, in which groups; texts of like length meet, so that little is padded
    groups = LengthBuckets(data.tokens.lengths, batch_size=args.batch_size)
    plan = BatchPlan(Shuffled(data.train), groups, seed=args.seed)
    held_out = BatchPlan(Sequential(data.val), groups, ends="exact")
    # sample and batch: rows of one flat array, padded, with a mask that comes from their lengths
    pad = Collate(pad={"tokens": 0})
    train = Loader(data.tokens, plan=plan, collate=pad, num_workers=args.workers)
    return train, Loader(data.tokens, plan=held_out, collate=pad)


def tell(at: dict[str, Any], epochs: int, train: Loader, metrics: run.Metrics, quiet: bool) -> None:
    """Add the line of an epoch to the metrics, and say it."""
    row = {"train_loss": at["loss"] / max(1, at["texts"]), "val_loss": at["val_loss"], "accuracy": accuracy(at)}
    metrics.write({"epoch": at["epoch"], "step": at["step"]} | row)
    if not quiet:
        text, report = ", ".join(f"{name} {value:.3f}" for name, value in row.items()), train.report()
        speed = f"{report.samples_per_s:.0f} texts/s, waiting for data {report.wait_share:.0%}"
        print(f"epoch {at['epoch'] + 1}/{epochs}: {text}; {speed}", flush=True)
        if at["epoch"] + 1 == epochs:
            print(
                f"train.report(), epochs counted from 0: {report}"
            )  # was the input the bottleneck, and which part of it


def fit(args: argparse.Namespace, data: Data, net: nn.Module, device: torch.device) -> dict[str, Any]:
    """Go through the epochs that are left; return the last figures, and the seconds that all of them took."""
    (train, val), rank = loaders(args, data), rank_and_world()[0]
    steps = sum(train.plan.steps(epoch) for epoch in range(args.epochs))
    optimiser = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1 - step / max(steps, 1)))
    parts = {"net": net, "optimiser": optimiser, "schedule": schedule, "loader": train}
    checkpoint = Checkpoint(args.out / "checkpoint.pt", parts, {"classes": data.classes}, every_steps=args.save_every)
    at: dict[str, Any] = {"epoch": 0, "step": 0, "loss": 0.0, "texts": 0, "metrics": 0}
    at = checkpoint.begin(args.resume, at)
    metrics = run.Metrics(args.out / "metrics.jsonl" if rank == 0 else None, at["metrics"])
    model = ranks.averaged(net, device)

    while at["epoch"] < args.epochs:
        if train.epoch == at["epoch"]:  # else it was saved between the last step and the measuring
            model.train()
            label, total = f"epoch {at['epoch'] + 1}/{args.epochs}", train.plan.steps(at["epoch"])
            for batch in run.progress(train, label, total, unit="texts", quiet=rank > 0):
                # device: the batch as it is, small and on time
                batch = to_device(batch, device)
                loss = F.cross_entropy(model(batch["tokens"], batch["tokens_mask"]), batch["label"])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
                value, size = float(loss.detach()), len(batch["label"])
                at |= {"step": at["step"] + 1, "loss": at["loss"] + value * size, "texts": at["texts"] + size}
                metrics.write({"epoch": at["epoch"], "step": at["step"], "loss": value})
                if checkpoint.due(at["step"], device):
                    checkpoint.save(at, metrics)
        at |= evaluate(net, val, len(data.classes), device)
        tell(at, args.epochs, train, metrics, quiet=rank > 0)
        at |= {"epoch": at["epoch"] + 1, "loss": 0.0, "texts": 0}
        checkpoint.save(at, metrics)
    metrics.close()
    return at | {"seconds": checkpoint.seconds}


def finish(args: argparse.Namespace, data: Data, at: dict[str, Any]) -> None:
    """Write and say what has come out."""
    result = {"accuracy": accuracy(at), "texts": int(at["table"].sum()), "train_texts": len(data.train)}
    result |= {"classes": len(data.classes), "val_loss": at["val_loss"], "seconds": round(at["seconds"], 2)}
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    try:
        draw_confusion(args.out / "confusion.png", at["table"], data.classes)
    except ImportError as error:
        print(f"no picture: {error}", file=sys.stderr)
    text = f"accuracy {result['accuracy']:.3f} of {result['texts']} texts held out"
    print(f"{text}, {at['seconds']:.0f} s; results in {args.out}")


def main(argv: Sequence[str] | None = None) -> float:
    """Train, and return the accuracy on the texts held out."""
    args = arguments(argv)
    run.calm_threads(args.workers)
    device, (rank, _) = ranks.join_ranks(args.device), rank_and_world()
    try:
        data = prepare(args)
        torch.manual_seed(args.seed)
        at = fit(args, data, build(len(data.classes)).to(device), device)
    except (ValueError, OSError) as error:
        run.stop(NAME, error, quiet=rank > 0)
    finally:
        ranks.leave_ranks()
    if rank == 0:
        finish(args, data, at)
    return accuracy(at)


if __name__ == "__main__":
    run.program(NAME, main)
