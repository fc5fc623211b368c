"""The pipe that workers send through, made wide enough for some batches."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

if sys.platform == "linux":
    import fcntl

PIPE_SIZE = 1 << 20  # bytes; what Linux lets every user have
F_SETPIPE_SZ = 1031  # from fcntl.h


def widen(source: Any) -> None:
    """Widen the pipe of a DataLoader's iterator: with the usual 64 kB both ends wait for each other within each message."""
    writer = getattr(getattr(source, "_worker_result_queue", None), "_writer", None)
    if writer is not None and sys.platform == "linux":
        with contextlib.suppress(OSError):  # more than this user may have
            fcntl.fcntl(writer.fileno(), F_SETPIPE_SZ, PIPE_SIZE)
