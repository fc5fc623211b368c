"""Train a classifier on a folder of images, one folder per class.

    python recipes/image_classify.py
    python recipes/image_classify.py --data ./imgs --arch resnet18 --size 224 --out runs/imgs
    torchrun --nproc-per-node 2 recipes/image_classify.py --data ./imgs

``--data`` holds class folders, which are split by a hash of each file's name, or ``train/`` and ``val/`` with class folders
in them; without it a small set of clothes is taken. ``--out`` gets ``checkpoint.pt`` (``--resume`` goes on from it, also
in the middle of an epoch), ``classes.json``, ``metrics.jsonl``, ``result.json``, ``confusion.png`` and ``samples.png``.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import json
import math
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bestiary.files import hash_split, save_classes
from bestiary.images import ImageFolder, eval_transform, normalize, train_transform
from bestiary.images.decode import EXTENSIONS
from bestiary.keys import mix, rank_and_world
from bestiary.loading import BatchPlan, Collate, FixedSize, Loader, SampleError, Sequential, Shuffled, to_device
from bestiary.tools import Checkpoint, class_folders, draw_confusion, draw_samples, ranks, run

NAME = Path(__file__).stem
DATA = Path(__file__).resolve().parent / "data" / "fashion"


class Data(NamedTuple):
    """Pictures to learn from and pictures to measure on, which of their rows, and the side that they come in."""

    train: ImageFolder
    val: ImageFolder
    train_rows: np.ndarray[Any, Any]
    val_rows: np.ndarray[Any, Any]
    size: int


def prepare(args: argparse.Namespace) -> Data:
    """List the pictures, split them where they are not, and choose their size."""
    train_root, val_root = class_folders(args.data, endings=EXTENSIONS)
    # decoding a JPEG may stop at half, a quarter, an eighth, while twice the side that is needed is left
    train = val = ImageFolder(train_root, min_side=2 * (args.size or 128))
    if val_root is None:
        split = hash_split(train.names, val=0.2, labels=train.labels)
        train_rows, val_rows = split.train, split.val
    else:
        val = ImageFolder(val_root, classes=train, min_side=train.min_side)
        train_rows, val_rows = np.arange(len(train)), np.arange(len(val))
    if not len(train_rows) or not len(val_rows):
        found = f"{len(train_rows)} images to learn from and {len(val_rows)} to measure on"
        raise ValueError(f"found {found} in {args.data}; expected some of both; add images, two or more for each class")
    size = args.size or min(128, max(16 if args.arch == "small" else 64, short_side(train)))
    # validation never gets the augmentation of training; small pictures bear less of it
    gentle = train_transform(size, scale=(0.7 if size <= 64 else 0.35, 1.0))
    evenly = eval_transform(size, resize=size)
    return Data(train.with_transform(gentle), val.with_transform(evenly), train_rows, val_rows, size)


def short_side(images: ImageFolder) -> int:
    """Return the middle one of the short sides of a few pictures."""
    sides = []
    for index in np.linspace(0, len(images) - 1, min(9, len(images))).astype(int).tolist():
        try:
            sides.append(min(images[index]["image"].shape[1:]))
        except (OSError, ValueError):  # told and counted when the pictures are read in earnest
            continue
    return int(np.median(sides or [128]))


def small_net(classes: int, width: int = 32) -> nn.Module:
    """Return three convolutions, each at half the resolution of the one before; what comes after pooling is cheaper."""
    layers: list[nn.Module] = []
    for before, after in ((3, width), (width, 2 * width), (2 * width, 4 * width)):
        layers += [
            nn.Conv2d(before, after, 3, padding=1, bias=False),
            nn.BatchNorm2d(after),
            nn.ReLU(),
            nn.MaxPool2d(2),
        ]
    head = nn.Linear(4 * width * 9, classes)  # where in the picture something is matters: means of 3 x 3 parts are kept
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(0.3), head)


def build(arch: str, classes: int, size: int) -> nn.Module:
    """Make the model: the small net, or any classifier of torchvision's without weights; see that it takes the size."""
    if arch == "small":
        return small_net(classes)
    from torchvision import models

    known = models.list_models(module=models)
    if arch not in known:
        near = difflib.get_close_matches(arch, known, n=3) or ["resnet18", "mobilenet_v3_small"]
        raise ValueError(f"--arch {arch!r} is no classifier of torchvision's; try small, {', '.join(near)}")
    net: nn.Module = models.get_model(arch, weights=None, num_classes=classes)
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):  # in training some want more pixels than in use
            copy.deepcopy(net).train()(torch.zeros(2, 3, size, size))
    except (RuntimeError, ValueError, AssertionError) as error:
        found = f"--arch {arch} does not take pictures of {size} x {size} ({error})"
        raise ValueError(f"{found}; try --size 224, or 299 for inception_v3") from None
    return net


