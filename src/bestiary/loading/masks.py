"""Masks for attention, each named for what takes it; all from one bool mask (B, T), True where real.

====================  ==================================================  =====================================
function              returns                                             for
====================  ==================================================  =====================================
to_sdpa_mask          bool (B, 1, 1, T), True takes part                  ``scaled_dot_product_attention``
to_key_padding_mask   bool (B, T), True is ignored                        ``MultiheadAttention``, ``Transformer``
to_additive_mask      float (B, 1, 1, T), 0 or -inf, added to the scores  attention written by hand
====================  ==================================================  =====================================

A row without a real position would make its weights 0/0, which is NaN and spoils the gradients of the whole batch; its
first position is opened. What comes out of such a row is finite and means nothing: multiply it by the mask, as for padding.
"""

from __future__ import annotations

import torch
from torch import Tensor


def to_sdpa_mask(mask: Tensor) -> Tensor:
    """Return ``attn_mask`` for scaled_dot_product_attention: bool (B, 1, 1, T), True where a key takes part.

    Raises:
        TypeError: the mask is not bool.

    >>> to_sdpa_mask(torch.tensor([[True, False], [False, False]]))[:, 0, 0].tolist()
    [[True, False], [True, False]]
    """
    return _opened(mask)[:, None, None, :]


def to_key_padding_mask(mask: Tensor) -> Tensor:
    """Return ``key_padding_mask`` for MultiheadAttention: bool (B, T), True where a key is ignored.

    Raises:
        TypeError: the mask is not bool.

    >>> to_key_padding_mask(torch.tensor([[True, False], [False, False]])).tolist()
    [[False, True], [False, True]]
    """
    return ~_opened(mask)


def to_additive_mask(mask: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return what is added to attention scores: float (B, 1, 1, T), 0 where a key takes part and -inf elsewhere.

    Raises:
        TypeError: the mask is not bool, or ``dtype`` is not floating.

    >>> to_additive_mask(torch.tensor([[True, False]]))[0, 0].tolist()
    [[0.0, -inf]]
    """
    if not dtype.is_floating_point:
        raise TypeError(f"an additive mask is floating point, but dtype is {dtype}; give the dtype of the scores")
    opened = to_sdpa_mask(mask)
    return torch.zeros(opened.shape, dtype=dtype, device=mask.device).masked_fill(~opened, float("-inf"))


def _opened(mask: Tensor) -> Tensor:
    """Return the mask (B, T) with the first position of empty rows True."""
    if mask.dtype != torch.bool or mask.dim() != 2:
        raise TypeError(
            f"a mask is bool (B, T), True where real, but this one is {mask.dtype} {tuple(mask.shape)}; take '<field>_mask'"
        )
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    return mask | (first & ~mask.any(dim=1, keepdim=True))
