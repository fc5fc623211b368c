"""Packing: every token once, in order, within the capacity; attention as over the single sequences."""

from __future__ import annotations

import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from bestiary.loading import block_mask, first_fit_decreasing, pack_sequences, unpack_sequences

LENGTHS = st.lists(st.integers(0, 9), min_size=1, max_size=30)


def plain_first_fit(lengths: list[int], capacity: int) -> list[list[int]]:
    """First-fit decreasing as the textbook has it."""
    rows: list[list[int]] = []
    for number in sorted(range(len(lengths)), key=lambda n: -lengths[n]):
        for row in rows:
            if sum(lengths[n] for n in row) + lengths[number] <= capacity:
                row.append(number)
                break
        else:
            rows.append([number])
    return rows


@given(LENGTHS, st.integers(9, 25))
def test_first_fit_is_the_textbook(lengths: list[int], capacity: int) -> None:
    rows = first_fit_decreasing(lengths, capacity)
    assert rows == plain_first_fit(lengths, capacity)
    assert sorted(number for row in rows for number in row) == list(range(len(lengths)))
    assert len(rows) <= 11 / 9 * max(1, math.ceil(sum(lengths) / capacity)) * 2 + 1


@settings(deadline=None)
@given(LENGTHS, st.integers(9, 25))
def test_every_token_once(lengths: list[int], capacity: int) -> None:
    starts = [sum(lengths[:n]) for n in range(len(lengths))]
    sequences = [torch.arange(start, start + n) for start, n in zip(starts, lengths, strict=True)]
    packed = pack_sequences(sequences, capacity, fill=-7)
    assert packed.tokens.shape[1] == capacity
    assert packed.tokens.dtype == torch.int64
    assert sorted(packed.tokens[packed.mask].tolist()) == list(range(sum(lengths)))
    assert set(packed.tokens[~packed.mask].tolist()) <= {-7}
    for row in range(len(packed.tokens)):
        for token, document, place in zip(
            *(part[row].tolist() for part in (packed.tokens, packed.document_ids, packed.position_ids)), strict=True
        ):
            assert (document, place) == (-1, 0) if token == -7 else token == starts[document] + place
    assert [row.tolist() for row in unpack_sequences(packed.tokens, packed)] == [row.tolist() for row in sequences]
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.cu_seqlens.diff().tolist() == [lengths[n] for n in packed.order.tolist()]
    flat = packed.tokens[packed.mask]
    for number, begin, end in zip(packed.order, packed.cu_seqlens, packed.cu_seqlens[1:], strict=False):
        assert torch.equal(flat[begin:end], sequences[number])


@pytest.mark.parametrize("causal", [True, False])
def test_attention_as_over_single_sequences(causal: bool) -> None:
    torch.manual_seed(0)
    sequences = [torch.randint(0, 50, (n,)) for n in (5, 3, 7, 1, 2, 6)]
    table = torch.nn.Embedding(50, 8)
    packed = pack_sequences(sequences, capacity=10)
    mask = block_mask(packed.document_ids)
    x = (table(packed.tokens) + packed.position_ids[..., None]).unsqueeze(1)  # (R, 1, L, E)
    out = F.scaled_dot_product_attention(x, x, x, attn_mask=mask.tril() if causal else mask)
    assert out.isfinite().all()
    for sequence, result in zip(sequences, unpack_sequences(out.squeeze(1), packed), strict=True):
        y = (table(sequence) + torch.arange(len(sequence))[:, None])[None, None]
        torch.testing.assert_close(result, F.scaled_dot_product_attention(y, y, y, is_causal=causal)[0, 0])


def test_too_long_and_empty() -> None:
    with pytest.raises(ValueError, match="length 12 at position 1 .*capacity 10"):
        pack_sequences([torch.zeros(3), torch.zeros(12)], capacity=10)
    with pytest.raises(ValueError, match="^empty batch$"):
        pack_sequences([], capacity=10)
    with pytest.raises(ValueError, match="negative"):
        first_fit_decreasing([1, -2], 4)
    with pytest.raises(ValueError, match="capacity"):
        first_fit_decreasing([1], 0)
    assert first_fit_decreasing([], 4) == []


def test_fill_has_to_fit() -> None:
    with pytest.raises(ValueError, match="pad value"):
        pack_sequences([torch.zeros(3, dtype=torch.uint8)], 4, fill=-1)


def test_pickle_and_default_device() -> None:
    sequences = [torch.tensor([1, 2]), torch.tensor([3])]
    with torch.device("meta"):
        packed = pack_sequences(sequences, capacity=4)
        mask = block_mask(packed.document_ids)
    assert {part.device.type for part in (*packed, mask)} == {"cpu"}
    again = pickle.loads(pickle.dumps(packed))
    assert all(torch.equal(one, other) for one, other in zip(again, packed, strict=True))
    assert type(again) is type(packed)


def test_many_sequences() -> None:
    lengths = [(n * 7919) % 97 + 1 for n in range(20_000)]
    rows = first_fit_decreasing(lengths, 512)
    assert max(sum(lengths[n] for n in row) for row in rows) <= 512
    assert len(rows) <= 1.01 * sum(lengths) / 512 + 1
