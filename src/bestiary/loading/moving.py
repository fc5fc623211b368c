"""Bring a batch to a device or into pinned memory, whatever its structure, with its type kept."""

from __future__ import annotations

from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from bestiary.loading.kinds import pinned
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
    """Return the batch with every CPU tensor in pinned memory, by the structure rules of ``to_device``.

    Objects that have no ``.pin_memory`` of their own stay as they are, in ordinary memory.
    """
    found: Batch = map_tensors(batch, pinned, method="pin_memory", arguments=(), strict=False)
    return found


def _move(tensor: Tensor, *, device: torch.device | str | int, non_blocking: bool) -> Tensor:
    return tensor.to(device, non_blocking=non_blocking)


def can_pin() -> bool:
    """Tell whether there is an accelerator that reads pinned memory by itself; Apple's has no such memory."""
    if not torch.accelerator.is_available():
        return False
    accelerator = torch.accelerator.current_accelerator()
    return accelerator is not None and accelerator.type != "mps"
