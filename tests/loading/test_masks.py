"""The three masks give the same attention, and empty rows spoil nothing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from bestiary.loading import Collate, mask_from_lengths, to_additive_mask, to_key_padding_mask, to_sdpa_mask


def batch_of(lengths: list[int]) -> dict[str, Tensor]:
    batch: dict[str, Tensor] = Collate(pad={"tokens": 0})([{"tokens": list(range(1, n + 1))} for n in lengths])
    return batch


def by_hand(x: Tensor, module: torch.nn.MultiheadAttention, core: Callable[..., Tensor]) -> Tensor:
    """Run the module's projections around one of the attention functions."""
    parts = F.linear(x, module.in_proj_weight, module.in_proj_bias).chunk(3, -1)
    query, key, value = (part.unflatten(-1, (2, -1)).transpose(1, 2) for part in parts)  # (B, heads, T, E)
    out: Tensor = module.out_proj(core(query, key, value).transpose(1, 2).flatten(2))
    return out


@pytest.mark.parametrize("lengths", [[3, 1, 2], [3, 0, 1]])
def test_three_masks_one_attention(lengths: list[int]) -> None:
    torch.manual_seed(0)
    batch = batch_of(lengths)
    mask = batch["tokens_mask"]
    module = torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.nn.Embedding(4, 8)(batch["tokens"])

    def added(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = query @ key.transpose(-1, -2) / query.shape[-1] ** 0.5 + to_additive_mask(mask)
        return scores.softmax(-1) @ value

    results = [
        module(x, x, x, key_padding_mask=to_key_padding_mask(mask), need_weights=True)[0],
        module(x, x, x, key_padding_mask=to_key_padding_mask(mask), need_weights=False)[0],
        by_hand(x, module, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=to_sdpa_mask(mask))),
        by_hand(x, module, lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=to_additive_mask(mask))),
        by_hand(x, module, added),
    ]
    for result in results[1:]:
        torch.testing.assert_close(result, results[0])
    for row, length in enumerate(lengths):  # a row among others is the row alone
        if length:
            alone = module(x[row : row + 1, :length], x[row : row + 1, :length], x[row : row + 1, :length])[0]
            torch.testing.assert_close(results[0][row : row + 1, :length], alone)


@pytest.mark.parametrize("need_weights", [True, False])
def test_case_c02_empty_row(need_weights: bool) -> None:
    torch.manual_seed(0)
    batch = batch_of([3, 0])
    assert batch["tokens_mask"].tolist() == [[True] * 3, [False] * 3]
    table, module = torch.nn.Embedding(4, 8), torch.nn.MultiheadAttention(8, 2, batch_first=True)
    x = table(batch["tokens"])
    out = module(x, x, x, key_padding_mask=to_key_padding_mask(batch["tokens_mask"]), need_weights=need_weights)[0]
    assert out.isfinite().all()
    (out * batch["tokens_mask"][..., None]).sum().backward()
    assert all(
        part.grad is not None and part.grad.isfinite().all() for part in (*table.parameters(), *module.parameters())
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_additive_values(dtype: torch.dtype) -> None:
    made = to_additive_mask(mask_from_lengths(torch.tensor([1, 2])), dtype)
    assert (made.shape, made.dtype) == ((2, 1, 1, 2), dtype)
    assert made.flatten(1).tolist() == [[0, float("-inf")], [0, 0]]


def test_the_mask_given_is_left() -> None:
    mask = mask_from_lengths(torch.tensor([0, 2]))
    assert to_sdpa_mask(mask).flatten(1).tolist() == [[True, False], [True, True]]
    assert to_key_padding_mask(mask).tolist() == [[False, True], [False, False]]
    assert mask.tolist() == [[False, False], [True, True]]


def test_no_width_and_default_device() -> None:
    none = torch.zeros(2, 0, dtype=torch.bool)
    assert to_key_padding_mask(none).shape == (2, 0)
    with torch.device("meta"):
        mask = mask_from_lengths(torch.tensor([1, 2], device="cpu"))
        assert {f(mask).device.type for f in (to_sdpa_mask, to_key_padding_mask, to_additive_mask)} == {"cpu"}


def test_wrong_masks() -> None:
    for wrong in (torch.ones(2, 3), torch.ones(3, dtype=torch.bool)):
        with pytest.raises(TypeError, match="bool \\(B, T\\)"):
            to_sdpa_mask(wrong)
    with pytest.raises(TypeError, match="int64"):
        to_additive_mask(torch.ones(1, 1, dtype=torch.bool), torch.int64)
