"""Slots for one batch each, where all others hold batches that are kept: such a batch has memory of its own.

The main process makes one and lends it by a path, which a worker that has started long before can open. When the batch
has come, it is mapped, and its descriptor is closed, so that any number of batches can be kept.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np
import torch


class Spares:
    """Files without a name, on both sides: in the main process those that are lent, in a worker the one in hand."""

    def __init__(self) -> None:
        self._files: dict[str, int] = {}
        self._maps: dict[str, np.ndarray[Any, Any]] = {}
        self._pid = os.getpid()
        weakref.finalize(self, _close_all, self._files)

    def lend(self) -> str | None:
        """Return the path of a new one, None without descriptors."""
        try:
            file = os.memfd_create("bestiary-spare")
        except OSError:
            return None
        path = f"/proc/{self._pid}/fd/{file}"
        self._files[path] = file
        return path

    def receive(self, path: str, size: int) -> np.ndarray[Any, Any]:
        """Return the bytes that lie in one; its memory lasts as long as they do."""
        try:
            return _mapped(self._files[path], size)
        finally:
            self.drop(path)

    def room(self, path: str, size: int) -> np.ndarray[Any, Any]:
        """Return ``size`` bytes of one to write to.

        Raises:
            OSError: it cannot be opened, grow or be mapped so far.
        """
        known = self._maps.get(path)
        if known is None or known.size < size:
            file = self._files.get(path)
            if file is None:
                file = self._files[path] = os.open(path, os.O_RDWR)
            os.posix_fallocate(file, 0, size)
            known = self._maps[path] = _mapped(file, size)
        return known[:size]

    def drop(self, path: str) -> None:
        """Close one; its memory is gone where it is not mapped."""
        self._maps.pop(path, None)
        file = self._files.pop(path, None)
        if file is not None:
            os.close(file)

    def close(self) -> None:
        """Close all."""
        _close_all(self._files)


def _mapped(file: int, size: int) -> np.ndarray[Any, Any]:
    """Map a file; unlike Python's mmap, torch keeps no descriptor for it."""
    try:
        storage: Any = torch.UntypedStorage.from_file(f"/proc/self/fd/{file}", shared=True, nbytes=size)
    except RuntimeError as error:
        raise OSError(str(error)) from error
    array: np.ndarray[Any, Any] = torch.empty(0, dtype=torch.uint8).set_(storage).numpy()
    return array


def _close_all(files: dict[str, int]) -> None:
    while files:
        os.close(files.popitem()[1])
