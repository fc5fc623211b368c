"""What a loader is given, checked before anything starts, with errors that say what to do."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import multiprocessing
from torch.utils.data import IterableDataset

from bestiary.loading.arrays import whole_number
from bestiary.loading.batching import BatchPlan, FixedSize
from bestiary.loading.samplers import Sequential, Shuffled
from bestiary.loading.weighted import ClassBalanced, Weighted


def start_method(context: Any) -> str:
    """Return the name of the start method that a multiprocessing_context stands for."""
    if isinstance(context, str):
        return context
    return str((context or multiprocessing).get_start_method())


def plan_of(
    size: int,
    plan: BatchPlan | None,
    batch_size: int | None,
    shuffle: bool | None,
    drop_last: bool | None,
    seed: int | None,
) -> BatchPlan:
    """Return the plan, or make the one that batch_size, shuffle and drop_last describe."""
    for name, value in (("shuffle", shuffle), ("drop_last", drop_last)):
        if value is not None and not isinstance(value, (bool, np.bool_)):
            raise TypeError(f"{name} should be True or False, but is {value!r}")
    if plan is None:
        order = Shuffled(size) if shuffle else Sequential(size)
        return BatchPlan(
            order, FixedSize(1 if batch_size is None else batch_size, drop_last=bool(drop_last)), seed=seed or 0
        )
    beside = {"batch_size": batch_size, "shuffle": shuffle, "drop_last": drop_last, "seed": seed}
    given = [name for name, value in beside.items() if value is not None]
    if given:
        raise ValueError(f"a plan settles order, grouping and seed, so {', '.join(given)} cannot be given beside it")
    return plan


def check_dataset(dataset: Any) -> bool:
    """Return whether the dataset is a stream; raise where it is neither that nor read by index."""
    if isinstance(dataset, IterableDataset):
        return True
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(type(dataset), name)]
    if missing:
        raise TypeError(
            f"a dataset needs __len__ and __getitem__; {type(dataset).__name__} has no {' and no '.join(missing)}"
        )
    return False


def check_population(plan: BatchPlan, size: int) -> None:
    """One weight or label for each sample: with one for each class only the first few would ever be drawn."""
    order = plan.order
    given = (
        len(order.weights)
        if isinstance(order, Weighted)
        else len(order.labels)
        if isinstance(order, ClassBalanced)
        else size
    )
    if given != size:
        what = "weights" if isinstance(order, Weighted) else "labels"
        raise ValueError(
            f"{type(order).__name__} has {given} {what}, but the dataset has {size} samples; give one for each sample"
        )


def check_choices(
    num_workers: Any,
    on_error: str,
    max_errors: float | None,
    persistent_workers: bool,
    prefetch_factor: int | None,
    timeout: float,
    ends: str,
    transport: str,
) -> int:
    """Raise where an argument has no meaning, or none beside the others; return the number of workers."""
    count = whole_number(num_workers, "num_workers", 0)
    for name, value, known in (
        ("on_error", on_error, ("raise", "skip", "replace")),
        ("transport", transport, ("slots", "torch")),
    ):
        if value not in known:
            raise ValueError(f"{name} should be one of {', '.join(map(repr, known))}, but is {value!r}")
    if on_error == "replace" and ends == "exact":
        raise ValueError(
            "on_error='replace' repeats samples, and ends='exact' promises each one once; "
            "take on_error='skip' or another ending"
        )
    share = isinstance(max_errors, float)
    if max_errors is not None and (isinstance(max_errors, bool) or max_errors < 0 or (share and max_errors >= 1)):
        raise ValueError(
            f"max_errors should be a count (an int from 0 on) or a share (a float from 0 to below 1), not {max_errors!r}"
        )
    if prefetch_factor is not None:
        whole_number(prefetch_factor, "prefetch_factor", 1)
    if count == 0 and (persistent_workers or prefetch_factor is not None or timeout):
        raise ValueError(
            "persistent_workers, prefetch_factor and timeout concern worker processes; give num_workers=1 or more with them"
        )
    return count
