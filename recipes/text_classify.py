"""Tell what a text is about, or in which language it is: hashed n-grams of bytes, an embedding, and their mean.

    python recipes/text_classify.py
    python recipes/text_classify.py --data reviews.csv --text review --label stars --out runs/reviews
    torchrun --nproc-per-node 2 recipes/text_classify.py --data texts/

``--data`` is a CSV, TSV or JSON-lines table, or a folder with one folder of .txt files per class, or holds ``train`` and
``val``, each of them such a folder. Writes ``last.pt`` (``--resume`` goes on from it, in the middle of an epoch too),
``classes.json``, ``tokens.npy``, ``metrics.jsonl``, ``result.json`` and ``confusion.png`` to ``--out``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bestiary.files import grouped_split, hash_split, save_classes, stratified_split
from bestiary.keys import rank_and_world
from bestiary.loading import BatchPlan, Collate, LengthBuckets, Loader, Sequential, Shuffled, to_device
from bestiary.text import LabelledText, RaggedTokens, write_tokens

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
    if (path / "train").is_dir() and (path / "val").is_dir():
        train = LabelledText.from_folder(path / "train")
        val = LabelledText.from_folder(path / "val", classes=train)
        return [train, val], (np.arange(len(train)), np.arange(len(train), len(train) + len(val)))
    if path.is_dir():
        texts = LabelledText.from_folder(path)
        split = hash_split(texts.names, val=0.2, labels=texts.labels, seed=args.seed)
    elif args.group:
        texts = LabelledText.from_table(path, text=args.text, label=args.label, name=args.group)
        split = grouped_split(list(texts.names), val=0.2, seed=args.seed)
    else:
        texts = LabelledText.from_table(path, text=args.text, label=args.label)
        split = stratified_split(texts.labels, val=0.2, seed=args.seed)
    return [texts], (split.train, split.val)


def prepare(args: argparse.Namespace) -> Data:
    """Read the texts once, and keep their ids in one file that is mapped from then on."""
    parts, (train, val) = read(args.data, args)
    classes = parts[0].classes
    if len(classes) < 2:
        raise ValueError(f"{args.data} holds the one class {classes[0]!r}; a classifier needs two or more")
    if not len(train) or not len(val):
        raise ValueError(f"{args.data} gives {len(train)} texts to learn from and {len(val)} held out; give more texts")
    args.out.mkdir(parents=True, exist_ok=True)
    encode = HashedNgrams()
    rows = (encode(part[index]["text"]) for part in parts for index in range(len(part)))
    labels = [int(label) for part in parts for label in part.labels]
    path = write_tokens(args.out / "tokens.npy", rows, labels=labels, dtype=np.uint16)
    return Data(RaggedTokens.open(path), train, val, classes)


def build(classes: int) -> MeanNet:
    """Make the model."""
    return MeanNet(HashedNgrams().size, classes)


@torch.no_grad()
def evaluate(model: nn.Module, loader: Loader, classes: int, device: str) -> tuple[float, Tensor]:
    """Return mean loss and confusion (true class, predicted class) over all ranks; every text counts once."""
    model.eval()
    table = torch.zeros(classes, classes, dtype=torch.float64, device=device)
    loss = torch.zeros(1, dtype=torch.float64, device=device)
    for batch in loader:
        batch = to_device(batch, device)
        logits = model(batch["tokens"], batch["tokens_mask"])
        loss += F.cross_entropy(logits, batch["label"], reduction="sum")
        table.view(-1).index_add_(0, batch["label"] * classes + logits.argmax(1), table.new_ones(len(logits)))
    if dist.is_initialized():
        dist.all_reduce(table)
        dist.all_reduce(loss)
    return float(loss / table.sum()), table.cpu()


def plot(table: Tensor, classes: Sequence[str], path: Path) -> None:
    """Draw which class is taken for which; without matplotlib say so and go on."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: pip install matplotlib", file=sys.stderr)
        return
    figure = Figure(figsize=(8, 8), layout="constrained")
    axes = figure.subplots()
    axes.imshow((table / table.sum(1, keepdim=True).clamp(min=1)).numpy(), cmap="Blues")
    axes.set(xlabel="predicted", ylabel="true")
    axes.set_xticks(range(len(classes)), classes, rotation=90)
    axes.set_yticks(range(len(classes)), classes)
    figure.savefig(path)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="table or folder (default: paragraphs in 28 languages)")
    parser.add_argument("--text", default="text", help="a table's column of texts")
    parser.add_argument("--label", default="label", help="a table's column of classes")
    parser.add_argument("--group", help="a table's column; rows that share its value stay on one side of the split")
    parser.add_argument("--out", type=Path, default=Path("runs/text_classify"), help="folder for all that is written")
    parser.add_argument("--resume", action="store_true", help="go on from last.pt in --out")
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--workers", type=int, default=0, help="0 is quickest here: a row is a look into one array")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="besides every epoch and every 30 s")
    args = parser.parse_args(argv)
    if min(args.epochs, args.batch_size) < 1:
        parser.error("--epochs and --batch-size should be 1 or more")
    if args.data is None:
        args.data, args.label, args.group = DATA, "language", "article"
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    args.workers = min(args.workers, cores)
    return args


