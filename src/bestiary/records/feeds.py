"""Text of a file from any place on: read where it is needed, or inflated from the beginning; gz, zst and pipes too."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from typing import Any, Protocol

from bestiary.records.handles import Handle

CHUNK = 1 << 18  # compressed bytes read at once
COUNT = 1 << 22  # bytes looked through at once for line feeds


class Feed(Protocol):
    """Where text comes from; places only ever move forwards."""

    fault: str  # what is wrong at the end of the text; empty where nothing is

    def read(self, size: int, at: int) -> tuple[bytes, bool]:
        """Return text from a place on, and whether it ends there."""

    def line(self, at: int) -> int | None:
        """Return the line of a place, from 1; None where ``line_behind`` has to be asked instead, which reads the file."""

    def line_behind(self, at: int) -> int:
        """Return the line of a place that was read before."""


class PlainFeed:
    """A file that can be read at any place."""

    fault = ""

    def __init__(self, handle: Handle) -> None:
        self.handle = handle
        self._known = (0, 1)

    def read(self, size: int, at: int) -> tuple[bytes, bool]:
        """Return text from a place on, and whether it ends there."""
        data = self.handle.read(size, at)
        return data, len(data) < size or at + len(data) >= self.handle.size

    def line(self, at: int) -> int | None:
        """Say that lines are counted when they are asked for."""
        return None

    def line_behind(self, at: int) -> int:
        """Count the lines before a place."""
        start, line = self._known if self._known[0] <= at else (0, 1)
        while start < at:
            data = self.handle.read(min(COUNT, at - start), start)
            if not data:
                break
            start, line = start + len(data), line + data.count(b"\n")
        self._known = (start, line)
        return line


class SequentialFeed:
    """Text that comes in pieces from the beginning on."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces, self._held, self._base, self._line = pieces, bytearray(), 0, 1
        self._ended, self.fault = False, ""

    def read(self, size: int, at: int) -> tuple[bytes, bool]:
        """Return text from a place on, and whether it ends there; what lies before is forgotten."""
        while not self._ended and self._base + len(self._held) < at + size:
            if self._base + len(self._held) <= at:
                self._forget(len(self._held))
            self._more()
        self._forget(min(at - self._base, len(self._held)))
        return bytes(self._held[:size]), self._ended and len(self._held) <= size

    def line(self, at: int) -> int | None:
        """Return the line of the place that was read last."""
        return self._line

    def line_behind(self, at: int) -> int:
        """Return the line of the place that was read last."""
        return self._line

    def _forget(self, count: int) -> None:
        if count > 0:
            self._line += self._held.count(b"\n", 0, count)
            del self._held[:count]
            self._base += count

    def _more(self) -> None:
        try:
            self._held += next(self._pieces)
        except StopIteration:
            self._ended = True
        except ValueError as error:
            self._ended, self.fault = True, str(error)


def open_feed(path: str, packing: str, handle: Handle | None) -> Feed:
    """Return the text of a file that is plain, packed by gzip or zstd, or a pipe."""
    if packing == "pipe":
        return SequentialFeed(_from_pipe(path))
    if handle is None:
        raise ValueError(f"{path} is not open")
    if packing == "":
        return PlainFeed(handle)
    return SequentialFeed(inflate(handle, packing))


def _from_pipe(path: str) -> Iterator[bytes]:
    with open(path, "rb", buffering=0) as file:
        while data := os.read(file.fileno(), CHUNK):
            yield data


def inflate(handle: Handle, packing: str) -> Iterator[bytes]:
    """Yield the text of a gz or zst file, member after member.

    Raises:
        ValueError: at its place: a member that is cut, damaged, or followed by something else than members and zeros.
    """
    member: Any = None
    at, begun, packed = 0, 0, handle.read(CHUNK, 0)
    while packed:
        if member is None:
            if packing == "gzip" and at and packed[:1] == b"\0":  # tapes and some tools pad with zeros
                rest = packed.lstrip(b"\0")
                at += len(packed) - len(rest)
                packed = rest or handle.read(CHUNK, at)
                continue
            _check_member(packed if len(packed) > 3 else packed + handle.read(4, at + len(packed)), packing, at)
            member, begun = _inflater(packing), at
        try:
            text = member.decompress(packed)
        except Exception as error:  # noqa: BLE001 - zlib's and zstandard's errors have no type in common
            raise ValueError(
                f"the {packing} data that begins at byte {begun} is damaged near byte {at} ({error})"
            ) from None
        at += len(packed)
        if text:
            yield text
        if member.eof:
            at -= len(member.unused_data)
            member = None
        packed = handle.read(CHUNK, at)
    if member is not None:
        raise ValueError(
            f"the file is cut: it ends at byte {at}, within the {packing} data that begins at byte {begun}"
        )


def _check_member(packed: bytes, packing: str, at: int) -> None:
    magic = b"\x1f\x8b" if packing == "gzip" else b"\x28\xb5\x2f\xfd"
    skippable = packing == "zstd" and packed[1:4] == b"\x2a\x4d\x18"
    if not packed.startswith(magic) and not skippable:
        what = f"junk behind the {packing} data" if at else f"no {packing} data"
        raise ValueError(f"{what}: byte {at} and what follows ({packed[:16]!r})")


def _inflater(packing: str) -> Any:
    if packing == "gzip":
        return zlib.decompressobj(wbits=31)
    try:
        import zstandard
    except ImportError:
        raise ImportError("zst files need zstandard: pip install 'bestiary[records]'") from None
    return zstandard.ZstdDecompressor().decompressobj()
