"""Orders, batches, collators and the loader: what every dataset shares on its way to the device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.loading.batching import BatchPlan as BatchPlan
    from bestiary.loading.batching import Dealt as Dealt
    from bestiary.loading.batching import FixedSize as FixedSize
    from bestiary.loading.buckets import LengthBuckets as LengthBuckets
    from bestiary.loading.errors import SampleError as SampleError
    from bestiary.loading.errors import WorkerDied as WorkerDied
    from bestiary.loading.loader import Loader as Loader
    from bestiary.loading.report import PlanReport as PlanReport
    from bestiary.loading.report import padding_waste as padding_waste
    from bestiary.loading.samplers import Sequential as Sequential
    from bestiary.loading.samplers import Shuffled as Shuffled
    from bestiary.loading.timing import LoaderReport as LoaderReport
    from bestiary.loading.weighted import ClassBalanced as ClassBalanced
    from bestiary.loading.weighted import Weighted as Weighted
    from bestiary.loading.weighted import class_weights as class_weights

_WHERE = {
    "WorkerDied": "errors",
    "SampleError": "errors",
    "LoaderReport": "timing",
    "Loader": "loader",
    "BatchPlan": "batching",
    "ClassBalanced": "weighted",
    "Dealt": "batching",
    "FixedSize": "batching",
    "LengthBuckets": "buckets",
    "PlanReport": "report",
    "Sequential": "samplers",
    "Shuffled": "samplers",
    "Weighted": "weighted",
    "class_weights": "weighted",
    "padding_waste": "report",
}

__all__ = [
    "BatchPlan",
    "ClassBalanced",
    "Dealt",
    "FixedSize",
    "LengthBuckets",
    "Loader",
    "LoaderReport",
    "PlanReport",
    "SampleError",
    "Sequential",
    "Shuffled",
    "Weighted",
    "WorkerDied",
    "class_weights",
    "padding_waste",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
