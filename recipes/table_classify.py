"""Classify the rows of a CSV table: numbers scaled, words embedded, gaps marked.

    python recipes/table_classify.py
    python recipes/table_classify.py --data my.csv --label kind --out runs/kind

Writes ``checkpoint.pt`` (to resume from), ``schema.json`` (how a row becomes numbers, learned from the training rows alone),
``result.json`` and ``curve.png`` to ``--out``. For a table this small scikit-learn would do as well; what is shown is how
missing values, categories and the split are handled.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bestiary.files import Split, stratified_split
from bestiary.loading import BatchPlan, FixedSize, Loader, Sequential, Shuffled, to_device
from bestiary.tables import TypedTable
from bestiary.tools import Checkpoint, run

NAME = "table_classify"
DATA = Path(__file__).resolve().parent / "data" / "tables" / "penguins.csv"


class RowNet(nn.Module):
    """Two hidden layers over the features and one embedding for each category."""

    def __init__(self, features: int, sizes: Sequence[int], classes: int, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.ModuleList(nn.Embedding(size, min(8, size)) for size in sizes)
        total = features + sum(min(8, size) for size in sizes)
        self.body = nn.Sequential(
            nn.Linear(total, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes)
        )

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Return logits (B, classes)."""
        parts = [batch["features"]]  # (B, F)
        for place, embed in enumerate(self.embed):
            parts.append(embed(batch["categories"][:, place]))  # (B, K) to (B, E) each
        logits: Tensor = self.body(torch.cat(parts, dim=1))
        return logits


def prepare(path: Path, label: str, seed: int) -> tuple[TypedTable, Split]:
    """Read the table, part its rows so that each class is on both sides, and fit everything on the training part."""
    if not path.exists():
        raise FileNotFoundError(f"there is no {path}; give a CSV file with one row of column names")
    parts = [path / "train.csv", path / "val.csv"]
    if all(part.is_file() for part in parts):
        first = TypedTable(parts[0], label=label)
        count = len(first)
        table = TypedTable(parts, label=label, classes=first.classes, fit_rows=range(count), scale=True)
        return table, Split(np.arange(count), np.arange(count, len(table)), np.arange(0))
    if path.is_dir():
        found = ", ".join(sorted(one.name for one in path.glob("*.csv"))) or "no CSV file"
        raise ValueError(
            f"{path} is a folder, which holds {found}; give one CSV file, or a folder with train.csv and val.csv"
        )
    whole = TypedTable(path, label=label)
    if not 2 <= len(whole.classes) <= len(whole) // 2:
        raise ValueError(
            f"{path}: column {label!r} has {len(whole.classes)} different values in {len(whole)} rows; name a column of "
            f"classes with --label, out of {', '.join([*whole.schema.numbers, *whole.schema.categories])}"
        )
    split = stratified_split(whole.labels, val=0.2, seed=seed)
    return TypedTable(path, label=label, classes=whole.classes, fit_rows=split.train, scale=True), split


def build(table: TypedTable) -> RowNet:
    """Make a model that fits the table's columns."""
    schema = table.schema
    return RowNet(len(schema.feature_names), list(schema.sizes.values()), len(schema.classes))


@torch.no_grad()
def evaluate(model: nn.Module, loader: Loader, device: str) -> tuple[float, float]:
    """Return mean loss and accuracy; every row counts once."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for batch in loader:
        batch = to_device(batch, device)
        logits = model(batch)
        loss += float(F.cross_entropy(logits, batch["label"], reduction="sum"))
        right += int((logits.argmax(1) == batch["label"]).sum())
        count += len(logits)
    return loss / count, right / count


def plot(history: list[dict[str, float]], path: Path) -> None:
    """Draw loss and accuracy over the epochs; without matplotlib say so and go on."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: pip install matplotlib", file=sys.stderr)
        return
    figure = Figure(figsize=(8, 3), layout="constrained")
    for axes, names in zip(figure.subplots(1, 2), (("train_loss", "val_loss"), ("accuracy",)), strict=True):
        for name in names:
            axes.plot([row[name] for row in history], label=name)
        axes.set_xlabel("epoch")
        axes.legend()
    figure.savefig(path)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--data",
        type=Path,
        default=DATA,
        help="CSV file, or a folder with train.csv and val.csv (default: the penguins)",
    )
    parser.add_argument("--label", default="species", help="column with the classes")
    parser.add_argument("--out", type=Path, default=Path("runs/table_classify"), help="folder for model and results")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--no-shuffle", action="store_true", help="keep the rows in the order of the file")
    parser.add_argument("--drop-last", action="store_true", help="leave a last, smaller training batch out")
    parser.add_argument("--workers", type=int, default=0, help="0 is quickest here: the rows are in memory already")
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="besides each epoch and every 30 s")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser.parse_args(argv)


