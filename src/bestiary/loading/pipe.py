"""The pipe that workers send through: made wide enough for some batches, and read without waiting for the dead."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from multiprocessing.connection import wait
from typing import Any

if sys.platform == "linux":
    import fcntl

PIPE_SIZE = 1 << 20  # bytes; what Linux lets every user have
F_SETPIPE_SZ = 1031  # from fcntl.h
LOOK_EVERY_S = 0.5  # whether workers live, while the rest of a message does not come


def prepare(source: Any) -> None:
    """Widen the pipe of a DataLoader's iterator, and read it by ``WatchfulRead``.

    With the usual 64 kB both ends wait for each other within each message.
    """
    queue = getattr(source, "_worker_result_queue", None)
    if queue is None or os.name != "posix":
        return
    if sys.platform == "linux":
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(queue._writer.fileno(), F_SETPIPE_SZ, PIPE_SIZE)
    if hasattr(queue._reader, "_recv"):
        os.set_blocking(queue._reader.fileno(), False)
        queue._reader._recv = WatchfulRead(queue._reader.fileno(), source._workers)


class WatchfulRead:
    """Reads a connection's bytes, and gives up when they stay away and a worker has died.

    One that is killed in the midst of a message leaves its beginning in the pipe, whose other end the other workers
    and this process hold open: its rest would be waited for for ever. In the main thread a signal ends that; here nothing needs one.
    """

    def __init__(self, number: int, workers: list[Any]) -> None:
        self.number, self.workers = number, workers

    def __call__(self, size: int) -> io.BytesIO:
        """Return the next ``size`` bytes.

        Raises:
            OSError: a worker has died, and they did not all come.
        """
        parts: list[bytes] = []
        while size:
            try:
                parts.append(os.read(self.number, size))
            except BlockingIOError:
                if not wait([self.number], LOOK_EVERY_S) and any(w.exitcode is not None for w in self.workers):
                    raise OSError("a worker died in the midst of a message") from None
                continue
            if not parts[-1]:
                raise EOFError
            size -= len(parts[-1])
        return io.BytesIO(parts[0] if len(parts) == 1 else b"".join(parts))
