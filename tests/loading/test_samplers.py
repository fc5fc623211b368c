"""Orders: every item once, or drawn by weight; functions of (seed, epoch)."""

from __future__ import annotations

import itertools
import pickle
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import TensorDataset, WeightedRandomSampler

from bestiary.loading import (
    BatchPlan,
    ClassBalanced,
    FixedSize,
    LengthBuckets,
    Sequential,
    Shuffled,
    Weighted,
    class_weights,
)

seeds, epochs = st.integers(0, 2**40), st.integers(0, 1000)
ORDERS = {
    "sequential": Sequential(50),
    "indices": Sequential([7, 3, 3]),
    "shuffled": Shuffled(50),
    "split": Shuffled(np.array([9, 4, 1])),
    "weighted": Weighted([1.0, 0.0, 2.5], num_samples=20),
    "without": Weighted([1.0, 0.0, 2.5], replacement=False),
    "balanced": ClassBalanced([0, 0, 0, 5], num_samples=30),
    "named": ClassBalanced(["cat", "dog", "cat"], power=0.5),
}
orders = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)


@orders
def test_an_order_is_a_function_of_seed_and_epoch(order):
    first = order(3, 4)
    assert first.dtype == np.int64 and first.shape == (len(order),)
    np.testing.assert_array_equal(first, order(3, 4))


@orders
def test_an_order_cannot_be_written_into(order):
    with pytest.raises(ValueError, match="read-only"):
        order(0, 0)[0] = 1


@orders
def test_case_f22_orders_pickle(order):
    again = pickle.loads(pickle.dumps(order))
    assert repr(again) == repr(order)
    np.testing.assert_array_equal(again(1, 2), order(1, 2))


def test_case_f22_plans_pickle_small_and_go_on():
    plan = BatchPlan(Shuffled(10_000), FixedSize(10), seed=1)
    plan.set_epoch(3)
    expected = list(plan)
    data = pickle.dumps(plan)
    assert len(data) < 1000
    assert list(pickle.loads(data)) == expected


def test_case_f23_default_device_does_not_matter():
    labels = torch.tensor([0, 1, 1, 2] * 25)

    def draws():
        plans = [
            BatchPlan(order, grouping, seed=5)
            for order in (
                Shuffled(100),
                Weighted(labels + 1.0),
                ClassBalanced(labels),
                Weighted([1.0] * 100, replacement=False),
            )
            for grouping in (FixedSize(8), LengthBuckets(list(range(1, 101)), max_padded=300))
        ]
        return [list(plan) for plan in plans]

    expected = draws()
    torch.set_default_device("meta")
    try:
        assert draws() == expected
    finally:
        torch.set_default_device(None)


@given(st.integers(0, 300), seeds, epochs)
def test_shuffled_is_a_permutation(count, seed, epoch):
    assert sorted(Shuffled(count)(seed, epoch).tolist()) == list(range(count))


@given(st.lists(st.integers(0, 2**62), max_size=50), seeds, epochs)
def test_shuffled_keeps_the_given_indices(indices, seed, epoch):
    assert Counter(Shuffled(indices)(seed, epoch).tolist()) == Counter(indices)
    assert Sequential(indices)(seed, epoch).tolist() == indices


def test_shuffled_reaches_every_permutation_equally_often():
    counts = Counter(tuple(Shuffled(4)(seed, epoch).tolist()) for seed in range(24) for epoch in range(100))
    assert set(counts) == set(itertools.permutations(range(4)))
    # chi-square with 23 degrees of freedom: above 60 once in 35,000 times
    assert sum((count - 100) ** 2 / 100 for count in counts.values()) < 60


def test_seed_and_epoch_are_hashed_not_added():
    drawn = {tuple(Shuffled(50)(seed, epoch).tolist()) for seed in range(8) for epoch in range(8)}
    assert len(drawn) == 64


@pytest.mark.parametrize("make", [Sequential, Shuffled])
def test_an_order_does_not_follow_the_callers_array(make):
    indices = np.array([5, 6, 7])
    order = make(indices)
    indices[:] = 0
    assert sorted(order(0, 0).tolist()) == [5, 6, 7]
    assert indices.flags.writeable


@pytest.mark.parametrize("make", [Sequential, Shuffled])
@pytest.mark.parametrize(
    ("items", "error", "words"),
    [
        (TensorDataset(torch.zeros(3)), TypeError, r"len\(dataset\)"),
        (True, TypeError, "bool"),
        (3.0, TypeError, "3.0"),
        (None, TypeError, "None"),
        ("abc", TypeError, "str"),
        ([0.5, 1.5], TypeError, "float64"),
        ([True, False], TypeError, "flatnonzero"),
        ([[1, 2]], ValueError, r"\(1, 2\)"),
        (-1, ValueError, "-1"),
        ([3, -2], ValueError, "position 1 holds -2"),
    ],
)
def test_mistaken_items_are_named(make, items, error, words):
    with pytest.raises(error, match=words):
        make(items)


