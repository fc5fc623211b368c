"""One picture file to uint8 (C, H, W), the same for every format, mode and decoder.

Pillow is the reference; with simplejpeg installed (extra ``fast``) baseline and progressive JPEGs in grey or colour
are decoded by it to the same pixels. What happens to the unusual, always the same way:

- the orientation tag is obeyed (Exif, else XMP); a damaged one counts as none; colour profiles are not applied;
- transparency, of any mode, is laid over white, unless ``mode="RGBA"`` asks for it;
- CMYK becomes RGB under Adobe's convention (stored inverted), with the Adobe marker and without, as in Pillow;
- 16-bit grey is scaled by 255 / 65535 and rounded, never clipped; 16-bit colour keeps its upper 8 bits, as in Pillow;
- of several frames (GIF, MPO, TIFF, WebP) the first one is read.
"""

from __future__ import annotations

import os
import struct
import time
from functools import partial
from io import BytesIO
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bestiary.images.orientation import orientation

try:
    from PIL import Image

    from bestiary.images.jpeg import Jpeg, fast_pixels
except ImportError as error:
    raise ImportError("reading pictures needs Pillow; install it with: pip install 'bestiary[images]'") from error

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy.typing as npt
    from PIL.ImageFile import ImageFile
    from torch import Tensor

    Pixels = npt.NDArray[np.uint8]

_SUFFIXES = ".avif .bmp .gif .jfif .jpe .jpeg .jpg .mpo .pbm .pgm .png .pnm .ppm .tif .tiff .webp"
EXTENSIONS = frozenset(_SUFFIXES.split())
MODES = ("RGB", "L", "RGBA")
MAX_PIXELS = 178_956_970  # where Pillow's own default stops with an error; kept here as our own number
_REFUSED = {"EPS"}  # Pillow hands these to Ghostscript, whatever the file is called


def read_image(
    source: str | os.PathLike[str] | bytes,
    mode: str = "RGB",
    min_side: int | None = None,
    *,
    max_pixels: int | None = MAX_PIXELS,
    spent: dict[str, float] | None = None,
) -> Tensor:
    """Read a picture from a path or from its bytes to uint8 (C, H, W).

    Args:
        source: a path, or the bytes of the file.
        mode: "RGB" (C is 3), "L" (grey, C is 1) or "RGBA" (C is 4, transparency kept).
        min_side: let the decoding of JPEGs stop at the smallest of 1/1, 1/2, 1/4, 1/8 whose short side still has this
            many pixels. Other formats come in full size.
        max_pixels: refuse pictures of more pixels (height times width in the file) before they are decoded; None
            refuses none. Pillow's ``Image.MAX_IMAGE_PIXELS`` is not changed, nor asked, save by Pillow's WebP reader.
        spent: where to add the seconds that it took, under "read" and "decode".

    Returns:
        A tensor that lies in memory as (H, W, C), as decoders write it and resizing reads it; ``.contiguous()`` gives
        planes.

    Raises:
        OSError: the file is missing, damaged, or no picture; the message names it, the cause is chained.
        ValueError: more than ``max_pixels`` pixels, or an option that cannot be.
    """
    check_options(mode, min_side, max_pixels)
    begun = time.perf_counter()
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        where = f"of {len(data)} bytes"
    else:
        where = os.fspath(source)
        with open(source, "rb") as file:
            data = file.read()
    read = time.perf_counter()
    try:
        image = _decode(data, mode, min_side, partial(_check_size, max_pixels, where))
    except (MemoryError, ImportError, _TooLarge):
        raise
    except Exception as error:  # Pillow raises SyntaxError, EOFError, struct.error and others for damaged files
        raise OSError(f"cannot read image {where}: {error or type(error).__name__}") from error
    if spent is not None:
        spent["read"] += read - begun
        spent["decode"] += time.perf_counter() - read
    return image


def check_options(mode: str, min_side: int | None, max_pixels: int | None) -> None:
    """Raise ValueError for an option of ``read_image`` that cannot be."""
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, not {mode!r}")
    for name, value in (("min_side", min_side), ("max_pixels", max_pixels)):
        if value is not None and value < 1:
            raise ValueError(f"{name} must be a positive number of pixels or None, not {value!r}")


