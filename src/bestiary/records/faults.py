"""What is wrong with a record, and where it stands: errors that survive the trip from a worker."""

from __future__ import annotations

from collections.abc import Callable


class RecordError(ValueError):
    """One record, or the rest of a file, could not be read; reading goes on behind it where the caller allows that.

    Attributes:
        where: file, line and byte, or whatever places there are in the format.
    """

    def __init__(self, message: str, *, where: str = "") -> None:
        super().__init__(message)
        self.where = where

    def __reduce__(self) -> tuple[Callable[..., RecordError], tuple[str, str]]:
        return _rebuild, (str(self), self.where)


def fault(where: str, what: str) -> RecordError:
    """Return an error that begins with the place.

    >>> str(fault("rows.csv, line 3, byte 40", "a quote is not closed"))
    'rows.csv, line 3, byte 40: a quote is not closed'
    """
    return RecordError(f"{where}: {what}", where=where)


def too_long(where: str, size: int, limit: int) -> RecordError:
    """Return the error of a record that is longer than allowed."""
    return fault(where, f"the record has {size} bytes, more than limit={limit}; give a larger limit, or None")


def _rebuild(message: str, where: str) -> RecordError:
    return RecordError(message, where=where)
