"""Pack sequences into rows of one capacity, several to a row, so that hardly a position is padding.

Layout of a packed batch of S sequences in R rows of capacity L::

    tokens         (R, L), dtype of the sequences
    mask           bool (R, L), True where real
    document_ids   int64 (R, L): the sequence that a token is of, -1 for padding
    position_ids   int64 (R, L): the token's place in its sequence, 0 for padding
    order          int64 (S,): the sequences as they come, row by row
    cu_seqlens     int32 (S + 1,): where each begins and ends in ``tokens[mask]``, for kernels of variable length

Tokens of two sequences share a row but must not see each other: give attention ``block_mask(packed.document_ids)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from bestiary.loading.faults import positions
from bestiary.loading.padding import filled


class Packed(NamedTuple):
    """Sequences packed into rows; the module says what each field holds."""

    tokens: Tensor
    mask: Tensor
    document_ids: Tensor
    position_ids: Tensor
    order: Tensor
    cu_seqlens: Tensor


def first_fit_decreasing(lengths: Sequence[int] | np.ndarray | Tensor, capacity: int) -> list[list[int]]:
    """Return rows of positions in ``lengths`` whose sums stay within the capacity.

    Longest first, equal ones in the order given, each into the first row with room: at most 11/9 of the fewest rows
    possible, plus one. Takes time n log n.

    Raises:
        ValueError: a length is negative, or longer than the capacity.

    >>> first_fit_decreasing([3, 5, 2, 4], capacity=7)
    [[1, 2], [3, 0]]
    """
    sizes = np.asarray(lengths, dtype=np.int64)
    if sizes.size and sizes.min() < 0:
        raise ValueError(f"a length is negative: {int(sizes.min())} at {positions(np.flatnonzero(sizes < 0).tolist())}")
    bad = np.flatnonzero(sizes > capacity)
    if bad.size:
        raise ValueError(
            f"a sequence of length {int(sizes[bad[0]])} at {positions(bad.tolist())} does not fit into a row of capacity {capacity}; "
            "cut or filter it, or choose a larger capacity"
        )
    room = _Room(len(sizes), capacity)
    rows: list[list[int]] = []
    for number in np.argsort(-sizes, kind="stable").tolist():
        row = room.take(int(sizes[number]))
        if row == len(rows):
            rows.append([])
        rows[row].append(number)
    return rows


class _Room:
    """The room left in each row, in a tree of maxima, so that the first row with enough is found in log n steps."""

    def __init__(self, rows: int, capacity: int) -> None:
        self.leaves = 1 << max(0, rows - 1).bit_length()
        self.most = [capacity] * (2 * self.leaves)

    def take(self, size: int) -> int:
        """Take room in the first row that has it; return that row."""
        most, node = self.most, 1
        while node < self.leaves:
            node = 2 * node if most[2 * node] >= size else 2 * node + 1
        row = node - self.leaves
        most[node] -= size
        while node > 1:
            node //= 2
            most[node] = max(most[2 * node], most[2 * node + 1])
        return row


def pack_sequences(values: Sequence[Tensor], capacity: int, fill: float = 0) -> Packed:
    """Pack sequences (T_i,) into rows (R, capacity) by first-fit decreasing: every token once, in its order.

    Raises:
        ValueError: nothing to pack, or a sequence longer than the capacity.

    >>> packed = pack_sequences([torch.tensor([1, 2, 3]), torch.tensor([4, 5]), torch.tensor([6])], capacity=4)
    >>> packed.tokens.tolist(), packed.position_ids.tolist()
    ([[1, 2, 3, 6], [4, 5, 0, 0]], [[0, 1, 2, 0], [0, 1, 0, 0]])
    >>> packed.document_ids.tolist(), packed.cu_seqlens.tolist()
    ([[0, 0, 0, 2], [1, 1, -1, -1]], [0, 3, 4, 6])
    """
    if len(values) == 0:
        raise ValueError("empty batch")
    device = values[0].device
    lengths = np.array([len(row) for row in values], dtype=np.int64)
    rows = first_fit_decreasing(lengths, capacity)
    order = np.concatenate([np.array(row, dtype=np.int64) for row in rows])
    counts = lengths[order]
    ends = np.concatenate([[0], np.cumsum(counts)])
    taken = np.array([lengths[row].sum() for row in rows])
    mask = torch.from_numpy(np.arange(capacity) < taken[:, None]).to(device)
    flat = torch.cat([values[number] for number in order.tolist()])

    def laid_out(real: Tensor, rest: float) -> Tensor:
        """Put what stands at the real positions, in order, into rows."""
        out = filled(tuple(mask.shape), rest, mask, real.dtype, "")
        out[mask] = real.to(device)
        return out

    places = np.arange(len(flat)) - np.repeat(ends[:-1], counts)
    return Packed(
        tokens=laid_out(flat, fill),
        mask=mask,
        document_ids=laid_out(torch.from_numpy(np.repeat(order, counts)), -1),
        position_ids=laid_out(torch.from_numpy(places), 0),
        order=torch.from_numpy(order).to(device),
        cu_seqlens=torch.from_numpy(ends.astype(np.int32)).to(device),
    )


def unpack_sequences(values: Tensor, packed: Packed) -> list[Tensor]:
    """Take what a model made of packed rows, (R, L, ...), apart into sequences (T_i, ...), in their first order.

    >>> sequences = [torch.tensor([1, 2, 3]), torch.tensor([4, 5]), torch.tensor([6])]
    >>> packed = pack_sequences(sequences, capacity=4)
    >>> [row.tolist() for row in unpack_sequences(packed.tokens, packed)]
    [[1, 2, 3], [4, 5], [6]]
    """
    parts = torch.split(values[packed.mask], packed.cu_seqlens.diff().tolist())
    return [parts[place] for place in packed.order.argsort().tolist()]


def block_mask(document_ids: Tensor) -> Tensor:
    """Return ``attn_mask`` for scaled_dot_product_attention: bool (R, 1, L, L), True where query and key are of one sequence.

    Padding sees itself alone, so that no row of weights is 0/0. For a causal model take ``.tril()`` of it.

    >>> block_mask(torch.tensor([[0, 0, 1, -1]]))[0, 0].int().tolist()
    [[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    """
    query, key = document_ids[:, None, :, None], document_ids[:, None, None, :]
    itself = torch.eye(document_ids.shape[-1], dtype=torch.bool, device=document_ids.device)
    return ((query == key) & (query >= 0)) | itself
