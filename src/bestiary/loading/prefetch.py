"""Bring batches to the device: whatever their structure, with their type kept."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from bestiary.loading.structure import map_tensors

Batch = TypeVar("Batch")


def to_device(batch: Batch, device: torch.device | str | int, *, non_blocking: bool = False) -> Batch:
    """Return the batch with every tensor on ``device``; types stay, and the batch given is left as it was.

    Dicts, lists, tuples, named tuples and dataclasses are walked through; other objects are asked by their own
    ``.to(device)``. Strings, numbers, None and numpy arrays stay. A tensor that stands in two places is moved once and
    stands in both again.

    Raises:
        TypeError: an object holds tensors but has no ``.to``.

    >>> to_device({"image": torch.zeros(2, 3), "name": ["a", "b"]}, "meta")["image"].device
    device(type='meta')
    """
    moved: Batch = map_tensors(
        batch, partial(_move, device=device, non_blocking=non_blocking), method="to", arguments=(device,)
    )
    return moved


def pin_memory(batch: Batch) -> Batch:
    """Return the batch with every CPU tensor in pinned memory, by the structure rules of ``to_device``."""
    pinned: Batch = map_tensors(batch, _pin, method="pin_memory", arguments=())
    return pinned


def _move(tensor: Tensor, *, device: torch.device | str | int, non_blocking: bool) -> Tensor:
    return tensor.to(device, non_blocking=non_blocking)


def _pin(tensor: Tensor) -> Tensor:
    return tensor.pin_memory() if tensor.device.type == "cpu" else tensor
