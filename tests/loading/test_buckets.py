"""Length buckets: budgets are caps, nothing is lost, batches are composed anew each epoch."""

from __future__ import annotations

import pickle
import warnings
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bestiary.loading import BatchPlan, LengthBuckets, Sequential, Shuffled, padding_waste

LOGNORMAL = np.random.default_rng(0).lognormal(np.log(5.2), 0.55, 20_000)


def everything(batches):
    return sorted(np.concatenate([np.empty(0, dtype=np.int64), *batches]).tolist())


def attention(lengths):
    return lengths + lengths**2 / 50


whole_lengths = st.lists(st.integers(0, 50), min_size=1, max_size=80)
float_lengths = st.lists(st.floats(0, 50, allow_subnormal=False), min_size=1, max_size=80)
tied_lengths = st.lists(st.sampled_from([3, 3, 3, 7]), min_size=1, max_size=200)
any_lengths = whole_lengths | float_lengths | tied_lengths


@settings(max_examples=300)
@given(
    any_lengths,
    st.integers(50, 200) | st.floats(50, 200),
    st.sampled_from([0.0, 0.2, 0.9]),
    st.integers(0, 9),
    st.booleans(),
)
def test_the_sum_of_lengths_is_capped(lengths, budget, noise, epoch, longest_first):
    grouping = LengthBuckets(lengths, max_total=budget, noise=noise, longest_first=longest_first)
    batches = BatchPlan(Shuffled(len(lengths)), grouping).batches(epoch)
    assert everything(batches) == list(range(len(lengths)))
    for batch in batches:
        assert sum(Fraction(lengths[index]) for index in batch) <= Fraction(budget)


@settings(max_examples=300)
@given(
    any_lengths,
    st.integers(50, 200) | st.floats(50, 200),
    st.sampled_from([0.0, 0.2, 0.9]),
    st.integers(0, 9),
    st.booleans(),
)
def test_padded_size_is_capped(lengths, budget, noise, epoch, longest_first):
    grouping = LengthBuckets(lengths, max_padded=budget, noise=noise, longest_first=longest_first)
    batches = BatchPlan(Shuffled(len(lengths)), grouping).batches(epoch)
    assert everything(batches) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(lengths[index] for index in batch) <= budget


@given(whole_lengths, st.integers(150, 400), st.integers(0, 9))
def test_a_cost_is_capped_in_sum_or_padded(lengths, budget, epoch):
    order = Shuffled(len(lengths))
    costs = attention(np.array(lengths))
    for batch in BatchPlan(order, LengthBuckets(lengths, max_total=budget, cost=attention)).batches(epoch):
        assert costs[batch].sum() <= budget
    for batch in BatchPlan(order, LengthBuckets(lengths, max_padded=budget, cost=attention)).batches(epoch):
        assert costs[batch].max() * len(batch) <= budget


@given(any_lengths, st.integers(1, 12), st.booleans(), st.sampled_from([0.0, 0.3]), st.integers(0, 9))
def test_batches_of_one_size(lengths, size, drop_last, noise, epoch):
    grouping = LengthBuckets(lengths, batch_size=size, drop_last=drop_last, noise=noise)
    sizes = [len(batch) for batch in BatchPlan(Shuffled(len(lengths)), grouping).batches(epoch)]
    full, rest = divmod(len(lengths), size)
    assert sizes == [size] * full + ([rest] if rest and not drop_last else [])


@settings(max_examples=50)
@given(st.integers(1, 2000), st.integers(1, 20), st.integers(0, 3))
def test_case_b16_lengths_in_a_batch_lie_within_one_bucket(count, size, epoch):
    # distinct lengths, so that a length is a rank; what fills no run of batches may be taken out of a bucket's midst
    batches = BatchPlan(Sequential(count), LengthBuckets(np.arange(count), batch_size=size)).batches(epoch)
    bucket = 4 * size if count / size < 64 else 8 * size
    assert all(np.ptp(batch) < 2 * bucket for batch in batches)
    if count >= 40 * size:
        assert np.median([np.ptp(batch) for batch in batches]) < bucket


@pytest.mark.parametrize("order", [Shuffled(100), Sequential(100)])
@pytest.mark.parametrize("budget", [{"batch_size": 8}, {"max_total": 400}, {"max_padded": 400}])
def test_case_b16_batches_are_composed_anew_each_epoch(order, budget):
    plan = BatchPlan(order, LengthBuckets(np.arange(1, 101), **budget), seed=4)
    epochs = [{frozenset(batch.tolist()) for batch in plan.batches(epoch)} for epoch in (0, 1, 0)]
    assert epochs[0] == epochs[2]
    assert len(epochs[0] & epochs[1]) <= 1
    assert [b.tolist() for b in plan.batches(0)] == [
        b.tolist() for b in BatchPlan(order, plan.grouping, seed=4).batches(0)
    ]