@pytest.mark.parametrize("items", [range(2, 5), (2, 3, 4), torch.arange(2, 5), np.arange(2, 5, dtype=np.uint8)])
def test_indices_come_in_any_form(items):
    assert Sequential(items)(0, 0).tolist() == [2, 3, 4]


# weights


def expected_counts(weights, draws):
    return np.asarray(weights) / np.sum(weights) * draws


@pytest.mark.parametrize(
    "weights", [[1, 2, 3, 4], [1e-300, 3e-300], [1e308, 1e308], [0.0, 5.0, 0.0, 1.0, 0.0], [2**60, 2**60]]
)
def test_weighted_draws_in_proportion(weights):
    draws = 40_000
    counts = np.bincount(Weighted(weights, num_samples=draws)(1, 2), minlength=len(weights))
    expected = (
        draws
        * np.array([weight / max(weights) for weight in weights])
        / sum(weight / max(weights) for weight in weights)
    )
    assert np.all(np.abs(counts - expected) <= 5 * np.sqrt(expected))


def test_weighted_without_replacement_draws_like_torch():
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    generator = torch.Generator().manual_seed(0)
    theirs = torch.multinomial(weights.expand(6000, 4), 2, replacement=False, generator=generator).numpy()
    ours = np.array([Weighted(weights, num_samples=2, replacement=False)(0, epoch) for epoch in range(6000)])
    for place in range(2):
        a, b = np.bincount(ours[:, place], minlength=4), np.bincount(theirs[:, place], minlength=4)
        assert np.all(np.abs(a - b) < 6 * np.sqrt(a + b))


@given(
    st.lists(st.floats(0, 1e308) | st.sampled_from([0.0, 5e-324]), min_size=1, max_size=30).filter(any),
    st.integers(0, 40),
    seeds,
)
def test_weighted_draws_only_items_of_positive_weight(weights, count, seed):
    drawn = Weighted(weights, num_samples=count)(seed, 0)
    assert len(drawn) == count and all(weights[place] > 0 for place in drawn)
    once = Weighted(weights, replacement=False)(seed, 0)
    assert sorted(once.tolist()) == [place for place, weight in enumerate(weights) if weight > 0]


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        ([1.0, float("nan"), -1.0], "position 1 of 3 holds nan"),
        ([1.0, 2.0, float("inf")], "position 2 of 3 holds inf"),
        ([1.0, -0.5], "position 1 of 2 holds -0.5"),
        (torch.tensor([-3.0, 1.0]), "position 0 of 2 holds -3.0"),
        ([0.0, 0.0], "all 2 weights are zero"),
        ([], "all 0 weights are zero"),
        ([[1.0], [2.0]], r"\(2, 1\)"),
    ],
)
def test_bad_weights_are_named(weights, words):
    with pytest.raises(ValueError, match=words):
        Weighted(weights)


def test_more_draws_than_items_need_replacement():
    with pytest.raises(ValueError, match="3 draws without replacement.* there are 2 of 3"):
        Weighted([1.0, 0.0, 1.0], num_samples=3, replacement=False)


@pytest.mark.parametrize("count", [True, 2.0, "3", -1])
def test_number_of_draws_is_checked(count):
    with pytest.raises((TypeError, ValueError), match="num_samples"):
        Weighted([1.0], num_samples=count)


@pytest.mark.parametrize("replacement", [True, False])
def test_case_f08_more_than_two_to_the_24_weights(replacement):
    count = 2**24 + 1
    drawn = Weighted(np.ones(count), num_samples=10, replacement=replacement)(0, 0)
    assert len(drawn) == 10 and drawn.min() >= 0 and drawn.max() < count


def test_case_f08_sums_are_true_over_millions():
    weights = np.ones(2**24)
    weights[: 2**23] = 2
    upper = np.count_nonzero(Weighted(weights, num_samples=100_000)(0, 0) >= 2**23)
    assert abs(upper - 33_333) < 1000


# classes


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
def test_class_shares_follow_the_power(power):
    counts, draws = np.array([900, 90, 10]), 60_000
    labels = np.repeat([0, 1, 2], counts)
    drawn = labels[ClassBalanced(labels, power=power, num_samples=draws)(0, 0)]
    expected = expected_counts(counts ** (1 - power), draws)
    assert np.all(np.abs(np.bincount(drawn) - expected) < 5 * np.sqrt(expected))


