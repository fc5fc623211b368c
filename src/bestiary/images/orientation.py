"""The orientation tag: 1 for upright, 2 to 8 for mirrored or turned.

Read here and not by Pillow, which warns over a damaged Exif block; to a caller that makes warnings errors, the picture
would be lost.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from typing import Any

_XMP = re.compile(rb'tiff:Orientation(?:="|>)([1-8])')


def orientation(info: Mapping[Any, Any]) -> int:
    """Return the tag from what Pillow keeps in ``image.info``: from Exif, else from XMP; 1 if none can be read.

    >>> orientation({"xmp": b'<rdf:Description tiff:Orientation="6"/>'}), orientation({"exif": b"damaged"}), orientation({})
    (6, 1, 1)
    """
    xmp = info.get("xmp") or info.get("XML:com.adobe.xmp") or b""
    found = _XMP.search(xmp if isinstance(xmp, bytes) else str(xmp).encode("utf-8", "replace"))
    return _from_exif(_exif(info)) or (int(found[1]) if found else 1)


def _exif(info: Mapping[Any, Any]) -> bytes:
    block = info.get("exif", b"")
    if not block and "Raw profile type exif" in info:  # how ImageMagick used to write it into PNG
        try:
            block = bytes.fromhex("".join(str(info["Raw profile type exif"]).split("\n")[3:]))
        except ValueError:
            block = b""
    return block.removeprefix(b"Exif\0\0") if isinstance(block, bytes) else b""


def _from_exif(block: bytes) -> int:
    """Find the tag in the first directory of an Exif block; 0 where there is none."""
    order = {b"II": "<", b"MM": ">"}.get(block[:2])
    try:
        (offset,) = struct.unpack_from(f"{order}I", block, 4)
        (entries,) = struct.unpack_from(f"{order}H", block, offset)
        for entry in range(offset + 2, offset + 2 + 12 * entries, 12):
            tag, kind = struct.unpack_from(f"{order}HH", block, entry)
            if tag == 0x0112:
                width = {1: "B", 3: "H", 4: "I"}[kind]
                (value,) = struct.unpack_from(f"{order}{width}", block, entry + 8)
                return int(value) if 1 <= value <= 8 else 0
    except (struct.error, KeyError):
        pass
    return 0