class Rate:
    """The share of ``--lr`` at a step: up in a line, then down along a cosine, at ``end`` in the last of ``steps``."""

    def __init__(self, steps: int, end: float = 0.01) -> None:
        self.steps, self.end = steps, end

    def __call__(self, step: int) -> float:
        """Return the share at a step; the first one is 0."""
        warm = self.steps // 10
        if step < warm:
            return (step + 1) / (warm + 1)
        along = min(1.0, (step - warm) / max(1, self.steps - 1 - warm))
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * along)) / 2


def real(batch: dict[str, Any]) -> Tensor:
    """Return True (B,) for each picture that counts; one that stands in for a bad one on another rank does not."""
    pad: Tensor = batch["is_pad"] if "is_pad" in batch else torch.zeros_like(batch["label"], dtype=torch.bool)
    return ~pad


@torch.no_grad()
def evaluate(net: nn.Module, loader: Loader, classes: int, device: torch.device) -> dict[str, Any]:
    """Measure ``val_loss`` and the ``table`` (true class, predicted class) over all ranks; every picture counts once."""
    ranks.share_buffers(net)
    net.eval()
    table = torch.zeros(classes, classes, dtype=torch.int64, device=device)
    loss = torch.zeros((), device=device)
    for batch in loader:
        batch = normalize(to_device(batch, device))
        logits, counts = net(batch["image"]), real(batch)  # (B, classes), (B,)
        loss += (F.cross_entropy(logits, batch["label"], reduction="none") * counts).sum()
        table.view(-1).index_add_(0, batch["label"] * classes + logits.argmax(1), counts.long())
    table = ranks.summed(table)
    return {"val_loss": float(ranks.summed(loss) / table.sum()), "table": table.cpu()}


def accuracy(at: dict[str, Any]) -> float:
    """Return the share of pictures whose class was told rightly."""
    return int(at["table"].diag().sum()) / int(at["table"].sum())


def tell(at: dict[str, Any], epochs: int, train: Loader, metrics: run.Metrics, quiet: bool) -> None:
    """Add the line of an epoch to the metrics, and say it."""
    row = {"train_loss": at["loss"] / max(1, at["images"]), "val_loss": at["val_loss"], "accuracy": accuracy(at)}
    metrics.write({"epoch": at["epoch"], "step": at["step"]} | row)
    if not quiet:
        text, report = ", ".join(f"{name} {value:.3f}" for name, value in row.items()), train.report()
        speed = f"{report.samples_per_s:.0f} images/s, waiting for data {report.wait_share:.0%}"
        print(f"epoch {at['epoch'] + 1}/{epochs}: {text}; {speed}", flush=True)
        if at["epoch"] + 1 == epochs:
            print(
                f"train.report(), epochs counted from 0: {report}"
            )  # was the input the bottleneck, and which part of it


