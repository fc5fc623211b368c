"""Bytes as tokens."""

from __future__ import annotations

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bestiary.text import ByteTokenizer


@given(st.text(st.characters(categories=["L", "M", "N", "P", "S", "Z", "C"])), st.integers(0, 5))
def test_any_text_comes_back(text: str, reserved: int) -> None:
    tokenizer = ByteTokenizer(reserved=reserved)
    ids = tokenizer(text)
    assert ids.tolist() == [byte + reserved for byte in text.encode("utf-8", "surrogatepass")]
    assert ids.dtype == torch.int64
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids.tolist()) == text


def test_lone_surrogates_come_back() -> None:
    text = "a\ud800b\udcff\ud83d\ude00"
    assert ByteTokenizer().decode(ByteTokenizer().encode(text)) == text


def test_start_and_end() -> None:
    tokenizer = ByteTokenizer(reserved=3, start=1, end=2)
    assert tokenizer("A").tolist() == [1, 68, 2]
    assert tokenizer("").tolist() == [1, 2]
    assert tokenizer.decode([1, 68, 2, 0, 0]) == "A"
    assert tokenizer.size == 259
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer


def test_bytes_that_are_no_text_are_replaced() -> None:
    assert ByteTokenizer().decode([0x41 + 1, 0xFF + 1, 0x42 + 1]) == "A\ufffdB"


@pytest.mark.parametrize("ids", [[257], [-1]])
def test_ids_outside_are_refused(ids: list[int]) -> None:
    with pytest.raises(ValueError, match=f"id {ids[0]} "):
        ByteTokenizer().decode(ids)


@pytest.mark.parametrize("options", [{"start": 1}, {"end": -1}, {"reserved": 0, "end": 0}, {"reserved": -1}])
def test_reserved_ids_must_be_reserved(options: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="should be"):
        ByteTokenizer(**options)
