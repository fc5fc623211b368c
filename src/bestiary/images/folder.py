"""Images in one folder per class.

Layout::

    root/cat/001.jpg
    root/dog/17.png

Sample::

    image   uint8 (3, H, W), RGB; H and W differ between files; (1, H, W) for mode "L", (4, H, W) for "RGBA"
    label   int, index into ``classes``
    name    str, path below the root
"""

from __future__ import annotations

import copy
import os
import time
from collections.abc import Callable
from operator import index as as_int
from pathlib import Path
from typing import Any, Literal, TypedDict

from torch import Tensor

from bestiary.images.decode import EXTENSIONS, MAX_PIXELS, check_options, read_image


class ImageSample(TypedDict):
    """One picture: uint8 (C, H, W), the index of its class, its path below the root."""

    image: Tensor
    label: int
    name: str


class ImageFolder:
    """A dataset of the images in class folders.

    Args:
        root: the folder that holds the class folders.
        classes: the class map to use, in any form ``scan_classes`` takes: for a validation set, the training dataset.
        transform: called with each sample, returns the changed sample.
        mode: "RGB", "L" or "RGBA", see ``read_image``.
        min_side: let JPEG decoding stop at the smallest size whose short side has this many pixels.
        allow_empty: keep classes whose folder holds no image.
        hidden: take files and folders whose name begins with a dot, too.
        accept: called with the path of a file, decides in place of the extensions.
        class_from: the class is the "top" folder below root, the whole "path" of folders, or the last one ("leaf").
        max_pixels: refuse larger pictures; None refuses none.

    Attributes:
        classes: names by index, ``labels`` int64 (N,), ``names`` the paths below root.

    Raises:
        OSError: root is missing or cannot be read.
        ValueError: no class folders, empty ones, or ones that are not in ``classes``.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        classes: object = None,
        transform: Callable[[Any], Any] | None = None,
        mode: str = "RGB",
        min_side: int | None = None,
        allow_empty: bool = False,
        hidden: bool = False,
        accept: Callable[[str], bool] | None = None,
        class_from: Literal["top", "path", "leaf"] = "top",
        max_pixels: int | None = MAX_PIXELS,
    ) -> None:
        # here and not above: listing is done once, and a worker, to whom the list is sent, does not need it
        from bestiary.files.tree import scan_classes

        check_options(mode, min_side, max_pixels)
        self.root = Path(root).expanduser()
        self.transform, self.mode, self.min_side, self.max_pixels = transform, mode, min_side, max_pixels
        self.spent = {"read": 0.0, "decode": 0.0, "transform": 0.0}  # seconds, in this process
        self.classes, self.names, self.labels = scan_classes(
            self.root,
            extensions=EXTENSIONS,
            classes=classes,
            allow_empty=allow_empty,
            hidden=hidden,
            accept=accept,
            class_from=class_from,
        )

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> ImageSample:
        label = int(self.labels[as_int(index)])
        try:
            image = read_image(
                self.locate(index), self.mode, self.min_side, max_pixels=self.max_pixels, spent=self.spent
            )
        except (OSError, ValueError) as error:
            kind = OSError if isinstance(error, OSError) else ValueError
            raise kind(f"sample {index}, class {self.classes[label]!r}: {error}") from error
        if self.transform is None:
            return {"image": image.contiguous(), "label": label, "name": self.names[index]}
        begun = time.perf_counter()
        sample: ImageSample = self.transform({"image": image, "label": label, "name": self.names[index]})
        self.spent["transform"] += time.perf_counter() - begun
        return sample

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Map each class to its index."""
        return self.classes.class_to_idx

    @property
    def draws(self) -> bool:
        """Tell whether a sample may draw random numbers; it does not without a transform."""
        return self.transform is not None

    def locate(self, index: int) -> str:
        """Return the path of the file that a sample comes from."""
        return os.path.join(self.root, self.names[index])

    def with_transform(self, transform: Callable[[Any], Any] | None) -> ImageFolder:
        """Return a dataset of the same files with another transform, such as the validation half of a split needs.

        Nothing is listed again, and the names are shared.
        """
        other = copy.copy(self)
        other.transform = transform
        return other

    def __repr__(self) -> str:
        return f"ImageFolder({str(self.root)!r}: {len(self)} images in {len(self.classes)} classes)"
