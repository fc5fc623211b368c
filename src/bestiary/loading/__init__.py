"""Orders, batches, collators and the loader: what every dataset shares on its way to the device."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.loading.batching import BatchPlan as BatchPlan
    from bestiary.loading.batching import FixedSize as FixedSize
    from bestiary.loading.blocks import Blocks as Blocks
    from bestiary.loading.buckets import LengthBuckets as LengthBuckets
    from bestiary.loading.collate import Collate as Collate
    from bestiary.loading.collate import CollateError as CollateError
    from bestiary.loading.collate import Columns as Columns
    from bestiary.loading.collate import pad as pad
    from bestiary.loading.collate import stack as stack
    from bestiary.loading.dealing import Dealt as Dealt
    from bestiary.loading.errors import SampleError as SampleError
    from bestiary.loading.errors import WorkerDied as WorkerDied
    from bestiary.loading.fields import as_tuple as as_tuple
    from bestiary.loading.fields import rename as rename
    from bestiary.loading.jagged import from_jagged as from_jagged
    from bestiary.loading.jagged import stack_jagged as stack_jagged
    from bestiary.loading.jagged import to_jagged as to_jagged
    from bestiary.loading.loader import Loader as Loader
    from bestiary.loading.masks import to_additive_mask as to_additive_mask
    from bestiary.loading.masks import to_key_padding_mask as to_key_padding_mask
    from bestiary.loading.masks import to_sdpa_mask as to_sdpa_mask
    from bestiary.loading.moving import pin_memory as pin_memory
    from bestiary.loading.moving import to_device as to_device
    from bestiary.loading.packing import Packed as Packed
    from bestiary.loading.packing import block_mask as block_mask
    from bestiary.loading.packing import first_fit_decreasing as first_fit_decreasing
    from bestiary.loading.packing import pack_sequences as pack_sequences
    from bestiary.loading.packing import unpack_sequences as unpack_sequences
    from bestiary.loading.padding import mask_from_lengths as mask_from_lengths
    from bestiary.loading.prefetch import DevicePrefetcher as DevicePrefetcher
    from bestiary.loading.report import PlanReport as PlanReport
    from bestiary.loading.samplers import Sequential as Sequential
    from bestiary.loading.samplers import Shuffled as Shuffled
    from bestiary.loading.timing import LoaderReport as LoaderReport
    from bestiary.loading.waste import padding_waste as padding_waste
    from bestiary.loading.weighted import ClassBalanced as ClassBalanced
    from bestiary.loading.weighted import Weighted as Weighted
    from bestiary.loading.weighted import class_weights as class_weights

_WHERE = {
    "DevicePrefetcher": "prefetch",
    "BatchPlan": "batching",
    "Blocks": "blocks",
    "ClassBalanced": "weighted",
    "Collate": "collate",
    "CollateError": "collate",
    "Columns": "collate",
    "Dealt": "dealing",
    "FixedSize": "batching",
    "LengthBuckets": "buckets",
    "Loader": "loader",
    "LoaderReport": "timing",
    "Packed": "packing",
    "PlanReport": "report",
    "SampleError": "errors",
    "Sequential": "samplers",
    "Shuffled": "samplers",
    "Weighted": "weighted",
    "WorkerDied": "errors",
    "as_tuple": "fields",
    "block_mask": "packing",
    "class_weights": "weighted",
    "first_fit_decreasing": "packing",
    "from_jagged": "jagged",
    "mask_from_lengths": "padding",
    "pack_sequences": "packing",
    "pad": "collate",
    "padding_waste": "waste",
    "pin_memory": "moving",
    "rename": "fields",
    "stack": "collate",
    "stack_jagged": "jagged",
    "to_additive_mask": "masks",
    "to_device": "moving",
    "to_jagged": "jagged",
    "to_key_padding_mask": "masks",
    "to_sdpa_mask": "masks",
    "unpack_sequences": "packing",
}

__all__ = [
    "BatchPlan",
    "Blocks",
    "ClassBalanced",
    "Collate",
    "CollateError",
    "Columns",
    "Dealt",
    "DevicePrefetcher",
    "FixedSize",
    "LengthBuckets",
    "Loader",
    "LoaderReport",
    "Packed",
    "PlanReport",
    "SampleError",
    "Sequential",
    "Shuffled",
    "Weighted",
    "WorkerDied",
    "as_tuple",
    "block_mask",
    "class_weights",
    "first_fit_decreasing",
    "from_jagged",
    "mask_from_lengths",
    "pack_sequences",
    "pad",
    "padding_waste",
    "pin_memory",
    "rename",
    "stack",
    "stack_jagged",
    "to_additive_mask",
    "to_device",
    "to_jagged",
    "to_key_padding_mask",
    "to_sdpa_mask",
    "unpack_sequences",
]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
