"""What docs/lesson.md says of the lesson's claims, measured; the numbers are rows of its table."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, WeightedRandomSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler

from bestiary.loading import (
    Collate,
    Loader,
    padding_waste,
    to_additive_mask,
    to_device,
    to_key_padding_mask,
    to_sdpa_mask,
)
from bestiary.tables import TabularDataset

ROOT = Path(__file__).resolve().parents[1]


class Who(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, index):
        return os.getpid(), threading.current_thread() is threading.main_thread()


def test_row_10_workers_are_processes():
    got = [one for batch in DataLoader(Who(), num_workers=2, collate_fn=list) for one in batch]
    pids = {pid for pid, _ in got}
    assert len(pids) == 2
    assert os.getpid() not in pids
    assert all(main_thread for _, main_thread in got)


def test_row_16_the_wait_is_measured_and_not_promised():
    loader = Loader(TabularDataset(torch.randn(64, 2), torch.zeros(64)), batch_size=8)
    list(loader)
    assert 0.0 < loader.report().wait_share <= 1.0  # a loop that does nothing else waits


def test_row_29_a_length_is_not_asked_for_with_a_sampler_of_ones_own():
    class Squares(Dataset):
        def __getitem__(self, index):
            return index**2

    assert torch.cat(list(DataLoader(Squares(), sampler=[3, 1]))).tolist() == [9, 1]
    with pytest.raises(TypeError, match="len"):
        DataLoader(Squares(), shuffle=True)


def test_row_31_assertions_vanish_under_optimisation():
    code = "try:\n    assert 5 == 4\n    print('gone')\nexcept AssertionError:\n    print('checked')\n"
    said = [subprocess.check_output([sys.executable, *o, "-c", code], text=True).strip() for o in ([], ["-O"])]
    assert said == ["checked", "gone"]
    with pytest.raises(ValueError, match="5 features and 4 targets"):
        TabularDataset(torch.zeros(5, 1), torch.zeros(4))


def test_row_35_normalising_draws_nothing():
    from bestiary.images import normalize

    batch, state = {"image": torch.randint(0, 256, (2, 3, 4, 4), dtype=torch.uint8)}, torch.random.get_rng_state()
    assert torch.equal(normalize(batch)["image"], normalize(batch)["image"])
    assert torch.equal(torch.random.get_rng_state(), state)
    single = [normalize({"image": image})["image"] for image in batch["image"]]
    assert torch.allclose(torch.stack(single), normalize(batch)["image"], atol=1e-6)


def test_row_41_torch_warns_above_the_usable_cores():
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    with pytest.warns(UserWarning, match=f"suggested max number of worker in current system is {cores}"):
        DataLoader(list(range(4)), num_workers=2 * cores)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DataLoader(list(range(4)), num_workers=cores)


def test_row_43_a_dict_has_no_to():
    batch = {"input_ids": torch.zeros(2, 3), "names": ["a", "b"]}
    assert not hasattr(batch, "to")
    moved = to_device(batch, "cpu")
    assert torch.equal(moved["input_ids"], batch["input_ids"])
    assert moved["names"] == ["a", "b"]


class Stream(IterableDataset):
    """Ten numbers; shared out when ``split``."""

    def __init__(self, split):
        self.split = split

    def __iter__(self):
        info = get_worker_info()
        return iter(range(info.id, 10, info.num_workers) if self.split and info else range(10))


def flat(loader):
    return [int(one) for batch in loader for one in batch]


def test_row_45_a_stream_loses_a_batch_for_each_worker():
    whole = flat(DataLoader(range(10), batch_size=4, drop_last=True, num_workers=2))
    stream = flat(DataLoader(Stream(split=True), batch_size=4, drop_last=True, num_workers=2))
    assert len(whole) == 8  # 10 less the last batch of 2
    assert len(stream) == 8  # each worker drops 1 of its 5
    assert len(flat(DataLoader(Stream(split=True), batch_size=5, drop_last=True, num_workers=2))) == 10
    assert (
        len(flat(DataLoader(Stream(split=True), batch_size=3, drop_last=True, num_workers=2))) == 6
    )  # 2 and 2 dropped
    assert len(flat(DataLoader(range(10), batch_size=3, drop_last=True, num_workers=2))) == 9


def test_row_46_batch_norm_refuses_a_batch_of_one_in_training_only():
    norm = nn.BatchNorm1d(3)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        norm(torch.zeros(1, 3))
    assert norm.eval()(torch.zeros(1, 3)).shape == (1, 3)


def test_row_47_floats_become_float64_and_ours_float32():
    rows = [{"target": 0.5, "word": "a"}, {"target": 1.5, "word": "b"}]
    stock = next(iter(DataLoader(rows, batch_size=2)))
    assert stock["target"].dtype == torch.float64
    assert stock["word"] == ["a", "b"]
    assert Collate()(rows)["target"].dtype == torch.float32


@pytest.mark.parametrize("workers", [0, 2])
def test_row_48_the_error_of_rows_that_differ(workers):
    rows = [
        torch.zeros(12),
        torch.zeros(28),
    ] * 2  # something for each worker: torch ends one badly that had nothing to do
    with pytest.raises(RuntimeError, match="stack expects each tensor to be equal size"):
        list(DataLoader(rows, batch_size=2, num_workers=workers))


def test_row_51_an_embedding_refuses_float_ids():
    padded = nn.utils.rnn.pad_sequence(
        [torch.tensor([5.0, 7.0]), torch.tensor([3.0])], batch_first=True, padding_value=0.0
    )
    embedding = nn.Embedding(10, 2)
    with pytest.raises(RuntimeError, match="Long"):
        embedding(padded)
    batch = Collate(pad={"tokens": 0})([{"tokens": torch.tensor([5, 7])}, {"tokens": torch.tensor([3])}])
    assert embedding(batch["tokens"]).shape == (2, 2, 2)


def test_row_52_a_float_mask_is_added_and_the_two_booleans_are_opposite():
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, 1, 3, 8) for _ in range(3))
    real = torch.tensor([[True, True, False]])
    wanted = F.scaled_dot_product_attention(query, key[:, :, :2], value[:, :, :2])
    as_float = F.scaled_dot_product_attention(query, key, value, attn_mask=real.float()[:, None, None, :])
    assert not torch.allclose(as_float, wanted, atol=1e-3)  # padding is attended to: 0.0 is added to its score
    scores = query @ key.transpose(-1, -2) / 8**0.5 + real.float()
    assert torch.allclose(as_float, scores.softmax(-1) @ value, atol=1e-6)
    for mask in (to_sdpa_mask(real), to_additive_mask(real)):
        assert torch.allclose(F.scaled_dot_product_attention(query, key, value, attn_mask=mask), wanted, atol=1e-6)
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    rows = torch.randn(1, 3, 8)
    kept = attention(rows, rows[:, :2], rows[:, :2])[0]
    assert torch.allclose(attention(rows, rows, rows, key_padding_mask=to_key_padding_mask(real))[0], kept, atol=1e-6)
    assert not torch.allclose(attention(rows, rows, rows, key_padding_mask=real)[0], kept, atol=1e-3)


def test_row_53_masks_are_boolean_here():
    batch = Collate(pad={"tokens": 0})([{"tokens": torch.tensor([5, 0])}, {"tokens": torch.tensor([3])}])
    assert batch["tokens_mask"].dtype == torch.bool
    assert batch["tokens_mask"].tolist() == [[True, True], [True, False]]


def test_row_56_a_stream_that_is_not_split_comes_once_a_worker():
    got = flat(DataLoader(Stream(split=False), batch_size=1, num_workers=2))
    assert sorted(got) == sorted([*range(10), *range(10)])
    assert got[:4] == [0, 0, 1, 1]
    assert sorted(flat(DataLoader(Stream(split=True), batch_size=1, num_workers=2))) == list(range(10))


def test_row_58_weights_balance_in_expectation_and_have_limits():
    weights = [1 / 1900] * 1900 + [1 / 100] * 100
    drawn = list(WeightedRandomSampler(weights, 2000, generator=torch.Generator().manual_seed(0)))
    assert len(set(drawn)) < 2000
    assert abs(sum(index >= 1900 for index in drawn) - 1000) < 112  # five standard deviations
    with pytest.raises(RuntimeError):
        list(WeightedRandomSampler([0.0, 0.0], 1))
    with pytest.raises(RuntimeError, match="2\\^24"):
        list(WeightedRandomSampler(torch.ones(2**24 + 1), 1))


def test_row_59_the_distributed_sampler_repeats_or_drops():
    ranks = [list(DistributedSampler(range(10), 4, rank, shuffle=False)) for rank in range(4)]
    assert [len(rank) for rank in ranks] == [3, 3, 3, 3]
    seen = [index for rank in ranks for index in rank]
    assert len(seen) - len(set(seen)) == 2
    ranks = [list(DistributedSampler(range(10), 4, rank, shuffle=False, drop_last=True)) for rank in range(4)]
    assert len({index for rank in ranks for index in rank}) == 8


class Draws(Dataset):
    """Each sample: a draw from the three global generators, and one from a generator kept on the data set."""

    def __init__(self):
        self.kept = np.random.default_rng(0)

    def __len__(self):
        return 2

    def __getitem__(self, index):
        import random

        own = float(self.kept.random())
        return torch.tensor(
            [random.random(), float(torch.rand(())), float(np.random.random()), own], dtype=torch.float64
        )


def two_epochs(dataset, **options):
    loader = DataLoader(dataset, num_workers=2, multiprocessing_context="fork", **options)
    return [torch.cat(list(loader)) for _ in range(2)]  # (2 samples, one a worker; 4 draws) an epoch


def test_row_60_workers_are_seeded_apart_but_kept_generators_are_not():
    first, second = two_epochs(Draws())
    for source in range(3):
        draws = [*first[:, source].tolist(), *second[:, source].tolist()]
        assert len(set(draws)) == 4, "python, torch and numpy differ by worker and by epoch"
    kept = [*first[:, 3].tolist(), *second[:, 3].tolist()]
    assert len(set(kept)) == 1, "a generator on the data set is copied as it is, each epoch again"


def seed_as_the_lesson_says(worker):
    torch.manual_seed(42 + worker)


def test_row_61_a_fixed_seed_repeats_every_epoch():
    first, second = two_epochs(Draws(), worker_init_fn=seed_as_the_lesson_says)
    assert torch.equal(first[:, 1], second[:, 1])


@pytest.mark.filterwarnings("default:bestiary")
def test_rows_60_and_61_with_the_loader_of_this_project():
    runs = {}
    for workers in (0, 2):
        loader = Loader(Draws(), batch_size=1, num_workers=workers, seed=0)
        runs[workers] = [torch.cat(list(loader)) for _ in range(2)]
    for one, two in zip(runs[0], runs[2], strict=True):
        assert torch.equal(one, two)
    draws = torch.cat([*runs[0]])
    assert all(len(set(draws[:, source].tolist())) == 4 for source in range(4))


def test_row_65_persistent_workers_need_workers():
    with pytest.raises(ValueError, match="persistent_workers"):
        DataLoader([1], persistent_workers=True)


def test_row_68_seeding_in_a_constructor_resets_the_program():
    torch.manual_seed(7)
    undisturbed = torch.rand(2)
    torch.manual_seed(7)
    torch.rand(1)
    torch.manual_seed(42)  # what the listing's constructor does
    disturbed = torch.rand(1)
    torch.manual_seed(42)
    assert torch.equal(disturbed, torch.rand(1))
    assert not torch.equal(disturbed, undisturbed[1:])


def test_row_102_padding_thirty_to_512_wastes_94_percent():
    lengths = [30] * 31 + [512]
    assert padding_waste(lengths) == pytest.approx(1 - sum(lengths) / (512 * 32))
    assert 1 - 30 / 512 == pytest.approx(0.94, abs=0.005)


def test_row_109_a_loader_does_not_shuffle_by_itself():
    assert flat(DataLoader(range(8), batch_size=2)) == list(range(8))
    batch = next(iter(DataLoader(["a", "b"], batch_size=2)))
    assert batch == ["a", "b"]  # what a collate function returns need not be a tensor


DYING = """
import os, signal
from torch.utils.data import DataLoader
class Dying:
    def __len__(self):
        return 4
    def __getitem__(self, index):
        os.kill(os.getpid(), signal.{name}) if index == 2 else None
        return index
