"""What surrounds the making of a batch: where tensors are made, and by how many threads."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch

NOTHING = nullcontext()


def on_cpu() -> AbstractContextManager[object]:
    """Make new tensors on the CPU, whatever the default device; costs nothing where that is the CPU already."""
    try:
        already = torch.empty(0).is_cpu  # a fourth of what get_default_device takes
    except (AttributeError, RuntimeError):  # a forked worker asked for CUDA
        already = False
    return NOTHING if already else torch.device("cpu")


class Threads:
    """Compute with as many threads as a worker has: sums over one thread and two differ in their last digits."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __enter__(self) -> None:
        self.before = torch.get_num_threads()
        if self.before != self.count:
            torch.set_num_threads(self.count)

    def __exit__(self, *error: object) -> None:
        if self.before != self.count:
            torch.set_num_threads(self.before)
