"""Rows of different length side by side without padding: ``torch.nested`` tensors with layout ``torch.jagged``.

An alternative to padding for models that take it. The ragged axis is the last one, as everywhere here::

    stack_jagged  B tensors (..., T_i)             -> nested (B, ..., ragged)
    to_jagged     padded (B, ..., T), lengths (B,) -> nested (B, ..., ragged)
    from_jagged   nested (B, ..., ragged)          -> padded (B, ..., T), lengths (B,)

Models with features behind the ragged axis, (B, ragged, E), make them from ids (B, ragged) by an embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from bestiary.loading.faults import CollateError
from bestiary.loading.padding import mask_from_lengths


def stack_jagged(values: Sequence[Tensor]) -> Tensor:
    """Join tensors (..., T_i) to one nested tensor (B, ..., ragged), without padding.

    Raises:
        ValueError: nothing to join.
        CollateError: dtypes or leading axes differ.

    >>> [row.tolist() for row in stack_jagged([torch.tensor([5, 6]), torch.tensor([7])]).unbind()]
    [[5, 6], [7]]
    """
    if len(values) == 0:
        raise ValueError("empty batch")
    kinds = {(row.dtype, row.shape[:-1]) for row in values}
    if len(kinds) > 1:
        shown = ", ".join(sorted(f"{dtype} {(*shape, 'T')}" for dtype, shape in kinds))
        raise CollateError(f"rows of one nested tensor have one dtype and equal leading axes, but these have {shown}")
    lengths = torch.tensor([row.shape[-1] for row in values], dtype=torch.int64, device=values[0].device)
    return _nested(torch.cat(list(values), -1), lengths)


def to_jagged(padded: Tensor, lengths: Tensor) -> Tensor:
    """Drop the padding of (B, ..., T): nested (B, ..., ragged).

    Raises:
        ValueError: lengths are not B numbers in [0, T].

    >>> [row.tolist() for row in to_jagged(torch.tensor([[5, 6], [7, 0]]), torch.tensor([2, 1])).unbind()]
    [[5, 6], [7]]
    """
    rows, width = padded.shape[0], padded.shape[-1]
    if lengths.shape != (rows,) or (rows and not 0 <= int(lengths.min()) <= int(lengths.max()) <= width):
        raise ValueError(
            f"{rows} rows of width {width} need as many lengths in [0, {width}], but got {lengths.tolist()}"
        )
    lengths = lengths.to(padded.device)
    mask = mask_from_lengths(lengths, width)
    return _nested(padded.movedim(-1, 1)[mask].movedim(0, -1), lengths)  # (..., N)


def from_jagged(nested: Tensor, fill: float) -> tuple[Tensor, Tensor]:
    """Pad a nested tensor whose last axis is ragged to (B, ..., max T); return the lengths (B,) too.

    Raises:
        ValueError: this is no jagged tensor, or its ragged axis is not the last one.

    >>> padded, lengths = from_jagged(stack_jagged([torch.tensor([5, 6]), torch.tensor([7])]), 0)
    >>> padded.tolist(), lengths.tolist()
    ([[5, 6], [7, 0]], [2, 1])
    """
    if nested.layout != torch.jagged:
        raise ValueError(f"from_jagged takes a nested tensor with layout torch.jagged, but got layout {nested.layout}")
    rows = nested.unbind()
    if any(row.shape[:-1] != rows[0].shape[:-1] for row in rows):
        raise ValueError(
            "from_jagged pads the last axis, but the ragged axis of this tensor is another one; transpose it"
        )
    lengths = torch.tensor([row.shape[-1] for row in rows], dtype=torch.int64, device=nested.device)
    mask = mask_from_lengths(lengths)
    padded = torch.full((len(rows), mask.shape[1], *rows[0].shape[:-1]), fill, dtype=nested.dtype, device=nested.device)
    padded[mask] = torch.cat(rows, -1).movedim(-1, 0)  # (N, ...)
    return padded.movedim(1, -1), lengths


def _nested(values: Tensor, lengths: Tensor) -> Tensor:
    """Wrap rows that lie one after another in (..., N)."""
    offsets = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
    nested: Tensor = torch.nested.nested_tensor_from_jagged(values, offsets, jagged_dim=values.dim())
    return nested
