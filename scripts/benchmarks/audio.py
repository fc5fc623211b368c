"""Sound clips: FLAC clips a second at an equal budget of padded seconds, and 16-bit WAV, against lhotse and plain torch.

    scripts/bench audio
    scripts/bench audio --workers 0 2 --rounds 7
    scripts/bench audio --data FOLDER --rate 16000             class folders of one's own FLAC files

Made once: clips of log-normal length, median 5.2 s, 1 to 20 s, 16 kHz, mono, 16 bit, as FLAC and as WAV. Every loader decodes
with libsndfile and gives float32 batches padded with zeros, and the lengths. The budget holds for all: length buckets of
bestiary and of lhotse fill it, the shuffled loader takes as many clips as fit if all are of the longest. An epoch is one run
in a process of its own; the rate is clips over the time from the first batch asked for to the last one, workers' start
included. On a machine that others use the clips a CPU second tell more: who starts more busy processes gets more of it. The
last line reads the same WAV files one by one in one process, in turn, and takes the median ratio.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from harness import processor_s, ratios, run_rounds, table

CONTENDERS = ["shuffled", "bestiary", "lhotse"]
FIELDS = {
    "rate": "clips a second",
    "per_cpu_s": "clips a CPU second",
    "waste": "padding %",
    "clips": "clips a batch",
    "largest_s": "largest batch, padded s",
    "memory_mb": "peak MB",
}


def make(root: Path, count: int, rate: int) -> None:
    """Write the clips, unless they are there: chords with a little noise, of which FLAC leaves little more than half, as of speech."""
    soundfile: Any = import_module("soundfile")
    if (root / "done").exists():
        return
    rng = np.random.default_rng(0)
    for number, seconds in enumerate(np.clip(rng.lognormal(np.log(5.2), 0.55, count), 1, 20)):
        times = np.arange(int(seconds * rate)) / rate
        chord = sum(np.sin(2 * np.pi * hertz * times) for hertz in rng.uniform(80, 2000, 3))
        values = 0.1 * chord * (1 + np.sin(3 * times)) + 0.001 * rng.standard_normal(len(times))
        for kind in ("flac", "wav"):
            path = root / kind / str(number % 10) / f"{number:05d}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            soundfile.write(path, values.astype(np.float32), rate, subtype="PCM_16")
    (root / "done").touch()


def ours(sounds: Any, budget: float, workers: int) -> Iterable[tuple[Any, Any]]:
    """Length buckets and the loader."""
    from bestiary.loading import BatchPlan, Collate, LengthBuckets, Loader, Shuffled

    groups = LengthBuckets(sounds.lengths(), max_padded=budget * sounds.sample_rate)
    plan = BatchPlan(Shuffled(len(sounds)), groups)
    for batch in Loader(sounds, plan=plan, collate=Collate(pad={"waveform": 0.0}), num_workers=workers):
        yield batch["waveform"][:, 0], batch["waveform_length"]


class Plain:
    """What a lesson writes: soundfile in ``__getitem__``."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths, self.read = paths, import_module("soundfile").read

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Any:
        """Return float32 (T,)."""
        import torch

        return torch.from_numpy(self.read(self.paths[index], dtype="float32")[0])


def padded(clips: Sequence[Any]) -> tuple[Any, Any]:
    """Collate with ``pad_sequence``."""
    import torch

    return torch.nn.utils.rnn.pad_sequence(list(clips), batch_first=True), torch.tensor([len(clip) for clip in clips])


