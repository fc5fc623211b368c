"""Padding: masks from lengths, exact values, policies for empty rows."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence

from bestiary.loading import Collate, CollateError, mask_from_lengths, pad, padding_waste

ROWS = st.lists(st.lists(st.integers(-(2**63), 2**63 - 1), max_size=7), min_size=1, max_size=6)


@settings(deadline=None)
@given(ROWS, st.integers(-(2**40), 2**40))
def test_pad_is_pad_sequence(rows: list[list[int]], fill: int) -> None:
    tensors = [torch.tensor(row, dtype=torch.int64) for row in rows]
    padded, lengths = pad(tensors, fill)
    width = max(map(len, rows))
    assert padded.dtype == torch.int64
    assert padded.tolist() == [row + [fill] * (width - len(row)) for row in rows]
    assert lengths.tolist() == list(map(len, rows))
    assert lengths.dtype == torch.int64
    assert mask_from_lengths(lengths).tolist() == [[i < len(row) for i in range(width)] for row in rows]


@settings(deadline=None)
@given(ROWS, st.sampled_from([None, 1, 4]), st.sampled_from(["list", "tensor", "array"]))
def test_collate_pads(rows: list[list[int]], multiple: int | None, kind: str) -> None:
    make = {
        "list": list,
        "tensor": lambda r: torch.tensor(r, dtype=torch.int64),
        "array": lambda r: np.array(r, np.int64),
    }[kind]
    batch = Collate(pad={"ids": -1}, pad_to_multiple=multiple)([{"ids": make(row), "n": 0} for row in rows])
    width = max(map(len, rows))
    if multiple:
        width = max(1, (width + multiple - 1) // multiple) * multiple
    assert list(batch) == ["ids", "ids_mask", "ids_length", "n"]
    assert batch["ids"].tolist() == [row + [-1] * (width - len(row)) for row in rows]
    assert batch["ids_mask"].tolist() == [[i < len(row) for i in range(width)] for row in rows]
    assert batch["ids_length"].tolist() == list(map(len, rows))
    assert (batch["ids"].dtype, batch["ids_mask"].dtype, batch["ids_length"].dtype) == (
        torch.int64,
        torch.bool,
        torch.int64,
    )


@pytest.mark.parametrize(
    "dtype",
    [torch.uint8, torch.int32, torch.int64, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64]
    + [torch.complex64, torch.float8_e4m3fn, torch.uint16],
)
@pytest.mark.parametrize("shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("scale", [1, 9000])
def test_dtypes_and_leading_axes(dtype: torch.dtype, shape: tuple[int, ...], scale: int) -> None:
    rows = [torch.ones(*shape, n * scale).to(dtype) for n in (2, 0, 3)]
    padded, lengths = pad(rows, 0)
    assert padded.shape == (3, *shape, 3 * scale)
    assert padded.dtype == dtype
    assert padded.is_contiguous()
    assert lengths.tolist() == [2 * scale, 0, 3 * scale]
    assert torch.equal(
        padded[0, ..., : 2 * scale].to(torch.complex64), torch.ones(*shape, 2 * scale).to(torch.complex64)
    )
    assert padded.to(torch.complex64).sum().item() == 5 * scale * torch.Size(shape).numel()


def test_waveforms_in_order() -> None:
    rows = [torch.arange(2 * n).reshape(2, n) for n in (3, 1)]
    assert pad(rows, -1)[0].tolist() == [[[0, 1, 2], [3, 4, 5]], [[0, -1, -1], [1, -1, -1]]]


@pytest.mark.parametrize("nothing", [torch.tensor([]), np.array([]), torch.zeros(0, dtype=torch.int32)])
def test_empty_rows_leave_the_dtype(nothing: Any) -> None:
    big = 2**53 + 1
    batch = Collate(pad={"ids": 0})([{"ids": nothing}, {"ids": torch.tensor([big])}])
    assert batch["ids"].dtype == torch.int64
    assert batch["ids"].tolist() == [[0], [big]]
    assert batch["ids_mask"].tolist() == [[False], [True]]


def test_rows_of_other_kinds() -> None:
    samples: list[Any] = [{"a": (1, 2), "b": [[1, 2], [3, 4]], "c": [1]}, {"a": (), "b": [[5], [6]], "c": [0.5, 2]}]
    batch = Collate(pad={"a": 0, "b": 0, "c": 0})(samples)
    assert batch["a"].tolist() == [[1, 2], [0, 0]]
    assert batch["b"].tolist() == [[[1, 2], [3, 4]], [[5, 0], [6, 0]]]
    assert batch["b_length"].tolist() == [2, 1]
    assert (batch["c"].dtype, batch["c"].tolist()) == (torch.float32, [[1, 0], [0.5, 2]])


def test_only_empty_rows() -> None:
    batch = Collate(pad={"a": 0, "b": 0.5, "c": 0})([{"a": [], "b": [], "c": torch.zeros(2, 0)}] * 2)
    assert (batch["a"].shape, batch["a"].dtype) == ((2, 0), torch.int64)
    assert batch["b"].dtype == torch.float32
    assert batch["c"].shape == (2, 2, 0)
    assert batch["a_length"].tolist() == [0, 0]
    assert Collate(pad={"a": 7}, pad_to_multiple=2)([{"a": []}])["a"].tolist() == [[7, 7]]


def test_gradients_pass() -> None:
    rows = [torch.ones(2, requires_grad=True), torch.ones(1, requires_grad=True)]
    pad(rows, 0)[0].sum().backward()
    assert [row.grad.tolist() for row in rows if row.grad is not None] == [[1, 1], [1]]


def test_nested_and_dotted_fields() -> None:
    samples: list[Any] = [{"text": {"ids": [1]}, "a.b": [1]}, {"text": {"ids": [1, 2]}, "a.b": [3, 4]}]
    batch = Collate(pad={"text.ids": 0, "a.b": 9})(samples)
    assert batch["text"]["ids"].tolist() == [[1, 0], [1, 2]]
    assert batch["text"]["ids_mask"].tolist() == [[True, False], [True, True]]
    assert batch["a.b"].tolist() == [[1, 9], [3, 4]]


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([{"x": [1]}], ["'ids'", "['x']"]),
        ([{"ids": [1]}, {"x": [1]}], ["'ids'", "position 1"]),
        ([([1],)], ["'ids'", "tuple"]),
        ([{"ids": [1], "ids_mask": 1}], ["'ids'", "ids_mask"]),
        ([{"ids_length": 1, "ids": [1]}], ["'ids'", "ids_length"]),
        ([{"ids": 3}, {"ids": 4}], ["'ids'", "int", "positions 0, 1"]),
        ([{"ids": torch.tensor(3)}], ["'ids'", "position 0"]),
        ([{"ids": [1]}, {"ids": None}], ["'ids'", "NoneType", "position 1"]),
        ([{"ids": "ab"}], ["'ids'", "str"]),
        ([{"ids": torch.zeros(2, 3)}, {"ids": torch.zeros(1, 3)}], ["'ids'", "(2, 3)", "(1, 3)", "position 1"]),
        ([{"ids": torch.zeros(2)}, {"ids": torch.zeros(3).long()}], ["'ids'", "float32", "int64"]),
        ([{"ids": [1, 2]}, {"ids": [1, 2**70]}], ["'ids'", "int64", str(2**70), "position 1"]),
        ([{"ids": [1, 2]}, {"ids": [10**400, 0.5]}], ["'ids'", "float32", "position 1"]),
        ([{"ids": [1, 2]}, {"ids": [True]}], ["'ids'", "int at position 0", "bool at position 1"]),
        ([{"ids": ["a"]}, {"ids": [1]}], ["'ids'", "str at position 0", "int at position 1"]),
        ([{"ids": [[1, 2], [3]]}], ["'ids'", "length 2", "length 1"]),
    ],
)
def test_errors(samples: list[Any], words: list[str]) -> None:
    with pytest.raises(CollateError) as caught:
        Collate(pad={"ids": 0})(samples)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize(
    ("fill", "dtype"), [(0.5, torch.int64), (-1, torch.uint8), (256, torch.uint8), (2, torch.bool)]
)
def test_pad_value_has_to_fit(fill: float, dtype: torch.dtype) -> None:
    with pytest.raises(CollateError, match="cannot hold the pad value"):
        pad([torch.ones(2).to(dtype)], fill)


def test_empty_policies() -> None:
    samples = [{"ids": [1, 2], "name": "a"}, {"ids": [], "name": "b"}, {"ids": [3], "name": "c"}]
    assert Collate(pad={"ids": 0})(samples)["ids_mask"].tolist() == [[True, True], [False, False], [True, False]]
    with pytest.warns(UserWarning, match="bestiary: .*'ids'"):
        dropped = Collate(pad={"ids": 0}, empty="drop")(samples)
    assert (dropped["ids"].tolist(), dropped["name"]) == ([[1, 2], [3, 0]], ["a", "c"])
    with pytest.raises(CollateError, match="'ids' has length 0 at position 1"):
        Collate(pad={"ids": 0}, empty="error")(samples)
    with pytest.warns(UserWarning, match="bestiary"), pytest.raises(ValueError, match="^empty batch$"):
        Collate(pad={"ids": 0}, empty="drop")([samples[1]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert len(Collate(pad={"ids": 0}, empty="drop")(samples[:1])["name"]) == 1


def test_case_c01_mask_from_lengths() -> None:
    batch = Collate(pad={"tokens": 2, "labels": -100})([{"tokens": ids, "labels": ids} for ids in ([5, 6, 2], [7, 2])])
    assert batch["tokens"].tolist() == [[5, 6, 2], [7, 2, 2]]
    assert batch["tokens_mask"].tolist() == [[True, True, True], [True, True, False]]
    assert batch["labels"].tolist() == [[5, 6, 2], [7, 2, -100]]


def test_case_c04_lengths_with_zero() -> None:
    batch = Collate(pad={"tokens": 0})([{"tokens": torch.tensor(row, dtype=torch.int64)} for row in ([3, 4], [], [5])])
    assert batch["tokens_length"].tolist() == [2, 0, 1]
    torch.manual_seed(0)
    table, rnn = torch.nn.Embedding(6, 4), torch.nn.GRU(4, 3, batch_first=True)
    lengths = batch["tokens_length"].clamp(min=1)  # packing refuses 0
    packed = pack_padded_sequence(table(batch["tokens"]), lengths, batch_first=True, enforce_sorted=False)
    states = pad_packed_sequence(rnn(packed)[0], batch_first=True)[0] * batch["tokens_mask"][..., None]  # (B, T, 3)
    assert states[1].tolist() == [[0.0] * 3] * 2
    alone = rnn(table(torch.tensor([[3, 4]])))[0]
    torch.testing.assert_close(states[:1], alone)
    states.sum().backward()
    assert all(part.grad is not None and part.grad.isfinite().all() for part in rnn.parameters())


def test_padding_waste() -> None:
    batch = Collate(pad={"a": 0, "b": 0}, pad_to_multiple=4)([{"a": [1] * n, "b": [1]} for n in (1, 4)])
    assert padding_waste(batch) == pytest.approx(1 - 7 / 16)
    assert padding_waste(torch.tensor([1, 4])) == pytest.approx(1 - 5 / 8)
    assert padding_waste(np.array([3, 3])) == 0
    assert padding_waste([0, 0]) == 0
    assert padding_waste([1, 4, 2], [torch.tensor([0, 1]), np.array([2]), []]) == pytest.approx(1 - 7 / 10)
    with pytest.raises(ValueError, match="tokens"):
        padding_waste({"tokens": torch.ones(2)})


def test_same_as_a_peer_on_a_large_batch() -> None:
    rows = [torch.randint(0, 100, (n,)) for n in range(1, 200)]
    assert torch.equal(pad(rows, 0)[0], pad_sequence(rows, batch_first=True))
