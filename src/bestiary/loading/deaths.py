"""The death of a worker: held back while the caller computes, and told with what may have caused it."""

from __future__ import annotations

import errno
import os
import pickle
import re
import signal
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, ClassVar

LOOK_EVERY_S = 0.01  # for dead workers, where nothing has told of one
MOMENT_S = 0.5  # in which a process has ended whose connection is broken
LOSSES = (RuntimeError, OSError, EOFError, pickle.UnpicklingError)  # what a worker's death may look like from here
LOCK_S = 1.0  # seconds; held longer, its holder is dead


class DeathWatch:
    """Keeps a worker's death from being raised in the middle of the caller's step.

    torch raises it from a signal handler, wherever the main thread is. While the loop does not wait for a batch, the
    error of one of our workers is dropped there; the next ``next()`` finds the dead worker and raises.
    """

    pids: ClassVar[set[int]] = set()
    depth: ClassVar[int] = 0
    starting: ClassVar[int] = 0  # crews, whose processes are not known yet
    held_back: ClassVar[int] = 0  # errors so far

    def __init__(self, pids: list[int]) -> None:
        self.mine, self._seen, self._looked = set(pids), -1, 0.0
        DeathWatch.pids |= self.mine

    def install(self) -> None:
        """Put the handler that holds back before the one that is there, where this may be done: in the main thread."""
        handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
        if (
            callable(handler)
            and not isinstance(handler, _Handler)
            and threading.current_thread() is threading.main_thread()
        ):
            signal.signal(signal.SIGCHLD, _Handler(handler))

    def due(self) -> bool:
        """Tell whether to look for dead workers: after an error was held back, and now and then, since looking takes a system call each."""
        now = time.monotonic()
        if self._seen == DeathWatch.held_back and now - self._looked < LOOK_EVERY_S:
            return False
        self._seen, self._looked = DeathWatch.held_back, now
        return True

    def close(self) -> None:
        """Forget this crew's workers."""
        DeathWatch.pids -= self.mine

    def __enter__(self) -> None:
        DeathWatch.depth += 1

    def __exit__(self, *error: object) -> None:
        DeathWatch.depth -= 1


@contextmanager
def starting() -> Iterator[None]:
    """Hold back errors while a crew starts: raised in the midst of that, they would leave it half made."""
    DeathWatch.starting += 1
    try:
        yield
    finally:
        DeathWatch.starting -= 1


class _Handler:
    """A SIGCHLD handler that calls the one before it and holds back what concerns our workers."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.before(number, frame)
        except RuntimeError as error:
            ours = DeathWatch.pids & {int(pid) for pid in re.findall(r"\d+", str(error))}
            if not DeathWatch.starting and (DeathWatch.depth or not ours):
                raise
            DeathWatch.held_back += 1


class DoneEvent:
    """Stands in the main process for the event by which torch tells its workers that all is done.

    All processes take turns at the event's lock, and one that is killed while it has the lock takes it along: torch
    would wait for it for ever, also to ask what the main process alone decides. Here asking takes no lock, and setting
    waits for it no longer than a living process keeps it.
    """

    def __init__(self, event: Any) -> None:
        self.event, self.done, self.lost = event, False, False

    def is_set(self) -> bool:
        """Tell whether ``set`` was called."""
        return self.done

    def set(self) -> None:
        """Tell the workers, unless the lock is lost."""
        if not self.done:
            self.done = True
            self.lost = not self.event._cond.acquire(timeout=LOCK_S)
            if not self.lost:
                self.event._cond.release()
                self.event.set()


def lacks_descriptors(error: Exception) -> bool:
    """Tell whether workers could not start for want of descriptors; a fork server passes on 256 at most."""
    return getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or "too many fds" in str(error)


_ours: weakref.WeakSet[Any] = weakref.WeakSet()  # iterators whose workers this process has started


def take_charge(source: Any) -> None:
    """Make the end of a DataLoader's iterator harmless, however it comes.

    Its event gets a stand-in. Its queues and processes outlive it: the garbage collector takes a cycle apart in any
    order, and the iterator, which sends its workers home when it goes, would write to closed queues, that is to whatever
    has got the numbers of their descriptors since. In a forked process it lets go without a word to its parent's workers.
    """
    if source in _ours:
        return
    event = getattr(source, "_workers_done_event", None)
    if hasattr(event, "_cond"):
        source._workers_done_event = DoneEvent(event)
    parts = [getattr(source, name, None) for name in ("_index_queues", "_worker_result_queue", "_workers")]
    weakref.finalize(source, parts.clear).atexit = False
    _ours.add(source)


def _let_go() -> None:
    for source in _ours:
        source._shutdown = True
    _ours.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


def end_workers(source: Any, workers: list[Any], *, at_once: bool = False) -> None:
    """End the workers of a DataLoader's iterator; at once, where they should not finish what they have in hand."""
    if getattr(source, "_shutdown", False) or sys.is_finalizing():  # at its exit a process ends its workers by itself
        return
    event = getattr(source, "_workers_done_event", None)
    if isinstance(event, DoneEvent):
        event.set()  # while they live
        at_once = at_once or event.lost
    for worker in workers if at_once else ():
        worker.terminate()
    source._shutdown_workers()


def any_ended(workers: list[Any]) -> bool:
    """Tell whether one of the workers has ended, or does within a moment: a broken connection is seen before that."""
    deadline = time.monotonic() + MOMENT_S
    while time.monotonic() < deadline:
        if any(worker.exitcode is not None for worker in workers):
            return True
        time.sleep(MOMENT_S / 50)
    return False


def ending(worker: Any) -> str:
    """Say how a worker process ended."""
    code = worker.exitcode
    if code is None:
        return "dying"
    if code < 0:
        return (
            f"killed by {signal.Signals(-code).name}"
            if -code in {int(s) for s in signal.Signals}
            else f"killed by signal {-code}"
        )
    return f"exit code {code}"


def advice(text: str, codes: list[int | None]) -> str:
    """Say what such an end often means, and what helps."""
    if "Bus error" in text or -signal.SIGBUS in codes:
        return "A bus error means that shared memory ran out: give the container more (--shm-size, --ipc=host), or take fewer workers, a smaller prefetch_factor or smaller batches"
    if -signal.SIGKILL in codes:
        return "SIGKILL often comes from the kernel when memory runs out: take fewer workers or smaller batches, and look into the system log"
    return "Run with num_workers=0 to see the error itself; a crash in a decoder is often one damaged file among these"
