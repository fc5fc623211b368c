"""How long sound files are, from their headers alone: read once, in parallel, and kept in an index file.

Layout::

    index.npz   names    uint8, the names one after another, NUL between them
                stats    int64 (N, 2), size and time of change (ns) of each file when it was read
                headers  int64 (N, 3), frames, rate, channels

A row whose file has another size or time of change is read anew, and so is a row that could not be read.
"""

from __future__ import annotations

import os
import struct
import sys
import time
import zipfile
from array import array
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from bestiary.audio.opening import Opened, Source, sound
from bestiary.audio.wav import PLAIN
from bestiary.keys import mix

Rows: TypeAlias = npt.NDArray[np.int64]
_CODING = ("utf-8", "surrogatepass")  # names that are not UTF-8 survive
_SHARE = 64  # files that a thread takes at a time


class Header(NamedTuple):
    """What a file says of itself: samples of each channel, samples a second, channels."""

    frames: int
    rate: int
    channels: int


class Headers(NamedTuple):
    """``rows`` int64 (N, 3): frames, rate, channels of each file, frames -1 where it cannot be read; and why not."""

    rows: Rows
    problems: dict[int, str]


def read_header(source: Source) -> Header:
    """Read how long a sound file is, from a path or from its bytes, without decoding it.

    A file that does not tell its length, such as FLAC from a pipe, is decoded for it. The length of a compressed file is
    its own claim, and may differ from what is decoded.

    Raises:
        OSError: as in ``read_audio``.
        ImportError: the format needs a package, which is named.
    """
    with Opened(source) as opened:
        wav = opened.wav()
        if wav is not None and wav.tag in PLAIN:
            return Header(wav.frames, wav.rate, wav.channels)
        quick = _flac(opened.head)
        if quick is not None:
            return quick
        with sound(opened, wav) as file:
            found = Header(file.frames, file.samplerate, file.channels)
    if found.frames < 1 << 60:
        return found
    from bestiary.audio.decode import read_audio

    return found._replace(frames=read_audio(source).waveform.shape[1])


def _flac(head: bytes) -> Header | None:
    """Read STREAMINFO, which is the first block of every FLAC file; None where it lacks the length."""
    if head[:4] != b"fLaC" or len(head) < 42 or head[4] & 0x7F:
        return None
    (bits,) = struct.unpack_from(">Q", head, 18)  # 20 bits rate, 3 channels - 1, 5 bits a sample - 1, 36 frames
    frames, rate = bits & (1 << 36) - 1, bits >> 44
    return Header(frames, rate, (bits >> 41 & 7) + 1) if frames and rate else None


def index_path(place: str | os.PathLike[str]) -> Path:
    """Return where the index of a folder or table is kept: the user's cache folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(cache, "bestiary", f"audio-{mix('headers', os.path.realpath(place)):016x}.npz")


def read_headers(root: str | os.PathLike[str], names: Sequence[str], index: Path) -> Headers:
    """Return the headers of the files ``names`` below ``root``, from the index where it is up to date, and keep them there."""
    top, names = os.fspath(root), list(names)
    stats, packed = _stats(top, names), "\0".join(names).encode(*_CODING)
    known = _kept(index, names, packed)
    rows = np.full((len(names), 3), -1, np.int64) if known is None else known[1]
    same = np.zeros(len(names), bool) if known is None else (known[0] == stats).all(axis=1) & (rows[:, 0] >= 0)
    stale = np.flatnonzero(~same)
    rows[stale] = -1
    problems: dict[int, str] = {}
    for at, found in zip(stale.tolist(), _read_all(top, [names[at] for at in stale.tolist()]), strict=True):
        if isinstance(found, Header):
            rows[at] = found
        else:
            problems[at] = found
    if len(stale) > len(problems):
        _keep(index, packed, stats, rows)
    return Headers(rows, problems)


def _stats(top: str, names: Sequence[str]) -> Rows:
    """Return size and time of change of each file, (N, 2); -1 where there is none."""
    stats, relative = array("q"), os.stat in os.supports_dir_fd and os.path.isdir(top)
    folder = os.open(top, os.O_RDONLY) if relative else None  # names below an open folder are found in half the time
    try:
        for name in names:
            try:
                found = os.stat(name if relative else os.path.join(top, name), dir_fd=folder)
                stats.extend((found.st_size, found.st_mtime_ns))
            except (OSError, ValueError):
                stats.extend((-1, -1))
    finally:
        if folder is not None:
            os.close(folder)
    return np.array(stats, np.int64).reshape(-1, 2)


def _read_all(top: str, names: Sequence[str]) -> Iterator[Header | str]:
    """Yield the header of each file, or why it has none."""
    if len(names) <= _SHARE:
        yield from _read_some(top, names)
        return
    progress = _Progress(len(names))
    shares = [names[at : at + _SHARE] for at in range(0, len(names), _SHARE)]
    with ThreadPoolExecutor(min(16, 4 * (os.cpu_count() or 1))) as pool:
        for found in pool.map(_read_some, repeat(top), shares):
            progress.add(len(found))
            yield from found
    progress.end()


def _read_some(top: str, names: Sequence[str]) -> list[Header | str]:
    out: list[Header | str] = []
    for name in names:
        try:
            out.append(read_header(os.path.join(top, name)))
        except (OSError, ValueError) as error:
            out.append(str(error))
    return out


class _Progress:
    """One line on stderr for what takes more than two seconds, twice a second at most."""

    def __init__(self, total: int) -> None:
        self.total, self.done, self.shown, self.next = total, 0, False, time.monotonic() + 2

    def add(self, count: int) -> None:
        """Count what was done."""
        self.done += count
        if time.monotonic() >= self.next:
            self._show()
            self.next = time.monotonic() + 0.5

    def end(self) -> None:
        """Leave the line."""
        if self.shown:
            self._show()
            print(file=sys.stderr)

    def _show(self) -> None:
        self.shown, filled = True, 30 * self.done // self.total
        bar = "#" * filled + "." * (30 - filled)
        print(f"\rreading headers [{bar}] {self.done:,} of {self.total:,} ", end="", file=sys.stderr, flush=True)


def _kept(index: Path, names: Sequence[str], packed: bytes) -> tuple[Rows, Rows] | None:
    """Return stats and headers as the index has them, in the order of ``names``; None without a usable index."""
    try:
        with open(index, "rb") as raw, np.load(raw, allow_pickle=False) as file:  # np.load leaves a bad file open
            before, stats, rows = file["names"], file["stats"], file["headers"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    if stats.ndim != 2 or rows.shape != (len(stats), 3) or stats.shape[1] != 2:
        return None
    if before.tobytes() == packed and len(stats) == len(names):
        return stats, rows
    place = {name: at for at, name in enumerate(before.tobytes().decode(*_CODING).split("\0"))}
    at = np.array([place.get(name, -1) for name in names], np.int64)
    at[at >= len(stats)] = -1
    found = at >= 0
    both = np.full((len(names), 5), -1, np.int64)
    both[found] = np.concatenate([stats, rows], axis=1)[at[found]]
    return both[:, :2], both[:, 2:].copy()


def _keep(index: Path, packed: bytes, stats: Rows, rows: Rows) -> None:
    """Write the index so that a reader sees the old one or the new one; without a place to write to, go on without."""
    draft = index.with_name(f"{index.name}.{os.getpid()}.tmp")
    arrays: dict[str, Any] = {"names": np.frombuffer(packed, np.uint8), "stats": stats, "headers": rows}
    try:
        index.parent.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            np.savez(file, **arrays)
        os.replace(draft, index)
    except OSError:
        with suppress(OSError):
            draft.unlink()
