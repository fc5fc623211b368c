"""Images listed in a table: a CSV or JSON-lines file of file names and labels.

Layout::

    rows.csv            file_name,label,age         rows.jsonl  {"file_name": "imgs/1.jpg", "label": "cat", "age": 3}
                        imgs/1.jpg,cat,3
    imgs/1.jpg          file names are relative to the folder of the table, or to ``root``

Sample::

    image   uint8 (3, H, W), RGB; (1, H, W) for mode "L", (4, H, W) for "RGBA"
    label   int, index into ``classes``
    name    str, the file name as the table has it
    ...     a field for every further column: str, int or float
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from operator import index as as_int
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
from torch import Tensor

from bestiary.images.decode import MAX_PIXELS, check_options, read_image


class ManifestSample(TypedDict):
    """One picture: uint8 (C, H, W), the index of its class, its file name; further columns are further fields."""

    image: Tensor
    label: int
    name: str


class ImageManifest:
    """A dataset of the images that a table lists.

    Args:
        path: the table: .csv, .tsv, or .jsonl / .ndjson (one object a line).
        root: the folder that file names are relative to; by default the folder of the table.
        file_column: the column of file names; by default the first there is of file_name, filename, file, path, image,
            name.
        label_column: the column of labels; by default label, else class. Labels are names of classes, integers too.
        fields: which further columns become fields, and their type: ``{"age": float}``; str, int or float. By default
            all of them, as str from CSV and with the type of the first line from JSON.
        classes: the class map to use, in any form ``scan_classes`` takes; by default the labels in sorted order.
        transform, mode, min_side, max_pixels: as in ``ImageFolder``.

    Attributes:
        classes: names by index, ``labels`` int64 (N,), ``names`` the file names, ``lines`` int64 (N,) in the table.

    Raises:
        OSError: the table cannot be read.
        ValueError: a column is missing, or a line cannot be read; the message names file and line.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        root: str | os.PathLike[str] | None = None,
        file_column: str | None = None,
        label_column: str | None = None,
        fields: Mapping[str, type] | None = None,
        classes: object = None,
        transform: Callable[[Any], Any] | None = None,
        mode: str = "RGB",
        min_side: int | None = None,
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        # here and not above: the table is read once, and a worker, to whom the columns are sent, does not need it
        from bestiary.images.listing import read_listing

        check_options(mode, min_side, max_pixels)
        self.path = Path(path).expanduser()
        self.root = self.path.parent if root is None else Path(root).expanduser()
        self.transform, self.mode, self.min_side, self.max_pixels = transform, mode, min_side, max_pixels
        self.spent = {"read": 0.0, "decode": 0.0, "transform": 0.0}  # seconds, in this process
        found = read_listing(self.path, file_column, label_column, fields, classes)
        self.classes, self.names, self.labels, self.lines, self._columns = found

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> ManifestSample:
        label, name = int(self.labels[as_int(index)]), self.names[index]
        try:
            path = os.path.join(self.root, name)
            image = read_image(path, self.mode, self.min_side, max_pixels=self.max_pixels, spent=self.spent)
        except (OSError, ValueError) as error:
            kind = OSError if isinstance(error, OSError) else ValueError
            where = f"sample {index} ({self.path}, line {self.lines[index]}), class {self.classes[label]!r}"
            raise kind(f"{where}: {error}") from error
        further = {key: column[index] for key, column in self._columns.items()}
        further = {key: value.item() if isinstance(value, np.generic) else value for key, value in further.items()}
        image = image if self.transform else image.contiguous()
        sample: Any = {"image": image, "label": label, "name": name} | further
        begun = time.perf_counter()
        done: ManifestSample = self.transform(sample) if self.transform else sample
        self.spent["transform"] += time.perf_counter() - begun
        return done

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Map each class to its index."""
        return self.classes.class_to_idx

    @property
    def draws(self) -> bool:
        """Tell whether a sample may draw random numbers; it does not without a transform."""
        return self.transform is not None

    def locate(self, index: int) -> str:
        """Return the picture's path, and the table and line that list it."""
        return f"{os.path.join(self.root, self.names[index])} ({self.path}, line {self.lines[index]})"

    def __repr__(self) -> str:
        return f"ImageManifest({str(self.path)!r}: {len(self)} images in {len(self.classes)} classes)"