def test_case_b16_many_different_items_meet_over_epochs():
    count, size = 4000, 10
    plan = BatchPlan(Sequential(count), LengthBuckets(np.arange(count), batch_size=size))
    partners = set()
    for epoch in range(40):
        partners |= set(next(batch for batch in plan.batches(epoch) if 2000 in batch).tolist())
    assert len(partners) > 60  # 40 * 9 draws out of a bucket of 80


def test_case_b14_nothing_is_lost_over_ranks():
    lengths = np.arange(1, 14)
    for grouping in (
        LengthBuckets(lengths, batch_size=4),
        LengthBuckets(lengths, max_total=20),
        LengthBuckets(lengths, max_padded=20),
    ):
        plans = [BatchPlan(Shuffled(13), grouping, rank=rank, world_size=2, ends="exact") for rank in range(2)]
        assert sorted(index for plan in plans for batch in plan for index in batch) == list(range(13))


def test_case_b14_at_most_one_batch_is_dropped_in_all_and_reported():
    lengths = [1] * 12 + [5] * 12 + [100]
    plan = BatchPlan(Shuffled(25), LengthBuckets(lengths, batch_size=4, drop_last=True))
    dropped = [set(range(25)) - set(everything(plan.batches(epoch))) for epoch in range(30)]
    assert {len(one) for one in dropped} == {1}
    assert len(set(map(frozenset, dropped))) > 1  # the rare length is not the one that is always hit
    assert plan.report().dropped == 1 and "(1 dropped" in str(plan.report())
    under_budget = BatchPlan(Shuffled(25), LengthBuckets(lengths, max_padded=120, drop_last=True))
    assert under_budget.report().dropped == 0


def test_no_length_is_always_trimmed():
    plan = BatchPlan(Shuffled(103), LengthBuckets(np.arange(103), batch_size=5), rank=0, world_size=4)
    lost = set()
    for epoch in range(60):
        kept = len(plan.batches(epoch)) // 4 * 4
        lost |= set(everything(plan.batches(epoch)[kept:]))
    assert len(lost) > 60


