"""The lesson's three listings: its names, its results, without its faults."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bestiary import tables
from bestiary.loading import Collate, rename

LESSON = Path(__file__).resolve().parents[2] / "recipes" / "lesson"
sys.path.insert(0, str(LESSON))

import listings


def test_tabular_dataset_and_the_one_of_this_project():
    features, targets = torch.randn(6, 3, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1, 2], dtype=torch.int32)
    lesson, own = listings.TabularDataset(features, targets), tables.TabularDataset(features, targets)
    assert len(lesson) == len(own) == 6
    for index in range(6):
        row, label = lesson[index]
        assert row.dtype == torch.float32
        assert label.dtype == torch.int64
        assert torch.equal(row, features[index].float())
        assert torch.equal(row, own[index]["features"])
        assert int(label) == own[index]["label"] == int(targets[index])


@pytest.mark.parametrize("optimise", [[], ["-O"]])
def test_lengths_are_checked_also_without_assertions(optimise):
    code = (
        "import torch, listings\n"
        "try:\n    listings.TabularDataset(torch.zeros(5, 1), torch.zeros(4))\n"
        "except ValueError as error:\n    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, *optimise, "-c", code], cwd=LESSON, capture_output=True, text=True, check=True
    )
    assert "5 features and 4 targets" in done.stdout


def test_the_first_lengths_are_the_lessons():
    data = listings.SyntheticTextDataset(500)
    assert [len(data[index][0]) for index in range(3)] == [7, 18, 24]
    state = torch.random.get_rng_state()
    torch.manual_seed(42)  # what the listing does to the whole program, undone below
    drawn = []
    for _ in range(20):
        size = int(torch.randint(5, 25, (1,)))
        drawn.append((torch.randint(1, 100, (size,)), int(torch.randint(0, 2, (1,)))))
    torch.random.set_rng_state(state)
    for index, (tokens, label) in enumerate(drawn):
        assert torch.equal(data[index][0], tokens)
        assert data[index][1] == label


def test_making_the_data_leaves_the_global_generator_alone():
    state = torch.random.get_rng_state()
    listings.SyntheticTextDataset(10)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_both_collators_agree_with_the_one_of_this_project():
    data = listings.SyntheticTextDataset(40)
    pairs = [data[index] for index in range(8)]
    padded, custom = listings.pad_collate_fn(pairs), listings.custom_batch_collator(pairs)
    own = Collate(pad={"tokens": 0})([{"tokens": tokens, "label": label} for tokens, label in pairs])
    own = rename({"tokens": "input_ids", "tokens_mask": "attention_mask", "label": "labels"})(own)
    assert list(padded) == ["input_ids", "attention_mask", "labels"]
    assert list(custom) == ["inputs", "mask", "lengths", "labels"]
    for name, tensor in padded.items():
        assert torch.equal(tensor, own[name]), name
        assert tensor.dtype == own[name].dtype, name
    for name, other in {
        "inputs": "input_ids",
        "mask": "attention_mask",
        "lengths": "tokens_length",
        "labels": "labels",
    }.items():
        assert torch.equal(custom[name], own[other]), name


def test_the_printed_line():
    out = subprocess.run(
        [sys.executable, str(LESSON / "listings.py")], capture_output=True, text=True, check=True
    ).stdout
    found = re.fullmatch(
        r"Batch 0 Inputs Shape: torch.Size\(\[32, (\d+)\]\), Mask Shape: torch.Size\(\[32, (\d+)\]\), "
        r"Labels Shape: torch.Size\(\[32\]\)\n",
        out,
    )
    assert found
    assert found[1] == found[2]
    assert 5 <= int(found[1]) <= 24
