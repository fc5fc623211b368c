"""What goes wrong while loading, told so that the sample can be found: errors that survive the trip from a worker."""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable
from typing import Any


class SampleError(RuntimeError):
    """One sample could not be read.

    Attributes:
        index: index into the dataset.
        where: what ``dataset.locate(index)`` says, such as "cat/7.jpg"; empty where the dataset has no ``locate``.
        epoch: the pass in which it happened.
        cause: type and text of the original error. ``__cause__`` is that error itself where it pickles.

    It pickles, and can be rebuilt from its message alone.
    """

    def __init__(self, message: str, *, index: int = -1, where: str = "", epoch: int = 0, cause: str = "") -> None:
        super().__init__(message)
        self.index, self.where, self.epoch, self.cause = index, where, epoch, cause

    def as_dict(self) -> dict[str, Any]:
        """Return index, where, epoch and cause as plain values, for a state or a report."""
        return {"index": self.index, "where": self.where, "epoch": self.epoch, "cause": self.cause}

    @classmethod
    def from_dict(cls, fields: dict[str, Any]) -> SampleError:
        """Rebuild an error from ``as_dict``."""
        index, where, epoch, cause = (
            int(fields["index"]),
            str(fields["where"]),
            int(fields["epoch"]),
            str(fields["cause"]),
        )
        return cls(_sentence(index, where, epoch, cause), index=index, where=where, epoch=epoch, cause=cause)

    def __reduce__(self) -> tuple[Callable[..., SampleError], tuple[Any, ...]]:
        return _rebuild, (str(self), self.as_dict(), portable(self.__cause__))


class WorkerDied(RuntimeError):
    """A worker process ended by itself or was killed; the message names the samples that it had in hand."""


class WorkerTraceback(Exception):
    """The traceback text of a worker, hung below an error as its cause, since frames do not travel."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def describe(error: BaseException) -> str:
    """Return "Type: text" of an error, also of one whose ``str`` fails.

    >>> describe(KeyError("a")), describe(ValueError())
    ("KeyError: 'a'", 'ValueError')
    """
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - a user's __str__ may do anything
        text = "(its text cannot be printed)"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def locate(dataset: object, index: int) -> str:
    """Ask the dataset where a sample comes from; empty where it does not say, and never an error of its own."""
    ask = getattr(dataset, "locate", None)
    try:
        return str(ask(index)) if ask is not None else ""
    except Exception:  # noqa: BLE001 - the error to be told is another one
        return ""


def sample_error(dataset: object, index: int, epoch: int, error: Exception) -> SampleError:
    """Wrap what the dataset raised for one index."""
    where, cause = locate(dataset, index), describe(error)
    made = SampleError(_sentence(index, where, epoch, cause), index=index, where=where, epoch=epoch, cause=cause)
    made.__cause__ = error
    return made


def portable(error: BaseException | None) -> BaseException | None:
    """Return an error that can be sent to another process, with its traceback as text; the text alone if it cannot."""
    if error is None or error.__traceback__ is None:
        return error
    note = WorkerTraceback("".join(traceback.format_exception(type(error), error, error.__traceback__)))
    try:
        copy = pickle.loads(pickle.dumps(error))
        if type(copy) is not type(error) or str(copy) != str(error):
            return note
    except Exception:  # noqa: BLE001 - whatever it is, it does not pickle
        return note
    copy.__cause__ = note
    return _Carried(copy, note)


class _Carried(Exception):
    """An error and its worker's traceback on their way: pickling alone would lose the second."""

    def __reduce__(self) -> tuple[Callable[..., BaseException], tuple[Any, ...]]:
        return _join, self.args


def _join(error: BaseException, note: BaseException) -> BaseException:
    error.__cause__ = note
    return error


def _rebuild(message: str, fields: dict[str, Any], cause: BaseException | None) -> SampleError:
    error = SampleError(message, **fields)
    error.__cause__ = cause
    return error


def _sentence(index: int, where: str, epoch: int, cause: str) -> str:
    place = f"sample {index} ({where})" if where else f"sample {index}"
    return f"{place} could not be read in epoch {epoch}: {cause}"
