"""Pictures on disk to uint8 samples, and the transforms that feed a network."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.images.decode import read_image as read_image
    from bestiary.images.folder import ImageFolder as ImageFolder
    from bestiary.images.folder import ImageSample as ImageSample
    from bestiary.images.manifest import ImageManifest as ImageManifest
    from bestiary.images.normalizing import denormalize as denormalize
    from bestiary.images.normalizing import normalize as normalize
    from bestiary.images.normalizing import normalize_unit as normalize_unit
    from bestiary.images.paired import Paired as Paired
    from bestiary.images.transforms import eval_transform as eval_transform
    from bestiary.images.transforms import train_transform as train_transform

_WHERE = {"ImageFolder": "folder", "ImageSample": "folder", "ImageManifest": "manifest", "Paired": "paired"}
_WHERE |= {"read_image": "decode", "train_transform": "transforms", "eval_transform": "transforms"}
__all__ = [
    "ImageFolder",
    "ImageManifest",
    "ImageSample",
    "Paired",
    "denormalize",
    "eval_transform",
    "normalize",
    "normalize_unit",
    "read_image",
    "train_transform",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE.get(name, 'normalizing')}"), name)


def __dir__() -> list[str]:
    return __all__
