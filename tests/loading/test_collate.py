"""Batches of samples: what each kind of field becomes, and what the errors name."""

from __future__ import annotations

import pickle
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, default_collate

from bestiary.loading import Collate, CollateError, stack

Pair = namedtuple("Pair", "left right")


@dataclass(frozen=True)
class Sample:
    image: torch.Tensor
    label: int


def test_default_kinds_against_torch() -> None:
    samples = [{"x": torch.full((2, 3), i), "a": np.full(2, i, np.int16), "n": i, "s": str(i)} for i in range(4)]
    ours, theirs = Collate()(samples), default_collate(samples)
    assert list(ours) == list(theirs)
    for name in ("x", "a", "n"):
        assert ours[name].dtype == theirs[name].dtype
        assert torch.equal(ours[name], theirs[name])
    assert ours["s"] == theirs["s"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, -(2**63), 2**63 - 1], torch.int64),
        ([1.5, 2.0], torch.float32),
        ([1, 2.5], torch.float32),
        ([True, False], torch.bool),
        ([np.float64(1), np.float64(2)], torch.float64),
        ([np.float32(1)], torch.float32),
        ([np.int8(1), np.int8(-3)], torch.int8),
        ([np.bool_(True)], torch.bool),
        ([np.zeros(3, np.float64)] * 2, torch.float64),
        ([np.zeros(3, ">i4")] * 2, torch.int32),
        ([torch.tensor(3, dtype=torch.uint8)] * 2, torch.uint8),
        ([[1, 2], [3, 4]], torch.int64),
        ([[[1.5], [2]], [[3], [4]]], torch.float32),
    ],
)
def test_dtypes(values: list[Any], dtype: torch.dtype) -> None:
    made = Collate()([{"y": value} for value in values])["y"]
    assert made.dtype == dtype
    assert made.tolist() == [value.tolist() if hasattr(value, "tolist") else value for value in values]


@given(st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1))
def test_integers_are_exact(values: list[int]) -> None:
    assert Collate()(values).tolist() == values


def test_float_edges() -> None:
    made = Collate()([float("inf"), float("-inf"), 0.1])
    assert made.tolist() == [float("inf"), float("-inf"), torch.tensor(0.1).item()]
    assert Collate()([float("nan")]).isnan().all()


@pytest.mark.parametrize(
    "values", [["a", "b"], [b"a", b"b"], [None, 3], [None, None], [torch.zeros(2), None], [["a"], []]]
)
def test_lists_stay_lists(values: list[Any]) -> None:
    assert Collate()([{"y": value} for value in values])["y"] == values


def test_nested_types_are_kept() -> None:
    sample = {
        "pair": Pair(1, (torch.ones(2), "a")),
        "deep": {"er": OrderedDict(x=0.5)},
        "views": [torch.zeros(1), torch.ones(2)],
    }
    batch = Collate()([sample, sample])
    assert type(batch["pair"]) is Pair
    assert batch["pair"].left.tolist() == [1, 1]
    assert type(batch["pair"].right) is tuple
    assert batch["pair"].right[0].shape == (2, 2)
    assert batch["pair"].right[1] == ["a", "a"]
    assert batch["deep"]["er"]["x"].tolist() == [0.5, 0.5]
    assert [view.shape for view in batch["views"]] == [(2, 1), (2, 2)]


def test_tuple_named_tuple_and_dataclass_samples() -> None:
    image, label = Collate()([(torch.zeros(3), 1), (torch.ones(3), 2)])
    assert (image.shape, label.tolist()) == ((2, 3), [1, 2])
    assert type(Collate()([Pair(1, 2), Pair(3, 4)])) is Pair
    batch: Any = Collate()([Sample(torch.zeros(3), 1), Sample(torch.ones(3), 2)])
    assert type(batch) is Sample
    assert batch.label.tolist() == [1, 2]


def test_samples_are_left_as_they_were() -> None:
    samples: list[Any] = [{"x": torch.ones(2), "m": {"y": 1}}]
    batch = Collate()(samples)
    batch["x"].zero_()
    assert samples[0]["x"].tolist() == [1, 1]
    assert samples[0]["m"] == {"y": 1}


def test_read_only_and_reversed_arrays() -> None:
    frozen = np.arange(3)
    frozen.flags.writeable = False
    batch = Collate(pad={"b": 0})([{"a": frozen, "b": frozen[::-1]}] * 2)
    batch["a"][0, 0] = 9
    assert frozen.tolist() == [0, 1, 2]
    assert batch["b"].tolist() == [[2, 1, 0]] * 2


