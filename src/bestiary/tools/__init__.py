"""What recipes share besides data: what a run writes, ranks, the look for class folders, two figures."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.tools.checkpoint import Checkpoint as Checkpoint
    from bestiary.tools.checkpoint import load_checkpoint as load_checkpoint
    from bestiary.tools.checkpoint import save_checkpoint as save_checkpoint
    from bestiary.tools.folders import class_folders as class_folders
    from bestiary.tools.pictures import draw_confusion as draw_confusion
    from bestiary.tools.pictures import draw_samples as draw_samples
    from bestiary.tools.ranks import agreed as agreed
    from bestiary.tools.ranks import averaged as averaged
    from bestiary.tools.ranks import gathered as gathered
    from bestiary.tools.ranks import join_ranks as join_ranks
    from bestiary.tools.ranks import leave_ranks as leave_ranks
    from bestiary.tools.ranks import share_buffers as share_buffers
    from bestiary.tools.ranks import summed as summed
    from bestiary.tools.run import Metrics as Metrics
    from bestiary.tools.run import calm_threads as calm_threads
    from bestiary.tools.run import check_device as check_device
    from bestiary.tools.run import generator_states as generator_states
    from bestiary.tools.run import program as program
    from bestiary.tools.run import progress as progress
    from bestiary.tools.run import restore_generators as restore_generators
    from bestiary.tools.run import stop as stop
    from bestiary.tools.run import usable_cores as usable_cores

_WHERE = {"class_folders": "folders", "draw_confusion": "pictures", "draw_samples": "pictures"}
_WHERE |= dict.fromkeys(
    ("agreed", "averaged", "gathered", "join_ranks", "leave_ranks", "share_buffers", "summed"), "ranks"
)
_WHERE |= dict.fromkeys(("Checkpoint", "load_checkpoint", "save_checkpoint"), "checkpoint")
__all__ = [
    "Checkpoint",
    "Metrics",
    "agreed",
    "averaged",
    "calm_threads",
    "check_device",
    "class_folders",
    "draw_confusion",
    "draw_samples",
    "gathered",
    "generator_states",
    "join_ranks",
    "leave_ranks",
    "load_checkpoint",
    "program",
    "progress",
    "restore_generators",
    "save_checkpoint",
    "share_buffers",
    "stop",
    "summed",
    "usable_cores",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE.get(name, 'run')}"), name)


def __dir__() -> list[str]:
    return __all__
