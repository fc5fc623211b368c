"""Text files in one folder per class.

Layout::

    root/neg/001.txt
    root/pos/17.txt
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Literal

import numpy as np
import numpy.typing as npt

from bestiary.files.names import PackedNames
from bestiary.text.decoding import decode

_LONGEST_BLANK = 4096  # bytes; a longer file is not read to learn whether it holds white space only


class FolderTexts:
    """The texts of files below a root, each read when asked for; line ends stay as they are."""

    def __init__(self, root: str, names: PackedNames, encoding: str) -> None:
        self.root, self.names, self.encoding = root, names, encoding

    def __len__(self) -> int:
        return len(self.names)

    def read(self, row: int) -> str:
        """Open a file, read its text and close it."""
        path = self.locate(row)
        with open(path, "rb") as file:
            return decode(file.read(), self.encoding, path)

    def name(self, row: int) -> str:
        """Return a file's path below the root."""
        return self.names[row]

    def locate(self, row: int) -> str:
        """Return a file's path."""
        return os.path.join(self.root, self.names[row])


def not_blank(texts: FolderTexts, empty: Literal["drop", "error"]) -> npt.NDArray[np.int64]:
    """Return the rows of files that hold more than white space.

    Raises:
        ValueError: there are blank files and ``empty`` is ``"error"``; names them.
    """
    blank = list(_blank(texts))
    if blank and empty == "error":
        shown = ", ".join(map(texts.locate, blank[:10])) + (", ..." if len(blank) > 10 else "")
        raise ValueError(f"{len(blank)} text files are empty: {shown}; give empty='drop' or 'keep'")
    return np.delete(np.arange(len(texts)), np.array(blank, dtype=np.int64))


def _blank(texts: FolderTexts) -> Iterator[int]:
    for row in range(len(texts)):
        if os.stat(texts.locate(row)).st_size <= _LONGEST_BLANK and not texts.read(row).strip():
            yield row
