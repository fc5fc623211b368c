"""The death of a worker: held back while the caller computes, and told with what may have caused it."""

from __future__ import annotations

import re
import signal
import threading
from types import FrameType
from typing import Any, ClassVar


class DeathWatch:
    """Keeps a worker's death from being raised in the middle of the caller's step.

    torch raises it from a signal handler, wherever the main thread is. While the loop does not wait for a batch, the
    error of one of our workers is dropped there; the next ``next()`` finds the dead worker and raises.
    """

    pids: ClassVar[set[int]] = set()
    depth: ClassVar[int] = 0

    def __init__(self, pids: list[int]) -> None:
        self.mine = set(pids)
        DeathWatch.pids |= self.mine
        handler = signal.getsignal(signal.SIGCHLD) if hasattr(signal, "SIGCHLD") else None
        if (
            callable(handler)
            and not isinstance(handler, _Handler)
            and threading.current_thread() is threading.main_thread()
        ):
            signal.signal(signal.SIGCHLD, _Handler(handler))

    def close(self) -> None:
        """Forget this crew's workers."""
        DeathWatch.pids -= self.mine

    def __enter__(self) -> None:
        DeathWatch.depth += 1

    def __exit__(self, *error: object) -> None:
        DeathWatch.depth -= 1


class _Handler:
    """A SIGCHLD handler that calls the one before it and holds back what concerns our workers."""

    def __init__(self, before: Any) -> None:
        self.before = before

    def __call__(self, number: int, frame: FrameType | None) -> None:
        try:
            self.before(number, frame)
        except RuntimeError as error:
            ours = DeathWatch.pids & {int(pid) for pid in re.findall(r"\d+", str(error))}
            if DeathWatch.depth or not ours:
                raise


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
