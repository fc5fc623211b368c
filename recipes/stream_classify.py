"""Tell the language of a paragraph from a stream of records: nothing is listed, and no index is needed to begin.

    python recipes/stream_classify.py
    python recipes/stream_classify.py --data "shards/*.csv.gz" --text review --label stars --out runs/reviews
    torchrun --nproc-per-node 3 recipes/stream_classify.py

``--data`` is a file, a pattern or a URL of JSON lines or CSV, also packed ones. One pass over it finds the classes and parts
it in two files in ``--out``, ``train.jsonl`` and ``val.jsonl``: records that share the value of ``--group`` stay on one side.
``--out`` also gets ``checkpoint.pt`` (``--resume`` goes on from it, in the middle of an epoch too, with any number of
ranks), ``classes.json``, ``metrics.jsonl``, ``result.json`` and ``confusion.png``.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bestiary.files import load_classes, save_classes
from bestiary.keys import mix, rank_and_world
from bestiary.loading import Collate, Loader, SampleError, to_device
from bestiary.records import RecordStream
from bestiary.tools import Checkpoint, draw_confusion, ranks, run

NAME = Path(__file__).stem
DATA = Path(__file__).resolve().parent / "data" / "udhr" / "udhr.jsonl"


@dataclass(frozen=True)
class Encode:
    """Record to sample: hashed n-grams of the text's bytes, the class, and a sum by which to know the record again."""

    classes: tuple[str, ...]
    size: int = 1 << 14
    longest: int = 3

    def __call__(self, record: dict[str, Any]) -> dict[str, Any]:
        """Return ``tokens`` int64 (T,), ``label`` and ``crc``; id 0 is left for padding."""
        raw = f" {record['text']} ".encode("utf-8", "surrogatepass")
        data = np.frombuffer(raw, np.uint8).astype(np.uint64)
        key, parts = np.zeros(len(data) + 1, np.uint64), []
        for length in range(1, min(self.longest, len(data)) + 1):
            key = key[:-1] * np.uint64(257) + data[length - 1 :] + np.uint64(1)
            mixed = (key * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(32)
            parts.append(mixed % np.uint64(self.size - 1) + np.uint64(1))
        tokens = torch.from_numpy(np.concatenate(parts).astype(np.int64))
        return {"tokens": tokens, "label": self.classes.index(record["label"]), "crc": zlib.crc32(raw)}


class MeanNet(nn.Module):
    """The mean of a text's embedded n-grams, and two layers behind it."""

    def __init__(self, size: int, classes: int, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(size, width, padding_idx=0)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 96), nn.GELU(), nn.Linear(96, classes))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return logits (B, classes) of tokens (B, T) with mask (B, T), True where real."""
        total = (self.embed(tokens) * mask.unsqueeze(-1)).sum(1)  # (B, T, E) to (B, E)
        logits: Tensor = self.head(total / mask.sum(1, keepdim=True).clamp(min=1))
        return logits


class Data(NamedTuple):
    """Streams to learn from and to measure on, and the names of the classes."""

    train: RecordStream
    val: RecordStream
    classes: list[str]


def records(args: argparse.Namespace) -> Iterator[tuple[bool, dict[str, Any]]]:
    """Yield every record once, with the side that it is on."""
    for record in RecordStream(args.data, format=args.format).open(0, 1, 0, 0):
        missing = [name for name in (args.text, args.label) if name not in record]
        if missing:
            raise ValueError(
                f"a record of {args.data} has no {missing[0]!r} but {list(record)}; give --text and --label"
            )
        text, label = str(record[args.text]), str(record[args.label])
        group = str(record.get(args.group, text)) if args.group else text
        yield mix("side", args.seed, group) % 5 == 0, {"text": text, "label": label}


def part(args: argparse.Namespace) -> None:
    """Part the records in two files, which are whole or not there."""
    args.out.mkdir(parents=True, exist_ok=True)
    paths = [args.out / "train.jsonl", args.out / "val.jsonl"]
    classes: set[str] = set()
    drafts = [path.with_suffix(".part") for path in paths]
    with drafts[0].open("w", encoding="utf-8") as train, drafts[1].open("w", encoding="utf-8") as val:
        for held_out, record in records(args):
            classes.add(record["label"])
            (val if held_out else train).write(json.dumps(record, ensure_ascii=False) + "\n")
    empty = [path.name for path, draft in zip(paths, drafts, strict=True) if not draft.stat().st_size]
    if len(classes) < 2 or empty:
        raise ValueError(
            f"{args.data} gives {len(classes)} classes and nothing for {empty or 'none'}; give more records"
        )
    for draft, path in zip(drafts, paths, strict=True):
        os.replace(draft, path)
    save_classes(args.out / "classes.json", sorted(classes))


def prepare(args: argparse.Namespace) -> Data:
    """Part the records, on one rank, and open both parts as streams."""
    failed = ""
    if rank_and_world()[0] == 0:
        try:
            part(args)
        except (ValueError, OSError, ImportError) as error:
            failed = str(error)
    failed = next(filter(None, ranks.gathered(failed)), "")
    if failed:
        raise ValueError(failed)
    names = list(load_classes(args.out / "classes.json"))
    encode = Encode(tuple(names))
    train = RecordStream(args.out / "train.jsonl", shuffle=args.window, ends="trim", transform=encode)
    return Data(train, RecordStream(args.out / "val.jsonl", transform=encode), names)


def build(classes: int) -> nn.Module:
    """Make the model."""
    return MeanNet(Encode(()).size, classes)


@torch.no_grad()
def evaluate(net: nn.Module, loader: Loader, classes: int, device: torch.device) -> dict[str, Any]:
    """Measure ``val_loss`` and the ``table`` (true class, predicted class) over all ranks; every record counts once."""
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
    """Return the share of records whose class was told rightly."""
    return int(at["table"].diag().sum()) / int(at["table"].sum())


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="file, pattern or URL (default: paragraphs in 28 languages)")
    parser.add_argument("--format", choices=["jsonl", "csv", "parquet"], help="default: by the file's name")
    parser.add_argument("--text", default="text", help="field with the text (default: %(default)s)")
    parser.add_argument("--label", default="label", help="field with the class (default: %(default)s)")
    parser.add_argument("--group", help="field; records that share its value stay on one side")
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / NAME, help="folder to write to (default: %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--epochs", type=int, default=6, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, default=32, help="records a step and rank (default: %(default)s)")
    parser.add_argument("--window", type=int, default=1000, help="records of a shuffled window (default: %(default)s)")
    parser.add_argument("--lr", type=float, default=1e-2, help="learning rate at the start (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=0, help="processes that read (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and split (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: %(default)s")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="besides each epoch and every 30 s")
    args = parser.parse_args(argv)
    if min(args.epochs, args.batch_size, args.window) < 1 or min(args.workers, args.save_every) < 0:
        parser.error("--epochs, --batch-size and --window should be 1 or more, --workers and --save-every 0 or more")
    try:
        run.check_device(args.device)
    except ValueError as error:
        parser.error(f"--device: {error}")
    if args.data is None:
        args.data, args.label, args.group = str(DATA), "language", "article"
    args.workers = min(args.workers, run.usable_cores())
    return args


def learn(net: nn.Module, optimiser: torch.optim.Optimizer, batch: dict[str, Any]) -> tuple[float, int, list[int]]:
    """Take a step; return the summed loss and the records of all ranks, and a sum of each rank by which to know them."""
    loss = F.cross_entropy(net(batch["tokens"], batch["tokens_mask"]), batch["label"])
    optimiser.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    size = len(batch["label"])
    seen = ranks.gathered((float(loss.detach()) * size, size, int(batch["crc"].sum())))
    return sum(one[0] for one in seen), sum(one[1] for one in seen), [one[2] for one in seen]


def tell(at: dict[str, Any], epochs: int, train: Loader, metrics: run.Metrics, quiet: bool) -> None:
    """Add the line of an epoch to the metrics, and say it."""
    row = {"train_loss": at["loss"] / max(1, at["records"]), "val_loss": at["val_loss"], "accuracy": accuracy(at)}
    metrics.write({"epoch": at["epoch"], "step": at["step"]} | row)
    if not quiet:
        text, report = ", ".join(f"{name} {value:.3f}" for name, value in row.items()), train.report()
        speed = f"{report.samples_per_s:.0f} records/s, waiting for data {report.wait_share:.0%}"
        print(f"epoch {at['epoch'] + 1}/{epochs}: {text}; {speed}", flush=True)
        if at["epoch"] + 1 == epochs:
            print(
                f"train.report(), epochs counted from 0: {report}"
            )  # was the input the bottleneck, and which part of it


def fit(args: argparse.Namespace, data: Data, net: nn.Module, device: torch.device) -> dict[str, Any]:
    """Go through the epochs that are left; return the last figures."""
    # index: none; positions in the files, which the loader keeps for every reader
    # sample and batch: records as they come, encoded and padded
    batches = {"collate": Collate(pad={"tokens": 0}), "batch_size": args.batch_size, "num_workers": args.workers}
    train = Loader(data.train, seed=args.seed, **batches)
    val = Loader(data.val, **batches)
    rank, _ = rank_and_world()
    steps = max(1, args.epochs * len(train))
    optimiser = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.02, 1 - step / steps))
    parts = {"net": net, "optimiser": optimiser, "schedule": schedule}
    checkpoint = Checkpoint(args.out / "checkpoint.pt", parts, {"classes": data.classes}, every_steps=args.save_every)
    at: dict[str, Any] = {"epoch": 0, "step": 0, "loss": 0.0, "records": 0, "metrics": 0}
    at = checkpoint.begin(args.resume, at)
    if "readers" in at:
        train.load_state_dict(at["readers"])  # of all ranks: they may be others now
    metrics = run.Metrics(args.out / "metrics.jsonl" if rank == 0 else None, at["metrics"])
    model = ranks.averaged(net, device)

    while at["epoch"] < args.epochs:
        if train.epoch == at["epoch"]:  # else it was saved between the last step and the measuring
            model.train()
            label = f"epoch {at['epoch'] + 1}/{args.epochs}"
            for batch in run.progress(train, label, len(train), unit="records", quiet=rank > 0):
                # device: the batch as it is
                total, count, sums = learn(model, optimiser, to_device(batch, device))
                schedule.step()
                at |= {"step": at["step"] + 1, "loss": at["loss"] + total, "records": at["records"] + count}
                row = {"epoch": at["epoch"], "step": at["step"], "loss": total / count, "records": at["records"]}
                metrics.write(row | {"crc": sums})
                if checkpoint.due(at["step"], device):
                    at["readers"] = ranks.gathered(train.state_dict())
                    checkpoint.save(at, metrics)
        at |= evaluate(net, val, len(data.classes), device)
        tell(at, args.epochs, train, metrics, quiet=rank > 0)
        at |= {"epoch": at["epoch"] + 1, "loss": 0.0, "records": 0, "readers": ranks.gathered(train.state_dict())}
        checkpoint.save(at, metrics)
    metrics.close()
    return at | {"seconds": checkpoint.seconds}


def main(argv: Sequence[str] | None = None) -> float:
    """Train, and return the accuracy on the records held out."""
    args = arguments(argv)
    run.calm_threads(args.workers)
    device = ranks.join_ranks(args.device)
    rank, _ = rank_and_world()
    try:
        data = prepare(args)
        torch.manual_seed(args.seed)
        net = build(len(data.classes)).to(device)
        at = fit(args, data, net, device)
    except (ValueError, OSError, SampleError) as error:
        run.stop(NAME, error, quiet=rank > 0)
    finally:
        ranks.leave_ranks()
    if rank == 0:
        result = {"accuracy": accuracy(at), "records": int(at["table"].sum()), "seconds": round(at["seconds"], 2)}
        (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
        try:
            draw_confusion(args.out / "confusion.png", at["table"], data.classes)
        except ImportError as error:
            print(f"no picture: {error}", file=sys.stderr)
        text = f"accuracy {result['accuracy']:.3f} of {result['records']} records held out"
        print(f"{text}, {result['seconds']:.0f} s; results in {args.out}")
    return accuracy(at)


if __name__ == "__main__":
    run.program(NAME, main)
