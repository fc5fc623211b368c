"""Texts with a label, from class folders of text files or from a table.

Layout::

    root/pos/17.txt                          LabelledText.from_folder(root)
    reviews.csv, reviews.tsv, reviews.jsonl  LabelledText.from_table(path, text="review", label="stars")

Sample::

    text    str, line ends as in the file
    label   int, index into ``classes``
    name    str, path below the root, or record id
    tokens  int64 (T,), only with a tokenizer
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol, TypedDict

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bestiary.text.rows import row_number

Empty = Literal["keep", "drop", "error"]


class _Text(TypedDict):
    text: str
    label: int
    name: str


class TextSample(_Text, total=False):
    """``text``, ``label`` and ``name``, and ``tokens`` int64 (T,) where there is a tokenizer."""

    tokens: Tensor


class TextSource(Protocol):
    """Where texts come from: rows that are read one at a time, and that know their name and place."""

    def read(self, row: int) -> str:
        """Return a text."""
        ...

    def name(self, row: int) -> str:
        """Return a path below the root, or a record id."""
        ...

    def locate(self, row: int) -> str:
        """Return where a text stands."""
        ...


class LabelledText:
    """Serve labelled texts, each read from its file when asked for.

    Made by ``from_folder`` or ``from_table``; what is kept in memory are a few packed arrays.

    Args:
        source: where the texts come from.
        rows: int64 (N,), which rows of the source are served.
        labels: int64 (N,), their labels.
        classes: names of the classes by index.
        tokenizer: text -> ids, gives ``tokens``; must not draw random numbers.
        transform: sample -> sample.
    """

    def __init__(
        self,
        source: TextSource,
        rows: npt.NDArray[np.int64],
        labels: npt.NDArray[np.int64],
        classes: list[str],
        *,
        tokenizer: Callable[[str], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> None:
        if len(rows) != len(labels):
            raise ValueError(f"there are {len(rows)} rows, but {len(labels)} labels; give one for each row")
        self._source, self._rows, self._labels = source, rows, labels
        self.classes, self.tokenizer, self.transform = classes, tokenizer, transform

    @classmethod
    def from_folder(
        cls,
        root: str | os.PathLike[str],
        *,
        extensions: Collection[str] = (".txt",),
        classes: object = None,
        allow_empty: bool = False,
        hidden: bool = False,
        accept: Callable[[str], bool] | None = None,
        class_from: Literal["top", "path", "leaf"] = "top",
        encoding: str = "utf-8",
        empty: Empty = "keep",
        tokenizer: Callable[[str], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> LabelledText:
        """List the text files of class folders; the options up to ``class_from`` are those of ``scan_classes``.

        Args:
            encoding: of all files; strict, and a UTF-8 byte-order mark is stripped.
            empty: what to do with files that hold white space only: keep them, drop them, or raise, naming them.

        Raises:
            OSError: the root cannot be read.
            ValueError: no class folders, folders without files, unknown classes, blank files with ``empty="error"``.
        """
        from bestiary.files.tree import scan_classes
        from bestiary.text.decoding import known_encoding
        from bestiary.text.folder import FolderTexts, not_blank

        _check_empty(empty)
        coding = known_encoding(encoding)
        tree = scan_classes(
            root,
            extensions=extensions,
            classes=classes,
            allow_empty=allow_empty,
            hidden=hidden,
            accept=accept,
            class_from=class_from,
        )
        texts = FolderTexts(os.path.expanduser(os.fspath(root)), tree.names, coding)
        rows = np.arange(len(texts)) if empty == "keep" else not_blank(texts, empty)
        return cls(texts, rows, tree.labels[rows], tree.classes, tokenizer=tokenizer, transform=transform)

    @classmethod
    def from_table(
        cls,
        path: str | os.PathLike[str],
        *,
        text: str = "text",
        label: str = "label",
        name: str | None = None,
        classes: object = None,
        delimiter: str | None = None,
        quotes: bool = True,
        encoding: str = "utf-8",
        empty: Empty = "keep",
        tokenizer: Callable[[str], Any] | None = None,
        transform: Callable[[Any], Any] | None = None,
    ) -> LabelledText:
        """List the records of a CSV, TSV or JSON-lines file, told apart by its ending.

        Classes are the labels found, in sorted order, and in natural order (2 before 10) where all are integers.

        Args:
            text: name of the column with the texts.
            label: name of the column with the labels.
            name: name of a column with record ids; without it a name is the file's name and the record's line.
            classes: the class map to use instead: names by index, a mapping from name to index, the path of a JSON file
                from ``save_classes``, or anything with ``.classes``, such as the training dataset.
            delimiter: parts the columns; "," in .csv, a tab in .tsv.
            quotes: whether ``"`` quotes a field; False where it is a plain character.
            encoding: strict, and a UTF-8 byte-order mark is stripped.
            empty: what to do with records whose text is white space only: keep, drop, or raise, naming the lines.

        Raises:
            OSError: the file cannot be read.
            ValueError: columns missing, broken records, bytes of another encoding, labels that are not in ``classes``.
        """
        from bestiary.text.numbering import known_labels, number_labels
        from bestiary.text.table import list_table
        from bestiary.text.table_form import table_form

        _check_empty(empty)
        where = os.path.expanduser(os.fspath(path))
        found = list_table(
            where, text=text, label=label, name=name, form=table_form(where, delimiter, quotes, encoding)
        )
        if empty == "error" and len(found.blank):
            lines = ", ".join(f"line {line}" for line in found.texts.lines[found.blank[:10]].tolist())
            raise ValueError(f"{where}: {len(found.blank)} texts are empty: {lines}; give empty='drop' or 'keep'")
        known = number_labels(found.labels, where) if classes is None else known_labels(classes, found.labels, where)
        index = {word: at for at, word in enumerate(known) if word}
        labels = np.array([index[word] for word in found.labels], dtype=np.int64)[found.codes]
        rows = np.arange(len(labels))
        rows = np.delete(rows, found.blank) if empty == "drop" else rows
        return cls(found.texts, rows, labels[rows], known, tokenizer=tokenizer, transform=transform)

    @property
    def draws(self) -> bool:
        """Whether a sample may depend on chance: only where there is a transform."""
        return self.transform is not None

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Map each class to its index."""
        return {word: at for at, word in enumerate(self.classes) if word}

    @property
    def labels(self) -> npt.NDArray[np.int64]:
        """The label of each sample, int64 (N,), a copy."""
        return self._labels.copy()

    @property
    def names(self) -> Sequence[str]:
        """The name of each sample, (N,), packed."""
        from bestiary.files.names import PackedNames

        return PackedNames(map(self._source.name, self._rows.tolist()))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> TextSample:
        at = row_number(index, len(self), "the texts")
        row = int(self._rows[at])
        text = self._source.read(row)
        sample: TextSample = {"text": text, "label": int(self._labels[at]), "name": self._source.name(row)}
        if self.tokenizer is not None:
            sample["tokens"] = torch.as_tensor(self.tokenizer(text), dtype=torch.int64)
        return self.transform(sample) if self.transform else sample

    def locate(self, index: int) -> str:
        """Say where a sample comes from: a file, or a file and a line."""
        return self._source.locate(int(self._rows[row_number(index, len(self), "the texts")]))


def _check_empty(empty: str) -> None:
    if empty not in ("keep", "drop", "error"):
        raise ValueError(f"empty should be 'keep', 'drop' or 'error', but is {empty!r}")
