"""uint8 pictures to what a network takes, in the worker: crop, flip and resize; they stay uint8.

Sample::

    image   uint8 (C, H, W) in; uint8 (C, size, size) out
    mask    optional, any dtype (..., H, W); gets the same crop and flip, values are taken over and never mixed
    boxes   optional, (N, 4) corners x1, y1, x2, y2 in pixels; same crop and flip, cut at the border, none removed

All other fields pass unchanged. Masks and boxes that are torchvision tv_tensors keep their kind and box format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from bestiary.images.normalizing import described, image_in
from bestiary.images.warp import ATTEMPTS, Box, Warp, random_box, warped


def train_transform(
    size: int,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
) -> TrainTransform:
    """Return a transform that crops at random, resizes to (size, size), and mirrors left and right at random.

    Args:
        size: side of the square that comes out, in pixels.
        scale: least and greatest share of the picture's area in the crop.
        ratio: least and greatest width over height of the crop.
        flip: probability of mirroring.

    >>> picture = {"image": torch.zeros(3, 40, 60, dtype=torch.uint8), "label": 1}
    >>> train_transform(32)(picture)["image"].shape
    torch.Size([3, 32, 32])
    """
    _check_size(size)
    for name, (low, high) in {"scale": scale, "ratio": ratio}.items():
        if not 0 < low <= high:
            raise ValueError(f"{name} must be (low, high) with 0 < low <= high, not {(low, high)}")
    if not 0 <= flip <= 1:
        raise ValueError(f"flip is a probability in [0, 1], not {flip}")
    return TrainTransform(size, (scale[0], scale[1]), (ratio[0], ratio[1]), flip)


def eval_transform(size: int, *, resize: int | None = None) -> EvalTransform:
    """Return a transform that resizes the short side and takes the middle (size, size); nothing in it is random.

    Args:
        size: side of the square that comes out, in pixels.
        resize: length of the short side before the crop; by default 8/7 of ``size`` (256 for 224).

    >>> eval_transform(224).resize
    256
    """
    _check_size(size)
    resize = round(size * 8 / 7) if resize is None else resize
    if resize < size:
        raise ValueError(f"resize={resize} is shorter than the crop of size={size}")
    return EvalTransform(size, resize)


@dataclass(frozen=True)
class TrainTransform:
    """Random resized crop and random mirroring; made by ``train_transform``.

    Each call takes 23 numbers from torch's global generator, whatever the picture.
    """

    size: int
    scale: tuple[float, float]
    ratio: tuple[float, float]
    flip: float

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with ``image``, ``mask`` and ``boxes`` cropped, resized and perhaps mirrored alike."""
        height, width = _height_width(sample)
        draws = torch.rand(3 + 2 * ATTEMPTS, device="cpu").tolist()
        box = random_box(height, width, self.scale, self.ratio, draws[1:])
        whole = Box(0, 0, self.size, self.size)
        return sample | warped(sample, Warp(box, whole, whole, mirror=draws[0] < self.flip))


@dataclass(frozen=True)
class EvalTransform:
    """Resize of the short side and centre crop; made by ``eval_transform``."""

    size: int
    resize: int

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the sample with ``image``, ``mask`` and ``boxes`` resized and cropped alike."""
        height, width = _height_width(sample)
        short = min(height, width)
        # of a strip only the middle matters: resizing 1 x 5000 as a whole would take a gigabyte
        tall, wide = min(height, 16 * short), min(width, 16 * short)
        box = Box((height - tall) // 2, (width - wide) // 2, tall, wide)
        tall, wide = int(self.resize * tall / short), int(self.resize * wide / short)
        top, left = round((tall - self.size) / 2), round((wide - self.size) / 2)
        warp = Warp(box, Box(0, 0, tall, wide), Box(top, left, self.size, self.size), mirror=False)
        return sample | warped(sample, warp)


def _height_width(sample: Mapping[str, Any]) -> tuple[int, int]:
    image = image_in(sample, "image")
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise ValueError(f"field 'image' must be uint8 or of a float type to be resized, but it is {described(image)}")
    height, width = image.shape[-2:]
    if not height or not width:
        raise ValueError(f"field 'image' of shape {tuple(image.shape)} has no pixels")
    return height, width


def _check_size(size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size must be a positive whole number of pixels, not {size!r}")
