"""uint8 pictures to what a network takes: crop, flip and resize in the worker, normalise there or on the device.

Sample::

    image   uint8 (C, H, W) in; uint8 (C, size, size) out; normalised to float32 in [-1, 1] by the default mean and std
    mask    optional, any dtype (..., H, W); gets the same crop and flip, values are taken over and never mixed
    boxes   optional, (N, 4) corners x1, y1, x2, y2 in pixels; same crop and flip, cut at the border, none removed

All other fields pass unchanged. Masks and boxes that are torchvision tv_tensors keep their kind and box format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bestiary.images.warp import ATTEMPTS, Box, Warp, random_box, warped

Values = float | Sequence[float]


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


def normalize(
    sample_or_batch: dict[str, Any],
    *,
    field: str = "image",
    mean: Values = 0.5,
    std: Values = 0.5,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Turn uint8 (..., C, H, W) into (value / 255 - mean) / std; by default 0 becomes -1 and 255 becomes 1, exactly.

    Works on a sample or a batch, on any device. Only ``field`` changes, in a new dict. ``mean`` and ``std`` are
    numbers, or one number a channel.

    Raises:
        ValueError: the field is missing or not uint8 (so that normalising twice is an error), or the number of means
            or deviations is not the number of channels.

    >>> normalize({"image": torch.tensor([[[0, 255]]], dtype=torch.uint8)})["image"].tolist()
    [[[-1.0, 1.0]]]
    """
    image = _image(sample_or_batch, field)
    if image.dtype != torch.uint8:
        hint = "; floats in [0, 1] go through normalize_unit" if image.is_floating_point() else ""
        raise ValueError(f"normalize takes uint8 in [0, 255], but field {field!r} is {_described(image)}{hint}")
    return sample_or_batch | {field: _standardised(image, 255.0, mean, std, dtype)}


def normalize_unit(
    sample_or_batch: dict[str, Any],
    *,
    field: str = "image",
    mean: Values = 0.5,
    std: Values = 0.5,
    dtype: torch.dtype = torch.float32,
) -> dict[str, Any]:
    """Turn floats in [0, 1] (..., C, H, W) into (value - mean) / std; by default 0 becomes -1 and 1 becomes 1.

    The range is checked, which on an accelerator waits for the device.

    Raises:
        ValueError: the field is missing, not of a float type, or reaches outside [0, 1]; or as in ``normalize``.

    >>> normalize_unit({"image": torch.tensor([[[0.0, 0.5, 1.0]]])})["image"].tolist()
    [[[-1.0, 0.0, 1.0]]]
    """
    image = _image(sample_or_batch, field)
    if not image.is_floating_point() or (image.numel() and not bool(((image >= 0) & (image <= 1)).all())):
        hint = "; uint8 goes through normalize" if image.dtype == torch.uint8 else ""
        raise ValueError(f"normalize_unit takes floats in [0, 1], but field {field!r} is {_described(image)}{hint}")
    return sample_or_batch | {field: _standardised(image, 1.0, mean, std, dtype)}


def denormalize(
    sample_or_batch: dict[str, Any], *, field: str = "image", mean: Values = 0.5, std: Values = 0.5
) -> dict[str, Any]:
    """Turn normalised floats back to uint8 by rounding; what lies outside of black and white becomes black or white.

    Raises:
        ValueError: the field is missing, not of a float type, or holds NaN; or as in ``normalize``.

    >>> denormalize({"image": torch.tensor([[[-1.0, 0.0, 1.0]]])})["image"].tolist()
    [[[0, 128, 255]]]
    """
    image = _image(sample_or_batch, field)
    if not image.is_floating_point() or bool(image.isnan().any()):
        raise ValueError(f"denormalize takes floats without NaN, but field {field!r} is {_described(image)}")
    out = image.to(torch.float32, copy=True)
    for plane, centre, spread in _planes(out, mean, std):
        plane.mul_(spread * 255).add_(centre * 255)
    return sample_or_batch | {field: out.round_().clamp_(0, 255).to(torch.uint8)}


def _standardised(image: Tensor, white: float, mean: Values, std: Values, dtype: torch.dtype) -> Tensor:
    # subtract, then divide: (255 - 127.5) / 127.5 is 1 exactly, 255 * (2 / 255) - 1 need not be
    out = image.to(torch.promote_types(dtype, torch.float32), copy=True)
    for plane, centre, spread in _planes(out, mean, std):
        plane.sub_(centre * white).div_(spread * white)
    return out.to(dtype)


def _planes(image: Tensor, mean: Values, std: Values) -> list[tuple[Tensor, float, float]]:
    """Pair views (..., H, W) of the channels with mean and deviation; plain numbers, so that no device has to wait."""
    means, deviations = _per_channel("mean", mean, image), _per_channel("std", std, image)
    if not all(value > 0 for value in deviations):
        raise ValueError(f"std must be greater than 0, not {std}")
    if len({*means}) == len({*deviations}) == 1:
        return [(image, means[0], deviations[0])]
    return list(zip(image.unbind(-3), means, deviations, strict=True))


def _per_channel(name: str, values: Values, image: Tensor) -> list[float]:
    channels = image.shape[-3]
    if isinstance(values, float | int) or getattr(values, "ndim", 1) == 0:  # numpy's and torch's numbers, too
        return [float(values)] * channels  # type: ignore[arg-type]
    listed = [float(value) for value in values]
    if len(listed) != channels:
        raise ValueError(
            f"{name} has {len(listed)} values, but the image of shape {tuple(image.shape)} has {channels} channels;"
            " give one for each channel, or a single number for all"
        )
    return listed


def _image(sample: Mapping[str, Any], field: str) -> Tensor:
    if not isinstance(sample, Mapping):
        raise TypeError(f"expected a sample or batch (dict of fields), not {type(sample).__name__}")
    if field not in sample:
        raise ValueError(f"there is no field {field!r}; the fields are {', '.join(map(repr, sample))}")
    image = sample[field]
    if not isinstance(image, Tensor):
        raise TypeError(f"field {field!r} must be a tensor (..., C, H, W), not {type(image).__name__}")
    if image.ndim < 3 or not image.shape[-3]:
        raise ValueError(f"field {field!r} must be (C, H, W) or (B, C, H, W), but its shape is {tuple(image.shape)}")
    return image


def _described(image: Tensor) -> str:
    """Name dtype and range of a tensor for a message."""
    name = str(image.dtype).removeprefix("torch.")
    if not image.numel() or image.is_complex():
        return f"{name} of shape {tuple(image.shape)}"
    low, high = image.min().item(), image.max().item()
    return f"{name} in [{low:g}, {high:g}]"


def _height_width(sample: Mapping[str, Any]) -> tuple[int, int]:
    image = _image(sample, "image")
    if image.dtype != torch.uint8 and not image.is_floating_point():
        raise ValueError(f"field 'image' must be uint8 or of a float type to be resized, but it is {_described(image)}")
    height, width = image.shape[-2:]
    if not height or not width:
        raise ValueError(f"field 'image' of shape {tuple(image.shape)} has no pixels")
    return height, width


def _check_size(size: int) -> None:
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"size must be a positive whole number of pixels, not {size!r}")
