"""Other names, or another order, for the fields of a batch."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from bestiary.loading import Collate, as_tuple, rename


def test_names_for_a_model() -> None:
    batch = Collate(pad={"tokens": 0})([{"tokens": [1, 2], "label": 0}, {"tokens": [3], "label": 1}])
    before = dict(batch)
    made = rename({"tokens": "input_ids", "tokens_mask": "attention_mask", "label": "labels"})(batch)
    assert list(made) == ["input_ids", "attention_mask", "tokens_length", "labels"]
    assert made["input_ids"] is batch["tokens"]
    assert batch == before


def test_swap_and_no_change() -> None:
    assert rename({"a": "b", "b": "a"})({"a": 1, "b": 2}) == {"b": 1, "a": 2}
    assert rename({"a": "a"})({"a": 1}) == {"a": 1}
    assert rename({})({"a": 1}) == {"a": 1}


def test_rename_errors() -> None:
    with pytest.raises(ValueError, match=r"\['x'\].*\['a'\]"):
        rename({"x": "y"})({"a": 1})
    with pytest.raises(ValueError, match=r"\['b'\].*already"):
        rename({"a": "b"})({"a": 1, "b": 2})
    with pytest.raises(ValueError, match=r"\['c'\] to several"):
        rename({"a": "c", "b": "c"})


def test_as_tuple() -> None:
    loader: list[Any] = [{"image": torch.ones(2), "label": 3, "name": "a"}]
    [(label, image)] = map(as_tuple("label", "image"), loader)
    assert (label, image.tolist()) == (3, [1, 1])
    with pytest.raises(ValueError, match=r"\['text'\].*'image'"):
        as_tuple("text")(loader[0])
    with pytest.raises(ValueError, match="names of fields"):
        as_tuple()


@pytest.mark.parametrize("step", [rename({"a": "b"}), as_tuple("a")])
def test_case_f22_pickles(step: Any) -> None:
    again = pickle.loads(pickle.dumps(step))
    assert again == step
    assert again({"a": 1}) == step({"a": 1})
