"""The lab's suite: four tests, for the reference solution and for anybody's own."""

from __future__ import annotations

import sys
from pathlib import Path

import torch

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE if (HERE / "ragged_lab.py").exists() else HERE.parents[1] / "recipes" / "lesson"))

import ragged_lab as lab


def test_dataset_has_a_length_and_samples_of_many_lengths():
    state = torch.random.get_rng_state()
    dataset = lab.RaggedSequenceDataset()
    assert torch.equal(torch.random.get_rng_state(), state), "draw from a generator of the dataset's own"
    assert type(len(dataset)) is int
    assert len(dataset) == 500
    drawn = torch.randint(5, 25, (500,), generator=torch.Generator().manual_seed(25310)).tolist()
    assert [len(dataset[i]["tokens"]) for i in range(500)] == drawn
    assert all(1 <= int(dataset[i]["tokens"].min()) and int(dataset[i]["tokens"].max()) < 100 for i in range(500))
    assert dataset[0]["tokens"].dtype == torch.int64, "an embedding takes int64 ids"
    assert {dataset[i]["label"] for i in range(500)} == {0, 1}
    dataset[0]["tokens"].zero_()
    assert int(dataset[0]["tokens"].min()) > 0, "give a copy: the caller may write into a sample"


def test_collate_pads_to_the_longest_of_the_batch_with_a_boolean_mask():
    rows = [{"tokens": torch.tensor([5, 0, 7]), "label": 1}, {"tokens": torch.tensor([2**53 + 1]), "label": 0}]
    batch = lab.dynamic_padding_collate(rows)
    assert batch["tokens"].tolist() == [[5, 0, 7], [2**53 + 1, 0, 0]], "pad at the end, ids stay whole numbers"
    assert batch["mask"].dtype == torch.bool
    assert batch["mask"].tolist() == [[True, True, True], [True, False, False]], (
        "the mask comes from lengths, not values"
    )
    assert batch["lengths"].tolist() == [3, 1]
    assert batch["labels"].tolist() == [1, 0]
    assert rows[1]["tokens"].tolist() == [2**53 + 1], "leave the samples as they were"


def test_loader_shuffles_drops_the_last_batch_and_repeats_itself():
    dataset = lab.RaggedSequenceDataset()
    loader = lab.make_loader(dataset)
    batches, again = list(loader), list(lab.make_loader(dataset))
    assert len(loader) == len(batches) == 15, "500 // 32, the 20 left over are dropped"
    assert {len(batch["labels"]) for batch in batches} == {32}
    assert all(batch["tokens"].shape[1] == int(batch["lengths"].max()) for batch in batches)
    assert all(torch.equal(one["tokens"], two["tokens"]) for one, two in zip(batches, again, strict=True))
    assert [batch["lengths"].tolist() for batch in loader] != [batch["lengths"].tolist() for batch in batches]


def test_epochs_are_counted_and_claims_are_measured():
    samples, waiting, growth = lab.run_epochs(lab.make_loader(lab.RaggedSequenceDataset()))
    assert samples == 3 * 15 * 32
    assert 0.0 < waiting < 1.0
    assert growth is None or growth >= 0
    assert lab.verdict(1440, 0.1, 1.0) == "Processed 1,440 samples without GPU starvation or memory leakage."
    for measured in ((0.9, 1.0), (0.1, 900.0), (0.1, None)):
        assert "without" not in lab.verdict(1440, *measured), "no claim beyond what was measured"
