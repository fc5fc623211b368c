"""Tokenizers of the package ``tokenizers``."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from bestiary.text import AdaptedTokenizer, LabelledText


@pytest.fixture
def peer() -> Any:
    pytest.importorskip("tokenizers")
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace
    from tokenizers.processors import TemplateProcessing

    words = {"[PAD]": 0, "[UNK]": 1, "[CLS]": 2, "hello": 3, "world": 4}
    made = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    made.pre_tokenizer = Whitespace()
    made.post_processor = TemplateProcessing(single="[CLS] $A", special_tokens=[("[CLS]", 2)])
    made.add_special_tokens(["[PAD]", "[UNK]", "[CLS]"])
    return made


def test_ids_are_the_peers(peer: Any) -> None:
    adapted = AdaptedTokenizer(peer)
    for text in ("hello world", "world unknown", ""):
        assert adapted(text).tolist() == peer.encode(text).ids
        assert adapted(text).dtype == torch.int64
    assert AdaptedTokenizer(peer, special_tokens=False)("hello").tolist() == [3]
    assert adapted.decode(adapted("hello world")) == "hello world"
    assert adapted.size == 5


def test_case_c01_padding_of_the_tokenizer_is_off(peer: Any) -> None:
    peer.enable_padding(length=8)
    assert len(peer.encode("hello").ids) == 8
    assert AdaptedTokenizer(peer)("hello").tolist() == [2, 3]
    assert len(peer.encode("hello").ids) == 8


def test_case_f22_file_pickle_and_spawn(peer: Any, tmp_path: Path) -> None:
    peer.save(str(tmp_path / "tokenizer.json"))
    adapted = AdaptedTokenizer(tmp_path / "tokenizer.json")
    assert pickle.loads(pickle.dumps(adapted))("world").tolist() == [2, 4]
    (tmp_path / "rows.csv").write_text("text,label\nhello,a\nworld,b\n")
    dataset = LabelledText.from_table(tmp_path / "rows.csv", tokenizer=adapted)
    for method in ("fork", "spawn"):
        batches = DataLoader(dataset, batch_size=1, num_workers=1, multiprocessing_context=method, collate_fn=list)
        assert [batch[0]["tokens"].tolist() for batch in batches] == [[2, 3], [2, 4]]


def test_what_is_no_tokenizer_is_refused(tmp_path: Path, peer: Any) -> None:
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(ValueError, match=r"bad\.json"):
        AdaptedTokenizer(tmp_path / "bad.json")
    with pytest.raises(OSError, match=r"none\.json"):
        AdaptedTokenizer(tmp_path / "none.json")


def test_without_the_package_the_error_names_the_extra(peer: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ImportError, match=r"bestiary\[text\]"):
        AdaptedTokenizer(peer)
