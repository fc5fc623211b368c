"""Let a torchvision pipeline treat mask and boxes together with the picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class Paired:
    """Run a ``torchvision.transforms.v2`` pipeline on ``image``, ``mask`` and ``boxes`` with the same draws.

    On a plain dict v2 takes the first tensor for the picture and leaves the others alone, so that the picture is
    mirrored and its mask is not. For the call the three fields are wrapped as tv_tensors (boxes: (N, 4) corners
    x1, y1, x2, y2 in pixels), afterwards they are plain tensors again.

    Args:
        transform: the pipeline, e.g. ``v2.Compose([v2.RandomRotation(10), v2.RandomHorizontalFlip()])``.
    """

    transform: Callable[[dict[str, Any]], dict[str, Any]]

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return a new sample that the pipeline has changed."""
        try:
            kinds: Any = import_module("torchvision.tv_tensors")
        except ImportError as error:
            raise ImportError("Paired needs torchvision; install it with: pip install 'bestiary[images]'") from error
        wrapped: dict[str, Any] = {}
        for name, value in sample.items():
            if name not in ("image", "mask", "boxes") or type(value) is not Tensor:
                wrapped[name] = value
            elif name == "boxes":
                size = tuple(sample["image"].shape[-2:])
                wrapped[name] = kinds.BoundingBoxes(value, format="XYXY", canvas_size=size)
            else:
                wrapped[name] = (kinds.Image if name == "image" else kinds.Mask)(value)
        out = self.transform(wrapped)
        plain = {name: out[name].as_subclass(Tensor) for name in wrapped if wrapped[name] is not sample[name]}
        return out | plain
