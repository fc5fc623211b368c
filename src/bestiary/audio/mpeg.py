"""MP3 streams without a count of their frames.

The first frame of an MP3 usually holds a count ("Xing", "Info" or "VBRI"). Where it is missing, decoders guess the length
from the size and the bit rate of the first frames, and libsndfile ends the sound there, however much is left. So the frames
are counted, and where the guess is off a first frame with the count is put before the stream.
"""

from __future__ import annotations

from typing import BinaryIO, NamedTuple

_KBPS = (
    (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160),  # MPEG 2 and 2.5, layer III
    (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320),  # MPEG 1
)
_COUNTS = (b"Xing", b"Info", b"VBRI")
_RATES = (44100, 48000, 32000)


class Frame(NamedTuple):
    """One frame: its size in bytes, the samples it holds, and where a count would stand in it."""

    size: int
    samples: int
    count_at: int


def has_count(file: BinaryIO, head: bytes) -> bool:
    """Whether the first frame behind the tag, of a file that begins with ``head``, holds a count."""
    file.seek(_behind_tag(head))
    first = file.read(64)  # the count stands 13 to 36 bytes behind the frame's beginning
    return any(word in first for word in _COUNTS)


def with_count(data: bytes, guessed: int) -> bytes | None:
    """Return the file with a frame that holds the count, or None where it has one or the guess is within a percent."""
    start = _behind_tag(data)
    first = _frame(data, start)
    if first is None or any(word in data[start : start + 64] for word in _COUNTS):
        return None
    count, at, frame = 0, start, first
    while frame is not None and at + frame.size <= len(data):
        count, at = count + 1, at + frame.size
        frame = _frame(data, at)  # type: ignore[assignment]
    if abs(count * first.samples - guessed) <= max(0.01 * guessed, 3 * first.samples):
        return None
    head = bytearray(first.size)
    head[:4] = data[start : start + 4]
    text = b"Info" + (1).to_bytes(4, "big") + count.to_bytes(4, "big")
    head[first.count_at : first.count_at + len(text)] = text
    return data[:start] + bytes(head[: first.size]) + data[start:] if len(head) == first.size else None


def _behind_tag(data: bytes) -> int:
    """Skip ID3v2 tags, such as those with a cover."""
    at = 0
    while data[at : at + 3] == b"ID3" and len(data) >= at + 10:
        size = 0
        for byte in data[at + 6 : at + 10]:
            size = size << 7 | byte & 0x7F
        at += 10 + size
    return at


def _frame(data: bytes, at: int) -> Frame | None:
    """Read the header of a layer III frame; None where there is none."""
    if len(data) < at + 4 or data[at] != 0xFF or data[at + 1] & 0xE6 != 0xE2:
        return None
    version, mono = data[at + 1] >> 3 & 3, data[at + 3] >> 6 == 3
    step, rate = data[at + 2] >> 4, data[at + 2] >> 2 & 3
    if version == 1 or step in (0, 15) or rate == 3:
        return None
    newest = version == 3
    hertz = _RATES[rate] >> (0 if newest else 1 if version == 2 else 2)
    samples = 1152 if newest else 576
    size = samples // 8 * _KBPS[newest][step] * 1000 // hertz + (data[at + 2] >> 1 & 1)
    side = (17 if mono else 32) if newest else (9 if mono else 17)
    return Frame(size, samples, 4 + side)
