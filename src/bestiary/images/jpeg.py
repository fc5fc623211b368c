"""JPEGs: scaled decoding, and the faster way through simplejpeg."""

from __future__ import annotations

from importlib import import_module
from io import BytesIO
from typing import TYPE_CHECKING

from PIL.Image import Exif
from PIL.JpegImagePlugin import JpegImageFile

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


class Jpeg(JpegImageFile):
    """A JPEG opened past Pillow's factory: no search for further pictures (MPO), and no look into the Exif block.

    Pillow takes the resolution from there, and over a damaged block it warns, which may be an error to the caller.
    """

    format = "JPEG"

    def __init__(self, data: bytes) -> None:
        """Read the header."""
        super().__init__(BytesIO(data), "")

    def getexif(self) -> Exif:
        """Return nothing, to Pillow's search for the resolution; the block itself is in ``info``."""
        return Exif()

    def scale(self, min_side: int | None) -> int:
        """Return the largest of 1, 2, 4, 8 whose scaled short side still is at least ``min_side`` long."""
        short = min(self.size)
        fits = [n for n in (8, 4, 2) if min_side is not None and short >= n and -(-short // n) >= min_side]
        return fits[0] if fits else 1

    def shrink(self, scale: int) -> Jpeg:
        """Let Pillow decode at 1/scale."""
        if scale > 1:
            self.draft(self.mode, (self.width // scale, self.height // scale))
        return self


def fast_pixels(data: bytes, image: Jpeg, scale: int) -> npt.NDArray[np.uint8] | None:
    """Decode a grey or colour JPEG to uint8 (H, W, 1 or 3) with simplejpeg; the pixels are Pillow's, bit for bit.

    None where simplejpeg is not installed, the JPEG is of another kind, or anything in it is amiss: then Pillow decides.
    """
    if image.mode not in ("RGB", "L"):
        return None
    try:
        simplejpeg = import_module("simplejpeg")  # asked for each time: an import that fails takes 0.05 ms
    except ImportError:
        return None
    height, width = -(-image.height // scale), -(-image.width // scale)
    least = {} if scale == 1 else {"min_height": height, "min_width": width, "min_factor": scale}
    try:
        pixels: npt.NDArray[np.uint8] = simplejpeg.decode_jpeg(data, "GRAY" if image.mode == "L" else "RGB", **least)
    except (ValueError, RuntimeError):
        return None
    return pixels if pixels.shape[:2] == (height, width) else None