def fit(
    args: argparse.Namespace, model: nn.Module, train: Loader, val: Loader, about: dict[str, Any]
) -> dict[str, Any]:
    """Go through the epochs that are left, from the place that was saved; return where the run stands then."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=1e-2)
    parts = {"model": model, "optimiser": optimiser, "loader": train}
    saved = Checkpoint(args.out / "checkpoint.pt", parts, about, every_steps=args.save_every)
    at: dict[str, Any] = {"epoch": 0, "step": 0, "total": 0.0, "count": 0, "history": [], "metrics": 0}
    at = saved.begin(args.resume, at)
    metrics = run.Metrics(args.out / "metrics.jsonl", at["metrics"])
    while at["epoch"] < args.epochs:
        if train.epoch == at["epoch"]:  # else it was saved between the last step and the measuring
            model.train()
            label = f"epoch {at['epoch'] + 1}/{args.epochs}"
            for batch in run.progress(train, label, train.plan.steps(at["epoch"]), unit="rows"):
                # device: the batch as it is, small and on time
                batch = to_device(batch, args.device)
                loss = F.cross_entropy(model(batch), batch["label"])
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                value, rows = float(loss.detach()), len(batch["label"])
                at |= {"step": at["step"] + 1, "total": at["total"] + value * rows, "count": at["count"] + rows}
                metrics.write({"epoch": at["epoch"], "step": at["step"], "loss": value})
                if saved.due(at["step"], torch.device(args.device)):
                    saved.save(at, metrics)
        val_loss, accuracy = evaluate(model, val, args.device)
        row = {"train_loss": at["total"] / max(1, at["count"]), "val_loss": val_loss, "accuracy": accuracy}
        metrics.write({"epoch": at["epoch"], "step": at["step"]} | row)
        at |= {"epoch": at["epoch"] + 1, "total": 0.0, "count": 0, "history": [*at["history"], row]}
        saved.save(at, metrics)
        print(f"epoch {at['epoch']}/{args.epochs}: loss {row['train_loss']:.3f}, accuracy {accuracy:.3f}")
    metrics.close()
    return at | {"seconds": round(saved.seconds, 2)}


def train_and_report(args: argparse.Namespace, table: TypedTable, split: Split) -> float:
    """Make the loaders and the model, train, and write what has come out."""
    args.out.mkdir(parents=True, exist_ok=True)
    table.schema.save(args.out / "schema.json")
    torch.manual_seed(args.seed)

    # index: which rows, in which groups
    order = (Sequential if args.no_shuffle else Shuffled)(split.train)
    plan = BatchPlan(order, FixedSize(args.batch_size, drop_last=args.drop_last), seed=args.seed)
    held_out = BatchPlan(Sequential(split.val), FixedSize(256), ends="exact")
    # sample and batch: columns of rows, stacked already
    train = Loader(table, plan=plan, num_workers=min(args.workers, run.usable_cores()))
    val = Loader(table, plan=held_out)

    about = {"classes": list(table.classes), "features": list(table.schema.feature_names)}
    try:
        at = fit(args, build(table).to(args.device), train, val, about)
    except ValueError as error:  # the checkpoint is of another run
        run.stop(NAME, error)
    plot(at["history"], args.out / "curve.png")
    score: float = at["history"][-1]["accuracy"]
    result = {
        "accuracy": score,
        "rows": {"train": len(split.train), "val": len(split.val)},
        "epochs": len(at["history"]),
        "seconds": at["seconds"],
        "wait_share": round(train.report().wait_share, 3),
    }
    write_result(args.out, table, result)
    print(
        f"train.report(), epochs counted from 0: {train.report()}"
    )  # was the input the bottleneck, and which part of it
    print(f"accuracy {score:.3f} on {len(split.val)} rows held out; results in {args.out}")
    return score


def write_result(out: Path, table: TypedTable, result: dict[str, Any]) -> None:
    """Write the figures with the names of what they were made from."""
    names = {
        "classes": table.classes,
        "features": table.schema.feature_names,
        "categories": list(table.schema.categories),
    }
    (out / "result.json").write_text(json.dumps(result | names, indent=1) + "\n", encoding="utf-8")


def main(argv: Sequence[str] | None = None) -> float:
    """Train, and return the accuracy on the rows held out."""
    args = arguments(argv)
    run.calm_threads(args.workers)
    try:
        table, split = prepare(args.data, args.label, args.seed)
        if len(split.train) < args.batch_size and args.drop_last:
            raise ValueError(f"{len(split.train)} training rows make no batch of {args.batch_size}; lower --batch-size")
    except (ValueError, OSError, ImportError) as error:
        run.stop(NAME, error)
    return train_and_report(args, table, split)


if __name__ == "__main__":
    run.program(NAME, main)