def save(path: Path, parts: dict[str, Any], run: dict[str, Any], logged: int) -> None:
    """Write a checkpoint; who reads it sees the old one or the new one whole."""
    run["logged"] = logged
    torch.save({"run": run} | {name: part.state_dict() for name, part in parts.items()}, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def finish(args: argparse.Namespace, data: Data, run: dict[str, Any], seconds: float, rank: int) -> float:
    """Write and say what has come out; return the accuracy."""
    accuracy = float(run["table"].diag().sum() / run["table"].sum())
    if rank:
        return accuracy
    save_classes(args.out / "classes.json", data.classes)
    plot(run["table"], data.classes, args.out / "confusion.png")
    result = {"accuracy": accuracy, "texts": int(run["table"].sum()), "train_texts": len(data.train)}
    result |= {"classes": len(data.classes), "val_loss": run["val_loss"], "seconds": round(seconds, 2)}
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"accuracy {accuracy:.3f} on {result['texts']} texts held out, {seconds:.0f} s; results in {args.out}")
    return accuracy


def stop(error: Exception) -> NoReturn:
    """End with one short message and exit code 2: something is wrong with what was given."""
    print(f"text_classify: {error}", file=sys.stderr)
    raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> float:
    """Train, and return the accuracy on the texts held out."""
    args = arguments(argv)
    begin = saved = time.perf_counter()
    try:
        data = prepare(args)
    except (ValueError, OSError, ImportError) as error:
        stop(error)
    rank, world = rank_and_world()
    if world > 1:
        dist.init_process_group("nccl" if args.device.startswith("cuda") else "gloo")
    torch.manual_seed(args.seed)

    # index: which texts, in which groups; texts of like length meet, so that little is padded
    groups = LengthBuckets(data.tokens.lengths, batch_size=args.batch_size)
    plan = BatchPlan(Shuffled(data.train), groups, seed=args.seed)
    held_out = BatchPlan(Sequential(data.val), groups, ends="exact")
    # sample and batch: rows of one flat array, padded, with a mask that comes from their lengths
    train = Loader(data.tokens, plan=plan, collate=Collate(pad={"tokens": 0}), num_workers=args.workers)
    val = Loader(data.tokens, plan=held_out, collate=Collate(pad={"tokens": 0}))

    net = build(len(data.classes)).to(args.device)
    model = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    steps = sum(plan.steps(epoch) for epoch in range(args.epochs))
    optimiser = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1 - step / max(steps, 1)))
    parts: dict[str, Any] = {"model": net, "optimiser": optimiser, "schedule": schedule, "loader": train}
    run: dict[str, Any] = {"step": 0, "total": 0.0, "count": 0, "logged": 0}
    last, metrics = args.out / "last.pt", args.out / "metrics.jsonl"
    if args.resume and last.exists():
        state = torch.load(last, weights_only=True, map_location=args.device)
        run = state.pop("run")
        try:
            for name, part in parts.items():
                part.load_state_dict(state[name])
        except (ValueError, RuntimeError) as error:
            stop(ValueError(f"{last} does not fit these options, so --resume cannot go on from it: {error}"))

    with open(metrics if rank == 0 else os.devnull, "a", encoding="utf-8") as log:
        if rank == 0:
            log.truncate(run["logged"])  # what came after the checkpoint comes again
        while train.epoch < args.epochs:
            epoch = train.epoch
            model.train()
            for batch in train:
                # device: the batch as it is, small and on time
                batch = to_device(batch, args.device)
                loss = F.cross_entropy(model(batch["tokens"], batch["tokens_mask"]), batch["label"])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                schedule.step()
                value, size = float(loss.detach()), len(batch["label"])
                run |= {"step": run["step"] + 1, "count": run["count"] + size, "total": run["total"] + value * size}
                print(json.dumps({"epoch": epoch, "step": run["step"], "loss": value}), file=log, flush=True)
                report = train.report()
                if rank == 0 and report.batches % 10 == 0:
                    text = f"{report.batches}/{len(train)} batches, {report.samples_per_s:.0f} texts/s"
                    print(f"\repoch {epoch + 1}/{args.epochs}: {text}   ", end="", file=sys.stderr, flush=True)
                due = time.perf_counter() - saved > 30 or (args.save_every and run["step"] % args.save_every == 0)
                if rank == 0 and due and train.state_dict()["epoch"] == epoch:  # the last step is saved after measuring
                    save(last, parts, run, log.tell())
                    saved = time.perf_counter()
            run["val_loss"], run["table"] = evaluate(net, val, len(data.classes), args.device)
            row = {"train_loss": run["total"] / max(run["count"], 1), "val_loss": run["val_loss"]}
            row["accuracy"] = float(run["table"].diag().sum() / run["table"].sum())
            run |= {"total": 0.0, "count": 0}
            print(json.dumps({"epoch": epoch, "step": run["step"]} | row), file=log, flush=True)
            if rank == 0:
                text = ", ".join(f"{name} {value:.3f}" for name, value in row.items())
                waited = f"waiting for data {train.report().wait_share:.0%}"
                print(f"\repoch {epoch + 1}/{args.epochs}: {text}, {waited}", file=sys.stderr)
                save(last, parts, run, log.tell())
    if world > 1:
        dist.destroy_process_group()
    return finish(args, data, run, time.perf_counter() - begin, rank)


if __name__ == "__main__":
    main()
