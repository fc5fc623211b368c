"""Where the samples of a WAV file lie, whatever its header says of their size.

Layout::

    RIFF <size> WAVE                chunks follow: four letters, uint32 size, content, a zero byte if the size is odd
    fmt  <size> tag channels rate bytes_per_second align bits
    data <size> samples             a writer that cannot seek leaves 0, 0x7FFFF000 or 0xFFFFFFFF for the size

The size of the file is the truth: what the header claims beyond it is not there, and is never allocated.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

PLAIN = {1, 3, 6, 7}  # PCM, float, A-law, mu-law: a frame takes ``align`` bytes
_EXTENSIBLE = 0xFFFE


class Wav(NamedTuple):
    """What the header says, put right: ``start`` and ``nbytes`` (whole frames) bound the samples in the file."""

    tag: int
    channels: int
    rate: int
    align: int
    bits: int
    start: int
    nbytes: int
    fault: str

    @property
    def frames(self) -> int:
        """Return the samples of each channel; true for the tags in PLAIN."""
        return self.nbytes // self.align


def find_samples(file: BinaryIO, head: bytes, size: int) -> Wav | None:
    """Walk the chunks of a file of ``size`` bytes that begins with ``head``; None where it is no plain RIFF file."""
    if head[:4] != b"RIFF" or head[8:12] != b"WAVE":
        return None
    form = b""
    for name, start, length in _chunks(file, head, 12, size):
        if name == b"fmt ":
            form = _at(file, head, start, min(length, 40))
        elif name == b"data":
            return _settled(file, head, size, form, start, length)
    return None


def _settled(file: BinaryIO, head: bytes, size: int, form: bytes, start: int, length: int) -> Wav | None:
    if len(form) < 16:
        return None
    tag, channels, rate, _, align, bits = struct.unpack_from("<HHIIHH", form)
    if tag == _EXTENSIBLE and len(form) >= 26:
        (tag,) = struct.unpack_from("<H", form, 24)  # the sub-format's identifier begins with the plain tag
    if not (channels and rate and align):
        return None
    nbytes, fault, rest = min(length, size - start), "", start + length + length % 2
    if length == 0 and size > start and not _holds_chunks(file, head, start, size):
        nbytes = size - start
        fault = f"its header says 0 bytes of samples; the {nbytes} bytes that follow are taken for them"
    elif rest + 8 <= size and not _holds_chunks(file, head, rest, size):
        fault = f"its header says {length} bytes of samples; {size - rest} more bytes, which are no chunk, are left out"
    return Wav(tag, channels, rate, align, bits, start, nbytes - nbytes % align, fault)


def _chunks(file: BinaryIO, head: bytes, at: int, size: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield (name, where its content starts, how long it says it is) of each chunk from ``at`` on."""
    while at + 8 <= size:
        name, length = struct.unpack("<4sI", _at(file, head, at, 8))
        yield name, at + 8, length
        at += 8 + length + length % 2


def _holds_chunks(file: BinaryIO, head: bytes, at: int, size: int) -> bool:
    """Whether chunks fill the file from ``at`` to its end."""
    end = at
    for name, start, length in _chunks(file, head, at, size):
        end = start + length
        if end > size or not all(32 <= letter < 127 for letter in name):
            return False
    return size - end < 8 and end > at


def _at(file: BinaryIO, head: bytes, at: int, count: int) -> bytes:
    """Return ``count`` bytes from ``at`` on; zeros where the file ends before."""
    if at + count <= len(head):
        return head[at : at + count]
    file.seek(at)
    return (file.read(count) or b"").ljust(count, b"\0")
