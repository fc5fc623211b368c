"""What could go wrong on torch's way, done beforehand: in its queue an error would be printed, and the batch never come."""

from __future__ import annotations

import io
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import Any

import torch
from torch import Tensor

from bestiary.loading.fetch import Fetched
from bestiary.loading.structure import map_tensors


class _Rehearsal(ForkingPickler):
    """Pickles all but tensors, and does with these what may fail, or be forgotten, on torch's way."""

    marked = False  # whether one is conjugated, or negated, by a mark alone

    def persistent_id(self, value: Any) -> int | None:
        """Stand in for a tensor."""
        if not isinstance(value, Tensor):
            return None
        if type(value) is Tensor and value.requires_grad and not value.is_leaf:
            raise RuntimeError("a tensor that was computed from others and requires grad cannot be sent; detach() it")
        self.marked = self.marked or value.is_conj() or value.is_neg()
        if (
            type(value) is Tensor
            and value.layout == torch.strided
            and value.device.type == "cpu"
            and not value.is_nested
        ):
            value.share_memory_()  # type: ignore[no-untyped-call]
        return 0


def rehearse(fetched: Fetched) -> Fetched:
    """Return a batch for torch's way, which forgets marks; raise what sending it would raise."""
    if not _marked(fetched):
        return fetched
    written = map_tensors(fetched.batch, _written_out, method="", arguments=(), strict=False)
    fetched = fetched._replace(batch=written)
    if _marked(fetched):
        raise RuntimeError("an object holds a tensor that is conjugated or negated by a mark alone; resolve_conj() it")
    return fetched


def _marked(fetched: Fetched) -> bool:
    rehearsal = _Rehearsal(io.BytesIO(), pickle.HIGHEST_PROTOCOL)
    rehearsal.dump(fetched)
    return rehearsal.marked


def _written_out(tensor: Tensor) -> Tensor:
    return tensor.resolve_conj().resolve_neg() if tensor.is_conj() or tensor.is_neg() else tensor