def test_batches_of_one_bucket_come_in_runs_for_the_ranks_sake():
    lengths = LOGNORMAL
    plan = BatchPlan(Shuffled(len(lengths)), LengthBuckets(lengths, batch_size=16))
    longest = np.array([lengths[batch].max() for batch in plan.batches(0)])
    steps = longest[: len(longest) // 8 * 8].reshape(-1, 8)
    assert (steps.mean(axis=1) / steps.max(axis=1)).mean() > 0.9  # ranks wait for the slowest
    assert np.abs(np.corrcoef(steps.mean(axis=1)[:-1], steps.mean(axis=1)[1:])[0, 1]) < 0.35  # runs come in no order


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("budget", ["max_total", "max_padded"])
def test_case_b18_a_budget_is_a_cap(shuffle, budget):
    lengths = [*range(1, 21), 500]
    order = Shuffled(21) if shuffle else Sequential(21)
    with pytest.raises(ValueError, match=rf"1 of 21 items.*{budget}=60.*item 20 of length 500"):
        LengthBuckets(lengths, **{budget: 60})
    with pytest.warns(UserWarning, match="bestiary: .*drops.*item 20 of length 500"):
        dropping = LengthBuckets(lengths, too_long="drop", **{budget: 60})
    alone = LengthBuckets(lengths, too_long="alone", **{budget: 60})
    for epoch in range(5):
        plan = BatchPlan(order, dropping)
        batches = plan.batches(epoch)
        assert everything(batches) == list(range(20))
        assert all(len(batch) * max(lengths[i] for i in batch) <= 60 for batch in batches) or budget == "max_total"
        assert all(sum(lengths[i] for i in batch) <= 60 for batch in batches)
        assert plan.report(epoch).dropped == 1
        batches = [batch.tolist() for batch in BatchPlan(order, alone).batches(epoch)]
        assert [20] in batches and everything(batches) == list(range(21))


def test_nothing_is_said_of_items_that_fit():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for too_long in ("error", "drop", "alone"):
            LengthBuckets([1, 60], max_padded=60, too_long=too_long)


def test_all_items_too_long():
    with pytest.warns(UserWarning, match="2 of 2"):
        dropping = LengthBuckets([5, 6], max_total=4, too_long="drop")
    assert list(BatchPlan(Shuffled(2), dropping)) == []
    assert sorted(BatchPlan(Shuffled(2), LengthBuckets([5, 6], max_total=4, too_long="alone"))) == [[0], [1]]


@pytest.mark.parametrize("budget", [{"batch_size": 16}, {"max_total": 200}, {"max_padded": 200}])
def test_longest_first(budget):
    lengths = LOGNORMAL
    plan = BatchPlan(Shuffled(len(lengths)), LengthBuckets(lengths, longest_first=True, **budget))
    for epoch in range(3):
        assert lengths.argmax() in plan.batches(epoch)[0]
        assert everything(plan.batches(epoch)) == list(range(len(lengths)))


@pytest.mark.parametrize("budget", [{"batch_size": 45}, {"max_total": 240}, {"max_padded": 240}])
def test_little_is_padded(budget):
    lengths = LOGNORMAL
    batches = BatchPlan(Shuffled(len(lengths)), LengthBuckets(lengths, **budget)).batches(0)
    shuffled = np.split(np.random.default_rng(1).permutation(len(lengths)), range(45, len(lengths), 45))
    assert padding_waste(lengths, batches) < 0.1
    assert padding_waste(lengths, shuffled) > 0.5


@pytest.mark.parametrize("budget", [{"max_total": 240.0}, {"max_padded": 240.0}])
def test_batches_are_nearly_as_full_as_the_budget(budget):
    lengths = LOGNORMAL
    batches = BatchPlan(Shuffled(len(lengths)), LengthBuckets(lengths, **budget)).batches(0)
    assert len(batches) < 1.15 * lengths.sum() / 240


def test_equal_lengths_are_split_without_a_loss():
    batches = BatchPlan(Shuffled(70_000), LengthBuckets(np.full(70_000, 3), max_padded=30)).batches(0)
    assert len(batches) == pytest.approx(7000, rel=0.03)
    assert everything(batches) == list(range(70_000))


def test_more_lengths_than_bins():
    lengths = np.random.default_rng(3).random(150_000)
    for budget in ({"batch_size": 7}, {"max_total": 5.0}, {"max_padded": 5.0}):
        batches = BatchPlan(Shuffled(150_000), LengthBuckets(lengths, **budget)).batches(2)
        assert everything(batches) == list(range(150_000))
        if "max_padded" in budget:
            assert max(len(batch) * lengths[batch].max() for batch in batches) <= 5.0


def test_an_order_may_draw_a_part_and_repeat():
    lengths = np.concatenate([np.full(50, 100), np.arange(1, 51)])
    plan = BatchPlan(Shuffled([*range(50, 100), *range(50, 60)]), LengthBuckets(lengths, max_padded=100))
    assert everything(plan.batches(0)) == sorted([*range(50, 100), *range(50, 60)])


def test_an_order_that_draws_past_the_lengths_is_named():
    with pytest.raises(ValueError, match="0 to 9.* 5 items"):
        len(BatchPlan(Sequential(10), LengthBuckets([1] * 5, batch_size=2)))


@pytest.mark.parametrize(
    "lengths",
    [[3, 1, 2], (3, 1, 2), np.array([3, 1, 2], np.uint16), torch.tensor([3, 1, 2]), torch.tensor([3.0, 1, 2])],
)
def test_lengths_come_in_any_form(lengths):
    assert sorted(map(sorted, BatchPlan(Sequential(3), LengthBuckets(lengths, max_total=6)))) == [[0, 1, 2]]


def test_empty_and_zero_lengths():
    for budget in ({"batch_size": 2}, {"max_total": 5}, {"max_padded": 5}):
        assert list(BatchPlan(Shuffled(0), LengthBuckets([], **budget))) == []
        batches = BatchPlan(Shuffled(4), LengthBuckets([0, 0, 0, 3], **budget)).batches(0)
        assert everything(batches) == [0, 1, 2, 3]


def test_huge_costs_do_not_overflow():
    lengths = np.array([10**9, 2 * 10**9, 3 * 10**9] * 50)
    grouping = LengthBuckets(lengths, max_total=1e19, cost=lambda n: n.astype(float) ** 2)
    batches = BatchPlan(Shuffled(150), grouping).batches(0)
    assert everything(batches) == list(range(150))
    assert all(sum(int(lengths[i]) ** 2 for i in batch) <= 10**19 for batch in batches)


def test_sums_of_floats_do_not_slip_over_the_budget():
    lengths = [0.1] * 100_000
    batches = BatchPlan(Shuffled(100_000), LengthBuckets(lengths, max_total=1.0)).batches(0)
    assert all(len(batch) * Fraction(0.1) <= 1 for batch in batches)
    halves = BatchPlan(Shuffled(1000), LengthBuckets([0.5] * 1000, max_total=1.0)).batches(0)
    assert len(halves) == pytest.approx(500, rel=0.05)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({}, ValueError, "one of batch_size, max_total and max_padded.*none"),
        ({"batch_size": 2, "max_total": 9}, ValueError, "batch_size and max_total"),
        ({"batch_size": 0}, ValueError, "batch_size.*0"),
        ({"batch_size": True}, TypeError, "batch_size.*True"),
        ({"max_total": 0}, ValueError, "max_total.*0"),
        ({"max_total": "9"}, ValueError, "max_total.*'9'"),
        ({"max_padded": True}, ValueError, "max_padded.*True"),
        ({"max_padded": float("nan")}, ValueError, "max_padded.*nan"),
        ({"max_padded": float("inf")}, ValueError, "max_padded.*inf"),
        ({"batch_size": 2, "cost": attention}, ValueError, "cost needs a budget"),
        ({"max_total": 9, "cost": 3}, TypeError, "cost.*3"),
        ({"max_total": 9, "cost": np.max}, ValueError, "result of cost"),
        ({"max_total": 9, "cost": lambda n: n[:1]}, ValueError, "3 lengths at once.* 1"),
        ({"max_total": 9, "cost": lambda n: n - 5.0}, ValueError, "result of cost.*position 0.*-4.0"),
        ({"max_total": 9, "cost": lambda n: 5 - n}, ValueError, "should not fall"),
        ({"batch_size": 2, "noise": 1.0}, ValueError, "noise.*1.0"),
        ({"batch_size": 2, "noise": "0.1"}, ValueError, "noise"),
        ({"batch_size": 2, "noise": -0.1}, ValueError, "noise"),
        ({"max_total": 9, "too_long": "skip"}, ValueError, "too_long.*'skip'"),
    ],
)
def test_mistaken_options_are_named(options, error, words):
    with pytest.raises(error, match=words):
        LengthBuckets([1, 2, 3], **options)