@pytest.mark.parametrize(
    ("samples", "words"),
    [
        ([{"y": 2**63}, {"y": 1}], ["'y'", "position 0", "9223372036854775808", "int64"]),
        ([{"y": 1}, {"y": -(10**400)}], ["'y'", "position 1", "int64"]),
        ([{"y": 1.0}, {"y": 1e300}], ["'y'", "position 1", "1e+300", "float32"]),
        ([{"y": 1}, {"x": 1}], ["'y'", "missing", "position 1"]),
        ([{"y": 1}, {"y": 1}, {"y": 1, "x": 1}], ["'x'", "missing", "positions 0, 1"]),
        (
            [{"m": {"z": torch.zeros(2)}}, {"m": {"z": torch.zeros(3)}}],
            ["'m.z'", "(2,)", "(3,)", "position 0", "position 1"],
        ),
        ([(0, torch.zeros(2)), (0, torch.zeros(3))], ["'1'", "(2,)", "(3,)"]),
        ([Pair(0, torch.zeros(2)), Pair(0, torch.zeros(3))], ["'right'", "(2,)", "(3,)"]),
        ([{"y": np.zeros(2)}, {"y": np.zeros((2, 1))}], ["'y'", "(2,)", "(2, 1)"]),
        ([{"y": torch.zeros(2)}, {"y": torch.zeros(2).long()}], ["'y'", "torch.float32", "torch.int64", "position 1"]),
        ([{"y": np.float32(2)}, {"y": np.float64(2)}], ["'y'", "float32", "float64"]),
        ([{"y": True}, {"y": 1}], ["'y'", "bool", "int"]),
        ([{"y": "1"}, {"y": 1}], ["'y'", "str", "int"]),
        ([{"y": 1.5}, {"y": np.float64(1)}], ["'y'", "float", "numpy.float64"]),
        ([{"y": (1, 2)}, {"y": (1,)}], ["'y'", "lengths", "2 at position 0", "1 at position 1"]),
        ([{"y": [1, 2]}, {"y": [1]}], ["'y'", "length 2", "length 1"]),
        ([{"y": object()}], ["'y'", "object"]),
        ([{"y": np.array(["a"])}], ["'y'", "<U1"]),
        ([{"y": np.array(["2020-01-01"], "datetime64[D]")}], ["'y'", "datetime64"]),
    ],
)
def test_errors_name_field_positions_and_both(samples: list[Any], words: list[str]) -> None:
    with pytest.raises(CollateError) as caught:
        Collate()(samples)
    assert [word for word in words if word not in str(caught.value)] == []


@pytest.mark.parametrize("nothing", [[], ()])
def test_empty_batch(nothing: Any) -> None:
    with pytest.raises(ValueError, match="^empty batch$"):
        Collate()(nothing)
    with pytest.raises(ValueError, match="^empty batch$"):
        stack(nothing)


def test_case_c06_shapes_named() -> None:
    samples = [{"x": torch.zeros(3, 4, 4), "ids": [1, 2]}, {"x": torch.zeros(3, 4, 5), "ids": [1]}]
    with pytest.raises(CollateError) as caught:
        Collate(pad={"ids": 0})(samples)
    for word in ("'x'", "position 0", "position 1", "(3, 4, 4)", "(3, 4, 5)"):
        assert word in str(caught.value)
    batch = Collate(pad={"ids": 0, "x": 0})(samples)
    assert batch["x"].shape == (2, 3, 4, 5)
    assert batch["x_mask"].sum(1).tolist() == [4, 5]
    assert batch["ids"].tolist() == [[1, 2], [1, 0]]


class Uneven(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": torch.zeros(index + 1)}


def test_case_f15_errors_rebuild_from_their_text() -> None:
    error = CollateError("field 'x': shapes differ")
    for again in (pickle.loads(pickle.dumps(error)), type(error)(str(error))):
        assert type(again) is CollateError
        assert str(again) == str(error)
    with pytest.raises(CollateError, match=r"field 'x'.*\(1,\).*\(2,\)") as caught:
        list(DataLoader(Uneven(), batch_size=2, collate_fn=Collate(), num_workers=1))
    assert type(caught.value) is CollateError


def test_case_f22_pickles() -> None:
    collate = Collate(pad={"ids": -1}, pad_to_multiple=4, empty="error")
    again = pickle.loads(pickle.dumps(collate))
    assert again == collate
    assert again([{"ids": [3]}])["ids"].tolist() == [[3, -1, -1, -1]]


def test_case_f23_default_device() -> None:
    samples = [
        {"x": torch.ones(2), "n": 1, "f": 0.5, "a": np.ones(2), "ids": [1] * n, "w": torch.ones(2, n)} for n in (1, 3)
    ]
    with torch.device("meta"):
        batch = Collate(pad={"ids": 0, "w": 0})(samples)
    assert {value.device.type for value in batch.values()} == {"cpu"}
    expected = Collate(pad={"ids": 0, "w": 0})(samples)
    assert all(torch.equal(batch[name], expected[name]) for name in expected)


@pytest.mark.parametrize(
    "wrong", [{"empty": "skip"}, {"pad_to_multiple": 0}, {"pad": ["ids"]}, {"pad": "ids"}, {"pad": {"ids": None}}]
)
def test_wrong_options(wrong: dict[str, Any]) -> None:
    with pytest.raises((ValueError, TypeError), match=next(iter(wrong))):
        Collate(**wrong)


@settings(deadline=None)
@given(st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1, max_size=6))
def test_stack_is_torch_stack(rows: list[list[int]]) -> None:
    tensors = [torch.tensor(row) for row in rows]
    assert torch.equal(stack(tensors), torch.stack(tensors))


def test_sizes_become_a_tuple_and_masked_arrays_are_refused() -> None:
    batch = Collate()([{"size": torch.Size([2, 3])}, {"size": torch.Size([4, 5])}])
    assert type(batch["size"]) is tuple and [part.tolist() for part in batch["size"]] == [[2, 4], [3, 5]]
    masked = np.ma.masked_array([1, 2], mask=[True, False])
    with pytest.raises(CollateError, match=r"field 'x' holds masked arrays.*filled\(0\)"):
        Collate()([{"x": masked}, {"x": masked}])