if __name__ == "__main__":
    list(DataLoader(Dying(), num_workers=1, multiprocessing_context="fork"))
"""
UNGUARDED = """
from torch.utils.data import DataLoader
list(DataLoader(list(range(8)), num_workers=1, multiprocessing_context="spawn"))
"""


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (DYING.format(name="SIGBUS"), "Unexpected bus error encountered in worker"),
        (DYING.format(name="SIGSEGV"), "Unexpected segmentation fault encountered in worker"),
        (UNGUARDED, "before the\n        current process has finished its bootstrapping phase"),
    ],
)
def test_row_72_the_texts_of_dead_workers_are_real(tmp_path, code, said):
    (tmp_path / "program.py").write_text(code)
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], capture_output=True, check=False)
    assert done.returncode == 1
    assert said in done.stderr.decode(errors="replace")
    page = (ROOT / "docs" / "worker_errors.md").read_text(encoding="utf-8")
    assert " ".join(said.split()) in page


WRONG = [6, 10, 15, 16, 18, 27, 28, 31, 35, 41, 43, 51, 52, 53, 59, 60, 61, 63, 66, 68, 69, 109, 111]


def test_the_page_lists_every_wrong_claim_and_names_tests_that_exist():
    page = (ROOT / "docs" / "lesson.md").read_text(encoding="utf-8")
    listed = {
        int(number)
        for row in re.findall(r"^\| ([\d, *]+) \|", page, re.MULTILINE)
        for number in re.findall(r"\d+", row)
    }
    assert set(WRONG) <= listed
    named = re.findall(r"`(tests?_rows?_\w+?)_?…`", page)
    assert len(named) > 20
    for name in named:
        assert any(test.startswith(name) for test in globals()), name
    for path in re.findall(r"`(tests/[\w/]+(?:\.py)?)/?`", page):
        assert (ROOT / path).exists(), path
