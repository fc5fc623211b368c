"""A sound file while it is read: its bytes, its beginning, what it is called in messages, and soundfile's view of it."""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from io import BytesIO
from typing import Any, BinaryIO, TypeAlias

from bestiary.audio.formats import FOREIGN, kind_of
from bestiary.audio.wav import Wav, find_samples

Source: TypeAlias = str | os.PathLike[str] | bytes


class Opened:
    """A file, open while it is read: its bytes, its beginning, and what it is called in messages."""

    def __init__(self, source: Source) -> None:
        self.data = bytes(source) if isinstance(source, (bytes, bytearray, memoryview)) else None
        self.path = "" if isinstance(source, (bytes, bytearray, memoryview)) else os.fspath(source)
        self.file: BinaryIO = BytesIO(self.data) if self.data is not None else open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed by __exit__
        try:
            self.size = os.fstat(self.file.fileno()).st_size if self.data is None else len(self.data)
            self.head = self.file.read(4096)
        except BaseException:
            self.file.close()
            raise
        self.where = self.path or f"of {self.size} bytes"

    def __enter__(self) -> Opened:  # noqa: PYI034 - typing.Self came with Python 3.11
        return self

    def __exit__(self, *error: object) -> None:
        self.file.close()

    def wav(self) -> Wav | None:
        """Find the samples of a WAV file; None for other files."""
        found = find_samples(self.file, self.head, self.size)
        if found is None and self.head[:4] == b"RIFF" and self.head[8:12] == b"WAVE":
            raise self.refused("its header is damaged or cut, no samples found")
        return found

    def whole(self) -> bytes:
        """Return all bytes of the file."""
        if self.data is None:
            self.file.seek(0)
            self.data = self.file.read()
        return self.data

    def refused(self, cause: object) -> OSError:
        """Say that this cannot be read, and why."""
        kind = kind_of(self.head)
        if not self.size:
            return OSError(f"cannot read audio {self.where}: the file is empty (0 bytes)")
        hint = (
            f"; this is {kind}, which soundfile does not decode: convert it to FLAC or WAV" if kind in FOREIGN else ""
        )
        begin = f"size {self.size} bytes, first bytes {self.head[:16]!r}"
        return OSError(f"cannot read audio {self.where}: {cause} ({kind or 'unknown format'}, {begin}){hint}")


def sound(opened: Opened, wav: Wav | None) -> Any:
    """Open with soundfile; the caller closes it.

    Raises:
        OSError: it is no sound that soundfile reads.
        ImportError: soundfile is missing, or too old for the format.
    """
    soundfile = needed(opened)
    try:
        if wav is not None and wav.fault and wav.start + wav.nbytes == opened.size:
            return soundfile.SoundFile(BytesIO(_resized(opened.whole(), wav)))
        found = soundfile.SoundFile(BytesIO(opened.data) if opened.data is not None else opened.path)
        if found.format == "MP3":
            from bestiary.audio.mpeg import has_count, with_count

            counted = None if has_count(opened.file, opened.head) else with_count(opened.whole(), found.frames)
            if counted is not None:
                found.close()
                return soundfile.SoundFile(BytesIO(counted))
        return found
    except (soundfile.LibsndfileError, ValueError) as error:
        kind = kind_of(opened.head)
        if kind in ("MP3", "OGG", "FLAC") and kind not in soundfile.available_formats():
            version = soundfile.__libsndfile_version__
            text = f"libsndfile {version} has no decoder for it; install a newer one: pip install -U soundfile"
            raise ImportError(f"cannot read {kind} ({opened.where}): {text}") from error
        raise opened.refused(getattr(error, "error_string", error)) from error


def needed(opened: Opened) -> Any:
    """Return the module soundfile, or say what needs it."""
    try:
        return import_module("soundfile")
    except (ImportError, OSError) as error:  # OSError: the package is there, the library is not
        kind = kind_of(opened.head) or "audio"
        text = f"reading {kind} ({opened.where}) needs soundfile; install it with: pip install 'bestiary[audio]'"
        raise ImportError(text) from error


def _resized(data: bytes, wav: Wav) -> bytes:
    """Return the file with the size of its samples set right."""
    size, total = min(wav.nbytes, 2**32 - 1), min(len(data) - 8, 2**32 - 1)
    return (
        b"RIFF" + total.to_bytes(4, "little") + data[8 : wav.start - 4] + size.to_bytes(4, "little") + data[wav.start :]
    )


def tell_fault(opened: Opened, wav: Wav) -> None:
    """Give notice of a WAV header that is wrong in a way that matters."""
    if wav.fault:
        warnings.warn(f"bestiary: audio {opened.where}: {wav.fault}", stacklevel=5)
