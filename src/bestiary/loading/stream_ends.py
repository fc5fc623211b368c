"""Equal steps on all ranks of a stream: from the number of samples, or by asking each other before every step."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

if TYPE_CHECKING:
    from bestiary.loading.stream_pass import Made, StreamPass
    from bestiary.loading.streams import StreamPlan


def steps_of_ranks(
    plan: StreamPlan, world: int, workers: int, epoch: int, positions: list[Any] | None
) -> list[int] | None:
    """Return how many batches each rank has; None where the stream cannot tell."""
    tell = getattr(plan.stream, "counts", None)
    known = tell(world * workers, epoch, plan.seed, positions) if tell is not None else None
    if known is None:
        return None
    return [plan.steps(sum(known[rank * workers : (rank + 1) * workers])) for rank in range(world)]


class Evening:
    """Ends a rank's batches as ``ends`` says."""

    def __init__(self, run: StreamPass) -> None:
        self.run, self.ends = run, run.loader.plan.ends

    @property
    def target(self) -> int:
        """How many batches come on this rank; the counts are known."""
        steps = self.run.steps or [0]
        return {"exact": steps[self.run.rank], "trim": min(steps), "pad": max(steps)}[self.ends]

    def over(self, source: Generator[Made, None, None]) -> Generator[Made, None, None]:
        """Yield this rank's batches, evened out."""
        run = self.run
        try:
            if run.loader.on_error == "replace" and run.world_size == 1:
                yield from map(self._full, source)
            elif run.world_size == 1 or self.ends == "exact":
                yield from source
            elif run.steps is not None:
                yield from self._counted(source)
            else:
                yield from self._agreed(source)
        finally:
            source.close()

    def _counted(self, source: Iterator[Made]) -> Iterator[Made]:
        for _ in range(self.target):
            made = next(source, None)
            yield self._full(made)

    def _agreed(self, source: Iterator[Made]) -> Iterator[Made]:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                f"ends={self.ends!r} needs the number of samples, which this stream cannot tell, or torch.distributed to agree on "
                "a step; call init_process_group first, or take ends='exact'"
            )
        while True:
            made = next(source, None)
            if not self._all_agree(made is not None):
                return
            yield self._full(made)

    def _all_agree(self, have: bool) -> bool:
        device = "cuda" if dist.get_backend() == "nccl" else "cpu"
        flag = torch.tensor(int(have), device=device)
        dist.all_reduce(flag, dist.ReduceOp.MIN if self.ends == "trim" else dist.ReduceOp.MAX)
        return bool(flag)

    def _full(self, made: Made | None) -> Made:
        """Return the batch; where there is none, or none good, the first of the stream once more, flagged."""
        if made is not None and made.batch is not None:
            return made
        from bestiary.loading.stream_pass import Made as Kind

        run = self.run
        samples, size = self._first(run.loader.plan.grouping.batch_size), run.loader.plan.grouping.batch_size
        batch = run.collated(samples, [True] * len(samples), -1_000_000 - run.done - size)
        if made is None:
            return Kind(batch, 0, [], 0.0, {}, {}, run.turn)
        return made._replace(batch=batch)

    def _first(self, size: int) -> list[Any]:
        run = self.run
        if not hasattr(run.stream, "open"):
            raise ValueError(
                "ends='pad' repeats samples, for which the stream needs a method open(reader, readers, epoch, seed, positions)"
            )
        iterator, found, bad = run.stream.open(0, 1, run.epoch, run.seed), list[Any](), None
        while len(found) < size:
            try:
                found.append(next(iterator))
            except StopIteration:
                break
            except Exception as error:  # noqa: BLE001 - told where it was read for its own sake
                bad = error
        if not found:
            raise bad or ValueError("there is no sample to repeat")
        return found
