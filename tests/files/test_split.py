"""The laws of splits: each index once, groups whole, shares met, old files unmoved, no generator touched."""

import random
import subprocess
import sys
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bestiary.files import (
    PackedNames,
    Split,
    grouped_split,
    hash_split,
    random_split,
    scan_classes,
    stratified_split,
)

SHARES = st.sampled_from(
    [(0.2, 0.0), (0.1, 0.1), (0.25, 0.25), (0.5, 0.5), (0.0, 0.3), (1.0, 0.0), (0.0, 0.0), (1 / 3, 1 / 3)]
)
SEEDS = st.integers(-3, 2**40)
NAMES = st.lists(st.text(max_size=6), unique=True, max_size=40)
KINDS = {
    "random": lambda labels, **options: random_split(len(labels), **options),
    "stratified": stratified_split,
    "grouped": grouped_split,
    "hash": lambda labels, **options: hash_split(map(str, range(len(labels))), **options),
    "hash with labels": lambda labels, **options: hash_split(map(str, range(len(labels))), labels=labels, **options),
}


@pytest.mark.parametrize("kind", KINDS)
@given(labels=st.lists(st.integers(0, 5), max_size=40), shares=SHARES, seed=SEEDS)
def test_each_index_comes_in_exactly_one_part(kind, labels, shares, seed):
    split = KINDS[kind](labels, val=shares[0], test=shares[1], seed=seed)
    assert isinstance(split, Split)
    assert sorted(np.concatenate(split).tolist()) == list(range(len(labels)))
    for part in split:
        assert part.dtype == np.int64 and part.tolist() == sorted(part.tolist())
    again = KINDS[kind](labels, val=shares[0], test=shares[1], seed=seed)
    assert [part.tolist() for part in again] == [part.tolist() for part in split]


@pytest.mark.parametrize("kind", KINDS)
def test_the_seed_matters_and_no_global_generator_moves(kind):
    labels = [i % 7 for i in range(200)] if kind != "grouped" else list(range(200))
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    parts = {tuple(KINDS[kind](labels, val=0.5, seed=seed).val.tolist()) for seed in range(5)}
    assert len(parts) == 5
    assert random.getstate() == before[0]
    assert all(np.array_equal(now, then) for now, then in zip(np.random.get_state(), before[1], strict=True))
    assert torch.equal(torch.get_rng_state(), before[2])


@given(st.integers(0, 300), SHARES, SEEDS)
def test_random_shares_are_met(n, shares, seed):
    split = random_split(n, val=shares[0], test=shares[1], seed=seed)
    wanted = [1 - sum(shares), *shares]
    if n >= 30:
        assert all(abs(part.size - n * share) < 1 for part, share in zip(split, wanted, strict=True))
    if n >= 3:
        assert all((part.size > 0) == (share > 1e-9) for part, share in zip(split, wanted, strict=True))


def test_random_draws_each_item_about_as_often():
    hits = Counter(i for seed in range(1000) for i in random_split(10, val=0.2, seed=seed).val.tolist())
    assert all(140 < hits[i] < 260 for i in range(10))  # 200 expected, standard deviation 12.6


@given(st.lists(st.sampled_from("abcdef"), max_size=120), SHARES, SEEDS)
def test_stratified_shares_are_within_one_item_of_each_class(labels, shares, seed):
    split = stratified_split(labels, val=shares[0], test=shares[1], seed=seed)
    for part, share in zip(split, [1 - sum(shares), *shares], strict=True):
        counts = Counter(labels[i] for i in part)
        assert all(abs(counts[label] - share * size) < 1 for label, size in Counter(labels).items())


@given(st.integers(1, 60), SEEDS)
def test_classes_of_one_take_turns(n, seed):
    assert abs(stratified_split(range(n), val=0.2, seed=seed).val.size - 0.2 * n) < 1


@given(st.lists(st.sampled_from([*"abcdefgh", 1, (2, "x")]), max_size=60), SHARES, SEEDS)
def test_groups_are_never_split(groups, shares, seed):
    split = grouped_split(groups, val=shares[0], test=shares[1], seed=seed)
    sides = [{groups[i] for i in part} for part in split]
    assert sum(map(len, sides)) == len(set(groups))
    wanted = [share > 1e-9 for share in (1 - sum(shares), *shares)]
    if len(set(groups)) >= 3:
        assert [bool(side) for side in sides] == wanted


@given(st.permutations([*"aabbbccddddeeff"]), SEEDS)
def test_groups_are_chosen_by_name(groups, seed):
    reference = [*"aabbbccddddeeff"]
    for mine, theirs in zip(grouped_split(groups, seed=seed), grouped_split(reference, seed=seed), strict=True):
        assert {groups[i] for i in mine} == {reference[i] for i in theirs}


