"""Assignment 2, for the reference solution and for anybody's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

HERE = Path(__file__).resolve().parent
NAME = "assignment_2_weighted_sampler"
sys.path.insert(0, str(HERE if (HERE / f"{NAME}.py").exists() else HERE.parents[1] / "recipes" / "lesson"))

import assignment_2_weighted_sampler as lesson

LABELS = [0] * 1900 + [1] * 100


def test_every_class_weighs_the_same():
    weights = lesson.sample_weights([0, 0, 0, 1, 2, 2])
    assert torch.allclose(weights, torch.tensor([1 / 3, 1 / 3, 1 / 3, 1, 1 / 2, 1 / 2], dtype=torch.float64))
    assert weights[:3].sum() == weights[3:4].sum() == weights[4:].sum()


def test_no_labels_are_told():
    with pytest.raises(ValueError, match="no labels"):
        lesson.sample_weights([])


def test_shares_are_counted():
    assert lesson.class_shares([1, 0, 0, 0]) == {0: 0.75, 1: 0.25}


def test_the_rare_class_comes_as_often_as_the_frequent_one():
    sampler = lesson.balanced_sampler(LABELS, seed=0, num_samples=10_000)
    shares = lesson.class_shares(LABELS[index] for index in sampler)
    assert abs(shares[1] - 0.5) < 0.025  # five standard deviations of 10,000 fair coins
    assert lesson.class_shares(LABELS)[1] == 0.05


def test_the_order_is_the_seeds_and_nobody_elses():
    state = torch.random.get_rng_state()
    first, again, other = (list(lesson.balanced_sampler(LABELS, seed)) for seed in (0, 0, 1))
    assert first == again != other
    assert len(first) == len(LABELS)
    assert torch.equal(torch.random.get_rng_state(), state)


def test_the_loader_takes_the_sampler():
    dataset = TensorDataset(torch.arange(len(LABELS)), torch.tensor(LABELS))
    loader = lesson.make_loader(dataset, LABELS, seed=0)
    got = [int(index) for batch, _ in loader for index in batch]
    assert got == list(lesson.balanced_sampler(LABELS, seed=0))
    assert loader.batch_size == 32


def test_torch_refuses_shuffle_beside_a_sampler():
    with pytest.raises(ValueError, match="mutually exclusive"):
        DataLoader(range(len(LABELS)), sampler=lesson.balanced_sampler(LABELS, 0), shuffle=True)
