"""The two figures of a classifier: which class is taken for which, and some pictures with what was seen in them.

They are drawn without pyplot, so that neither a display nor a global state of matplotlib is touched.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from torch import Tensor

_MOST_NAMES = 60  # more of them could not be read


def draw_confusion(path: str | os.PathLike[str], table: Tensor, classes: Sequence[str]) -> None:
    """Draw counts (true class, predicted class) as shares of each true class, with the counts where there is room.

    Raises:
        ImportError: matplotlib is missing.
    """
    counts = table.double().cpu()
    shares = counts / counts.sum(1, keepdim=True).clamp(min=1)  # (C, C), rows sum to 1 or 0
    side = min(16.0, 3 + 0.45 * len(classes))
    figure = _figure((side, side))
    axes = figure.subplots()
    axes.imshow(shares.numpy(), cmap="Blues", vmin=0, vmax=1)
    right = counts.diag().sum() / counts.sum().clamp(min=1)
    axes.set(xlabel="predicted", ylabel="true", title=f"accuracy {right:.3f} of {int(counts.sum())}")
    if len(classes) <= _MOST_NAMES:
        axes.set_xticks(range(len(classes)), _plain(classes), rotation=90)
        axes.set_yticks(range(len(classes)), _plain(classes))
    if len(classes) <= 20:
        for row, column in (counts > 0).nonzero().tolist():
            colour = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, int(counts[row, column]), ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(path)


def draw_samples(path: str | os.PathLike[str], images: Tensor, true: Sequence[str], predicted: Sequence[str]) -> None:
    """Draw uint8 images (B, C, H, W), four in a row, each under what was predicted; in red where that is wrong.

    Raises:
        ImportError: matplotlib is missing.
    """
    rows = max(1, -(-len(images) // 4))
    figure = _figure((8, 2.2 * rows))
    places = figure.subplots(rows, 4, squeeze=False).ravel()
    for axes in places:
        axes.axis("off")
    for axes, image, one, other in zip(places, images.cpu(), _plain(true), _plain(predicted), strict=False):
        axes.imshow(image.permute(1, 2, 0).numpy().squeeze(), cmap="gray", vmin=0, vmax=255)  # (H, W, C) or (H, W)
        right = one == other
        axes.set_title(other if right else f"{other}, not {one}", color="black" if right else "tab:red", fontsize=9)
    figure.savefig(path)


def _plain(names: Sequence[str]) -> list[str]:
    """Return names that a font can draw and that are not taken for formulas."""
    return [name.encode("utf-8", "replace").decode().replace("$", r"\$") for name in names]


def _figure(size: tuple[float, float]) -> Any:
    try:
        figure = import_module("matplotlib.figure")
    except ImportError as error:
        raise ImportError("drawing needs matplotlib; install it with: pip install matplotlib") from error
    return figure.Figure(figsize=size, layout="constrained")
