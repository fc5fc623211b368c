"""Write the pictures that the benchmarks of images read: photographs by arithmetic, and many tiny files.

    python scripts/benchmarks/make_pictures.py                     into ~/.cache/bestiary/bench
    python scripts/benchmarks/make_pictures.py --data FOLDER --only photos

Layout::

    photos/class_03/00013.jpg     2,000 JPEGs of 500 x 375 or 375 x 500, quality 90, in 10 class folders
    large/class_03/00013.jpg      200 JPEGs of 3000 x 2000, quality 90, in 10 class folders
    tiny/n00000007/....JPEG       200,000 JPEGs of one pixel in 1,000 class folders, names as long as ImageNet's

Colours follow a 1/f spectrum, as those of photographs do, with a few sharp shapes and grain on top, so that files are about
as large and as slow to decode as a camera's. What is there already is kept; a part stands under its name when it is complete.
"""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.random import Generator
from PIL import Image, ImageDraw

CACHE = Path("~/.cache/bestiary/bench").expanduser()
CLASSES = 10
Field = np.ndarray[Any, np.dtype[np.float32]]


def clouds(rng: Generator, height: int, width: int, steepness: float) -> Field:
    """Return noise (H, W) of deviation 1 whose amplitudes fall as frequency to the power of -steepness."""
    rows = np.fft.fftfreq(height, 1 / height)[:, None]
    columns = np.fft.rfftfreq(width, 1 / width)[None, :]
    frequency = np.hypot(rows, columns)
    frequency[0, 0] = np.inf  # no mean
    phases = rng.standard_normal((*frequency.shape, 2)) @ np.array([1, 1j])
    field = np.fft.irfft2(phases * frequency**-steepness, s=(height, width)).astype(np.float32)
    scaled: Field = field / field.std()
    return scaled


def shapes(rng: Generator, picture: Image.Image) -> None:
    """Lay a few ellipses and rectangles over the picture."""
    pen = ImageDraw.Draw(picture)
    for _ in range(int(rng.integers(3, 9))):
        middle = rng.random(2) * picture.size
        half = (0.05 + 0.2 * rng.random(2)) * picture.size
        corners = [tuple(middle - half), tuple(middle + half)]
        colour = tuple(int(value) for value in rng.integers(0, 256, 3))
        (pen.ellipse if rng.random() < 0.5 else pen.rectangle)(corners, fill=colour)


def photograph(rng: Generator, pool: Sequence[Field], grain: float) -> Image.Image:
    """Mix clouds of one size to a picture in colour."""

    def cloud() -> Field:
        field = pool[int(rng.integers(len(pool)))]
        return np.roll(field, tuple(int(rng.integers(side)) for side in field.shape), (0, 1))

    light = 50 * cloud()
    planes = [rng.uniform(70, 170) + light + 10 * cloud() for _ in range(3)]
    picture = Image.fromarray(np.stack(planes, axis=-1).clip(0, 255).astype(np.uint8))
    shapes(rng, picture)
    shape: tuple[int, ...] = light.shape
    noise = rng.standard_normal(shape, dtype=np.float32) * grain
    return Image.fromarray((np.asarray(picture) + noise[..., None]).clip(0, 255).astype(np.uint8))


def photographs(folder: Path, count: int, sizes: Sequence[tuple[int, int]], seed: int) -> Iterator[str]:
    """Write pictures of (height, width) in turn, and yield each one's name."""
    rng = np.random.default_rng(seed)
    pools = {size: [clouds(rng, *size, 1.4) for _ in range(8)] for size in set(sizes)}
    for number in range(count):
        picture = photograph(rng, pools[sizes[number % len(sizes)]], rng.uniform(2, 5))
        path = folder / f"class_{number % CLASSES:02d}" / f"{number:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path, quality=90)
        yield path.name


def photos(folder: Path) -> Iterator[str]:
    """Write the small photographs, three of four in landscape format."""
    return photographs(folder, 2000, [(375, 500), (375, 500), (500, 375), (375, 500)], seed=0)


def large(folder: Path) -> Iterator[str]:
    """Write the large photographs."""
    return photographs(folder, 200, [(2000, 3000)], seed=1)


def tiny(folder: Path) -> Iterator[str]:
    """Write the same one-pixel picture under 200,000 names."""
    file = BytesIO()
    Image.new("RGB", (1, 1)).save(file, "JPEG")
    for number in range(1000):
        inner = folder / f"n{number:08d}"
        inner.mkdir(parents=True)
        for place in range(200):
            (inner / f"n{number:08d}_{place * 37 + number:05d}.JPEG").write_bytes(file.getvalue())
        yield inner.name


PARTS: dict[str, tuple[int, Callable[[Path], Iterator[str]]]] = {
    "photos": (2000, photos),
    "large": (200, large),
    "tiny": (1000, tiny),
}


def ensure(data: Path, part: str) -> Path:
    """Return the folder of a part, written first where it is missing; says on stderr how far it has come."""
    folder, draft = data / part, data / f"{part}.part"
    if folder.is_dir():
        return folder
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    total, write = PARTS[part]
    for done, _ in enumerate(write(draft), 1):
        if done % max(1, total // 100) == 0 or done == total:
            print(f"\rwriting {folder}: {done / total:4.0%}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    draft.rename(folder)
    return folder


def main(argv: Sequence[str] | None = None) -> int:
    """Write the parts that are missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=CACHE, help=f"folder to write into (default: {CACHE})")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    args = parser.parse_args(argv)
    for part in args.only:
        print(ensure(args.data, part))
    return 0


if __name__ == "__main__":
    sys.exit(main())