class _TooLarge(ValueError):
    """More pixels than the limit."""


def _check_size(limit: int | None, where: str, height: int, width: int) -> None:
    if limit is not None and height * width > limit:
        raise _TooLarge(
            f"image {where} has {height * width} pixels (height {height}, width {width}), more than the limit of {limit};"
            " raise max_pixels if the file is sound"
        )


def _decode(data: bytes, mode: str, min_side: int | None, check: Callable[[int, int], None]) -> Tensor:
    with Jpeg(data) if data[:3] == b"\xff\xd8\xff" else _open(data) as image:
        check(image.height, image.width)
        if isinstance(image, Jpeg):
            scale = image.scale(min_side)
            pixels = fast_pixels(data, image, scale)
            if pixels is None:
                pixels = _pixels(image.shrink(scale), mode)
            elif image.mode != mode:
                pixels = _pixels(Image.fromarray(pixels.squeeze(2) if image.mode == "L" else pixels), mode)
            return _upright(pixels, orientation(image.info))
        if (tile := getattr(image, "_tile_size", None)) is not None:
            image.im = Image.new(image.mode, tile).im  # else the TIFF reader does, and asks Pillow's limit before
        image.load()  # some formats keep their tags behind the pixels
        return _upright(_pixels(image, mode), orientation(image.info))


def _open(data: bytes) -> ImageFile:
    """Open with the plugin that knows the content, as ``Image.open`` does, but without its process-wide size limit."""
    if not data:
        raise OSError("the file is empty")
    cause: Exception | None = None
    tried: set[str] = set(_REFUSED)
    for load in (Image.preinit, Image.init):  # the few usual formats first; all of them take a tenth of a second
        load()
        for name in [name for name in Image.ID if name not in tried]:
            tried.add(name)
            factory, accept = Image.OPEN[name]
            answer = accept(data[:16]) if accept else True
            if answer and not isinstance(answer, str):  # a string tells which support is missing
                try:
                    return factory(BytesIO(data), "")
                except (SyntaxError, IndexError, TypeError, struct.error) as error:
                    cause = cause or (error if accept else None)
    raise OSError(f"no picture in a format that Pillow reads; it begins with {data[:16]!r}") from cause


def _pixels(image: Image.Image, mode: str) -> Pixels:
    """Convert to uint8 (H, W) or (H, W, C)."""
    if image.mode == "F":
        raise OSError("its pixels are floats of unknown range (mode F); save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        image = Image.fromarray(_scaled_grey(np.asarray(image), image.info.get("transparency")))
    if image.mode == mode and not image.has_transparency_data:
        return np.array(image)
    if image.has_transparency_data:
        image = image.convert("RGBA")
        if mode != "RGBA":
            image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image).convert("RGB")
    elif mode != "L" or image.mode not in ("1", "L"):
        image = image.convert("RGB")  # grey from colour always goes through RGB, whatever the file held
    return np.array(image.convert(mode))


def _scaled_grey(values: npt.NDArray[Any], transparent: object) -> Pixels:
    """Scale 0 to 65535 down to 0 to 255, rounded; the transparent value becomes white."""
    low, high = (int(values.min()), int(values.max())) if values.size else (0, 0)
    if low < 0 or high > 0xFFFF:
        raise OSError(f"its grey values reach from {low} to {high}; only 16 bits (0 to 65535) can be scaled")
    grey = ((values.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if isinstance(transparent, int):
        grey[values == transparent] = 255
    return grey


def _upright(pixels: Pixels, turn: int) -> Tensor:
    """Turn uint8 (H, W) or (H, W, C) as the tag says; return (C, H, W)."""
    image = torch.from_numpy(pixels if pixels.ndim == 3 else pixels[..., None]).permute(2, 0, 1)
    if turn in (5, 6, 7, 8):
        image = image.transpose(1, 2)
    flips = {2: (2,), 3: (1, 2), 4: (1,), 6: (2,), 7: (1, 2), 8: (1,)}.get(turn)
    return image.flip(flips) if flips else image
