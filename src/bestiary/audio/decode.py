"""One sound file to float32 (C, T), the same for every format: samples scaled once, full scale is 1, silence is 0.

WAV with 16 bits is read as integers and scaled here, several times faster than libsndfile does it; whole FLAC files of 16 bits
go through miniaudio where it is installed (extra ``fast``), with the same samples; all else goes through soundfile
(libsndfile), without FFmpeg. The content decides what a file is, never its name. What happens to the unusual:

- a WAV header that claims more samples than the file holds is cut to the file; one that says 0 with samples behind it is
  read to the end of the file, with a notice that names it;
- compressed files say how long they are, and may be wrong: what is decoded counts, and a difference of more than a
  hundredth and a twentieth of a second is a notice that names the file;
- a part of a file equals that part of the whole, sample for sample; in formats whose seeking is not that exact (MP3,
  Vorbis, Opus, GSM) decoding begins at the start of the file.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from bestiary.audio.opening import Opened, Source, needed, sound, tell_fault
from bestiary.audio.wav import Wav

Channels: TypeAlias = Literal["mix", "keep", "error"] | int
Frames: TypeAlias = npt.NDArray[np.float32]

_BLOCK = 1 << 22  # frames at a time, whatever a header claims
_UNKNOWN = 1 << 62  # libsndfile's length of what does not tell its own
_EXACT = ("PCM", "FLOAT", "DOUBLE", "ULAW", "ALAW", "ALAC", "DPCM")  # sub-formats in which seeking was exact


class Audio(NamedTuple):
    """A waveform, float32 (C, T), and its samples a second."""

    waveform: Tensor
    sample_rate: int


def read_audio(
    source: Source,
    start_s: float = 0.0,
    duration_s: float | None = None,
    *,
    sample_rate: int | None = None,
    channels: Channels = "keep",
) -> Audio:
    """Read a sound file, or a part of it, from a path or from its bytes.

    Args:
        source: a path, or the bytes of the file.
        start_s: where to begin, rounded to the nearest sample; behind the end there is nothing, T is 0.
        duration_s: how much to read, rounded to the nearest sample; None, and what reaches behind the end, stops there.
        sample_rate: resample to this, after cutting; None keeps the file's.
        channels: "keep" (C as in the file), "mix" (their mean, C is 1), "error" (only files of one channel), or the
            number of the one to take, from 0 (C is 1).

    Raises:
        OSError: the file is missing, empty, damaged, or no sound; names it, its size and its first bytes.
        ValueError: an option that cannot be, or channels that the file does not have.
        ImportError: the format needs a package, which is named.
    """
    check_options(sample_rate, channels)
    if not (0 <= start_s < math.inf and (duration_s is None or 0 <= duration_s < math.inf)):
        raise ValueError(f"start_s and duration_s should be 0 or more, but are {start_s!r} and {duration_s!r}")
    with Opened(source) as opened:
        frames, rate = _decode(opened, start_s, duration_s)
        waveform = _arranged(frames, channels, opened.where)
    if sample_rate is None or sample_rate == rate:
        return Audio(waveform, rate)
    from bestiary.audio.resampling import resample

    return Audio(resample(waveform, rate, sample_rate), sample_rate)


def check_options(sample_rate: int | None, channels: Channels) -> None:
    """Raise ValueError for an option of ``read_audio`` that cannot be."""
    whole = isinstance(channels, int) and not isinstance(channels, bool) and channels >= 0
    if not whole and channels not in ("mix", "keep", "error"):
        raise ValueError(f"channels should be 'mix', 'keep', 'error' or a channel's number, but is {channels!r}")
    if sample_rate is not None and (
        isinstance(sample_rate, bool) or int(sample_rate) != sample_rate or sample_rate < 1
    ):
        raise ValueError(f"sample_rate should be a whole number of samples a second or None, but is {sample_rate!r}")


def check_rate(where: str, waveform: Tensor, found: int, wanted: int | None) -> None:
    """Raise ValueError for a sound whose rate is not that of the set; one without samples has no say."""
    if wanted is not None and found != wanted and waveform.shape[1]:
        raise ValueError(
            f"audio {where} has {found} Hz, but the others {wanted} Hz; give sample_rate={wanted} to bring all to one"
        )


def _decode(opened: Opened, start_s: float, duration_s: float | None) -> tuple[Frames, int]:
    """Return frames (T, C) and rate."""
    wav = opened.wav()
    if wav is not None:
        tell_fault(opened, wav)
        if (wav.tag, wav.bits, wav.align) == (1, 16, 2 * wav.channels):
            needed(opened)  # so that what is missing is missed in every format
            start, count = _span(start_s, duration_s, wav.rate)
            return _sixteen_bits(opened, wav, min(start, wav.frames), count), wav.rate
    needed(opened)
    if opened.head[:4] == b"fLaC":
        from bestiary.audio.flac import decode_flac

        quick = decode_flac(opened, start_s, duration_s)
        if quick is not None:
            return quick
    file = sound(opened, wav)
    with file:
        start, count = _span(start_s, duration_s, file.samplerate)
        try:
            return _blocks(opened, file, start, count), file.samplerate
        except (RuntimeError, ValueError) as error:  # soundfile's own errors are RuntimeErrors
            raise opened.refused(getattr(error, "error_string", error)) from error


def _span(start_s: float, duration_s: float | None, rate: int) -> tuple[int, int | None]:
    return round(start_s * rate), None if duration_s is None else round(duration_s * rate)


def _sixteen_bits(opened: Opened, wav: Wav, start: int, count: int | None) -> Frames:
    """Read integers and scale them once."""
    frames = wav.frames - start if count is None else min(count, wav.frames - start)
    values = np.empty((frames, wav.channels), "<i2")
    opened.file.seek(wav.start + start * wav.align)
    view = memoryview(values.data).cast("B") if values.size else memoryview(b"")
    while view:
        got = opened.file.readinto(view)  # type: ignore[attr-defined]
        if not got:
            raise opened.refused("the file became shorter while it was read")
        view = view[got:]
    return np.multiply(values, np.float32(1 / 32768), dtype=np.float32)


def _blocks(opened: Opened, file: Any, start: int, count: int | None) -> Frames:
    """Decode frames (T, C) from ``start`` on, a bounded number at a time."""
    seekable = file.seekable() and file.frames < _UNKNOWN
    exact = seekable and any(name in file.subtype for name in _EXACT)
    if exact and start:
        file.seek(min(start, file.frames))
    elif seekable and not exact:
        file.seek(0)  # as soundfile.read does; without it MP3 differs in the last bit
    file.seekable = lambda: False  # else soundfile seeks after each block, which FLAC without a length refuses
    skipped, stop = (start if exact else 0), (math.inf if count is None else start + count)
    at, blocks = skipped, []
    while at < min(stop, file.frames):
        wanted = int(min(_BLOCK, stop - at, file.frames - at))
        block = file.read(wanted, dtype="float32", always_2d=True)
        blocks.append(block[max(0, start - at) :])
        at += len(block)
        if len(block) < wanted:
            blocks[-1] = blocks[-1].copy()  # or all that was asked for stays in memory
            _check_end(opened, file, at, exact)
            break
    return blocks[0] if len(blocks) == 1 else np.concatenate([np.empty((0, file.channels), np.float32), *blocks])


def _check_end(opened: Opened, file: Any, decoded: int, exact: bool) -> None:
    """Compare the header's length with the decoded one; files that do not know theirs claim more than can be."""
    if file.frames - decoded <= max(0.01 * file.frames, 0.05 * file.samplerate) or file.frames >= _UNKNOWN:
        return
    text = f"{decoded} samples decoded, but the header says {file.frames}"
    if exact:
        raise opened.refused(f"the file is cut: {text}")
    warnings.warn(f"bestiary: audio {opened.where}: {text}; what was decoded counts", stacklevel=6)


def _arranged(frames: Frames, channels: Channels, where: str) -> Tensor:
    """Turn frames (T, C) into a waveform (C, T) with the channels asked for."""
    count = frames.shape[1]
    if channels == "error" and count > 1:
        raise ValueError(f"audio {where} has {count} channels; choose channels='mix', 'keep', or the number of one")
    if isinstance(channels, int):
        if channels >= count:
            raise ValueError(f"audio {where} has {count} channels, numbered from 0; there is no channel {channels}")
        frames = frames[:, channels : channels + 1]
    elif channels == "mix" and count > 1:
        frames = frames.mean(axis=1, keepdims=True, dtype=np.float32)
    # by reshape where it will do: from .T the one channel has the stride 1, which makes copies seventeen times slower
    return torch.from_numpy(np.ascontiguousarray(frames.reshape(1, -1) if frames.shape[1] == 1 else frames.T))
