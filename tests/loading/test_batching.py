"""Fixed batches and plans: lengths that are true, and what each rank gets."""

from __future__ import annotations

import itertools
import json
import math
import os
import subprocess
import sys
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler, SequentialSampler, TensorDataset

from bestiary.loading import BatchPlan, ClassBalanced, FixedSize, LengthBuckets, Sequential, Shuffled, Weighted

ENDS = ("trim", "pad", "exact")


@st.composite
def plans(draw, ends=ENDS):
    """Any order x any grouping x any ranks x any ending: a plan for each rank, and the same for one rank alone."""
    count = draw(st.integers(0, 40))
    lengths = draw(st.lists(st.integers(1, 30), min_size=count, max_size=count))
    orders = [Sequential(count), Shuffled(count), Shuffled(np.arange(count)[::2])]
    if count:
        weights = [1.0 + place % 3 for place in range(count)]
        orders += [
            Weighted(weights, num_samples=draw(st.integers(0, 50))),
            Weighted(weights, replacement=False),
            ClassBalanced([place % 3 for place in range(count)]),
        ]
    size, drop_last = draw(st.integers(1, 7)), draw(st.booleans())
    common = {"drop_last": drop_last, "noise": draw(st.sampled_from([0.0, 0.3])), "longest_first": draw(st.booleans())}
    grouping = draw(
        st.sampled_from(
            [
                FixedSize(size, drop_last=drop_last),
                FixedSize(size, min_last=draw(st.integers(1, size))),
                LengthBuckets(lengths, batch_size=size, **common),
                LengthBuckets(lengths, max_total=draw(st.integers(30, 90)), **common),
                LengthBuckets(lengths, max_padded=draw(st.integers(30, 90)), **common),
                LengthBuckets(lengths, max_padded=15, too_long="alone", **common),
                LengthBuckets(lengths, max_total=4000, cost=squared, **common),
            ]
        )
    )
    order, world, ending, seed = (
        draw(st.sampled_from(orders)),
        draw(st.integers(1, 5)),
        draw(st.sampled_from(ends)),
        draw(st.integers(0, 99)),
    )
    return [BatchPlan(order, grouping, seed=seed, rank=rank, world_size=world, ends=ending) for rank in range(world)]


def squared(lengths):
    return lengths + lengths**2


def in_turn(shares):
    """Return all ranks' batches in the order of the global list."""
    return [batch for step in itertools.zip_longest(*shares) for batch in step if batch is not None]


@settings(max_examples=300)
@given(plans(), st.integers(0, 5))
def test_case_f11_lengths_are_true_for_every_order_grouping_rank_and_ending(ranks, epoch):
    for plan in ranks:
        before = len(plan)
        assert before == len(list(plan)) == plan.steps(0)
        plan.set_epoch(epoch)
        assert len(plan) == len(list(plan)) == plan.steps(epoch) == len(plan.deal(epoch).batches)


@settings(max_examples=300)
@given(plans(), st.integers(0, 5))
def test_every_batch_comes_once_and_ends_differ_as_promised(ranks, epoch):
    ends, world = ranks[0].ends, len(ranks)
    whole = [batch.tolist() for batch in ranks[0].batches(epoch)]
    dealt = [plan.deal(epoch) for plan in ranks]
    steps = [len(share.batches) for share in dealt]
    fresh = in_turn([[b.tolist() for b, repeat in zip(s.batches, s.padded, strict=True) if not repeat] for s in dealt])
    if ends == "exact":
        assert fresh == whole and max(steps) - min(steps) <= 1 and not any(share.padded.any() for share in dealt)
    elif ends == "pad":
        assert (
            fresh == whole
            and len(set(steps)) == 1
            and sum(share.padded.sum() for share in dealt) == -len(whole) % world
        )
    else:
        assert fresh == whole[: len(fresh)] and len(set(steps)) == 1 and len(whole) - len(fresh) < world
    for share in dealt:
        assert [whole[number] for number in share.numbers] == [batch.tolist() for batch in share.batches]