def shuffled(sounds: Any, budget: float, workers: int) -> Iterable[tuple[Any, Any]]:
    """A DataLoader that shuffles."""
    from torch.utils.data import DataLoader

    size = int(budget * sounds.sample_rate // sounds.lengths().max())
    clips: Any = Plain([sounds.locate(index) for index in range(len(sounds))])
    return DataLoader(clips, size, shuffle=True, collate_fn=padded, num_workers=workers)


class Cuts:
    """A dataset for lhotse's sampler: a batch of cuts at a time."""

    def __getitem__(self, cuts: Any) -> Any:
        """Return the padded batch and its lengths."""
        return import_module("lhotse.dataset.collation").collate_audio(cuts)


def lhotse(sounds: Any, budget: float, workers: int) -> Iterable[tuple[Any, Any]]:
    """Dynamic buckets over cuts."""
    from torch.utils.data import DataLoader

    module, sampling = import_module("lhotse"), import_module("lhotse.dataset")
    cuts, rate = [], sounds.sample_rate
    for index, frames in enumerate(sounds.lengths().tolist()):
        source, length = module.AudioSource("file", [0], sounds.locate(index)), frames / rate
        options: dict[str, Any] = {"sampling_rate": rate, "num_samples": frames, "duration": length}
        recording = module.Recording(id=str(index), sources=[source], **options)
        cuts.append(module.MonoCut(id=str(index), start=0, duration=length, channel=0, recording=recording))
    options = {"max_duration": budget, "num_buckets": 30, "shuffle": True, "drop_last": False}
    sampler = sampling.DynamicBucketingSampler(module.CutSet.from_cuts(cuts), **options)
    dataset: Any = Cuts()
    return DataLoader(dataset, sampler=sampler, batch_size=None, num_workers=workers)


def measure(name: str, root: Path, args: argparse.Namespace) -> dict[str, float]:
    """Go through one epoch."""
    from bestiary.audio import AudioFolder

    sounds = AudioFolder(
        root, sample_rate=args.rate, index=Path(tempfile.gettempdir()) / "bestiary-bench" / "index.npz"
    )
    way: Callable[[Any, float, int], Iterable[tuple[Any, Any]]] = globals()[{"bestiary": "ours"}.get(name, name)]
    batches = way(sounds, args.budget, args.workers[0])
    real = places = clips = largest = count = 0
    start, spent = time.perf_counter(), processor_s()
    for waveforms, lengths in batches:
        real, places = real + int(lengths.sum()), places + waveforms.numel()
        clips, largest, count = clips + len(lengths), max(largest, waveforms.numel()), count + 1
    seconds = time.perf_counter() - start
    if clips != len(sounds):
        raise ValueError(f"{clips} of {len(sounds)} clips came")
    del batches  # workers count in processor time once they have ended
    row = {
        "rate": clips / seconds,
        "per_cpu_s": clips / (processor_s() - spent),
        "waste": 100 * (1 - real / places),
    }
    return row | {"clips": clips / count, "largest_s": largest / args.rate}


def wav_ratio(paths: Sequence[str], rounds: int) -> str:
    """Read WAV files with soundfile and with ``read_audio``, in turn, and return a line with both and their ratio."""
    from bestiary.audio import read_audio

    soundfile: Any = import_module("soundfile")
    ways: dict[str, Callable[[str], Any]] = {
        "soundfile": lambda path: soundfile.read(path, dtype="float32"),
        "read_audio": read_audio,
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, read in ways.items():
            start = time.perf_counter()
            for path in paths:
                read(path)
            times[name].append((time.perf_counter() - start) / len(paths) * 1e6)
    ratios = [slow / quick for slow, quick in zip(times["soundfile"], times["read_audio"], strict=True)]
    middle = {name: statistics.median(values) for name, values in times.items()}
    return (
        f"16-bit WAV, us a clip: soundfile to float32 {middle['soundfile']:.0f}, read_audio {middle['read_audio']:.0f};"
        f" {statistics.median(ratios):.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f})"
    )


def main() -> None:
    """Measure one contender, or all of them in turn."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="class folders of FLAC files (default: made)")
    parser.add_argument("--count", type=int, default=2000, help="clips to make (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=16_000)
    parser.add_argument("--budget", type=float, default=200.0, help="padded seconds in a batch (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, nargs="*", default=[2])
    parser.add_argument("--only", nargs="*", default=CONTENDERS, choices=CONTENDERS)
    parser.add_argument("--measure", choices=CONTENDERS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    made = Path(tempfile.gettempdir()) / "bestiary-bench" / f"clips-{args.count}-{args.rate}"
    if args.data is None:
        make(made, args.count, args.rate)
    root = args.data or made / "flac"
    if args.measure:
        print(json.dumps(measure(args.measure, root, args)))
        return
    print(f"{root}, budget {args.budget:g} padded s, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}")
    names = [name for name in args.only if name != "lhotse" or importlib.util.find_spec("lhotse")]
    if "lhotse" in args.only and "lhotse" not in names:
        print("lhotse is not installed and is left out: pip install lhotse")
    for workers in args.workers:
        options = [
            "--data",
            str(root),
            "--rate",
            str(args.rate),
            "--budget",
            str(args.budget),
            "--workers",
            str(workers),
        ]
        rows = run_rounds(__file__, names, options, rounds=args.rounds)
        for reference in names:
            if reference != "bestiary":
                print(f"\n{workers} workers\n\n{table(rows, FIELDS, ratio='rate', reference=reference)}")
                found = ratios(rows, "bestiary", "per_cpu_s", reference) if "bestiary" in rows else []
                if found:
                    print(f"\nclips a CPU second: bestiary {statistics.median(found):.2f} times {reference}")
    if args.data is None:
        print("\n" + wav_ratio([str(path) for path in sorted((made / "wav").rglob("*.wav"))[:200]], args.rounds))


if __name__ == "__main__":
    main()
