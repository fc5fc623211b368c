"""Rows of arrays in memory."""

from __future__ import annotations

import pickle
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from bestiary.tables import Rows, TabularDataset


def test_case_d01_arrays_give_float32_and_int64():
    features = np.arange(8.0).reshape(4, 2)  # float64, as numpy and pandas make it
    assert features.dtype == np.float64
    labelled = next(iter(DataLoader(TabularDataset(features, [0, 1, 1, 0]), batch_size=4)))
    assert labelled["features"].dtype == torch.float32
    assert labelled["label"].dtype == torch.int64
    measured = next(iter(DataLoader(TabularDataset(features, [0.5, 1.5, 2.5, 3.5]), batch_size=4)))
    assert measured["target"].dtype == torch.float32
    assert measured["target"].tolist() == [0.5, 1.5, 2.5, 3.5]
    torch.nn.functional.mse_loss(torch.nn.Linear(2, 1)(measured["features"])[:, 0], measured["target"]).backward()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_case_d01_dtype_reaches_features_and_floating_targets(dtype):
    sample = TabularDataset([[1.0], [2.0]], [0.25, 0.5], dtype=dtype)[1]
    assert sample["features"].dtype == dtype
    assert sample["target"].dtype == dtype


def test_target_dtype_decides_between_label_and_target():
    assert TabularDataset([[1.0]], [2.0], target_dtype=torch.int64)[0]["label"] == 2
    assert TabularDataset([[1.0]], [2], target_dtype=torch.float64)[0]["target"].dtype == torch.float64


@pytest.mark.parametrize("optimise", [[], ["-O"]])
def test_lengths_that_differ_are_named_also_without_assertions(optimise):
    code = (
        "from bestiary.tables import TabularDataset\n"
        "try:\n    TabularDataset([[1.0]] * 5, [0] * 4)\n"
        "except ValueError as error:\n    print(error)\n"
    )
    said = subprocess.run([sys.executable, *optimise, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "5 features" in said
    assert "4 targets" in said


@given(st.lists(st.integers(0, 6), min_size=1, max_size=20))
def test_a_batch_at_once_equals_single_samples(indices):
    table = TabularDataset(np.random.default_rng(0).normal(size=(7, 3)), np.arange(7))
    batch = table.__getitems__(indices)
    assert isinstance(batch, Rows)
    assert len(batch) == len(indices)
    for sample, index in zip(batch, indices, strict=True):
        assert sample["label"] == table[index]["label"] == index
        assert torch.equal(sample["features"], table[index]["features"])
    assert batch.columns()["label"].tolist() == indices


def test_a_sample_may_be_written_into():
    given = np.ones((2, 2), dtype=np.float32)
    table = TabularDataset(given, [0.0, 1.0])
    table[0]["features"].fill_(7)
    table[0]["target"].fill_(7)
    table.__getitems__([0])[0]["features"].fill_(7)
    assert table[0]["features"].tolist() == [1, 1]
    assert table[0]["target"] == 0
    assert given.tolist() == [[1, 1], [1, 1]]


def test_read_only_and_foreign_byte_order_are_taken():
    frozen = np.arange(4, dtype=">i4").reshape(2, 2)
    frozen.flags.writeable = False
    assert TabularDataset(frozen, [0, 1])[1]["features"].tolist() == [2, 3]


def test_one_column_and_columns_of_targets():
    table = TabularDataset([1.0, 2.0], [[1.0], [2.0]])
    assert table[1]["features"].shape == (1,)
    assert table[1]["target"].shape == ()
    assert TabularDataset([1.0], [[1.0, 2.0, 3.0]])[0]["target"].tolist() == [1, 2, 3]


def test_words_are_refused():
    with pytest.raises(TypeError, match="codes"):
        TabularDataset([["a"], ["b"]], [0, 1])


@pytest.mark.parametrize("index", [3, -4, 10**9])
def test_past_the_end(index):
    table = TabularDataset(np.zeros((3, 1)), [0, 0, 0])
    with pytest.raises(IndexError, match="3 rows"):
        table[index]
    with pytest.raises(IndexError, match="3 rows"):
        table.__getitems__([0, index])


def test_negative_and_numpy_indices_and_an_integer_length():
    table = TabularDataset(np.arange(3.0), [0, 1, 2])
    assert table[-1]["label"] == 2
    assert table[np.int64(1)]["label"] == 1
    assert type(len(table)) is int


def test_slices_of_a_batch_and_where_a_row_lies():
    table = TabularDataset(np.arange(3.0), [0, 1, 2])
    assert [row["label"] for row in table.__getitems__([2, 1, 0])[1:]] == [1, 0]
    assert "row 2" in table.locate(2)


def test_default_device_of_the_program_does_not_matter():
    torch.set_default_device("meta")
    try:
        table = TabularDataset(np.arange(3.0), [0, 1, 2])
        assert table[1]["features"].device.type == "cpu"
        assert table.__getitems__([1])[0]["label"] == 1
    finally:
        torch.set_default_device(None)


def test_case_f22_pickle_round_trip():
    table = pickle.loads(pickle.dumps(TabularDataset(np.arange(3.0), [0, 1, 2])))
    assert table[2]["label"] == 2
    rows = pickle.loads(pickle.dumps(table.__getitems__([0, 2])))
    assert rows[1]["label"] == 2