def finish(args: argparse.Namespace, data: Data, net: nn.Module, at: dict[str, Any], bad: dict[str, str]) -> None:
    """Write and say what has come out."""
    classes = data.train.classes
    result = {"accuracy": accuracy(at), "images": int(at["table"].sum()), "seconds": round(at["seconds"], 2)}
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    rows = data.val_rows[np.linspace(0, len(data.val_rows) - 1, min(16, len(data.val_rows))).astype(int)]
    plan = BatchPlan(Sequential(rows), FixedSize(16), rank=0, world_size=1)
    try:
        draw_confusion(args.out / "confusion.png", at["table"], classes)
        for batch in Loader(data.val, plan=plan, on_error="skip"):
            seen = net.eval()(normalize(to_device(batch, args.device))["image"]).argmax(1).tolist()
            names = [[classes[label] for label in labels] for labels in (batch["label"].tolist(), seen)]
            draw_samples(args.out / "samples.png", batch["image"], *names)
    except ImportError as error:
        print(f"no pictures: {error}", file=sys.stderr)
    if bad:
        listed = "".join(f"\n  {where}: {cause}" for where, cause in sorted(bad.items())[:20])
        print(f"{len(bad)} images could not be read and were left out:{listed}", file=sys.stderr)
    text = f"accuracy {result['accuracy']:.3f} of {result['images']} images held out"
    print(f"{text}, {result['seconds']:.0f} s; results in {args.out}")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of class folders, or of train/ and val/")
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / NAME, help="folder to write to (default: %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--epochs", type=int, default=20, help="default: %(default)s")
    parser.add_argument("--batch-size", type=int, help="images a step and rank (default: 32, or fewer of a small set)")
    parser.add_argument("--drop-last", action="store_true", help="leave a last, smaller batch out")
    parser.add_argument("--lr", type=float, default=4e-3, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes that read; at most one a core is started")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: %(default)s")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="besides each epoch and every 30 s")
    parser.add_argument("--arch", default="small", help="small, or a classifier of torchvision's such as resnet18")
    parser.add_argument("--size", type=int, help="side of the pictures (default: the first one's, at most 128)")
    args = parser.parse_args(argv)
    least = {"epochs": 1, "batch_size": 1, "workers": 0, "save_every": 0, "size": 8}
    for name, low in least.items():
        if getattr(args, name) is not None and getattr(args, name) < low:
            parser.error(f"--{name.replace('_', '-')} should be {low} or more")
    try:
        run.check_device(args.device)
    except ValueError as error:
        parser.error(f"--device: {error}")
    args.workers = min(args.workers, run.usable_cores())
    return args


