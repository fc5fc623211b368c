"""Sound files made in tests: WAV by hand, byte for byte, and other formats by soundfile."""

from __future__ import annotations

import io
import struct
from pathlib import Path

import numpy as np
import soundfile


def tone(frames, rate=16000, hertz=440.0, level=0.5):
    """A sine (T,), float32."""
    return (level * np.sin(2 * np.pi * hertz * np.arange(frames) / rate)).astype(np.float32)


def wav(values, rate=16000, size=None, behind=b""):
    """A 16-bit WAV file of integers (T,) or (T, C); ``size`` is what its header says of the samples, in bytes."""
    data = np.asarray(values, "<i2")
    data = data if data.ndim == 2 else data[:, None]
    body = data.tobytes()
    said = len(body) if size is None else size
    form = struct.pack("<HHIIHH", 1, data.shape[1], rate, rate * data.shape[1] * 2, data.shape[1] * 2, 16)
    head = b"RIFF" + struct.pack("<I", min(36 + said, 2**32 - 1)) + b"WAVEfmt " + struct.pack("<I", 16) + form
    return head + b"data" + struct.pack("<I", said) + body + behind


def encoded(values, rate=16000, format="WAV", subtype=None):
    """The bytes of a file that soundfile writes of floats (T,) or (T, C)."""
    buffer = io.BytesIO()
    soundfile.write(buffer, values, rate, format=format, subtype=subtype)
    return buffer.getvalue()


def write(path, data):
    """Write bytes, folders included, and return the path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path
