"""Learn to write: a small recurrent network that predicts the next byte of a text, and a sample of what it writes.

    python recipes/text_generate.py
    python recipes/text_generate.py --data book.txt more.txt --prompt "It was" --out runs/book
    torchrun --nproc-per-node 2 recipes/text_generate.py --data book.txt

``--data`` is one or more text files, or a folder of .txt files. The last tenth of the text is held out. Writes ``last.pt``
(``--resume`` goes on from it, in the middle of an epoch too), ``train.npy`` and ``val.npy`` (flat files of token ids),
``metrics.jsonl``, ``result.json``, ``sample.txt`` and ``curve.png`` to ``--out``.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bestiary.keys import rank_and_world
from bestiary.loading import BatchPlan, FixedSize, Loader, Sequential, Shuffled, to_device
from bestiary.text import ByteTokenizer, TokenWindows, write_tokens

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


def prepare(args: argparse.Namespace) -> Data:
    """Write the bytes of both parts to flat files, and cut windows from them."""
    args.out.mkdir(parents=True, exist_ok=True)
    windows = []
    for name, texts in zip(("train", "val"), read(args.data), strict=True):
        path = write_tokens(args.out / f"{name}.npy", map(TOKENS, texts), dtype=np.uint16)
        windows.append(TokenWindows(path, BLOCK, stride=BLOCK))
    counts = np.bincount(np.load(args.out / "val.npy"), minlength=TOKENS.size)
    shares = counts[counts > 0] / counts.sum()
    return Data(windows[0], windows[1], float(-(shares * np.log2(shares)).sum()))


def build() -> ByteNet:
    """Make the model."""
    return ByteNet()


@torch.no_grad()
def evaluate(model: ByteNet, loader: Loader, device: str) -> float:
    """Return bits a byte over all ranks; every window counts once."""
    model.eval()
    sums = torch.zeros(2, dtype=torch.float64, device=device)
    for batch in loader:
        batch = to_device(batch, device)
        logits, _ = model(batch["tokens"])
        loss = F.cross_entropy(
            logits.flatten(0, 1), batch["targets"].flatten(), reduction="sum"
        )  # (B, T, ids) to (BT, ids)
        sums += sums.new_tensor([float(loss), batch["targets"].numel()])
    if dist.is_initialized():
        dist.all_reduce(sums)
    return float(sums[0] / sums[1]) / math.log(2)


@torch.no_grad()
def write(model: ByteNet, prompt: str, length: int, device: str, seed: int) -> str:
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
    axes.legend()
    figure.savefig(path)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, nargs="+", default=[DATA], help="text files (default: 28 languages)")
    parser.add_argument("--prompt", default="", help="how the sample begins")
    parser.add_argument("--out", type=Path, default=Path("runs/text_generate"), help="folder for all that is written")
    parser.add_argument("--resume", action="store_true", help="go on from last.pt in --out")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--lr", type=float, default=5e-3)
    parser.add_argument("--workers", type=int, default=0, help="0 is quickest here: a window is a look into one array")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--save-every", type=int, default=0, metavar="STEPS", help="besides every epoch and every 30 s")
    args = parser.parse_args(argv)
    if min(args.epochs, args.batch_size) < 1:
        parser.error("--epochs and --batch-size should be 1 or more")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    args.workers = min(args.workers, cores)
    return args


def save(path: Path, parts: dict[str, Any], run: dict[str, Any], logged: int) -> None:
    """Write a checkpoint; who reads it sees the old one or the new one whole."""
    run["logged"] = logged
    torch.save({"run": run} | {name: part.state_dict() for name, part in parts.items()}, path.with_suffix(".part"))
    os.replace(path.with_suffix(".part"), path)


def finish(args: argparse.Namespace, data: Data, run: dict[str, Any], sample: str, seconds: float) -> None:
    """Write and say what has come out."""
    bits, below = run["history"][-1], 1 - run["history"][-1] / data.unigram
    plot(run["history"], data.unigram, args.out / "curve.png")
    (args.out / "sample.txt").write_text(sample, encoding="utf-8", errors="replace")
    result = {"bits_per_byte": bits, "unigram_bits_per_byte": data.unigram, "below_unigram": below}
    result |= {"windows": len(data.val), "train_windows": len(data.train), "seconds": round(seconds, 2)}
    (args.out / "result.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(sample.encode("utf-8", "replace").decode("utf-8"))
    print(f"{bits:.3f} bits a byte held out; frequencies alone: {data.unigram:.3f}; {below:.0%} below, {seconds:.0f} s")


def stop(error: Exception) -> NoReturn:
    """End with one short message and exit code 2: something is wrong with what was given."""
    print(f"text_generate: {error}", file=sys.stderr)
    raise SystemExit(2)


def main(argv: Sequence[str] | None = None) -> float:
    """Train, print a sample, and return bits a byte on the text held out."""
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

    # index: which windows, in which groups
    plan = BatchPlan(Shuffled(len(data.train)), FixedSize(args.batch_size), seed=args.seed)
    held_out = BatchPlan(Sequential(len(data.val)), FixedSize(256), ends="exact")
    # sample and batch: windows cut from one flat file, all of a batch at once
    train = Loader(data.train, plan=plan, num_workers=args.workers)
    val = Loader(data.val, plan=held_out)

    net = build().to(args.device)
    model = nn.parallel.DistributedDataParallel(net) if world > 1 else net
    steps = sum(plan.steps(epoch) for epoch in range(args.epochs))
    optimiser = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=1e-2)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: max(0.0, 1 - step / max(steps, 1)))
    parts: dict[str, Any] = {"model": net, "optimiser": optimiser, "schedule": schedule, "loader": train}
    run: dict[str, Any] = {"step": 0, "total": 0.0, "count": 0, "logged": 0, "history": []}
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
                logits, _ = model(batch["tokens"])
                loss = F.cross_entropy(logits.flatten(0, 1), batch["targets"].flatten())  # (B, T, ids) to (BT, ids)
                optimiser.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                optimiser.step()
                schedule.step()
                value, size = float(loss.detach()), len(batch["tokens"])
                run |= {"step": run["step"] + 1, "count": run["count"] + size, "total": run["total"] + value * size}
                print(json.dumps({"epoch": epoch, "step": run["step"], "loss": value}), file=log, flush=True)
                report = train.report()
                if rank == 0 and report.batches % 10 == 0:
                    text = f"{report.batches}/{len(train)} batches, {report.samples_per_s * BLOCK:.0f} bytes/s"
                    print(f"\repoch {epoch + 1}/{args.epochs}: {text}   ", end="", file=sys.stderr, flush=True)
                due = time.perf_counter() - saved > 30 or (args.save_every and run["step"] % args.save_every == 0)
                if rank == 0 and due and train.state_dict()["epoch"] == epoch:  # the last step is saved after measuring
                    save(last, parts, run, log.tell())
                    saved = time.perf_counter()
            bits = evaluate(net, val, args.device)
            row = {"train_bits": run["total"] / max(run["count"], 1) / math.log(2), "val_bits": bits}
            run |= {"total": 0.0, "count": 0, "history": [*run["history"], bits]}
            print(json.dumps({"epoch": epoch, "step": run["step"]} | row), file=log, flush=True)
            if rank == 0:
                text = ", ".join(f"{name} {value:.3f}" for name, value in row.items())
                waited = f"waiting for data {train.report().wait_share:.0%}"
                print(f"\repoch {epoch + 1}/{args.epochs}: {text}, {waited}", file=sys.stderr)
                save(last, parts, run, log.tell())
    if world > 1:
        dist.destroy_process_group()
    if rank == 0:
        sample = write(net, args.prompt, 300, args.device, args.seed)
        finish(args, data, run, sample, time.perf_counter() - begin)
    return float(run["history"][-1])


if __name__ == "__main__":
    main()
