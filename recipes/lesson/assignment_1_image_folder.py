"""Assignment 1: images in one folder per class, flipped at random, with pixels from -1 to 1.

    python recipes/lesson/assignment_1_image_folder.py recipes/data/fashion/train

Layout::

    root/cat/001.jpg
    root/dog/17.png
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

EXTENSIONS = (".jpg", ".jpeg", ".png")


def find_images(root: Path) -> tuple[list[str], list[tuple[Path, int]]]:
    """Return the class names, sorted, and for every image its path and the index of its class, sorted by path.

    A class is a folder below ``root``. Hidden folders and files (their names begin with a dot) and files of other kinds
    are left out; capital letters in extensions are fine. A root without one image is a ValueError that says what is
    expected there.
    """
    classes = sorted(folder.name for folder in root.iterdir() if folder.is_dir() and not folder.name.startswith("."))
    files = [
        (path, index)
        for index, name in enumerate(classes)
        for path in sorted((root / name).rglob("*"))
        if path.suffix.lower() in EXTENSIONS and not path.name.startswith(".")
    ]
    if not files:
        raise ValueError(f"{root} holds no images; expected one folder a class, such as {root}/cat/001.jpg")
    return classes, files


def read_image(path: Path, size: int) -> Tensor:
    """Return the image as RGB, uint8 (3, size, size); the file is closed again."""
    with Image.open(path) as image:
        pixels = bytearray(image.convert("RGB").resize((size, size)).tobytes())
    flat = torch.frombuffer(pixels, dtype=torch.uint8)
    return flat.reshape(size, size, 3).permute(2, 0, 1).contiguous()  # (H, W, C) to (C, H, W)


def wants_flip(seed: int, epoch: int, index: int, probability: float = 0.5) -> bool:
    """Decide by a hash of the three numbers: the same in every process, for any number of workers, new in each epoch."""
    digest = hashlib.blake2b(f"{seed} {epoch} {index}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64 < probability


def flip(image: Tensor) -> Tensor:
    """Return the image (..., H, W) mirrored left to right."""
    return image.flip(-1)


def normalize(image: Tensor) -> Tensor:
    """Return uint8 pixels as float32 from -1 to 1: 0 becomes -1 and 255 becomes 1, exactly. Takes (..., H, W).

    Use it on a single image in a worker, or on a whole batch on the device, where a quarter of the bytes have to go.
    """
    return image.to(torch.float32) / 127.5 - 1.0


class ImageFolderDataset(Dataset[dict[str, Any]]):
    """Serve ``image``, float32 (3, size, size) from -1 to 1, and ``label``, the index into ``classes``."""

    def __init__(self, root: str | Path, size: int = 64, seed: int = 0) -> None:
        """List the files; open none. Keep ``classes`` and ``files``; the first epoch is 0."""
        self.classes, self.files = find_images(Path(root))
        self.size, self.seed, self.epoch = size, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that flips are drawn for; call it before the loader makes its workers."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of images, an int."""
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Read image ``index``, flip it if ``wants_flip`` says so, normalise it."""
        path, label = self.files[index]
        image = read_image(path, self.size)
        if wants_flip(self.seed, self.epoch, index):
            image = flip(image)
        return {"image": normalize(image), "label": label}


def main(argv: Sequence[str] | None = None) -> int:
    """Print the shape and the range of the first batch of two epochs."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1:
        print("give one folder that holds one folder a class", file=sys.stderr)
        return 2
    dataset = ImageFolderDataset(arguments[0])
    print(f"{len(dataset)} images of {len(dataset.classes)} classes: {', '.join(dataset.classes)}")
    for epoch in range(2):
        dataset.set_epoch(epoch)
        image = next(iter(DataLoader(dataset, batch_size=8)))["image"]
        flipped = sum(wants_flip(dataset.seed, epoch, index) for index in range(len(image)))
        print(f"epoch {epoch}: {tuple(image.shape)} from {image.min():.2f} to {image.max():.2f}, {flipped} flipped")
    return 0


if __name__ == "__main__":
    sys.exit(main())

# The same with bestiary (flips on whole images, pixels normalised on the batch):
#
# from bestiary.images import ImageFolder, normalize
# from bestiary.loading import Loader
# from torchvision.transforms import v2
# steps = v2.Compose([v2.Resize((64, 64)), v2.RandomHorizontalFlip()])
# loader = Loader(ImageFolder(root, transform=steps), batch_size=32, shuffle=True, seed=0)
# batches = (normalize(batch) for batch in loader)
