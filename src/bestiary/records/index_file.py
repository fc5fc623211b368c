"""Arrays in one file: written as they come, read by mapping, and thrown away when they no longer fit their source."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from typing import IO, Any

import numpy as np

from bestiary.records.paths import cache_folder

MAGIC = b"BESTIDX1"


class IndexWriter:
    """Writes arrays under another name, and takes the right one at the end: a reader sees all or nothing."""

    def __init__(self, source: str, folder: str | None) -> None:
        self.target, self._file = _begin(source, folder)
        self._file.write(MAGIC)
        self.parts: dict[str, list[Any]] = {}

    def write(self, name: str, array: np.ndarray[Any, Any]) -> None:
        """Append to an array; its pieces have to follow each other."""
        part = self.parts.setdefault(name, [array.dtype.str, self._file.tell(), 0])
        self._file.write(np.ascontiguousarray(array).tobytes())
        part[2] += len(array)

    def finish(self, about: dict[str, Any]) -> str:
        """Write what the arrays are about, and return the path of the file."""
        footer = json.dumps({"about": about, "arrays": self.parts}).encode()
        self._file.write(footer + len(footer).to_bytes(8, "little"))
        self._file.close()
        os.replace(self._file.name, self.target)
        return self.target

    def drop(self) -> None:
        """Leave nothing behind."""
        self._file.close()
        if os.path.exists(self._file.name):
            os.unlink(self._file.name)


def places(source: str, folder: str | None) -> list[str]:
    """Return where an index may lie: in the folder asked for, else beside the file or in the cache folder."""
    whole = os.path.abspath(source)
    name = f"{os.path.basename(source)}-{hashlib.blake2b(whole.encode(errors='surrogateescape'), digest_size=8).hexdigest()}.index"
    if folder is not None:
        return [os.path.join(os.path.expanduser(folder), name)]
    return [f"{whole}.index", os.path.join(cache_folder(), "index", name)]


def read_index(path: str, about: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return what an index says of itself and its arrays, mapped; None where it is missing, cut, or about something else."""
    try:
        with open(path, "rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                return None
            size = os.fstat(file.fileno()).st_size
            file.seek(size - 8)
            length = int.from_bytes(file.read(8), "little")
            file.seek(size - 8 - length)
            footer = json.loads(file.read(length))
    except (OSError, ValueError):
        return None
    if any(footer["about"].get(key) != value for key, value in about.items()):
        return None
    arrays = {
        name: np.memmap(path, np.dtype(kind), "r", offset, (count,)) if count else np.empty(0, np.dtype(kind))
        for name, (kind, offset, count) in footer["arrays"].items()
    }
    return footer["about"], {name: np.asarray(array) for name, array in arrays.items()}


def _begin(source: str, folder: str | None) -> tuple[str, IO[bytes]]:
    refused: list[str] = []
    for target in places(source, folder):
        try:
            os.makedirs(os.path.dirname(target), exist_ok=True)
            file = tempfile.NamedTemporaryFile(  # noqa: SIM115 - closed by the writer
                dir=os.path.dirname(target), prefix=f".{os.path.basename(target)}.", delete=False
            )
            return target, file
        except OSError as error:
            refused.append(str(error))
    raise OSError(f"the index of {source} can be written nowhere ({'; '.join(refused)}); give index_folder=")