def loaders(args: argparse.Namespace, data: Data, world: int) -> tuple[Loader, Loader]:
    """Make the loader to learn from and the one to measure with."""
    most = len(data.train_rows) // world
    size = args.batch_size or max(1, min(32, most))
    if size > most:
        raise ValueError(
            f"found {len(data.train_rows)} images to learn from in {args.data}, fewer than a batch of {size} on each of "
            f"{world} ranks; expected more; add images, or give --batch-size {max(1, most)}"
        )
    # index: which pictures, in which groups; a batch norm cannot learn from a batch of one
    groups = FixedSize(size, drop_last=args.drop_last, min_last=min(2, size))
    plan = BatchPlan(Shuffled(data.train_rows), groups, seed=args.seed)
    held_out = BatchPlan(Sequential(data.val_rows), FixedSize(min(256, -(-len(data.val_rows) // world))), ends="exact")
    # sample and batch: in worker processes; bad pictures are left out, counted, and told at the end
    load = partial(Loader, collate=Collate(), num_workers=args.workers, on_error="skip", max_errors=0.5)
    keep = args.workers > 0
    return load(data.train, plan=plan, persistent_workers=keep), load(data.val, plan=held_out, persistent_workers=keep)


def begin(args: argparse.Namespace, checkpoint: Checkpoint, rate: Rate, train: Loader) -> dict[str, Any]:
    """Return where the run stands: at its start, or, with all its parts brought there, where it was saved last."""
    rank, world = rank_and_world()
    at: dict[str, Any] = {"epoch": 0, "step": 0, "loss": 0.0, "images": 0, "metrics": 0, "span": [args.epochs, world]}
    try:
        at = checkpoint.begin(args.resume, at)
    except (ValueError, OSError) as error:
        run.stop(NAME, error, quiet=rank > 0)
    if at["span"] != [args.epochs, world]:  # other steps are left than were planned
        later = sum(train.plan.steps(epoch) for epoch in range(at["epoch"] + 1, args.epochs))
        rate.steps = at["step"] + len(train) * (train.epoch == at["epoch"]) + later
    return at | {"span": [args.epochs, world]}


def fit(
    args: argparse.Namespace, about: dict[str, Any], net: nn.Module, train: Loader, val: Loader, device: torch.device
) -> dict[str, Any]:
    """Go through the epochs that are left; return the last figures, and the seconds that all of them took."""
    rank, _ = rank_and_world()
    rate = Rate(sum(train.plan.steps(epoch) for epoch in range(args.epochs)))
    optimiser = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, rate)
    parts = {"net": net, "optimiser": optimiser, "schedule": schedule, "loader": train}
    checkpoint = Checkpoint(args.out / "checkpoint.pt", parts, about, every_steps=args.save_every)
    at = begin(args, checkpoint, rate, train)
    metrics = run.Metrics(args.out / "metrics.jsonl" if rank == 0 else None, at["metrics"])
    model = ranks.averaged(net, device)

    while at["epoch"] < args.epochs:
        if train.epoch == at["epoch"]:  # else it was saved between the last step and the measuring
            model.train()
            label = f"epoch {at['epoch'] + 1}/{args.epochs}"
            for batch in run.progress(train, label, train.plan.steps(at["epoch"]), quiet=rank > 0):
                # device: uint8 to [-1, 1] on arrival
                batch = normalize(to_device(batch, device))
                output, counts = model(batch["image"]), real(batch)
                losses = F.cross_entropy(getattr(output, "logits", output), batch["label"], reduction="none")
                loss = (losses * counts).sum() / counts.sum().clamp(min=1)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
                total, images = ranks.summed(torch.stack([(losses * counts).sum(), counts.sum()]).detach()).tolist()
                value, lr = total / max(1, images), schedule.get_last_lr()[0]
                schedule.step()
                at |= {"step": at["step"] + 1, "loss": at["loss"] + total, "images": at["images"] + images}
                metrics.write({"epoch": at["epoch"], "step": at["step"], "loss": value, "lr": lr})
                if checkpoint.due(at["step"], device):
                    checkpoint.save(at, metrics)
        at |= evaluate(net, val, len(about["classes"]), device)
        tell(at, args.epochs, train, metrics, quiet=rank > 0)
        at |= {"epoch": at["epoch"] + 1, "loss": 0.0, "images": 0}
        checkpoint.save(at, metrics)
    metrics.close()
    return at | {"seconds": checkpoint.seconds}


def main(argv: Sequence[str] | None = None) -> float:
    """Train, and return the accuracy on the pictures held out."""
    args = arguments(argv)
    rank, world = rank_and_world()
    torch.manual_seed(args.seed)
    run.calm_threads(args.workers)
    try:
        data = prepare(args)
        train, val = loaders(args, data, world)
        net = build(args.arch, len(data.train.classes), data.size)
        device = ranks.join_ranks(args.device)
        about = {"classes": list(data.train.classes), "arch": args.arch, "size": data.size}
        args.out.mkdir(parents=True, exist_ok=True)
        save_classes(args.out / "classes.json", data.train)
    except (ValueError, OSError, ImportError) as error:
        run.stop(NAME, error, quiet=rank > 0)
    torch.manual_seed(mix(args.seed, "rank", rank))
    try:
        at = fit(args, about, net.to(device), train, val, device)
    except SampleError as error:
        run.stop(NAME, error)
    bad = {error.where: error.cause for errors in ranks.gathered(train.errors + val.errors) for error in errors}
    if rank == 0:
        finish(args, data, net, at, bad)
    ranks.leave_ranks()
    return accuracy(at)


if __name__ == "__main__":
    run.program(NAME, main)
