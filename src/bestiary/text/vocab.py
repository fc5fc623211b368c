"""A vocabulary of words, counted once and then frozen.

Layout::

    vocab.json    {"words": ["the", "of", ...], "lowercase": true}, written by WordVocab.save

Ids::

    0        padding
    1        unknown words
    2 ...    the words, most frequent first; equally frequent ones by code point
"""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

PADDING, UNKNOWN, FIRST_WORD = 0, 1, 2
_WORD = re.compile(r"\w+|[^\w\s]")


def split_words(text: str) -> list[str]:
    """Split a text into words and single marks.

    >>> split_words("Don't stop, 3.5 m!")
    ['Don', "'", 't', 'stop', ',', '3', '.', '5', 'm', '!']
    """
    return _WORD.findall(text)


@dataclass(frozen=True)
class WordVocab:
    """Turn texts into ids of words; words that it does not know become id 1.

    Texts may also come as lists of words, split by the caller in another way.

    Args:
        words: the words by id, from id 2 on.
        lowercase: whether a word is looked up in lower case.

    Raises:
        ValueError: a word comes twice.

    >>> vocab = WordVocab.build(["the cat", "the dog"], max_size=4)
    >>> vocab.words, vocab("The dog and the cat").tolist(), len(vocab)
    (('the', 'cat'), [2, 1, 1, 2, 3], 4)
    """

    words: tuple[str, ...]
    lowercase: bool = True
    _index: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.words, str) or not all(isinstance(word, str) for word in self.words):
            raise TypeError("words should be a tuple of str; WordVocab.build takes texts")
        index = {word: at for at, word in enumerate(self.words, FIRST_WORD)}
        if len(index) < len(self.words):
            twice = Counter(self.words).most_common(1)[0][0]
            raise ValueError(f"the word {twice!r} comes twice; each word needs one id")
        object.__setattr__(self, "words", tuple(self.words))
        object.__setattr__(self, "_index", index)

    @classmethod
    def build(
        cls,
        texts: Iterable[str | Sequence[str]],
        *,
        min_count: int = 1,
        max_size: int | None = None,
        lowercase: bool = True,
    ) -> WordVocab:
        """Count the words of texts in one pass.

        Args:
            texts: texts, or lists of words; the training part only.
            min_count: leave out words that come less often.
            max_size: the largest number of ids, the two reserved ones included.

        Raises:
            TypeError: ``texts`` is a single text.
        """
        if isinstance(texts, str):
            raise TypeError("texts should be many texts, but is a single str; write [text]")
        if max_size is not None and max_size < FIRST_WORD:
            raise ValueError(f"max_size should be {FIRST_WORD} or more (padding and unknown), but is {max_size}")
        counts: Counter[str] = Counter()
        for text in texts:
            counts.update(_words(text, lowercase))
        order = sorted((word for word, count in counts.items() if count >= min_count), key=lambda w: (-counts[w], w))
        return cls(tuple(order if max_size is None else order[: max_size - FIRST_WORD]), lowercase)

    def __len__(self) -> int:
        return len(self.words) + FIRST_WORD

    @property
    def size(self) -> int:
        """How many ids there are: what an embedding needs."""
        return len(self)

    def __call__(self, text: str | Sequence[str]) -> Tensor:
        """Return the ids of a text, int64 (T,)."""
        look = self._index.get
        return torch.tensor([look(word, UNKNOWN) for word in _words(text, self.lowercase)], dtype=torch.int64)

    def encode(self, text: str | Sequence[str]) -> Tensor:
        """Return the ids of a text, int64 (T,); the same as calling the vocabulary."""
        return self(text)

    def decode(self, ids: Iterable[int] | Tensor) -> str:
        """Return the words of ids (T,), joined by spaces, without padding; unknown ones are ``<unk>``.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        numbers = [int(number) for number in ids]
        wrong = [number for number in numbers if not 0 <= number < len(self)]
        if wrong:
            raise ValueError(f"id {wrong[0]} is none of the {len(self)} ids of this vocabulary")
        return " ".join(
            "<unk>" if number == UNKNOWN else self.words[number - FIRST_WORD] for number in numbers if number != PADDING
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the vocabulary as JSON; a reader of ``path`` sees the old file or the new one, never half of it."""
        draft = f"{os.fspath(path)}.{os.getpid()}.part"
        with open(draft, "w", encoding="ascii") as file:
            json.dump({"words": self.words, "lowercase": self.lowercase}, file)
        os.replace(draft, path)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> WordVocab:
        """Read a vocabulary that ``save`` wrote.

        Raises:
            OSError: the file cannot be read.
            ValueError: it holds no vocabulary.
        """
        with open(path, encoding="utf-8") as file:
            try:
                found: Any = json.load(file)
                return cls(tuple(found["words"]), bool(found["lowercase"]))
            except (KeyError, TypeError, ValueError) as error:
                raise ValueError(f"{path} should hold a vocabulary as WordVocab.save writes, but: {error!r}") from None

    def __reduce__(self) -> tuple[Any, ...]:
        return WordVocab, (self.words, self.lowercase)


def _words(text: str | Sequence[str], lowercase: bool) -> list[str]:
    words = split_words(text) if isinstance(text, str) else list(text)
    return [word.lower() for word in words] if lowercase else words
