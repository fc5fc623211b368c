"""Processes that are forked while batches lie in slots: they see what they were given, whatever comes afterwards."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

known: weakref.WeakSet[Any] = weakref.WeakSet()  # slots of all loaders
_forking = threading.local()


class Onlookers:
    """A forked process and all that it forks: they hold one end of a pipe, whose other end tells when the last is gone.

    No process looks after its grandchildren, and a number of one may have passed to another.
    """

    def __init__(self) -> None:
        self.gone, self.pid = False, os.getpid()
        try:
            self.ours, self.theirs = os.pipe()
        except OSError:  # too many open files: what such a process may look at is never used again
            self.ours = self.theirs = -1
            return
        os.set_blocking(self.ours, False)

    def live(self) -> bool:
        """Tell whether one of them is still there."""
        if not self.gone and self.ours >= 0:
            try:
                self.gone = os.read(self.ours, 1) == b""
            except BlockingIOError:
                return True
            os.close(self.ours)
        return not self.gone

    def close(self, *, here: bool) -> None:
        """Let go of the end that is not this process's, ``here`` where it is the one that forked."""
        if self.ours >= 0:
            os.close(self.theirs if here else self.ours)

    def __del__(self) -> None:
        if not self.gone and self.ours >= 0 and self.pid == os.getpid():
            os.close(self.ours)


def keep_only(own: Any) -> None:
    """In a forked worker: let go of the slots of other loaders."""
    for slots in list(known):
        if slots is not own:
            slots.abandon()


def _before_fork() -> None:
    _forking.onlookers = Onlookers() if any(slots.leased for slots in list(known)) else None


def _after_fork() -> None:
    """Note in the parent that a child sees the batches that are in use: their slots wait for its end, too."""
    onlookers: Onlookers | None = _forking.onlookers
    if onlookers is not None:
        onlookers.close(here=True)
        for slots in list(known):
            for looking in list(slots.leased.values()):
                looking.add(onlookers)


def _in_child() -> None:
    if _forking.onlookers is not None:
        _forking.onlookers.close(here=False)


if hasattr(os, "memfd_create"):
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
