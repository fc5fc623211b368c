"""Text: labelled texts in folders and tables, token ids in one flat file, windows over it, and tokenizers."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.text.adapter import AdaptedTokenizer as AdaptedTokenizer
    from bestiary.text.bytewise import ByteTokenizer as ByteTokenizer
    from bestiary.text.labelled import LabelledText as LabelledText
    from bestiary.text.labelled import TextSample as TextSample
    from bestiary.text.ragged import RaggedTokens as RaggedTokens
    from bestiary.text.ragged import TokenSample as TokenSample
    from bestiary.text.rows import TokenRows as TokenRows
    from bestiary.text.token_file import write_tokens as write_tokens
    from bestiary.text.vocab import WordVocab as WordVocab
    from bestiary.text.vocab import split_words as split_words
    from bestiary.text.windows import TokenWindows as TokenWindows
    from bestiary.text.windows import WindowSample as WindowSample

_WHERE = {
    "AdaptedTokenizer": "adapter",
    "ByteTokenizer": "bytewise",
    "LabelledText": "labelled",
    "RaggedTokens": "ragged",
    "TextSample": "labelled",
    "TokenRows": "rows",
    "TokenSample": "ragged",
    "TokenWindows": "windows",
    "WindowSample": "windows",
    "WordVocab": "vocab",
    "split_words": "vocab",
    "write_tokens": "token_file",
}

__all__ = [
    "AdaptedTokenizer",
    "ByteTokenizer",
    "LabelledText",
    "RaggedTokens",
    "TextSample",
    "TokenRows",
    "TokenSample",
    "TokenWindows",
    "WindowSample",
    "WordVocab",
    "split_words",
    "write_tokens",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
