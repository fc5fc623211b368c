"""Crop, resize, crop again and mirror: one geometry, applied alike to a picture, its mask and its boxes.

The kernels are torch's own, the ones under ``torchvision.transforms.v2``: for pictures the pixels are the same, bit for
bit, and a worker is spared the second that importing torchvision takes. Masks take the nearest value counted from pixel
centres ("nearest-exact"), so that they lie where the picture lies.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

ATTEMPTS = 10  # crops tried before the middle is taken, as in torchvision's RandomResizedCrop


class Box(NamedTuple):
    """A part of a picture, in pixels."""

    top: int
    left: int
    height: int
    width: int


class Warp(NamedTuple):
    """Cut ``source`` out, resize it to the height and width of ``scaled``, cut ``window`` out of that, then mirror."""

    source: Box
    scaled: Box
    window: Box
    mirror: bool


def random_box(
    height: int, width: int, scale: tuple[float, float], ratio: tuple[float, float], draws: Sequence[float]
) -> Box:
    """Choose a part by its share of the area and its shape, from 2 + 2 * ATTEMPTS numbers in [0, 1).

    As in torchvision: what does not fit is tried again, at last the middle is taken, cut to the nearest shape allowed.
    """
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for share, shape in zip(draws[2::2], draws[3::2], strict=True):
        area = height * width * (scale[0] + share * (scale[1] - scale[0]))
        aspect = math.exp(low + shape * (high - low))
        wide, tall = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < wide <= width and 0 < tall <= height:
            return Box(int(draws[0] * (height - tall + 1)), int(draws[1] * (width - wide + 1)), tall, wide)
    wide = min(width, max(1, round(height * ratio[1])))
    tall = min(height, max(1, round(width / ratio[0])))
    return Box((height - tall) // 2, (width - wide) // 2, tall, wide)


def warped(sample: Mapping[str, Any], warp: Warp) -> dict[str, Any]:
    """Apply the warp to those of ``image``, ``mask`` and ``boxes`` that the sample has; return these fields alone.

    Raises:
        ValueError: the mask has another size than the image, or the boxes are not (N, 4).
    """
    shape = tuple(sample["image"].shape)
    changed: dict[str, Any] = {}
    for name, kernel in (("image", _image), ("mask", _mask), ("boxes", _boxes)):
        value = sample.get(name)
        if not isinstance(value, Tensor):
            continue
        if name == "mask" and tuple(value.shape[-2:]) != shape[-2:]:
            raise ValueError(f"field 'mask' of shape {tuple(value.shape)} does not fit field 'image' of shape {shape}")
        if name == "boxes" and (value.ndim != 2 or value.shape[1] != 4):
            raise ValueError(f"field 'boxes' must be (N, 4), x1, y1, x2, y2, but its shape is {tuple(value.shape)}")
        changed[name] = kernel(value, warp) if type(value) is Tensor else _tv_tensor(value, warp)
    return changed


def _image(image: Tensor, warp: Warp) -> Tensor:
    image = _resized(_cut(image, warp.source), warp.scaled.height, warp.scaled.width)
    image = _cut(image, warp.window)
    return image.flip(-1).contiguous() if warp.mirror else image.contiguous()


def _resized(image: Tensor, height: int, width: int) -> Tensor:
    """Resize (..., C, H, W) with antialiasing; uint8 as a float where the processor has no kernel for it."""
    if tuple(image.shape[-2:]) == (height, width):
        return image
    batch = image.unsqueeze(0) if image.ndim == 3 else image
    whole = image.dtype == torch.uint8
    if not whole or (image.device.type == "cpu" and _has_uint8_kernel()):
        out = interpolate(batch, (height, width), mode="bilinear", antialias=True)
    else:
        out = interpolate(batch.float(), (height, width), mode="bilinear", antialias=True).round_().to(torch.uint8)
    return out.reshape(*image.shape[:-2], height, width)


def _has_uint8_kernel() -> bool:
    """Where torch resizes uint8 quickly (the same rule as torchvision's, so that pixels agree)."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")


def _mask(mask: Tensor, warp: Warp) -> Tensor:
    rows = _nearest(warp.source.top, warp.source.height, warp.scaled.height, warp.window.top, warp.window.height)
    columns = _nearest(warp.source.left, warp.source.width, warp.scaled.width, warp.window.left, warp.window.width)
    columns = columns.flip(0) if warp.mirror else columns
    return mask[..., rows.to(mask.device)[:, None], columns.to(mask.device)]


def _nearest(start: int, length: int, scaled: int, first: int, count: int) -> Tensor:
    """Return the source position of ``count`` scaled pixels from ``first`` on: floor((i + 1/2) * length / scaled)."""
    positions = torch.arange(first, first + count, device="cpu")
    return start + (2 * positions + 1) * length // (2 * scaled)


def _boxes(boxes: Tensor, warp: Warp) -> Tensor:
    corners = boxes.to(torch.float64 if boxes.dtype == torch.float64 else torch.float32, copy=True)
    sides = (
        (
            corners[:, 0::2],
            warp.source.left,
            warp.scaled.width / warp.source.width,
            warp.window.left,
            warp.window.width,
        ),
        (
            corners[:, 1::2],
            warp.source.top,
            warp.scaled.height / warp.source.height,
            warp.window.top,
            warp.window.height,
        ),
    )
    for values, start, factor, first, length in sides:
        values.sub_(start).mul_(factor).sub_(first).clamp_(0, length)
    if warp.mirror:
        corners[:, 0::2] = warp.window.width - corners[:, [2, 0]]
    return (corners if boxes.is_floating_point() else corners.round_()).to(boxes.dtype)


def _cut(image: Tensor, box: Box) -> Tensor:
    return image[..., box.top : box.top + box.height, box.left : box.left + box.width]


def _tv_tensor(value: Tensor, warp: Warp) -> Any:
    """Leave torchvision's own kinds to torchvision, which keeps their kind and box format."""
    kernels = import_module("torchvision.transforms.v2.functional")
    value = kernels.resized_crop(value, *warp.source, [warp.scaled.height, warp.scaled.width], antialias=True)
    value = kernels.crop(value, *warp.window)
    return kernels.horizontal_flip(value) if warp.mirror else value
