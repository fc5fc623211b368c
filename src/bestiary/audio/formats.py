"""Which kind of sound file bytes are, told by how they begin: for messages, and for ways of reading that need to know."""

from __future__ import annotations

_SUFFIXES = ".aif .aifc .aiff .au .caf .flac .mp3 .oga .ogg .opus .rf64 .snd .w64 .wav .wave"
EXTENSIONS = frozenset(_SUFFIXES.split())
FOREIGN = {"AAC", "MP4 (AAC or ALAC)", "AMR", "WMA", "WebM or Matroska"}  # what libsndfile has no decoder for
_BEGINNINGS = [
    (b"fLaC", "FLAC"), (b"OggS", "OGG"), (b"ID3", "MP3"), (b".snd", "AU"), (b"caff", "CAF"), (b"riff", "W64"),
    (b"#!AMR", "AMR"), (b"\x30\x26\xb2\x75", "WMA"), (b"\x1a\x45\xdf\xa3", "WebM or Matroska"), (b"ADIF", "AAC"),
]  # fmt: skip


def kind_of(head: bytes) -> str:
    """Name the format of a file that begins with ``head`` (16 bytes are enough); "" where it is unknown.

    >>> kind_of(b"RIFF----WAVEfmt "), kind_of(b"fLaC"), kind_of(b"<html>")
    ('WAV', 'FLAC', '')
    """
    if head[:4] in (b"RIFF", b"RIFX", b"RF64") and head[8:12] == b"WAVE":
        return "WAV"
    if head[:4] == b"FORM" and head[8:12] in (b"AIFF", b"AIFC"):
        return "AIFF"
    if head[4:8] == b"ftyp":
        return "MP4 (AAC or ALAC)"
    if len(head) > 1 and head[0] == 0xFF and head[1] & 0xE0 == 0xE0:
        return "MP3" if head[1] & 0x06 else "AAC"  # the layer's bits are 0 in ADTS
    return next((name for begin, name in _BEGINNINGS if head.startswith(begin)), "")