@pytest.mark.parametrize(
    ("lengths", "error", "words"),
    [
        ([1.0, float("nan")], ValueError, "position 1 of 2 holds nan"),
        ([1, -1], ValueError, "position 1 of 2 holds -1"),
        ([[1, 2]], ValueError, r"\(1, 2\)"),
        (["a"], TypeError, "lengths"),
        ({0: 1}, TypeError, "dict"),
    ],
)
def test_bad_lengths_are_named(lengths, error, words):
    with pytest.raises(error, match=words):
        LengthBuckets(lengths, batch_size=1)


def test_case_f22_buckets_pickle_and_a_lambda_is_named():
    for grouping in (
        LengthBuckets([3, 1, 2], max_padded=20, cost=attention),
        LengthBuckets([3.0, 1, 2], batch_size=2, noise=0.1),
    ):
        again = pickle.loads(pickle.dumps(grouping))
        assert repr(again) == repr(grouping)
        order = np.arange(3)
        assert [b.tolist() for b in again(order, 1, 2)] == [b.tolist() for b in grouping(order, 1, 2)]
    with pytest.raises(TypeError, match=r"LengthBuckets\(cost="):
        pickle.dumps(LengthBuckets([3, 1], max_total=20, cost=lambda n: n))


def test_the_callers_arrays_stay_theirs():
    lengths, indices = np.array([1, 2, 3, 4]), np.array([3, 2, 1, 0])
    grouping = LengthBuckets(lengths, batch_size=2)
    before = [batch.tolist() for batch in grouping(indices, 0, 0)]
    lengths[:] = 0
    assert [batch.tolist() for batch in grouping(indices, 0, 0)] == before
    assert indices.tolist() == [3, 2, 1, 0] and indices.flags.writeable and lengths.flags.writeable


def test_the_repr_is_short():
    assert len(repr(LengthBuckets(LOGNORMAL, max_padded=240))) < 200


@given(whole_lengths.filter(any), st.integers(0, 99))
def test_padding_waste_is_that_of_torchs_padding(lengths, seed):
    order = np.random.default_rng(seed).permutation(len(lengths))
    batches = np.split(order, range(3, len(order), 3))
    padded = [torch.nn.utils.rnn.pad_sequence([torch.ones(lengths[i]) for i in batch]) for batch in batches]
    area, real = sum(p.numel() for p in padded), sum(p.sum().item() for p in padded)
    assert padding_waste(lengths, batches) == pytest.approx(1 - real / area)
