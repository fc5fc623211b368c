"""Loader: batches of a map-style dataset, the same for any number of workers, and resumable at every batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

from bestiary.keys import rank_and_world
from bestiary.loading.arguments import check_choices, check_dataset, plan_of
from bestiary.loading.arrays import whole_number
from bestiary.loading.batching import BatchPlan
from bestiary.loading.collate import Collate
from bestiary.loading.errors import SampleError
from bestiary.loading.fetch import Fetch, Policy
from bestiary.loading.passes import Pass
from bestiary.loading.probing import workers_for
from bestiary.loading.rooms import Pool, memory_share
from bestiary.loading.slots import Register
from bestiary.loading.stream_fetch import StreamFetch
from bestiary.loading.stream_pass import StreamPass
from bestiary.loading.stream_places import check_place, place_of, stream_length
from bestiary.loading.streams import StreamPlan, joined_state, stream_plan
from bestiary.loading.timing import LoaderReport, Stopwatch
from bestiary.loading.workers import Crew, Transport


class Bookmark(NamedTuple):
    """A place in the passes of a loader: epoch, next global batch (or how far a stream's readers are), and how many errors had been met."""

    epoch: int
    batch: Any
    errors: int


class Loader:
    """Iterate over the batches of a dataset, in the main process or in workers.

    An iterable of its own around a private ``torch.utils.data.DataLoader``. It promises:

    1. the same batches, bit for bit, for any number of workers, any start method, and after a resume;
    2. chance keyed by (seed, epoch, index, occurrence), for torch's, numpy's and Python's global generators, and for
       generators that the dataset or its transforms keep; the caller's own are left as they were;
    3. every pass is the next epoch; ``set_epoch`` sets the next pass;
    4. ``state_dict`` counts what the loop has received, and loads under other workers and ranks;
    5. ``len(loader)`` is the number of batches that come: of the running pass, else of the next one;
    6. a bad sample is an error that names it, or is skipped or replaced as ``on_error`` says, listed in ``errors``;
    7. workers do not grow, and nothing is left behind after an error, a break, Ctrl-C or a kill.

    Args:
        dataset: anything with ``__len__`` and ``__getitem__(int)``; ``__getitems__``, ``locate`` and ``draws`` are used
            where it has them. Or a stream, an ``IterableDataset``: see ``bestiary.loading.streams``.
        batch_size: samples in a batch; 1 when neither it nor ``plan`` is given.
        shuffle: a new order every epoch; False by default.
        drop_last: leave out a last batch that is smaller.
        plan: a ``BatchPlan``, instead of the three above and of ``seed``.
        collate: samples to batch; ``Collate()`` by default.
        seed: of the order and of every draw; 0 by default.
        num_workers: processes that make batches; 0 makes them in this one. "auto" tries both for a second before the first
            pass, and says what it took and why; not for streams, which a try might use up.
        on_error: "raise"; "skip" (a batch gets smaller); "replace" (by a good sample of the batch, flagged in ``is_pad``).
        max_errors: bad samples in a pass on this rank before it stops: a count, or a share (a float below 1).
        multiprocessing_context: "fork", "forkserver", "spawn", or a context; the platform's default when None.
        persistent_workers: keep workers from one pass to the next.
        prefetch_factor: batches that each worker makes ahead; 2 when None.
        timeout: seconds to wait for a worker's batch before an error; 0 waits for ever.
        pin_memory: page-locked batches; None does so where there is an accelerator.
        threads: torch threads while a batch is made in this process; None leaves them.
        transport: how batches come from workers: "slots" (small ones as bytes, large ones through reused shared memory)
            or "torch" (torch's own way, each tensor in a file of its own).

    Raises:
        ValueError: arguments that exclude each other.
        TypeError: a dataset that is neither read by index nor a stream; an argument that cannot be sent to workers.

    Example::

        loader = Loader(train, batch_size=64, shuffle=True, num_workers=2)
        for batch in loader:
            step(batch["image"], batch["label"])
    """

    def __init__(
        self,
        dataset: Any,
        *,
        batch_size: int | None = None,
        shuffle: bool | None = None,
        drop_last: bool | None = None,
        plan: BatchPlan | None = None,
        collate: Callable[[Sequence[Any]], Any] | None = None,
        seed: int | None = None,
        num_workers: int | Literal["auto"] = 0,
        on_error: Policy = "raise",
        max_errors: float | None = None,
        multiprocessing_context: Any = None,
        persistent_workers: bool = False,
        prefetch_factor: int | None = None,
        timeout: float = 0,
        pin_memory: bool | None = None,
        threads: int | None = 1,
        transport: Transport = "slots",
    ) -> None:
        streaming = check_dataset(dataset)
        self.dataset, settings = dataset, (plan, batch_size, shuffle, drop_last, seed)
        self.plan: Any = stream_plan(dataset, *settings) if streaming else plan_of(len(dataset), *settings)
        self.batch_size = getattr(self.plan.grouping, "batch_size", None)
        self.collate = collate or Collate()
        self.on_error, self.max_errors, self.pin_memory = on_error, max_errors, pin_memory
        self.multiprocessing_context = multiprocessing_context
        if num_workers == "auto" and not (num_workers := workers_for(self, threads, transport, prefetch_factor)):
            persistent_workers, prefetch_factor, timeout = False, None, 0
        self.num_workers = check_choices(
            num_workers, on_error, max_errors, persistent_workers, prefetch_factor, timeout, self.plan.ends, transport
        )
        self.epoch, self._told = 0, set[str]()
        self.errors: list[SampleError] = []
        self._start: Any = 0  # where the next pass begins: a global batch, or the place of a stream's readers
        self._run: Pass | None = None  # the pass that began last
        self._tracked: Pass | None = None  # the same, while a state would speak of it
        self._pass: type[Pass] = StreamPass if streaming else Pass
        self._fetch = (StreamFetch if streaming else Fetch)(dataset, self.collate, self.plan.seed, on_error, threads)
        self._fetch.batch_size = self.batch_size or 1
        self._fetch.landlord = Pool(memory_share()) if transport != "torch" else None
        crew = multiprocessing_context, persistent_workers, prefetch_factor, timeout, transport
        self._crew = Crew(self._fetch, self.num_workers, *crew) if self.num_workers else None

    # -- a pass

    def __iter__(self) -> Iterator[Any]:
        """Begin a pass: the epoch ``self.epoch``, at its start or where a loaded state left it."""
        return self._begin(None)

    def iter_registered(self, register: Register) -> Iterator[Any]:
        """Begin a pass whose large batches lie in memory registered with a device's driver: what ``DevicePrefetcher`` asks for.

        For nobody else: a batch has to be kept until its copy to the device is done, since the memory is filled anew as
        soon as the batch is gone. torch waits for copies only from pinned memory of its own. Batches are not pinned.

        Args:
            register: takes address and bytes, returns what undoes it, or None where the driver refuses.
        """
        return self._begin(register)

    def _begin(self, register: Register | None) -> Iterator[Any]:
        run = self._pass(self, self.epoch, self._start)
        run.register = register
        self._run = self._tracked = run
        self.epoch, self._start = self.epoch + 1, 0
        return run.batches(self)

    def __len__(self) -> int:
        """Return how many batches come on this rank: in the running pass, else in the next one."""
        if self._run is not None and self._run.running:
            length = self._run.length()
        elif isinstance(self.plan, StreamPlan):
            length = stream_length(self, self.epoch, self._start)
        else:
            length = len(self.plan.deal(self.epoch, self._start, *self._place()).batches)
        if length is None:
            raise TypeError(
                "the length of this stream is not known before it is read; ends='trim' or 'pad' would count it"
            )
        return length

    def set_epoch(self, epoch: int) -> None:
        """Make the next pass that epoch, from its start; a pass that is running goes on."""
        self.epoch, self._start = whole_number(epoch, "epoch", 0), 0
        if self._tracked is not None and not self._tracked.running:
            self._tracked = None

    def report(self) -> LoaderReport:
        """Return figures of the pass that began last: samples a second, share of the time spent waiting."""
        watch = self._run.watch if self._run is not None else Stopwatch(self.epoch)
        watch.held_bytes = (
            self._crew.held_bytes() if self._crew is not None else getattr(self._fetch.landlord, "size", 0)
        )
        watch.most_bytes = self.most_bytes() if self._run is not None else 0
        return watch.report()

    # -- state

    def state_dict(self, at: Bookmark | None = None) -> dict[str, Any]:
        """Return the place behind the last batch that the loop received, or behind an earlier one, as plain values.

        It holds the global number of the next batch, so that it loads under another number of workers or ranks. The end
        of an epoch is the start of the next one. With several ranks save that of rank 0: with ``ends="exact"`` other
        ranks may be through their share while rank 0 has one batch left.
        """
        epoch, position, errors = self.bookmark() if at is None else at
        return {
            "version": 1,
            "epoch": epoch,
            "batch": place_of(self, position) if isinstance(self.plan, StreamPlan) else position,
            "plan": self.plan.fingerprint(),
            "errors": [error.as_dict() for error in self.errors[:errors]],
        }

    def bookmark(self) -> Bookmark:
        """Return a mark of the present place, for ``state_dict`` later; it costs next to nothing."""
        run = self._tracked
        if run is not None and not run.complete:
            return Bookmark(run.epoch, run.position, len(self.errors))
        return Bookmark(self.epoch, self._start, len(self.errors))

    def load_state_dict(self, state: Any) -> None:
        """Make the next pass go on where the state was taken; for a stream also the list of all ranks' states.

        Raises:
            ValueError: the state is not a loader's, or belongs to another plan; both are named.
        """
        if isinstance(state, (list, tuple)):
            state = joined_state(state)
        if (
            not isinstance(state, dict)
            or state.get("version") != 1
            or not {"epoch", "batch", "plan", "errors"} <= state.keys()
            or (type(state["plan"]), type(state["errors"])) != (dict, list)
        ):
            found = sorted(state) if isinstance(state, dict) else type(state).__name__
            raise ValueError(
                f"this is not a state of Loader.state_dict: it should hold version, epoch, batch, plan and errors, found {found}"
            )
        ours = self.plan.fingerprint()
        differ = [key for key in sorted({*ours, *state["plan"]}) if ours.get(key) != state["plan"].get(key)]
        if differ:
            told = "; ".join(f"{key}: state {state['plan'].get(key)!r}, loader {ours.get(key)!r}" for key in differ)
            raise ValueError(f"the state belongs to another plan, so its place means nothing here: {told}")
        epoch = whole_number(state["epoch"], "epoch of the state", 0)
        if isinstance(self.plan, StreamPlan):
            start = check_place(self, state["batch"])
        else:
            start = whole_number(state["batch"], "batch of the state", 0)
            count = len(self.plan.batches(epoch))
            if start > count:
                raise ValueError(f"the state says batch {start} of epoch {epoch}, which has {count} batches")
        self.epoch, self._start, self._run = epoch, start, None
        self._tracked = None
        self.errors = [SampleError.from_dict(fields) for fields in state["errors"]]

    # -- inside

    def __getstate__(self) -> dict[str, Any]:
        """A copy begins where this loader would begin its next pass; running passes and workers stay here."""
        return self.__dict__ | {"_run": None, "_tracked": None}

    def most_bytes(self) -> int:
        """Return the most memory that batches on their way may lie in: slots of the workers, or blocks used again here."""
        if self._crew is not None:
            return self._crew.most_bytes()
        return getattr(self._fetch.landlord, "most", 0)

    def _place(self) -> tuple[int, int]:
        return rank_and_world(self.plan.rank, self.plan.world_size)

    def _tell(self, text: str) -> None:
        """Give a notice once for this loader."""
        if text not in self._told:
            self._told.add(text)
            warnings.warn(f"bestiary: {text}", stacklevel=5)

    def _limit(self, samples: float) -> float:
        """Return how many bad samples a pass of so many may have."""
        if self.max_errors is None:
            return float("inf")
        return self.max_errors * samples if isinstance(self.max_errors, float) else self.max_errors
