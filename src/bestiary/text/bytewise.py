"""Bytes as tokens: no vocabulary to build, no text that it cannot write.

Ids::

    0 .. reserved - 1      padding (0), and whatever else the caller wants: start, end, separator
    reserved .. + 255      the bytes of the text in UTF-8
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class ByteTokenizer:
    """Turn text into the ids of its UTF-8 bytes and back; any str comes back as it was, lone surrogates included.

    Args:
        reserved: how many ids stand before the bytes; 0 is for padding.
        start: one of the reserved ids, put before every text.
        end: one of the reserved ids, put after every text.

    Raises:
        ValueError: start or end is none of the reserved ids.

    >>> encode = ByteTokenizer(reserved=2, end=1)
    >>> encode("hé").tolist(), encode.decode(encode("hé")), encode.size
    ([106, 197, 171, 1], 'hé', 258)
    """

    reserved: int = 1
    start: int | None = None
    end: int | None = None

    def __post_init__(self) -> None:
        for name, value in (("start", self.start), ("end", self.end)):
            if value is not None and not 0 <= value < self.reserved:
                raise ValueError(f"{name}={value} should be one of the reserved ids, 0 to {self.reserved - 1}")
        if self.reserved < 0:
            raise ValueError(f"reserved should be 0 or more, but is {self.reserved}")

    @property
    def size(self) -> int:
        """How many ids there are: what an embedding needs."""
        return 256 + self.reserved

    def __call__(self, text: str) -> Tensor:
        """Return the ids of a text, int64 (T,)."""
        before = [] if self.start is None else [self.start]
        after = [] if self.end is None else [self.end]
        data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        return torch.from_numpy(np.concatenate([before, data.astype(np.int64) + self.reserved, after]).astype(np.int64))

    def encode(self, text: str) -> Tensor:
        """Return the ids of a text, int64 (T,); the same as calling the tokenizer."""
        return self(text)

    def decode(self, ids: Iterable[int] | Tensor) -> str:
        """Return the text of ids (T,), without the reserved ones; bytes that are no UTF-8 become U+FFFD.

        Raises:
            ValueError: an id lies outside the vocabulary.
        """
        numbers: Any = np.asarray(ids if hasattr(ids, "__len__") else list(ids), dtype=np.int64)
        wrong = numbers[(numbers < 0) | (numbers >= self.size)]
        if wrong.size:
            raise ValueError(f"id {wrong[0]} is none of the {self.size} ids of {self}")
        data: bytes = (numbers[numbers >= self.reserved] - self.reserved).astype(np.uint8).tobytes()
        try:
            return data.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return data.decode("utf-8", "replace")
