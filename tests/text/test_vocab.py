"""A vocabulary of words."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bestiary.text import WordVocab, split_words


def test_words_by_frequency_then_code_point() -> None:
    vocab = WordVocab.build(["b a c", "B d", "c"])
    assert vocab.words == ("b", "c", "a", "d")
    assert vocab("c unknown B").tolist() == [3, 1, 2]
    assert vocab("c").dtype == torch.int64
    assert vocab("").shape == (0,)
    assert len(vocab) == vocab.size == 6


@given(st.lists(st.lists(st.sampled_from("abcdefg"), max_size=8), max_size=8), st.integers(1, 3), st.integers(2, 9))
def test_counts_and_limits(texts: list[list[str]], min_count: int, max_size: int) -> None:
    counts = Counter(word for text in texts for word in text)
    right = sorted((word for word in counts if counts[word] >= min_count), key=lambda word: (-counts[word], word))
    vocab = WordVocab.build(texts, min_count=min_count, max_size=max_size)
    assert list(vocab.words) == right[: max_size - 2]
    assert len(vocab) <= max_size


def test_order_does_not_depend_on_the_hash_seed() -> None:
    code = "from bestiary.text import WordVocab; print(WordVocab.build(['z y x w v u t']).words)"
    outs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert outs == {"('t', 'u', 'v', 'w', 'x', 'y', 'z')\n"}


def test_lists_of_words_and_case() -> None:
    vocab = WordVocab.build([["New York", "x"], ["New York"]], lowercase=False)
    assert vocab.words == ("New York", "x")
    assert vocab(["New York", "new york"]).tolist() == [2, 1]
    assert split_words("Üb'r, 東京!") == ["Üb", "'", "r", ",", "東京", "!"]


def test_decode() -> None:
    vocab = WordVocab(("a", "b"))
    assert vocab.decode([2, 3, 1, 0, 0]) == "a b <unk>"
    assert vocab.decode(torch.tensor([3])) == "b"
    with pytest.raises(ValueError, match="id 4 "):
        vocab.decode([4])
    with pytest.raises(ValueError, match="id -1 "):
        vocab.decode([-1])


def test_frozen_saved_and_pickled(tmp_path: Path) -> None:
    vocab = WordVocab.build(["ä b b", "<pad> <unk>"], lowercase=False)
    with pytest.raises(AttributeError):
        vocab.words = ()  # type: ignore[misc]
    vocab.save(tmp_path / "vocab.json")
    assert os.listdir(tmp_path) == ["vocab.json"]
    again = WordVocab.load(tmp_path / "vocab.json")
    assert again == vocab
    assert again("ä b < zz").tolist() == vocab("ä b < zz").tolist()
    assert pickle.loads(pickle.dumps(vocab)) == vocab
    assert json.loads((tmp_path / "vocab.json").read_text())["words"] == list(vocab.words)


def test_what_is_no_vocabulary_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'a' comes twice"):
        WordVocab(("a", "b", "a"))
    with pytest.raises(TypeError, match=r"write \[text\]"):
        WordVocab.build("a text")
    with pytest.raises(TypeError, match="tuple of str"):
        WordVocab("abc")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_size"):
        WordVocab.build([], max_size=1)
    for text in ("[]", "{}", '{"words": [1], "lowercase": true}', "x"):
        (tmp_path / "vocab.json").write_text(text)
        with pytest.raises(ValueError, match=r"vocab\.json"):
            WordVocab.load(tmp_path / "vocab.json")
