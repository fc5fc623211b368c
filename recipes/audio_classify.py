"""Train a classifier on a folder of sounds, one folder per class.

    python recipes/audio_classify.py
    python recipes/audio_classify.py --data ./sounds --sample-rate 16000 --out runs/sounds
    torchrun --nproc-per-node 2 recipes/audio_classify.py --data ./sounds --folds 1

``--data`` holds class folders, or ``train/`` and ``val/`` with class folders in them; without it a small set of drums and
electronic sounds is taken. Sets that are not split are measured in folds: each clip is held out once. ``--out`` gets
``checkpoint.pt`` (``--resume`` goes on from it, also in the middle of an epoch), ``classes.json``, ``metrics.jsonl``,
``result.json``, ``confusion.png`` and ``spectrograms.png``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bestiary.audio import AudioFolder, Chain, Gain, LogMel, SpecAugment, Speed
from bestiary.audio.formats import EXTENSIONS
from bestiary.files import hash_split, save_classes
from bestiary.keys import mix, rank_and_world
from bestiary.loading import (
    BatchPlan,
    Collate,
    FixedSize,
    LengthBuckets,
    Loader,
    SampleError,
    Sequential,
    Shuffled,
    padding_waste,
    to_device,
)
from bestiary.tools import Checkpoint, class_folders, draw_confusion, draw_samples, load_checkpoint, ranks, run

NAME = Path(__file__).stem
DATA = Path(__file__).resolve().parent / "data" / "percussion"
Rows = np.ndarray[Any, Any]


class Data(NamedTuple):
    """Sounds to learn from and to measure on, the rows of each fold (to learn from, held out), and their spectrograms."""

    train: AudioFolder
    val: AudioFolder
    folds: list[tuple[Rows, Rows]]
    mel: LogMel


def prepare(args: argparse.Namespace) -> Data:
    """List the sounds, leave out those without samples, and deal them into folds where they are not split already."""
    train_root, val_root = class_folders(args.data, endings=EXTENSIONS, what="sounds")
    train = val = AudioFolder(train_root, sample_rate=args.sample_rate, min_frames=1)
    if val_root is None:
        folds = dealt(train, args.folds or (5 if len(train) < 1000 else 1))
    else:
        val = AudioFolder(val_root, classes=train, sample_rate=train.sample_rate, min_frames=1)
        folds = [(np.arange(len(train)), np.arange(len(val)))]
    if any(not len(rows) for fold in folds for rows in fold) or train.sample_rate is None:
        counts = ", ".join(f"{len(rows)} and {len(held_out)}" for rows, held_out in folds)
        raise ValueError(
            f"found sounds to learn from and to measure on: {counts}, in {args.data}; expected some of both; "
            "add sounds, two or more for each class"
        )
    rate = train.sample_rate
    mel = LogMel(rate, n_fft=2 ** round(math.log2(0.03 * rate)), hop=max(1, rate // 100))
    # no added noise here: it would cover how these sounds die away, by which they are told apart
    varied = Chain([Speed((0.8, 0.9, 1.0, 1.1, 1.25)), Gain(-3, 3)])
    return Data(train.with_transform(varied), val, folds, mel)


def dealt(sounds: AudioFolder, count: int) -> list[tuple[Rows, Rows]]:
    """Deal the sounds of each class into folds by a hash of their names; one fold holds out a fifth."""
    if count == 1:
        split = hash_split(sounds.names, val=0.2, labels=sounds.labels)
        return [(split.train, split.val)]
    fold_of = np.empty(len(sounds), np.int64)
    keys = np.array([mix("fold", name) for name in sounds.names], np.uint64)
    for label in np.unique(sounds.labels):
        rows = np.flatnonzero(sounds.labels == label)
        fold_of[rows[np.argsort(keys[rows])]] = (np.arange(len(rows)) + label) % count
    return [(np.flatnonzero(fold_of != fold), np.flatnonzero(fold_of == fold)) for fold in range(count)]


class ChannelNorm(nn.LayerNorm):
    """Normalise over the channels of each place (B, C, M, F), so that padding and neighbours take no part."""

    def forward(self, x: Tensor) -> Tensor:
        """Return (B, C, M, F)."""
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class SoundNet(nn.Module):
    """Three blocks of convolutions, then mean and maximum over the real frames: padding changes nothing."""

    def __init__(self, classes: int, mels: int, width: int = 16) -> None:
        super().__init__()
        sizes = [1, width, 2 * width, 4 * width]
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Conv2d(before, after, 3, stride=2, padding=1), ChannelNorm(after), nn.GELU())
            for before, after in pairwise(sizes)
        )
        features = sizes[-1] * -(-mels // 8)
        self.head = nn.Sequential(nn.Dropout(0.3), nn.Linear(2 * features, classes))

    def forward(self, mel: Tensor, mask: Tensor) -> Tensor:
        """Return logits (B, classes) of spectrograms (B, 1, M, F) with mask (B, F), True where real."""
        x = (mel + 6) / 4 * mask[:, None, None]
        for block in self.blocks:
            mask = mask[:, ::2]  # a frame of the output is real where the middle one of its three is
            x = block(x) * mask[:, None, None]  # (B, C, M, F)
        x = x.flatten(1, 2)  # (B, C * M, F)
        mean = x.sum(2) / mask.sum(1, keepdim=True).clamp(min=1)
        highest = x.masked_fill(~mask[:, None], -1.0).amax(2)
        logits: Tensor = self.head(torch.cat([mean, highest], 1))
        return logits


def rate(step: int, steps: int, warm: int, end: float = 0.01) -> float:
    """Return the share of ``--lr`` at a step: up in a line, then down along a cosine, at ``end`` in the last step."""
    if step < warm:
        return (step + 1) / (warm + 1)
    along = min(1.0, (step - warm) / max(1, steps - 1 - warm))
    return end + (1 - end) * (1 + math.cos(math.pi * along)) / 2


def real(batch: dict[str, Any]) -> Tensor:
    """Return True (B,) for each clip that counts; one that stands in for a bad one on another rank does not."""
    pad: Tensor = batch["is_pad"] if "is_pad" in batch else torch.zeros_like(batch["label"], dtype=torch.bool)
    return ~pad


@torch.no_grad()
def evaluate(net: nn.Module, loader: Loader, mel: LogMel, classes: int, device: torch.device) -> dict[str, Any]:
    """Measure ``val_loss`` and the ``table`` (true class, predicted class) over all ranks; every clip counts once."""
    net.eval()
    table = torch.zeros(classes, classes, dtype=torch.int64, device=device)
    loss = torch.zeros((), device=device)
    for batch in loader:
        batch = mel(to_device(batch, device))
        logits, counts = net(batch["mel"], batch["mel_mask"]), real(batch)  # (B, classes), (B,)
        loss += (F.cross_entropy(logits, batch["label"], reduction="none") * counts).sum()
        table.view(-1).index_add_(0, batch["label"] * classes + logits.argmax(1), counts.long())
    table = ranks.summed(table)
    return {"val_loss": float(ranks.summed(loss) / table.sum().clamp(min=1)), "table": table.cpu()}


def accuracy(table: Tensor) -> float:
    """Return the share of clips whose class was told rightly."""
    return int(table.diag().sum()) / max(1, int(table.sum()))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of class folders, or of train/ and val/")
    parser.add_argument(
        "--out", type=Path, default=Path("runs") / NAME, help="folder to write to (default: %(default)s)"
    )
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--epochs", type=int, default=24, help="of each fold (default: %(default)s)")
    parser.add_argument("--folds", type=int, help="1 holds out a fifth (default: 5 for fewer than 1,000 clips, else 1)")
    parser.add_argument("--batch-size", type=int, help="clips a step and rank (default: 32, or fewer of a small set)")
    parser.add_argument("--drop-last", action="store_true", help="leave a last, smaller batch out")
    parser.add_argument("--sample-rate", type=int, help="resample to this (default: the files' own, if it is but one)")
    parser.add_argument("--lr", type=float, default=3e-3, help="highest learning rate (default: %(default)s)")
    parser.add_argument("--workers", type=int, default=2, help="processes that read; at most one a core is started")
    parser.add_argument("--seed", type=int, default=0, help="of weights, order and augmentation (default: %(default)s)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu", help="default: %(default)s")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="besides each epoch and every 30 s")
    args = parser.parse_args(argv)
    least = {"epochs": 1, "folds": 1, "batch_size": 1, "workers": 0, "save_every": 0, "sample_rate": 1}
    for name, low in least.items():
        if getattr(args, name) is not None and getattr(args, name) < low:
            parser.error(f"--{name.replace('_', '-')} should be {low} or more")
    args.workers = min(args.workers, run.usable_cores())
    return args


def loaders(args: argparse.Namespace, data: Data, fold: int, world: int) -> tuple[Loader, Loader]:
    """Make a fold's loader to learn from and its loader to measure with."""
    rows, held_out = data.folds[fold]
    most = len(rows) // world
    size = args.batch_size or max(1, min(32, max(4, len(rows) // 16), most))
    if size > most:
        raise ValueError(
            f"found {len(rows)} clips to learn from in {args.data}, fewer than a batch of {size} on each of {world} ranks; "
            f"expected more; add sounds, or give --batch-size {max(1, most)}"
        )
    # index: which clips, in which groups; like lengths meet, so that little is padded
    groups = LengthBuckets(data.train.lengths(), batch_size=size, drop_last=args.drop_last)
    plan = BatchPlan(Shuffled(rows), groups, seed=mix(args.seed, fold) >> 1)
    measure = BatchPlan(Sequential(held_out), LengthBuckets(data.val.lengths(), batch_size=size), ends="exact")
    # sample and batch: in worker processes, padded with silence; bad files are left out, counted, and told at the end
    pad = Collate(pad={"waveform": 0.0})
    load = partial(Loader, collate=pad, num_workers=args.workers, on_error="skip", max_errors=0.5)
    keep = args.workers > 0
    return load(data.train, plan=plan, persistent_workers=keep), load(data.val, plan=measure, persistent_workers=keep)


def tell_waste(train: Loader, data: Data) -> float:
    """Say how much of the batches is padding, and how much it would be in random ones; return the first share."""
    rows, lengths, report = data.folds[0][0], data.train.lengths(), train.plan.report(0)
    size = len(train.plan.batches(0)[0])
    by_chance = BatchPlan(Shuffled(rows), FixedSize(size), rank=0, world_size=1).batches(0)
    waste, other = report.waste or 0.0, padding_waste(lengths, by_chance)
    print(f"{report}\nbatches of like lengths are {waste:.1%} padding, random batches of {size} would be {other:.1%}")
    return waste


def tell(at: dict[str, Any], args: argparse.Namespace, folds: int, train: Loader, metrics: run.Metrics) -> None:
    """Add the line of an epoch to the metrics, and say it."""
    row = {
        "train_loss": at["loss"] / max(1, at["clips"]),
        "val_loss": at["val_loss"],
        "accuracy": accuracy(at["table"]),
    }
    metrics.write({"fold": at["fold"], "epoch": at["epoch"], "step": at["step"]} | row)
    if rank_and_world()[0] == 0 and (folds == 1 or (at["epoch"] + 1) % 6 == 0 or at["epoch"] + 1 == args.epochs):
        text, report = ", ".join(f"{name} {value:.3f}" for name, value in row.items()), train.report()
        place = f"fold {at['fold'] + 1}/{folds}, " if folds > 1 else ""
        speed = f"{report.samples_per_s:.0f} clips/s, waiting for data {report.wait_share:.0%}"
        print(f"{place}epoch {at['epoch'] + 1}/{args.epochs}: {text}; {speed}", flush=True)
        if (at["fold"] + 1, at["epoch"] + 1) == (folds, args.epochs):
            print(
                f"train.report(), epochs counted from 0: {report}"
            )  # was the input the bottleneck, and which part of it


def fit(
    args: argparse.Namespace, data: Data, at: dict[str, Any], net: nn.Module, loop: tuple[Loader, Loader], device: Any
) -> dict[str, Any]:
    """Go through the epochs of a fold that are left; return the last figures, and the seconds that it took."""
    (train, val), folds, classes = loop, len(data.folds), list(data.train.classes)
    steps = sum(train.plan.steps(epoch) for epoch in range(args.epochs))
    optimiser = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, partial(rate, steps=steps, warm=steps // 10))
    parts = {"net": net, "optimiser": optimiser, "schedule": schedule, "loader": train}
    about = {"classes": classes, "folds": folds, "sample_rate": data.mel.sample_rate}
    checkpoint = Checkpoint(args.out / "checkpoint.pt", parts, about, every_steps=args.save_every)
    if at["begin"]:  # else another fold did
        at = checkpoint.begin(args.resume, at) | {"begin": False}
    path = args.out / "metrics.jsonl" if rank_and_world()[0] == 0 else None
    model, cover = ranks.averaged(net, device), SpecAugment(bands=1, times=1)
    with closing(run.Metrics(path, at["metrics"])) as metrics:
        while at["epoch"] < args.epochs:
            if train.epoch == at["epoch"]:  # else it was saved between the last step and the measuring
                model.train()
                label = f"fold {at['fold'] + 1}/{folds}, epoch {at['epoch'] + 1}/{args.epochs}"
                quiet = rank_and_world()[0] > 0
                for batch in run.progress(train, label, train.plan.steps(at["epoch"]), unit="clips", quiet=quiet):
                    # device: waveforms to log-mel spectrograms with stripes covered; padded frames stay out
                    batch = cover(data.mel(to_device(batch, device)))
                    logits, counts = model(batch["mel"], batch["mel_mask"]), real(batch)
                    losses = F.cross_entropy(logits, batch["label"], reduction="none", label_smoothing=0.1)
                    loss = (losses * counts).sum() / counts.sum().clamp(min=1)
                    optimiser.zero_grad()
                    loss.backward()  # type: ignore[no-untyped-call]
                    optimiser.step()
                    value, lr, clips = float(loss.detach()), schedule.get_last_lr()[0], len(counts)
                    schedule.step()
                    at |= {"step": at["step"] + 1, "loss": at["loss"] + value * clips, "clips": at["clips"] + clips}
                    metrics.write(
                        {"fold": at["fold"], "epoch": at["epoch"], "step": at["step"], "loss": value, "lr": lr}
                    )
                    if checkpoint.due(at["step"], device):
                        checkpoint.save(at, metrics)
            at |= evaluate(net, val, data.mel, len(classes), device)
            tell(at, args, folds, train, metrics)
            at |= {"epoch": at["epoch"] + 1, "loss": 0.0, "clips": 0}
            checkpoint.save(at, metrics)
        at["metrics"] = metrics.place()
    return at | {"seconds": checkpoint.seconds}


def finish(args: argparse.Namespace, data: Data, net: nn.Module, at: dict[str, Any], bad: dict[str, str]) -> None:
    """Write and say what has come out."""
    classes, table = data.train.classes, at["total"]
    result = {"accuracy": accuracy(table), "clips": int(table.sum()), "folds": len(data.folds)}
    result |= {"padding_waste": round(at["waste"], 4), "seconds": round(at["before"], 2)}
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    rows = data.folds[-1][1]
    rows = rows[np.argsort(data.val.lengths()[rows], kind="stable")][np.linspace(0, len(rows) - 1, 12).astype(int)]
    plan = BatchPlan(Sequential(rows), FixedSize(len(rows)), rank=0, world_size=1)
    try:
        draw_confusion(args.out / "confusion.png", table, classes)
        for batch in Loader(data.val, plan=plan, collate=Collate(pad={"waveform": 0.0}), on_error="skip"):
            batch = data.mel(to_device(batch, args.device))
            with torch.no_grad():
                seen = net.eval()(batch["mel"], batch["mel_mask"]).argmax(1).tolist()
            names = [[classes[label] for label in labels] for labels in (batch["label"].tolist(), seen)]
            grey = ((batch["mel"].flip(2) + 14) * 14).clamp(0, 255) * batch["mel_mask"][:, None, None]
            draw_samples(args.out / "spectrograms.png", grey.to(torch.uint8), *names)
    except ImportError as error:
        print(f"no pictures: {error}", file=sys.stderr)
    short = [name for part in {id(part): part for part in (data.train, data.val)}.values() for name in part.dropped]
    for text, listed in (
        ("hold no samples", sorted(set(short))),
        ("could not be read", [f"{k}: {v}" for k, v in sorted(bad.items())]),
    ):
        if listed:
            print(f"{len(listed)} clips {text} and were left out:", *listed[:20], sep="\n  ", file=sys.stderr)
    where = f"{len(data.folds)} folds" if len(data.folds) > 1 else "the part held out"
    print(
        f"accuracy {result['accuracy']:.3f} of {result['clips']} clips in {where}, {result['seconds']:.0f} s; results in {args.out}"
    )


def main(argv: Sequence[str] | None = None) -> float:
    """Train, and return the accuracy on the clips held out."""
    args = arguments(argv)
    run.calm_threads(args.workers)
    rank, world = rank_and_world()
    errors: list[SampleError] = []
    at: dict[str, Any] = {"fold": 0, "epoch": 0, "step": 0, "loss": 0.0, "clips": 0, "metrics": 0, "before": 0.0}
    try:
        data = prepare(args)
        count, path = len(data.train.classes), args.out / "checkpoint.pt"
        at |= {"total": torch.zeros(count, count, dtype=torch.int64), "begin": True}
        if args.resume and path.exists():
            at["fold"] = load_checkpoint(path)["at"].get("fold", 0)
        device = ranks.join_ranks(args.device)
        args.out.mkdir(parents=True, exist_ok=True)
        save_classes(args.out / "classes.json", data.train)
        for fold in range(min(at["fold"], len(data.folds) - 1), len(data.folds)):
            torch.manual_seed(mix(args.seed, "fold", fold) >> 1)
            loop = loaders(args, data, fold, world)
            at["waste"] = tell_waste(loop[0], data) if "waste" not in at and rank == 0 else at.get("waste", 0.0)
            net = SoundNet(count, data.mel.mels).to(device)
            at = fit(args, data, at | {"fold": fold}, net, loop, device)
            errors += loop[0].errors + loop[1].errors
            at |= {"total": at["total"] + at["table"], "before": at["before"] + at["seconds"], "epoch": 0}
    except (ValueError, OSError, ImportError, SampleError) as error:
        run.stop(NAME, error, quiet=rank > 0)
    bad = {error.where: error.cause for told in ranks.gathered(errors) for error in told}
    if rank == 0:
        finish(args, data, net, at, bad)
    ranks.leave_ranks()
    return accuracy(at["total"])


if __name__ == "__main__":
    run.program(NAME, main)
