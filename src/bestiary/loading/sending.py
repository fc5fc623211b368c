"""What can be sent to a worker that is not forked, told before one starts."""

from __future__ import annotations

from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from typing import Any

from bestiary.loading.errors import describe


def check_sendable(context: Any, arguments: dict[str, object]) -> None:
    """Raise a TypeError that names the argument which cannot be sent to workers of a start method other than fork."""
    for name, value in arguments.items():
        problem = _unsendable(value)
        if problem is not None:
            inside = (
                next((f"{name}.{part}" for part, held in vars(value).items() if _unsendable(held)), name)
                if hasattr(value, "__dict__")
                else name
            )
            raise TypeError(
                f"{inside} cannot be sent to worker processes started by {context}: {describe(problem)}; "
                "lambdas, local functions, open files and locks do not pickle: use a function or class of a module, "
                "or num_workers=0"
            )


def _unsendable(value: object) -> Exception | None:
    set_spawning_popen(_Rehearsal())  # type: ignore[arg-type]  # locks and tensors may be sent to a process that is being started, and only then
    try:
        ForkingPickler(_Nowhere()).dump(value)
    except Exception as error:  # noqa: BLE001 - it is handed on as the answer
        return error
    finally:
        set_spawning_popen(None)
    return None


class _Rehearsal:
    """Stands for a process that is being started, for those that ask it to keep a file open."""

    def duplicate_for_child(self, file: int) -> int:
        """Return the file as it is: nobody will open it."""
        return file

    def DupFd(self, file: int) -> int:
        """Return what stands for the file in a pickle that nobody will read."""
        return file


class _Nowhere:
    """A file that forgets: only whether the pickling works is of interest."""

    def write(self, data: Any) -> int:
        """Forget it."""
        return len(data)
