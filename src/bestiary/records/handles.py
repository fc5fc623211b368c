"""Files opened once in each process and read at any place by any thread."""

from __future__ import annotations

import os
from collections.abc import Callable

MOST_OPEN = 128


class Handle:
    """One open file; it is closed when nobody holds it any more."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.number = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        status = os.fstat(self.number)
        self.size, self.changed = status.st_size, status.st_mtime_ns

    def read(self, size: int, offset: int) -> bytes:
        """Return bytes from a place, fewer only at the end of the file; no position is moved, so threads may share it."""
        data = _read_at(self.number, size, offset)
        if len(data) == size or not data:
            return data
        parts = [data]
        while size > sum(map(len, parts)):
            more = _read_at(self.number, size - sum(map(len, parts)), offset + sum(map(len, parts)))
            if not more:
                break
            parts.append(more)
        return b"".join(parts)

    def __del__(self) -> None:
        number = getattr(self, "number", None)
        if number is not None:
            os.close(number)


class Handles:
    """The open files of this process: a forked child opens its own, and a pickle holds none."""

    def __init__(self) -> None:
        self._owner = os.getpid()
        self._open: dict[str, Handle] = {}

    def __getstate__(self) -> dict[str, object]:
        return {"_owner": 0, "_open": {}}

    def known(self, path: str) -> Handle | None:
        """Return the file of a path where this process has it open already."""
        return self._open.get(path) if self._owner == os.getpid() else None

    def drop(self, path: str) -> None:
        """Forget a file, so that it is opened anew."""
        self._open.pop(path, None)

    def of(self, path: str) -> Handle:
        """Return the open file of a path."""
        if self._owner != os.getpid():
            self._open, self._owner = {}, os.getpid()
        handle = self._open.get(path)
        if handle is None:
            while len(self._open) >= MOST_OPEN:
                self._open.pop(next(iter(self._open)), None)
            handle = self._open[path] = Handle(path)
        return handle


def _read_by_seeking(number: int, size: int, offset: int) -> bytes:  # pragma: no cover - platforms without pread
    copy = os.open(f"/dev/fd/{number}", os.O_RDONLY)
    try:
        os.lseek(copy, offset, os.SEEK_SET)
        return os.read(copy, size)
    finally:
        os.close(copy)


_read_at: Callable[[int, int, int], bytes] = getattr(os, "pread", _read_by_seeking)
