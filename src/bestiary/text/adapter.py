"""A ``tokenizers.Tokenizer`` (extra ``text``) as a function from text to ids."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class AdaptedTokenizer:
    """Turn text into ids by a tokenizer of the package ``tokenizers``.

    What is kept and pickled is the tokenizer's JSON; each process builds it when it first encodes. Padding set in it is
    switched off (``Collate`` pads, with a mask), truncation is left as it is.

    Args:
        tokenizer: a ``tokenizers.Tokenizer``, or the path of its JSON file.
        special_tokens: whether to add those that the tokenizer has been told to, such as [CLS].

    Raises:
        OSError: the file cannot be read.
        ValueError: the file holds no tokenizer.
        ImportError: the package ``tokenizers`` is missing.
    """

    def __init__(self, tokenizer: Any, *, special_tokens: bool = True) -> None:
        is_path = isinstance(tokenizer, (str, os.PathLike))
        self._json = Path(tokenizer).read_text(encoding="utf-8") if is_path else str(tokenizer.to_str())
        self.special_tokens = special_tokens
        self._built: Any = None
        try:
            self._tokenizer()
        except ValueError as error:
            raise ValueError(f"{tokenizer} should hold a tokenizer as Tokenizer.save writes, but: {error}") from None

    @property
    def size(self) -> int:
        """How many ids there are, added tokens included: what an embedding needs."""
        return int(self._tokenizer().get_vocab_size(with_added_tokens=True))

    def __call__(self, text: str) -> Tensor:
        """Return the ids of a text, int64 (T,)."""
        encoding = self._tokenizer().encode(text, add_special_tokens=self.special_tokens)
        return torch.tensor(encoding.ids, dtype=torch.int64)

    def encode(self, text: str) -> Tensor:
        """Return the ids of a text, int64 (T,); the same as calling the tokenizer."""
        return self(text)

    def decode(self, ids: Iterable[int] | Tensor) -> str:
        """Return the text of ids (T,), without special tokens."""
        return str(self._tokenizer().decode([int(number) for number in ids], skip_special_tokens=True))

    def _tokenizer(self) -> Any:
        if self._built is None:
            self._built = _build(self._json)
        return self._built

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_built": None}


def _build(text: str) -> Any:
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise ImportError("AdaptedTokenizer needs the package tokenizers: pip install 'bestiary[text]'") from error
    try:
        built = Tokenizer.from_str(text)
    except Exception as error:  # noqa: BLE001 - tokenizers raises nothing narrower
        raise ValueError(str(error)) from None
    built.no_padding()
    return built
