"""Learn to write: a small recurrent network that predicts the next byte of a text, and a sample of what it writes.

    python recipes/text_generate.py
    python recipes/text_generate.py --data book.txt more.txt --prompt "It was" --out runs/book
    torchrun --nproc-per-node 2 recipes/text_generate.py --data book.txt

``--data`` is one or more text files, or a folder of .txt files. The last tenth of the text is held out. Writes
``checkpoint.pt`` (``--resume`` goes on from it, in the middle of an epoch too), ``train.npy`` and ``val.npy`` (flat files of
token ids), ``metrics.jsonl``, ``result.json``, ``sample.txt`` and ``curve.png`` to ``--out``.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from bestiary.keys import rank_and_world
from bestiary.loading import BatchPlan, FixedSize, Loader, Sequential, Shuffled, to_device
from bestiary.text import ByteTokenizer, TokenWindows, write_tokens
from bestiary.tools import Checkpoint, ranks, run

NAME = Path(__file__).stem
DATA = Path(__file__).resolve().parent / "data" / "udhr" / "udhr.jsonl"
TOKENS = ByteTokenizer(reserved=0)
BLOCK = 64  # bytes in a window


class ByteNet(nn.Module):
    """Embedded bytes, one GRU over them, and the odds of the byte that follows each."""

    def __init__(self, width: int = 160) -> None:
        super().__init__()
        self.embed = nn.Embedding(TOKENS.size, 64)
        self.body = nn.GRU(64, width, batch_first=True)
        self.head = nn.Linear(width, TOKENS.size)

    def forward(self, tokens: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return logits (B, T, ids) for tokens (B, T), and the state to go on from."""
        hidden, state = self.body(self.embed(tokens), state)  # (B, T, E) to (B, T, H)
        return self.head(hidden), state


class Data(NamedTuple):
    """Windows to learn from, windows held out, and what guessing by frequency alone would cost in bits a byte."""

    train: TokenWindows
    val: TokenWindows
    unigram: float


def read(paths: Sequence[Path]) -> tuple[list[str], list[str]]:
    """Return the pieces of text to learn from and those held out."""
    if paths == [DATA]:  # the articles 1, 11 and 21 of each language are held out
        rows = [json.loads(line) for line in DATA.read_text(encoding="utf-8").splitlines()]
        held = [row["article"] in (1, 11, 21) for row in rows]
        texts = [row["text"] + "\n" for row in rows]
        parts = [[text for text, out in zip(texts, held, strict=True) if out is wanted] for wanted in (False, True)]
        return parts[0], parts[1]
    gone = [str(path) for path in paths if not path.exists()]
    if gone:
        raise ValueError(f"found nothing at {', '.join(gone)}; expected text files, or a folder of .txt files")
    files = [file for path in paths for file in (sorted(path.rglob("*.txt")) if path.is_dir() else [path])]
    if not files:
        raise ValueError(f"{', '.join(map(str, paths))} holds no .txt file; give text files, or a folder of them")
    parts = [[], []]
    for file in files:
        try:
            text = file.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as error:
            raise ValueError(f"{file}: byte {error.start} is not utf-8; give text files in utf-8") from None
        border = len(text) * 9 // 10
        parts[0].append(text[:border])
        parts[1].append(text[border:])
    return parts[0], parts[1]


def encode(args: argparse.Namespace) -> None:
    """Write the bytes of both parts to flat files."""
    args.out.mkdir(parents=True, exist_ok=True)
    for name, texts in zip(("train", "val"), read(args.data), strict=True):
        write_tokens(args.out / f"{name}.npy", map(TOKENS, texts), dtype=np.uint16)
        TokenWindows(args.out / f"{name}.npy", BLOCK, stride=BLOCK)  # a text that is too short is told here


def prepare(args: argparse.Namespace) -> Data:
    """Have rank 0 write the flat files; every rank cuts windows from them."""
    failed = ""
    if rank_and_world()[0] == 0:
        try:
            encode(args)
        except (ValueError, OSError) as error:
            failed = str(error)
    if failed := ranks.gathered(failed)[0]:
        raise ValueError(failed)
    train, val = (TokenWindows(args.out / f"{name}.npy", BLOCK, stride=BLOCK) for name in ("train", "val"))
    counts = np.bincount(np.load(args.out / "val.npy"), minlength=TOKENS.size)
    shares = counts[counts > 0] / counts.sum()
    return Data(train, val, float(-(shares * np.log2(shares)).sum()))


def build() -> ByteNet:
    """Make the model."""
    return ByteNet()


@torch.no_grad()
def evaluate(net: nn.Module, loader: Loader, device: torch.device) -> float:
    """Return bits a byte over all ranks; every window counts once."""
    net.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in loader:
        batch = to_device(batch, device)
        logits, _ = net(batch["tokens"])  # (B, T, ids)
        loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum")
        sums += sums.new_tensor([float(loss), batch["targets"].numel()])
    nats, count = ranks.summed(sums).tolist()
    return float(nats / count) / math.log(2)


@torch.no_grad()
def write(model: ByteNet, prompt: str, length: int, device: torch.device, seed: int) -> str:
    """Let the model write on from a prompt, one byte at a time, a little bolder than by its own odds."""
    model.eval()
    chance = torch.Generator().manual_seed(seed)
    ids = TOKENS(prompt or "\n").tolist()
    logits, state = model(torch.tensor([ids], device=device))
    for _ in range(length):
        odds = (logits[0, -1].cpu() / 0.8).softmax(0)
        ids.append(int(torch.multinomial(odds, 1, generator=chance)))
        logits, state = model(torch.tensor([ids[-1:]], device=device), state)
    return TOKENS.decode(ids).lstrip("\n")


