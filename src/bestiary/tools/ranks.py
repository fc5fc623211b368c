"""The few words that ranks have to exchange in a recipe; with one process all of them cost nothing."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from bestiary.keys import rank_and_world


def join_ranks(device: str) -> torch.device:
    """Start the process group where ``torchrun`` asks for one, and return the device of this rank.

    Ranks on accelerators talk through the device's own library, others through gloo. "cuda" becomes the card that
    belongs to this rank.
    """
    chosen = torch.device(device)
    _, world = rank_and_world()
    if world == 1:
        return chosen
    if chosen.type == "cuda":
        if chosen.index is None:
            chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(chosen)
    if not dist.is_initialized():
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    return chosen


def leave_ranks() -> None:
    """End the process group, if there is one."""
    if _together():
        dist.destroy_process_group()


def averaged(model: nn.Module, device: torch.device) -> nn.Module:
    """Return the model as one whose gradients are averaged over all ranks; alone, the model itself.

    Raises:
        RuntimeError: nothing in the model learns.
    """
    if not _together():
        return model
    return nn.parallel.DistributedDataParallel(model, device_ids=[device.index] if device.type == "cuda" else None)


def share_buffers(model: nn.Module) -> None:
    """Give every rank the buffers of rank 0, such as the running means of a batch norm, so that all measure alike."""
    if _together():
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)


def summed(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor over all ranks; the one given is left as it was."""
    total = tensor.clone()
    if _together():
        dist.all_reduce(total)
    return total


def agreed(answer: bool, device: torch.device) -> bool:
    """Return rank 0's answer on every rank, where each has a clock of its own."""
    if not _together():
        return answer
    told = torch.tensor([int(answer)], device=device)
    dist.broadcast(told, 0)
    return bool(told.item())


def gathered(value: Any) -> list[Any]:
    """Return the values of all ranks, in order, on every rank."""
    if not _together():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def _together() -> bool:
    return dist.is_available() and dist.is_initialized()
