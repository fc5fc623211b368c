"""Folders of pictures: images a second beside torchvision's usual pipeline, time and memory to list 200,000 files.

    scripts/bench images                            all three sets; makes its data in ~/.cache/bestiary/bench when missing
    scripts/bench images --only photos --rounds 3
    scripts/bench images --data FOLDER --workers 2
    scripts/bench images --only photos --peers      and other libraries, as far as they are installed; or --peers timm grain

Sets:

photos   JPEGs of 500 x 375: random resized crop to 224, random flip, batches of 64
large    JPEGs of 3000 x 2000: the same with batches of 16; ours decodes them with ``min_side=224``, to 375 x 250, and once
         more with twice that, to 750 x 500, so that small crops are less often enlarged
listing  class folders with 200,000 files: nothing is read, the data set is made

``torchvision`` is what most projects have: ImageFolder, RandomResizedCrop, RandomHorizontalFlip, ToTensor, Normalize, and
torch's DataLoader. ``torchvision uint8`` is the quickest that it offers: its own JPEG decoder, v2 transforms on uint8.
``bestiary`` delivers uint8, to be normalised on the device; ``bestiary float`` normalises each batch on this processor.
Peers read ``photos`` as image_peers.py tells, some from a copy in their own format, which is made beside it the first time.
A rate leaves out the batches that the workers had made ahead. Files are in the page cache.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from harness import Rows, median, processor_s, ratios, run_rounds, table
from image_peers import PEERS, SIZE, usual_steps
from make_pictures import CACHE, ensure

BATCH = {"photos": 64, "large": 16}
FOLDERS = {"photos": "photos", "large": "large", "listing": "tiny"}
TARGETS = {"photos": 1.7, "large": 3.0}


def bestiary(root: Path, batch_size: int, workers: int, min_side: int = SIZE) -> Iterable[Any]:
    """Our folder, transform and loader; batches of uint8. The small photographs stay whole whatever ``min_side`` is."""
    from bestiary.images import ImageFolder, train_transform
    from bestiary.loading import Loader

    data = ImageFolder(root, transform=train_transform(SIZE), min_side=min_side)
    return Loader(data, batch_size=batch_size, shuffle=True, drop_last=True, num_workers=workers)


def bestiary_finer(root: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """The same, decoded to twice the side."""
    return bestiary(root, batch_size, workers, 2 * SIZE)


def bestiary_float(root: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """The same, normalised to float32 in this process."""
    from bestiary.images import normalize

    return map(normalize, bestiary(root, batch_size, workers))


def torchvision_usual(root: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """Pillow, transforms of the first kind, float32 from the workers."""
    from torch.utils.data import DataLoader
    from torchvision import datasets

    data = datasets.ImageFolder(str(root), usual_steps())
    return DataLoader(data, batch_size, shuffle=True, drop_last=True, num_workers=workers)


def torchvision_uint8(root: Path, batch_size: int, workers: int) -> Iterable[Any]:
    """torchvision's decoder and v2 transforms, uint8 from the workers."""
    from torch.utils.data import DataLoader
    from torchvision import datasets
    from torchvision.io import ImageReadMode, decode_image
    from torchvision.transforms import v2

    transform = v2.Compose([v2.RandomResizedCrop(SIZE, antialias=True), v2.RandomHorizontalFlip()])
    data = datasets.ImageFolder(str(root), transform, loader=lambda path: decode_image(path, ImageReadMode.RGB))
    return DataLoader(data, batch_size, shuffle=True, drop_last=True, num_workers=workers)


CONTENDERS: dict[str, Callable[[Path, int, int], Iterable[Any]]] = {
    "bestiary": bestiary,
    "bestiary min_side=448": bestiary_finer,
    "bestiary float": bestiary_float,
    "torchvision": torchvision_usual,
    "torchvision uint8": torchvision_uint8,
}
MODULES = {
    "bestiary": [
        "bestiary.images.normalizing",
        "bestiary.images.transforms",
        "bestiary.images.folder",
        "bestiary.loading.loader",
    ],
    "torchvision": ["torchvision.datasets", "torchvision.transforms.v2"],
}


def reading(name: str, root: Path, workers: int) -> dict[str, float]:
    """Run one epoch and return images a second and processor time an image."""
    batch_size, peer = BATCH[root.name], PEERS.get(name)
    for module in peer.modules if peer else MODULES[name.split()[0]]:
        import_module(module)  # what imports take is told apart from what pictures take
    contender, folder = (peer.read, peer.folder(root)) if peer else (CONTENDERS[name], root)
    begin, used = time.perf_counter(), processor_s()
    ahead, batches, mark = 2 * workers + 1, 0, 0.0
    for _ in contender(folder, batch_size, workers):
        batches += 1
        now = time.perf_counter()
        if batches == ahead:
            mark = now
    if batches <= ahead:
        raise ValueError(f"{root} gives {batches} batches of {batch_size}, which {workers} workers make ahead")
    images = batches * batch_size
    return {
        "rate": (images - ahead * batch_size) / (now - mark),
        "whole": images / (now - begin),
        "cpu_ms": (processor_s() - used) * 1000 / images,
    }