def test_equal_groups_meet_the_shares():
    split = grouped_split([i // 5 for i in range(500)], val=0.2, test=0.1)
    assert [part.size for part in split] == [350, 100, 50]


@given(NAMES, NAMES, SHARES, SEEDS, st.randoms(use_true_random=False))
def test_hash_never_moves_an_old_name(old, new, shares, seed, shuffler):
    options = {"val": shares[0], "test": shares[1], "seed": seed}
    every = list(dict.fromkeys(old + new))
    shuffler.shuffle(every)
    before, after = hash_split(old, **options), hash_split(PackedNames(every), **options)
    for mine, theirs in zip(before, after, strict=True):
        assert {old[i] for i in mine} == {every[i] for i in theirs} & set(old)


@given(NAMES, SEEDS)
def test_hash_with_a_larger_share_keeps_what_val_had(names, seed):
    small, large = (set(hash_split(names, val=val, seed=seed).val) for val in (0.2, 0.5))
    assert small <= large


def test_hash_meets_the_shares_on_average():
    split = hash_split(map(str, range(10_000)), val=0.2, test=0.1)
    assert abs(split.val.size - 2000) < 200 and abs(split.test.size - 1000) < 150  # five standard deviations


@given(st.lists(st.integers(0, 8), max_size=40), st.sampled_from([(0.01, 0.0), (0.2, 0.2), (0.9, 0.05)]), SEEDS)
def test_hash_with_labels_leaves_no_class_without_val_or_train(labels, shares, seed):
    names = [f"{label}/{i}.png" for i, label in enumerate(labels)]
    split = hash_split(names, val=shares[0], test=shares[1], labels=np.array(labels), seed=seed)
    twice = {label for label, count in Counter(labels).items() if count > 1}
    assert twice <= {labels[i] for i in split.val}
    assert twice <= {labels[i] for i in split.train}
    plain = hash_split(names, val=shares[0], test=shares[1], seed=seed)
    natural = {labels[i] for i in plain.val}
    moved = set(split.val) - set(plain.val)
    assert all(labels[i] not in natural for i in moved) and len(moved) == len({labels[i] for i in moved})


def test_hash_takes_names_that_are_not_utf8():
    assert sum(part.size for part in hash_split(["a\udcff.png", "\ud800", "b"])) == 3


def test_tensors_and_arrays_are_labels_too():
    labels = [0, 1, 1, 2, 2, 2, 2] * 5
    for split in (stratified_split, grouped_split):
        wanted = [part.tolist() for part in split(labels)]
        for given_as in (np.array(labels), torch.tensor(labels), np.array(labels, np.uint8)):
            assert [part.tolist() for part in split(given_as)] == wanted


@pytest.mark.parametrize("shares", [(-0.1, 0.0), (0.6, 0.6), (4, 0.0), (float("nan"), 0.0), (0.2, -0.2)])
def test_wrong_shares_are_refused(shares):
    for split in KINDS.values():
        with pytest.raises(ValueError, match=f"val={shares[0]}"):
            split([0, 1, 2], val=shares[0], test=shares[1])


def test_wrong_arguments_are_refused():
    with pytest.raises(ValueError, match="-1"):
        random_split(-1)
    with pytest.raises(ValueError, match=r"3 names.*2 labels"):
        hash_split(["a", "b", "c"], labels=[0, 1])
    with pytest.raises(TypeError, match="cat.png"):
        hash_split("cat.png")


def test_case_a23_a_split_is_indices_so_that_each_part_has_its_own_dataset():
    split = random_split(20, val=0.2)
    assert (split.train.size, split.val.size, split.test.size) == (16, 4, 0)
    train = torch.utils.data.Subset([("train", i) for i in range(20)], split.train.tolist())
    val = torch.utils.data.Subset([("val", i) for i in range(20)], split.val.tolist())
    assert {kind for kind, _ in train} == {"train"} and {kind for kind, _ in val} == {"val"}
    assert sorted(i for part in (train, val) for _, i in part) == list(range(20))


def test_case_a10_the_split_is_the_same_whatever_the_file_system_and_the_process(tmp_path):
    files = [f"{label}/{i}.png" for label in "abc" for i in range(20)]
    splits = []
    for root, order in ((tmp_path / "one", files), (tmp_path / "two", files[::-1])):
        for name in order:
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).touch()
        tree = scan_classes(root, extensions={".png"})
        assert list(tree.names) == sorted(files)
        splits.append([hash_split(tree.names, labels=tree.labels), stratified_split(tree.labels, seed=3)])
    script = (
        "import sys\nfrom bestiary.files import *\ntree = scan_classes(sys.argv[1], extensions={'.png'})\n"
        "print([[p.tolist() for p in s] for s in"
        " (hash_split(tree.names, labels=tree.labels), stratified_split(tree.labels, seed=3))])"
    )
    env = {"RANK": "1", "WORLD_SIZE": "2", "PYTHONHASHSEED": "7", "PYTHONPATH": ":".join(sys.path)}
    other = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "two")], env=env, capture_output=True, text=True, check=True
    )
    mine = [[[part.tolist() for part in split] for split in pair] for pair in splits]
    assert mine[0] == mine[1]
    assert str(mine[0]) == other.stdout.strip()
