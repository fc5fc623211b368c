"""Samples in tar archives, named as WebDataset names them, read at random.

Layout::

    shard-0001.tar      cat/7.jpg, cat/7.cls, cat/8.jpg, ...: members that share a name up to the first dot are a sample
    shard-0001.tar.index    which members those are; made from the headers when first needed

Sample::

    name       str, the key: folder and name up to the dot
    <field>    bytes, one for each member; the field is the extension in lower case: "jpg", "cls"
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from bestiary.records.paths import Paths, list_paths, random_access
from bestiary.records.rows import row_number
from bestiary.records.tar_files import TarFiles

if TYPE_CHECKING:
    from bestiary.records.tar_index import Dots


class TarSamples:
    """Serve the samples of tar archives.

    Members of a sample need not be neighbours. Links are followed within the archive; macOS's ``._`` twins and members
    without an extension are left out with a notice. An archive that is cut loses its last sample, since that may lack
    members: reading this one raises.

    Args:
        paths: an archive, a pattern, a URL that fsspec knows, or several of them; read in sorted order.
        transform: sample -> sample, for instance one that decodes.
        dots: where a member's file name is parted into key and field: at the "first" dot, as WebDataset does, or the "last".
        limit: bytes that a member may have; None for any number.
        index_folder: where indexes are kept; beside each archive, or else in the cache folder, when None.

    Raises:
        FileNotFoundError: an archive is not there.
        RecordError: from ``dataset[i]``: the archive is cut, a member comes twice, or a link leads nowhere; names the
            archive and the sample.

    Example::

        shards = TarSamples("shards/*.tar")
        shards[0]       # {"name": "cat/7", "jpg": b"...", "cls": b"3"}
    """

    def __init__(
        self,
        paths: Paths,
        *,
        transform: Callable[[Any], Any] | None = None,
        dots: Dots = "first",
        limit: int | None = None,
        index_folder: str | os.PathLike[str] | None = None,
    ) -> None:
        self.transform = transform
        self._tars = TarFiles(random_access(list_paths(paths)), dots, index_folder, limit)
        self._ends: np.ndarray[Any, Any] | None = None

    @property
    def paths(self) -> list[str]:
        """The archives, in the order in which their samples are numbered."""
        return list(self._tars.paths)

    @property
    def draws(self) -> bool:
        """Whether a sample may depend on chance: only where there is a transform."""
        return self.transform is not None

    def __len__(self) -> int:
        if self._ends is None:
            counts = [len(self._tars.samples(file)) for file in range(len(self._tars.paths))]
            self._ends = np.cumsum(counts, dtype=np.int64)
        return int(self._ends[-1])

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample = self._tars.read(*self._place(index))
        return self.transform(sample) if self.transform else sample

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        """Return the samples of many indices."""
        return [self[index] for index in indices]

    def locate(self, index: int) -> str:
        """Say where a sample stands: archive, key, and the byte of its first member."""
        return self._tars.where(*self._place(index))

    def _place(self, index: int) -> tuple[int, int]:
        row = row_number(index, len(self))
        ends: Any = self._ends
        file = int(np.searchsorted(ends, row, side="right"))
        return file, row - (int(ends[file - 1]) if file else 0)