def listing(name: str, root: Path) -> dict[str, float]:
    """Make the data set and return how long it took and what it holds and took in between."""
    kind = import_module("torchvision.datasets" if name == "torchvision" else "bestiary.images").ImageFolder
    kind(str(root.parent / "photos"))  # what is imported at the first call is no part of the listing
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    begin, used = time.perf_counter(), processor_s()
    data = kind(str(root))
    seconds, cpu = time.perf_counter() - begin, processor_s() - used
    peak = status("VmHWM") - before
    gc.collect()
    if len(data) != 200_000:
        raise ValueError(f"{root} has {len(data):,} files instead of 200,000; remove the folder to have it made again")
    return {"seconds": seconds, "cpu_s": cpu, "held_mb": (status("VmRSS") - before) / 1e6, "peak_mb": peak / 1e6}


def status(field: str) -> int:
    """Return a line of this process's status in bytes: VmRSS now, VmHWM at its peak."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def report(name: str, rows: Rows, workers: int) -> str:
    """Return the table of one set and what it says about the targets."""
    if name == "listing":
        fields = {
            "seconds": "seconds",
            "cpu_s": "processor s",
            "held_mb": "held MB",
            "peak_mb": "peak MB while listing",
        }
        lines = table(rows, fields, ratio="seconds", reference="torchvision")
        goals = [("seconds", "time", 1.0), ("held_mb", "memory held", 0.5), ("peak_mb", "peak memory", 0.5)]
        met = [verdict(rows, field, what, "at most", goal) for field, what, goal in goals]
        return f"### listing: 200,000 files in 1,000 class folders\n\n{lines}\n\n" + "\n".join(met)
    fields = {"rate": "images/s", "whole": "images/s, listing and start included", "cpu_ms": "processor ms an image"}
    fields |= {"memory_mb": "peak MB of all processes"}
    lines = table(rows, fields, ratio="rate", reference="torchvision")
    size = "500 x 375" if name == "photos" else "3000 x 2000"
    met = [verdict(rows, "rate", "images a second", "at least", TARGETS[name])] if workers == 2 else []
    met += [verdict(rows, "cpu_ms", "processor time an image", "at most", 1 / TARGETS[name])] if workers == 2 else []
    return f"### {name}: JPEGs of {size}, {workers} workers, batches of {BATCH[name]}\n\n{lines}\n\n" + "\n".join(met)


def verdict(rows: Rows, field: str, what: str, bound: str, goal: float) -> str:
    """Say whether the median ratio meets a goal."""
    found = ratios(rows, "bestiary", field, "torchvision")
    if not found:
        return f"{what}: not compared"
    ratio = median([{"ratio": one} for one in found], "ratio") or 0.0
    met = ratio >= goal if bound == "at least" else ratio <= goal
    return f"{what}: {ratio:.2f} times torchvision's, the goal is {bound} {goal:.3g}: {'met' if met else 'MISSED'}"


def prepared(names: Sequence[str], root: Path) -> list[str]:
    """Return the peers that are installed, their own formats written; say which are not."""
    found = [name for name in names if PEERS[name].installed()]
    for name in names:
        if name in found:
            warm(PEERS[name].folder(root), contents=True)
        else:
            print(f"{name} is not installed and is left out: pip install {PEERS[name].package}")
    return found


def warm(folder: Path, contents: bool) -> None:
    """Bring the folder into the page cache."""
    for path in folder.rglob("*"):
        if contents and path.is_file():
            path.read_bytes()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=CACHE, help=f"folder with the pictures (default: {CACHE})")
    parser.add_argument("--only", nargs="+", choices=FOLDERS, default=list(FOLDERS), metavar="SET", help="sets to run")
    parser.add_argument("--names", nargs="+", choices=CONTENDERS, default=list(CONTENDERS), metavar="NAME")
    which = f"for photos, too: {', '.join(PEERS)}; all of them where none is named"
    parser.add_argument("--peers", nargs="*", choices=PEERS, metavar="PEER", help=which)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--measure", metavar="NAME", help="run one contender in this process and print a JSON row")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the chosen sets and print a table for each."""
    args = arguments(argv)
    if args.measure:
        root = args.data / FOLDERS[args.only[0]]
        row = listing(args.measure, root) if root.name == "tiny" else reading(args.measure, root, args.workers)
        print(json.dumps(row))
        return 0
    for name in args.only:
        folders = [ensure(args.data, part) for part in dict.fromkeys(["photos", FOLDERS[name]])]
        warm(folders[-1], contents=name != "listing")
        names = ["bestiary", "torchvision"] if name == "listing" else args.names
        names = [one for one in names if name == "large" or "min_side" not in one]
        if name == "photos" and args.peers is not None:
            names += prepared(args.peers or list(PEERS), folders[-1])
        options = ["--data", str(args.data), "--only", name, "--workers", str(args.workers)]
        print(report(name, run_rounds(__file__, names, options, rounds=args.rounds), args.workers), flush=True)
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
