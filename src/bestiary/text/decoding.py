"""Bytes to text, with errors that say which byte of which file.

Strict: nothing is replaced or left out. A byte-order mark at the start of a file is stripped.
"""

from __future__ import annotations

import codecs

_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


def known_encoding(name: str) -> str:
    """Return the plain name of an encoding.

    Raises:
        ValueError: Python knows no such encoding.

    >>> known_encoding("UTF8"), known_encoding("utf-8-sig")
    ('utf-8', 'utf-8')
    """
    try:
        return codecs.lookup(name).name.removesuffix("-sig")
    except LookupError:
        raise ValueError(
            f"encoding {name!r} is unknown; give one that Python knows, such as 'utf-8' or 'cp1252'"
        ) from None


def decode(data: bytes, encoding: str, path: str, start: int = 0) -> str:
    """Decode a piece of a file that begins at byte ``start``.

    Raises:
        ValueError: a byte does not fit the encoding; names the file and the byte's offset in it.

    >>> decode(b"caf\\xc3\\xa9", "utf-8", "menu.txt")
    'café'
    """
    if start == 0 and encoding == "utf-8" and data.startswith(codecs.BOM_UTF8):
        data, start = data[len(codecs.BOM_UTF8) :], len(codecs.BOM_UTF8)
    try:
        return data.decode(encoding)
    except UnicodeError as error:
        at = error.start if isinstance(error, UnicodeDecodeError) else 0
        byte = f" (0x{data[at]:02x})" if at < len(data) else ""
        likely = _MARKS.get(data[:2], "") if start == 0 else ""
        raise ValueError(
            f"{path}: byte {start + at}{byte} is not {encoding} ({getattr(error, 'reason', error)}); "
            + (f"the file begins like {likely}: " if likely else "")
            + f"give encoding={likely or 'latin-1'!r} if it is another encoding, or repair the file"
        ) from None
