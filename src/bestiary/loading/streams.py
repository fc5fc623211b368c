"""Streams: what a loader asks of an IterableDataset, and the plan that stands in for a list of batches.

A stream that can be shared out and resumed has a method::

    open(reader, readers, epoch, seed, positions=None) -> iterator

``reader`` is one of ``readers``, all workers of all ranks; together their iterators give each sample of the epoch once. The
iterator has an attribute ``position``, plain values, before the first sample and after each: where to go on. ``positions``
are those of all readers of the pass to go on with, in their order, None for a reader that had read all. When there are as
many as ``readers``, the one at ``reader`` is this reader's own; else what they have left is shared out anew.

It may also have

    iterator.take(n)                        up to n samples at once, none at the end
    counts(readers, epoch, seed, positions) how many samples each reader has, or None where only reading can tell
    prepare(readers, epoch, seed, positions) called in the main process before a pass; returns notices
    fingerprint()                           plain values that positions depend on
    ends                                    "exact" (also where it is missing), "trim" or "pad"

An iterator that raises for a bad sample has to go on behind it at the next call, which a generator cannot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bestiary.loading.batching import BatchPlan, FixedSize
from bestiary.loading.dealing import Ends


class StreamPlan(NamedTuple):
    """What a loader asks of a plan, for a stream: seed, ends, the size of batches; ranks are asked for at each pass."""

    stream: Any
    seed: int
    grouping: FixedSize
    rank: int | None = None
    world_size: int | None = None

    @property
    def ends(self) -> Ends:
        """How ranks are evened out."""
        found: Ends = getattr(self.stream, "ends", "exact")
        return found

    def steps(self, count: int) -> int:
        """Return how many batches so many samples make."""
        size = self.grouping.batch_size
        return count // size if self.grouping.drop_last else -(-count // size)

    def fingerprint(self) -> dict[str, Any]:
        """Return what a place in the stream depends on."""
        tell = getattr(self.stream, "fingerprint", dict)
        return {"stream": type(self.stream).__name__, "seed": self.seed, "ends": self.ends, **tell()}


def stream_plan(
    stream: Any,
    plan: BatchPlan | None,
    batch_size: int | None,
    shuffle: bool | None,
    drop_last: bool | None,
    seed: int | None,
) -> StreamPlan:
    """Return what stands in for a plan.

    Raises:
        ValueError: a plan or ``shuffle``, which are for datasets that are read by index.
    """
    if plan is not None:
        raise ValueError(
            f"a plan deals out indices, and {type(stream).__name__} is a stream, which has none; give batch_size and drop_last"
        )
    if shuffle:
        raise ValueError("a stream is shuffled where it is read, not by the loader: RecordStream(paths, shuffle=True)")
    return StreamPlan(stream, seed or 0, FixedSize(1 if batch_size is None else batch_size, drop_last=bool(drop_last)))


class Start(NamedTuple):
    """Where the readers of a pass begin: positions of all of them or None, and how many samples each had before."""

    positions: list[Any] | None
    counts: list[int]
    turn: int


def start_of(place: Mapping[str, Any] | int, rank: int, world: int, workers: int) -> Start:
    """Turn a loaded place into what readers begin with.

    Raises:
        ValueError: it is one rank's, and the layout has changed.
    """
    readers = world * workers
    if not isinstance(place, Mapping) or place["readers"] is None:
        return Start(None, [0] * readers, 0)
    known, same = place["readers"], (place["world"], place["workers"]) == (world, workers)
    if place["rank"] is not None and place["world"] > 1:
        if not same or place["rank"] != rank:
            raise ValueError(
                f"the state is that of rank {place['rank']} of {place['world']} with {place['workers']} workers, and this is rank "
                f"{rank} of {world} with {workers}: load the list of all ranks' states, load_state_dict([state, ...])"
            )
        before, after = [None] * (rank * workers), [None] * (readers - (rank + 1) * workers)
        known = [*before, *known, *after]
    positions = [None if one is None else one["at"] for one in known]
    counts = [0 if one is None else int(one["count"]) for one in known]
    if not same:  # draws go on behind all that were made
        return Start(positions, [max(counts, default=0)] * readers, 0)
    return Start(positions, counts, int(place["turn"]) if place["rank"] is not None else int(place["turns"][rank]))


def joined_state(states: Sequence[Any]) -> Any:
    """Return one state for the states of all ranks of a stream's loader, from the same step.

    Raises:
        ValueError: a rank is missing, or they are not from one step.
    """
    places: list[Any] = [state.get("batch") if isinstance(state, Mapping) else None for state in states]
    if not states or not all(isinstance(place, Mapping) for place in places):
        raise ValueError("a list of states is for a stream: one state of Loader.state_dict for each rank")
    worlds = sorted({(place["world"], place["workers"]) for place in places})
    ranks = sorted(place["rank"] for place in places)
    if len(worlds) > 1 or ranks != list(range(worlds[0][0])):
        raise ValueError(
            f"states of ranks {ranks} were given, of {' and '.join(f'{w} ranks with {n} workers' for w, n in worlds)}; "
            "give one state for each rank of one run"
        )
    epoch = min(state["epoch"] for state in states)
    by_rank = sorted(zip(places, states, strict=True), key=lambda pair: pair[0]["rank"])
    if any(state["plan"] != states[0]["plan"] for state in states):
        raise ValueError("the states are of different streams or seeds; give those of one run")
    readers: list[Any] = []
    for place, state in by_rank:
        done = state["epoch"] == epoch + 1 and place["readers"] is None
        if not done and (state["epoch"] != epoch or place["readers"] is None) and any(p["readers"] for p in places):
            raise ValueError(
                f"the states are of epochs {sorted({s['epoch'] for s in states})} at different steps; save all ranks at one"
            )
        readers += [None] * place["workers"] if done or place["readers"] is None else place["readers"]
    whole = {
        "rank": None,
        "world": worlds[0][0],
        "workers": worlds[0][1],
        "turns": [place["turn"] for place, _ in by_rank],
        "readers": readers if any(place["readers"] for place in places) else None,
    }
    errors = [error for _, state in by_rank for error in state["errors"]]
    return {**by_rank[0][1], "epoch": epoch, "batch": whole, "errors": errors}