@settings(max_examples=200)
@given(plans(), st.integers(0, 5))
def test_a_grouping_loses_nothing_but_what_it_may(ranks, epoch):
    plan = ranks[0]
    drawn = Counter(plan.order(plan.seed, epoch).tolist())
    batched = Counter(np.concatenate([np.empty(0, int), *plan.batches(epoch)]).tolist())
    lost = (drawn - batched).total()
    assert not batched - drawn and all(len(batch) for batch in plan.batches(epoch))
    size, may = getattr(plan.grouping, "batch_size", None), getattr(plan.grouping, "min_last", 1)
    if size is None or not (plan.grouping.drop_last or may > 1):
        assert lost == 0
    elif plan.grouping.drop_last:
        assert lost == drawn.total() % size
    else:
        rest = drawn.total() % size
        assert lost == (rest if rest < may else 0)


@settings(max_examples=200)
@given(plans(), st.integers(0, 5), st.data())
def test_a_resume_is_the_rest_of_the_list_for_any_number_of_ranks(ranks, epoch, data):
    plan = ranks[0]
    whole = [batch.tolist() for batch in plan.batches(epoch)]
    start, world = data.draw(st.integers(0, len(whole) + 2)), data.draw(st.integers(1, 5))
    shares = [plan.deal(epoch, start, rank=rank, world_size=world) for rank in range(world)]
    fresh = in_turn([[b.tolist() for b, repeat in zip(s.batches, s.padded, strict=True) if not repeat] for s in shares])
    left = whole[start:]
    assert fresh == (left[: len(left) // world * world] if plan.ends == "trim" else left)
    if not left:
        assert not any(share.batches for share in shares)


@settings(max_examples=200)
@given(plans(), st.integers(0, 3), st.data())
def test_a_resume_with_the_same_ranks_ends_like_the_unbroken_pass(ranks, epoch, data):
    world = len(ranks)
    steps = data.draw(st.integers(0, max(0, len(ranks[0].batches(epoch)) // world - 1)))
    for plan in ranks:
        unbroken, resumed = plan.deal(epoch), plan.deal(epoch, start=steps * world)
        assert [b.tolist() for b in resumed.batches] == [b.tolist() for b in unbroken.batches[steps:]]
        assert resumed.numbers.tolist() == unbroken.numbers.tolist()[steps:]
        assert resumed.padded.tolist() == unbroken.padded.tolist()[steps:]
        if resumed.occurrences is not None:
            assert [o.tolist() for o in resumed.occurrences] == [o.tolist() for o in unbroken.occurrences[steps:]]


@settings(max_examples=200)
@given(plans(), st.integers(0, 3))
def test_no_two_places_of_an_epoch_share_index_and_occurrence(ranks, epoch):
    dealt = [plan.deal(epoch) for plan in ranks]
    if all(share.occurrences is None for share in dealt):
        pairs = [(index, 0) for share in dealt for batch in share.batches for index in batch.tolist()]
    else:
        pairs = [
            (index, occurrence)
            for share in dealt
            for place, batch in enumerate(share.batches)
            for index, occurrence in zip(
                batch.tolist(),
                [0] * len(batch) if share.occurrences is None else share.occurrences[place].tolist(),
                strict=True,
            )
        ]
    assert len(set(pairs)) == len(pairs)


@settings(max_examples=100)
@given(plans(), st.integers(0, 3))
def test_the_report_adds_up(ranks, epoch):
    dealt = [plan.deal(epoch) for plan in ranks]
    report = ranks[0].report(epoch)
    fresh = sum(len(b) for share in dealt for b, repeat in zip(share.batches, share.padded, strict=True) if not repeat)
    again = sum(len(b) for share in dealt for b, repeat in zip(share.batches, share.padded, strict=True) if repeat)
    assert (report.epoch, report.ranks, report.batches) == (epoch, len(ranks), len(ranks[0].batches(epoch)))
    assert report.padded == again and report.dropped == len(ranks[0].order) - fresh
    assert report.items == sum(map(len, ranks[0].batches(epoch)))
    assert f"epoch {epoch}: {report.batches:,} batches" in str(report)


@given(st.integers(0, 60), st.integers(1, 9), st.booleans())
def test_fixed_batches_are_torchs(count, size, drop_last):
    theirs = list(BatchSampler(SequentialSampler(range(count)), size, drop_last))
    assert list(BatchPlan(Sequential(count), FixedSize(size, drop_last=drop_last))) == theirs


@given(st.integers(1, 60), st.integers(1, 5))
def test_batches_of_one_are_dealt_like_torchs_distributed_sampler(count, world):
    for rank in range(world):
        for ends, drop_last in (("pad", False), ("trim", True)):
            theirs = list(DistributedSampler(range(count), world, rank, shuffle=False, drop_last=drop_last))
            plan = BatchPlan(Sequential(count), FixedSize(1), rank=rank, world_size=world, ends=ends)
            if ends == "trim":
                assert list(itertools.chain(*plan)) == theirs[: count // world]
            else:
                assert list(itertools.chain(*plan)) == theirs


@pytest.mark.parametrize(("count", "world"), [(10, 3), (1, 4), (0, 2)])
def test_case_f04_evaluation_reads_each_item_once(count, world):
    plans = [
        BatchPlan(Sequential(count), FixedSize(1), rank=rank, world_size=world, ends="exact") for rank in range(world)
    ]
    read = [list(itertools.chain(*plan)) for plan in plans]
    assert sorted(itertools.chain(*read)) == list(range(count))
    scores = np.random.default_rng(0).random(max(1, count))
    padded = [plan_of(rank, count, world).deal(0) for rank in range(world)]
    weighted = [
        (scores[b].sum(), len(b))
        for share in padded
        for b, repeat in zip(share.batches, share.padded, strict=True)
        if not repeat
    ]
    assert {len(share.batches) for share in padded} == {math.ceil(math.ceil(count / 2) / world)}
    if count:
        assert sum(total for total, _ in weighted) / sum(n for _, n in weighted) == pytest.approx(
            scores.mean(), abs=1e-9
        )


def plan_of(rank, count, world):
    return BatchPlan(Sequential(count), FixedSize(2), rank=rank, world_size=world, ends="pad")


def test_case_f05_a_bare_data_loader_is_told_at_the_second_pass():
    data = TensorDataset(torch.arange(8))
    plan = BatchPlan(Shuffled(8), FixedSize(2), rank=1, world_size=2)
    loader = DataLoader(data, batch_sampler=plan)
    assert len(loader) == len(list(loader)) == 2
    with pytest.warns(UserWarning, match="bestiary: .*epoch 0 a second time.*set_epoch"):
        list(loader)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        list(loader)  # said once
        passes = []
        for epoch in range(4):
            plan.set_epoch(epoch)
            passes.append([batch.tolist() for (batch,) in loader])
    assert not caught
    assert len({str(epoch) for epoch in passes}) > 1
    assert passes == [[batch.tolist() for batch in plan.deal(epoch).batches] for epoch in range(4)]


@pytest.mark.parametrize(
    "plan", [BatchPlan(Sequential(8), FixedSize(2)), BatchPlan(Shuffled(8), FixedSize(2), ends="exact")]
)
def test_case_f05_nothing_is_said_where_repeating_is_right(plan):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(plan) == list(plan) == list(plan)


def test_case_f13_a_last_batch_of_one_can_be_left_out():
    for size in (8, 4):
        plan = BatchPlan(Shuffled(33), FixedSize(size, min_last=2))
        assert {len(batch) for batch in plan} == {size}
        assert "(1 dropped, 0 repeated)" in str(plan.report())
    assert len(list(BatchPlan(Sequential(33), FixedSize(8)))) == 5  # evaluation keeps it


UNEVEN = np.random.default_rng(0).integers(1, 40, 103)


@pytest.mark.parametrize(
    "grouping",
    [
        FixedSize(8),
        FixedSize(8, drop_last=True),
        LengthBuckets(UNEVEN, batch_size=8),
        LengthBuckets(UNEVEN, batch_size=8, drop_last=True),
        LengthBuckets(UNEVEN, max_padded=120),
        LengthBuckets(UNEVEN, max_total=120),
    ],
)
def test_case_g05_the_schedule_counts_steps_that_come(grouping):
    accumulate, epochs = 4, 3
    for rank in range(2):
        plan = BatchPlan(Shuffled(103), grouping, rank=rank, world_size=2)
        planned = sum(math.ceil(plan.steps(epoch) / accumulate) for epoch in range(epochs))
        weight = torch.nn.Parameter(torch.zeros(()))
        optimiser = torch.optim.SGD([weight], lr=1.0)
        schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.1, total_iters=planned)
        taken = 0
        for epoch in range(epochs):
            plan.set_epoch(epoch)
            for step, _ in enumerate(plan, start=1):
                if step % accumulate == 0 or step == len(plan):
                    optimiser.step()
                    schedule.step()
                    taken += 1
        assert taken == planned
        assert schedule.get_last_lr()[0] == pytest.approx(0.1)


def test_batches_cannot_be_written_into_nor_the_list_changed():
    plan = BatchPlan(Shuffled(10), FixedSize(3))
    before = list(plan)
    with pytest.raises(ValueError, match="read-only"):
        plan.batches(0)[0][0] = 99
    plan.batches(0).clear()
    next(iter(plan)).clear()
    plan.set_epoch(0)
    assert list(plan) == before


class Reversed:
    """An order and a grouping of the user's own, plain lists and writable arrays."""

    def __len__(self):
        return 5

    def __call__(self, seed, epoch):
        return [4, 3, 2, 1, 0]


class Halves:
    def __call__(self, indices, seed, epoch):
        return [np.asarray(indices)[:2], list(indices)[2:]]


def test_orders_and_groupings_of_the_users_own():
    plan = BatchPlan(Reversed(), Halves())
    assert list(plan) == [[4, 3], [2, 1, 0]]
    assert all(batch.dtype == np.int64 for batch in plan.batches(1))
    assert "0x" not in str(plan.fingerprint())


@given(plans(), st.integers(0, 99))
def test_the_fingerprint_is_plain_and_tells_plans_apart(ranks, seed):
    fingerprint = ranks[0].fingerprint()
    assert set(fingerprint) == {"seed", "indices", "order", "grouping"}
    assert all(isinstance(value, (int, str)) and len(str(value)) < 300 for value in fingerprint.values())
    assert all(plan.fingerprint() == fingerprint for plan in ranks)
    assume(seed != ranks[0].seed)
    assert BatchPlan(ranks[0].order, ranks[0].grouping, seed=seed).fingerprint() != fingerprint


def test_fingerprints_differ_with_indices_weights_and_lengths():
    groupings = [FixedSize(2), FixedSize(3), LengthBuckets([1, 2], batch_size=2), LengthBuckets([1, 3], batch_size=2)]
    orders = [
        Shuffled(2),
        Sequential(2),
        Shuffled([0, 1]),
        Shuffled([1, 0]),
        Weighted([1, 1]),
        Weighted([1, 2]),
        ClassBalanced([0, 1]),
    ]
    texts = [str(BatchPlan(order, grouping).fingerprint()) for order in orders for grouping in groupings]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: FixedSize(0), ValueError, "batch_size.*at least 1.* 0"),
        (lambda: FixedSize(True), TypeError, "batch_size.*True"),
        (lambda: FixedSize(8.0), TypeError, "batch_size.*8.0"),
        (lambda: FixedSize("8"), TypeError, "batch_size"),
        (lambda: FixedSize(4, min_last=5), ValueError, "min_last=5.*batch_size=4"),
        (lambda: FixedSize(4, min_last=0), ValueError, "min_last"),
        (lambda: BatchPlan(5, FixedSize(2)), TypeError, r"order.*Shuffled\(len\(dataset\)\).*int"),
        (lambda: BatchPlan(TensorDataset(torch.zeros(3)), FixedSize(2)), TypeError, "order.*TensorDataset"),
        (lambda: BatchPlan(Shuffled(5), 2), TypeError, r"grouping.*FixedSize\(32\).*int"),
        (lambda: BatchPlan(Shuffled(5), FixedSize(2), ends="drop"), ValueError, "ends.*'drop'"),
        (lambda: BatchPlan(Shuffled(5), FixedSize(2), seed=1.5), TypeError, "seed.*1.5"),
        (lambda: BatchPlan(Shuffled(5), FixedSize(2), rank=1), ValueError, "rank=1 and world_size=None"),
        (lambda: BatchPlan(Shuffled(5), FixedSize(2), rank=2, world_size=2), ValueError, "rank=2 and world_size=2"),
        (lambda: BatchPlan(Shuffled(5), FixedSize(2)).set_epoch(-1), ValueError, "epoch.*-1"),
        (lambda: BatchPlan(Shuffled(5), FixedSize(2)).set_epoch(1.0), TypeError, "epoch.*1.0"),
        (lambda: BatchPlan(Shuffled(5), FixedSize(2)).batches(-1), ValueError, "epoch.*-1"),
        (lambda: BatchPlan(Shuffled(5), FixedSize(2)).deal(0, start=-1), ValueError, "start.*-1"),
    ],
)
def test_mistaken_arguments_are_named(make, error, words):
    with pytest.raises(error, match=words):
        make()


def test_rank_is_read_when_a_pass_begins(monkeypatch):
    plan = BatchPlan(Sequential(6), FixedSize(1))
    assert len(plan) == 6
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert list(plan) == [[2], [5]] and len(plan) == plan.steps(9) == 2
    assert "rank 2 of 3 takes batches 2, 5, 8" in plan.who()
    alone = BatchPlan(Sequential(6), FixedSize(1), rank=0, world_size=1)
    assert len(list(alone)) == 6 and "all" in alone.who()


PRINT_SHARES = """
import json, sys
import numpy as np
from bestiary.loading import BatchPlan, LengthBuckets, Shuffled
np.random.seed(int(sys.argv[1]))  # no generator is shared
lengths = list(range(1, 51))
plan = BatchPlan(Shuffled(50), LengthBuckets(lengths, max_padded=120), seed=3)
shares = []
for epoch in range(3):
    plan.set_epoch(epoch)
    shares.append((len(plan), list(plan)))
print(json.dumps(shares))
"""


def test_case_b15_four_processes_agree():
    def start(rank):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": "4"}
        return subprocess.Popen(
            [sys.executable, "-c", PRINT_SHARES, str(rank)], env=environment, stdout=subprocess.PIPE, text=True
        )

    processes = [start(rank) for rank in range(4)]
    ranks = [json.loads(process.communicate(timeout=120)[0]) for process in processes]
    for epoch in range(3):
        counts, shares = zip(*(rank[epoch] for rank in ranks), strict=True)
        assert len(set(counts)) == 1 and all(count == len(share) for count, share in zip(counts, shares, strict=True))
        items = [index for share in shares for batch in share for index in batch]
        assert len(items) == len(set(items))


def test_the_report_has_shares_and_waste():
    labels = [0] * 30 + [1] * 10
    report = BatchPlan(ClassBalanced(labels, num_samples=4000), FixedSize(10)).report()
    assert report.waste is None and report.shares is not None
    assert sum(report.shares.values()) == pytest.approx(1) and report.shares[1] == pytest.approx(0.5, abs=0.05)
    assert "classes 0: " in str(report)
    report = BatchPlan(Sequential(4), LengthBuckets([1, 1, 1, 5], batch_size=4)).report()
    assert report.waste == pytest.approx(1 - 8 / 20)
    assert "padding waste 60.0%" in str(report)
    many = BatchPlan(ClassBalanced(np.arange(1000)), FixedSize(10)).report()
    assert len(many.shares) == 1000 and "and 988 more" in str(many)
