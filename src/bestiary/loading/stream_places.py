"""How far the readers of a stream have been received, noted at every batch and spelled out when a state is asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from bestiary.loading.seeding import OwnGenerators, borrowed_generators
from bestiary.loading.stream_ends import steps_of_ranks
from bestiary.loading.stream_fetch import Group, open_reader
from bestiary.loading.streams import start_of

if TYPE_CHECKING:
    from bestiary.loading.loader import Loader
    from bestiary.loading.stream_pass import StreamPass


class Mark(NamedTuple):
    """How far one reader has been received: so many samples behind a position."""

    at: Any
    behind: int
    before: int


class Snapshot(NamedTuple):
    """How far a pass had been received."""

    run: StreamPass
    marks: dict[int, Mark]
    turn: int


def mark_in(group: Group, taken: int) -> Mark:
    """Return how far a reader is when so many of its last samples have been received."""
    if taken == len(group.rest):
        return Mark(group.behind, 0, group.before + taken)
    return Mark(group.begin, taken, group.before)


def spelled(run: StreamPass, marks: dict[int, Mark], turn: int) -> dict[str, Any]:
    """Return the place of each reader of a rank as plain values."""
    readers = [_reader_state(run, number, marks.get(number)) for number in range(run.workers)]
    return {"rank": run.rank, "world": run.world_size, "workers": run.workers, "turn": turn, "readers": readers}


def _reader_state(run: StreamPass, number: int, mark: Mark | None) -> dict[str, Any] | None:
    reader, positions, before = run.first + number, run.begin.positions, run.begin.counts[run.first + number]
    if mark is None:
        if positions is not None and len(positions) == run.readers:
            return None if positions[reader] is None else {"at": positions[reader], "count": before}
        return {"at": _checked(_opened(run, reader, positions).position), "count": before}
    if not mark.behind:
        return {"at": _checked(mark.at), "count": mark.before}
    own = [None] * run.readers
    own[reader] = mark.at
    iterator = _opened(run, reader, own)
    with borrowed_generators(OwnGenerators(run.stream)):
        for _ in range(mark.behind):
            try:
                next(iterator)
            except Exception:  # noqa: BLE001, S110 - it was told when the sample was read
                pass
    return {"at": _checked(iterator.position), "count": mark.before + mark.behind}


def _opened(run: StreamPass, reader: int, positions: list[Any] | None) -> Any:
    return open_reader(run.stream, reader, run.readers, run.epoch, run.seed, positions)


def _checked(position: Any) -> Any:
    if position is None:
        raise ValueError("the stream gives no position, as a pipe does not, so its loader has no state to come back to")
    return position


def stream_length(loader: Loader, epoch: int, place: Any) -> int | None:
    """Return how many batches the next pass has on this rank; None where that is not known."""
    rank, world = loader._place()
    workers = max(1, loader.num_workers)
    begin = start_of(place, rank, world, workers)
    steps = steps_of_ranks(loader.plan, world, workers, epoch, begin.positions)
    if steps is None:
        return None
    return {"exact": steps[rank], "trim": min(steps), "pad": max(steps)}[loader.plan.ends]


def place_of(loader: Loader, start: Any) -> Any:
    """Return a place in a stream as plain values.

    Raises:
        ValueError: the stream cannot say where it is.
    """
    if not hasattr(loader.dataset, "open"):
        raise ValueError(
            f"{type(loader.dataset).__name__} cannot say where it is, so its loader has no state: give it a method "
            "open(reader, readers, epoch, seed, positions=None) that returns an iterator with a position (bestiary.loading.streams)"
        )
    if isinstance(start, Snapshot):
        return spelled(start.run, start.marks, start.turn)
    if start:
        return start
    rank, world = loader._place()
    return {"rank": rank, "world": world, "workers": max(1, loader.num_workers), "turn": 0, "readers": None}


def check_place(loader: Loader, place: Any) -> Any:
    """Return the place of a state, if this rank can begin there."""
    if not isinstance(place, dict) or not {"rank", "world", "workers", "readers"} <= place.keys():
        raise ValueError("the state is not that of a stream's loader: it names no readers")
    start_of(place, *loader._place(), max(1, loader.num_workers))
    return place if place["readers"] is not None else 0