@pytest.mark.parametrize(
    "labels", [[1, 0, 1], (1, 0, 1), np.array([1, 0, 1]), torch.tensor([1, 0, 1]), torch.tensor([1.0, 0.0, 1.0])]
)
def test_labels_come_in_any_form(labels):
    np.testing.assert_allclose(class_weights(labels), [0.5, 1.0, 0.5])


def test_class_weights_for_torchs_own_sampler():
    labels = [0] * 90 + [7] * 10
    generator = torch.Generator().manual_seed(0)
    sampler = WeightedRandomSampler(class_weights(labels), 20_000, generator=generator)
    share = np.mean([index >= 90 for index in sampler])
    assert abs(share - 0.5) < 0.02


@given(st.lists(st.integers(-3, 1000), min_size=1, max_size=60), st.floats(-400, 400))
def test_class_weights_are_finite_and_equal_within_a_class(labels, power):
    weights = class_weights(labels, power=power)
    assert weights.dtype == np.float64 and np.isfinite(weights).all() and (weights >= 0).all() and weights.max() > 0
    assert len({(label, weight) for label, weight in zip(labels, weights.tolist(), strict=True)}) == len(set(labels))


@pytest.mark.parametrize(
    ("labels", "error", "words"),
    [
        ([[0, 1], [1, 0]], ValueError, r"\(2, 2\)"),
        ([0.0, 1.5], ValueError, "position 1 holds 1.5"),
        ([0.0, float("nan")], ValueError, "position 1 holds nan"),
        ({"cat": 0}, TypeError, "dict"),
        ([0, None], TypeError, "mixture"),
    ],
)
def test_bad_labels_are_named(labels, error, words):
    with pytest.raises(error, match=words):
        ClassBalanced(labels)
    with pytest.raises(error, match=words):
        class_weights(labels)


@pytest.mark.parametrize("power", [float("nan"), float("inf"), "1", True])
def test_bad_powers_are_named(power):
    with pytest.raises(ValueError, match="power"):
        ClassBalanced([0, 1], power=power)


def test_case_f07_classes_are_equal_over_all_ranks():
    labels = np.repeat([0, 1, 2], [900, 90, 10])
    plans = [BatchPlan(ClassBalanced(labels), FixedSize(10), seed=1, rank=rank, world_size=4) for rank in range(4)]
    alone = BatchPlan(ClassBalanced(labels), FixedSize(10), seed=1, rank=0, world_size=1)
    drawn = []
    for epoch in range(3):
        for plan in [*plans, alone]:
            plan.set_epoch(epoch)
        shares = [list(plan) for plan in plans]
        assert {len(share) for share in shares} == {25}
        together = [batch for step in zip(*shares, strict=True) for batch in step]
        assert together == list(alone)
        assert len({tuple(itertools.chain(*share)) for share in shares}) == 4
        drawn += itertools.chain(*together)
    np.testing.assert_allclose(np.bincount(labels[drawn]) / len(drawn), 1 / 3, atol=0.04)
    resumed = plans[2].deal(2, start=40)
    assert [batch.tolist() for batch in resumed.batches] == list(plans[2])[10:]


def test_case_f10_labels_behind_a_subset_and_empty_classes():
    labels = np.array([0] * 99 + [1])
    subset = np.arange(50, 100)
    order = ClassBalanced(labels[subset], num_samples=2000)
    drawn = order(0, 0)
    assert drawn.max() < 50
    assert abs(np.mean(labels[subset][drawn]) - 0.5) < 0.06
    weights = class_weights([0, 0, 3, 3])  # nobody has 1 or 2
    assert weights.tolist() == [0.5] * 4


def test_case_f10_the_number_of_weights_can_be_compared_with_the_dataset():
    assert len(Weighted([0.1, 0.9]).weights) == 2
    assert len(ClassBalanced([0, 1, 1]).labels) == 3


@settings(max_examples=30)
@given(st.lists(st.floats(0.01, 10), min_size=2, max_size=20), st.integers(1, 7), st.integers(1, 5), st.integers(0, 3))
def test_occurrences_count_each_draw_over_all_ranks(weights, batch_size, world, epoch):
    plan = BatchPlan(Weighted(weights, num_samples=60), FixedSize(batch_size), seed=2, ends="exact")
    seen = Counter()
    dealt = [plan.deal(epoch, rank=rank, world_size=world) for rank in range(world)]
    counted = {
        number: (batch, dealt_out.occurrences[place])
        for dealt_out in dealt
        for place, (number, batch) in enumerate(zip(dealt_out.numbers.tolist(), dealt_out.batches, strict=True))
    }
    for number in sorted(counted):
        for index, occurrence in zip(*(part.tolist() for part in counted[number]), strict=True):
            assert occurrence == seen[index]
            seen[index] += 1
