"""Bytes to floats and back: uint8 pictures to [-1, 1], in a worker, in the loop, or on the device after the copy.

Runs on any device, also as ``DevicePrefetcher``'s transform. uint8 is the mark of what is not normalised yet, so that
doing it twice is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

Values = float | Sequence[float]


def normalize(
    sample_or_batch: dict[str, Any],
    *,
    field: str = "image",
    mean: Values = 0.5,
    std: Values = 0.5,
    dtype: torch.dtype = torch.float32,
    memory_format: torch.memory_format = torch.preserve_format,
) -> dict[str, Any]:
    """Turn uint8 (..., C, H, W) into (value / 255 - mean) / std; by default 0 becomes -1 and 255 becomes 1, exactly.

    Works on a sample or a batch, on any device. Only ``field`` changes, in a new dict. ``mean`` and ``std`` are
    numbers, or one number a channel. It is computed in float32 and rounded to ``dtype``, such as ``torch.bfloat16``.
    ``memory_format=torch.channels_last`` lays out a batch as convolutions on many devices are quickest with; its shape stays.

    Raises:
        ValueError: the field is missing or not uint8 (so that normalising twice is an error), the number of means
            or deviations is not the number of channels, or channels-last is asked for what is no batch (B, C, H, W).

    >>> normalize({"image": torch.tensor([[[0, 255]]], dtype=torch.uint8)})["image"].tolist()
    [[[-1.0, 1.0]]]
    """
    image = image_in(sample_or_batch, field)
    if image.dtype != torch.uint8:
        hint = "; floats in [0, 1] go through normalize_unit" if image.is_floating_point() else ""
        raise ValueError(f"normalize takes uint8 in [0, 255], but field {field!r} is {described(image)}{hint}")
    if memory_format == torch.channels_last and image.ndim != 4:
        raise ValueError(
            f"memory_format=torch.channels_last takes a batch (B, C, H, W), but the shape of field {field!r} is {tuple(image.shape)}"
        )
    return sample_or_batch | {field: _standardised(image, 255.0, mean, std, dtype, memory_format)}


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
    image = image_in(sample_or_batch, field)
    if not image.is_floating_point() or (image.numel() and not bool(((image >= 0) & (image <= 1)).all())):
        hint = "; uint8 goes through normalize" if image.dtype == torch.uint8 else ""
        raise ValueError(f"normalize_unit takes floats in [0, 1], but field {field!r} is {described(image)}{hint}")
    return sample_or_batch | {field: _standardised(image, 1.0, mean, std, dtype, torch.preserve_format)}


def denormalize(
    sample_or_batch: dict[str, Any], *, field: str = "image", mean: Values = 0.5, std: Values = 0.5
) -> dict[str, Any]:
    """Turn normalised floats back to uint8 by rounding; what lies outside of black and white becomes black or white.

    Raises:
        ValueError: the field is missing, not of a float type, or holds NaN; or as in ``normalize``.

    >>> denormalize({"image": torch.tensor([[[-1.0, 0.0, 1.0]]])})["image"].tolist()
    [[[0, 128, 255]]]
    """
    image = image_in(sample_or_batch, field)
    if not image.is_floating_point() or bool(image.isnan().any()):
        raise ValueError(f"denormalize takes floats without NaN, but field {field!r} is {described(image)}")
    out = image.to(torch.float32, copy=True)
    for plane, centre, spread in _planes(out, mean, std):
        plane.mul_(spread * 255).add_(centre * 255)
    return sample_or_batch | {field: out.round_().clamp_(0, 255).to(torch.uint8)}


def _standardised(
    image: Tensor, white: float, mean: Values, std: Values, dtype: torch.dtype, memory_format: torch.memory_format
) -> Tensor:
    # subtract, then divide: (255 - 127.5) / 127.5 is 1 exactly, 255 * (2 / 255) - 1 need not be
    out = image.to(torch.promote_types(dtype, torch.float32), copy=True, memory_format=memory_format)
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


def image_in(sample: Mapping[str, Any], field: str) -> Tensor:
    """Return the picture of a sample or batch.

    Raises:
        TypeError: the sample is no mapping, or the field no tensor.
        ValueError: there is no such field, or it has no height, width and channels.
    """
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


def described(image: Tensor) -> str:
    """Name dtype and range of a tensor for a message."""
    name = str(image.dtype).removeprefix("torch.")
    if not image.numel() or image.is_complex():
        return f"{name} of shape {tuple(image.shape)}"
    low, high = image.min().item(), image.max().item()
    return f"{name} in [{low:g}, {high:g}]"