def plot(history: Sequence[float], unigram: float, path: Path) -> None:
    """Draw bits a byte over the epochs; without matplotlib say so and go on."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: pip install matplotlib", file=sys.stderr)
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(range(1, len(history) + 1), history, marker="o", label="this model")
    axes.axhline(unigram, color="grey", label="frequencies alone")
    axes.set(xlabel="epoch", ylabel="bits a byte, held out")
    axes.locator_params(axis="x", integer=True)
    axes.legend()
    figure.savefig(path)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="+", default=[DATA], help="text files (default: 28 languages)")
    parser.add_argument("--prompt", default="", help="how the sample begins")
    parser.add_argument("--out", type=Path, default=Path("runs/text_generate"), help="folder for all that is written")
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint in --out")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--workers", type=int, default=0, help="0 is quickest here: a window is a look into one array")
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
    args.workers = min(args.workers, run.usable_cores())
    return args


def loaders(args: argparse.Namespace, data: Data) -> tuple[Loader, Loader]:
    """Make the loader to learn from and the one to measure with."""
    # index: which windows, in which groups
    plan = BatchPlan(Shuffled(len(data.train)), FixedSize(args.batch_size), seed=args.seed)
    held_out = BatchPlan(Sequential(len(data.val)), FixedSize(256), ends="exact")
    # sample and batch: windows cut from one flat file, all of a batch at once
    return Loader(data.train, plan=plan, num_workers=args.workers), Loader(data.val, plan=held_out)


def tell(at: dict[str, Any], epochs: int, train: Loader, metrics: run.Metrics, quiet: bool) -> None:
    """Add the line of an epoch to the metrics, and say it."""
    row = {"train_bits": at["loss"] / max(1, at["windows"]) / math.log(2), "val_bits": at["history"][-1]}
    metrics.write({"epoch": at["epoch"], "step": at["step"]} | row)
    if not quiet:
        text, report = ", ".join(f"{name} {value:.3f}" for name, value in row.items()), train.report()
        speed = f"{report.samples_per_s * BLOCK:.0f} bytes/s, waiting for data {report.wait_share:.0%}"
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
    checkpoint = Checkpoint(args.out / "checkpoint.pt", parts, {"block": BLOCK}, every_steps=args.save_every)
    at: dict[str, Any] = {"epoch": 0, "step": 0, "loss": 0.0, "windows": 0, "history": [], "metrics": 0}
    at = checkpoint.begin(args.resume, at)
    metrics = run.Metrics(args.out / "metrics.jsonl" if rank == 0 else None, at["metrics"])
    model = ranks.averaged(net, device)

    while at["epoch"] < args.epochs:
        if train.epoch == at["epoch"]:  # else it was saved between the last step and the measuring
            model.train()
            label, total = f"epoch {at['epoch'] + 1}/{args.epochs}", train.plan.steps(at["epoch"])
            for batch in run.progress(train, label, total, unit="windows", quiet=rank > 0):
                # device: the batch as it is, small and on time
                batch = to_device(batch, device)
                logits, _ = model(batch["tokens"])  # (B, T, ids)
                loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimiser.step()
                schedule.step()
                value, size = float(loss.detach()), len(batch["tokens"])
                at |= {"step": at["step"] + 1, "loss": at["loss"] + value * size, "windows": at["windows"] + size}
                metrics.write({"epoch": at["epoch"], "step": at["step"], "loss": value})
                if checkpoint.due(at["step"], device):
                    checkpoint.save(at, metrics)
        at["history"] = [*at["history"], evaluate(net, val, device)]
        tell(at, args.epochs, train, metrics, quiet=rank > 0)
        at |= {"epoch": at["epoch"] + 1, "loss": 0.0, "windows": 0}
        checkpoint.save(at, metrics)
    metrics.close()
    return at | {"seconds": checkpoint.seconds}


def finish(args: argparse.Namespace, data: Data, at: dict[str, Any], sample: str) -> None:
    """Write and say what has come out."""
    bits = at["history"][-1]
    below = 1 - bits / data.unigram
    plot(at["history"], data.unigram, args.out / "curve.png")
    (args.out / "sample.txt").write_text(sample, encoding="utf-8", errors="replace")
    result = {"bits_per_byte": bits, "unigram_bits_per_byte": data.unigram, "below_unigram": below}
    result |= {"windows": len(data.val), "train_windows": len(data.train), "seconds": round(at["seconds"], 2)}
    (args.out / "result.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(sample.encode("utf-8", "replace").decode("utf-8"))
    text = f"{bits:.3f} bits a byte held out; frequencies alone: {data.unigram:.3f}; {below:.0%} below"
    print(f"{text}, {at['seconds']:.0f} s; results in {args.out}")


def main(argv: Sequence[str] | None = None) -> float:
    """Train, print a sample, and return bits a byte on the text held out."""
    args = arguments(argv)
    run.calm_threads(args.workers)
    device, (rank, _) = ranks.join_ranks(args.device), rank_and_world()
    try:
        data = prepare(args)
        torch.manual_seed(args.seed)
        net = build().to(device)
        at = fit(args, data, net, device)
    except (ValueError, OSError) as error:
        run.stop(NAME, error, quiet=rank > 0)
    finally:
        ranks.leave_ranks()
    if rank == 0:
        finish(args, data, at, write(net, args.prompt, 300, device, args.seed))
    return float(at["history"][-1])


if __name__ == "__main__":
    run.program(NAME, main)
