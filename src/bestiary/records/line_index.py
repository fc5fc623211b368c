"""The index of a text file: the byte of each record, found in one pass over the file."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from bestiary.records.handles import Handle
from bestiary.records.index_file import IndexWriter, places, read_index
from bestiary.records.progress import Progress

if TYPE_CHECKING:
    from bestiary.records.marks import IntArray
    from bestiary.records.splitting import Cut

STEP = 1 << 20  # bytes read at once: more would leave the cache before they are searched
EVERY = 1024  # the line of every so-manieth record is kept


class Form(Protocol):
    """What the index asks of a format."""

    @property
    def key(self) -> str:
        """Return all settings that borders depend on."""

    def cut(self, data: bytes, final: bool) -> Cut:
        """Return the records in a text."""


class LineIndex(NamedTuple):
    """Where records stand.

    Attributes:
        starts: int64 (N + 1,), byte of each record, and the end of the last.
        gap_rows, gap_stops: int64 (G,), records with blank lines behind them, and where they really end.
        lines: int64, the line of every 1024th record, from 1.
    """

    starts: IntArray
    gap_rows: IntArray
    gap_stops: IntArray
    lines: IntArray

    def __len__(self) -> int:
        return len(self.starts) - 1

    def stops(self, rows: IntArray) -> IntArray:
        """Return where records end, int64 (B,)."""
        stops: IntArray = np.asarray(self.starts[rows + 1])
        if len(self.gap_rows):
            gap = np.minimum(np.searchsorted(self.gap_rows, rows), len(self.gap_rows) - 1)
            stops = np.where(self.gap_rows[gap] == rows, self.gap_stops[gap], stops)
        return stops

    def line(self, row: int, handle: Handle) -> int:
        """Return the line of a record, counted from 1."""
        known = row // EVERY
        start, at = int(self.starts[known * EVERY]), int(self.starts[row])
        return int(self.lines[known]) + handle.read(at - start, start).count(b"\n")


def find_index(handle: Handle, form: Any, folder: str | None, name: str, packing: str = "") -> LineIndex:
    """Return the index of a file: the one kept, where it fits the file as it is now, else a new one, which is kept.

    Of a packed file it holds places in the text, which serve for counting.
    """
    known = kept_index(handle, form, folder)
    if known is not None:
        return known
    writer = IndexWriter(handle.path, folder)
    try:
        _scan(handle, form, writer, name, packing)
        fresh = Handle(handle.path)
        if (fresh.size, fresh.changed) != (handle.size, handle.changed):
            raise ValueError(f"{handle.path} changed while its index was made; wait until it is written")
        path = writer.finish(_about(handle, form))
    except BaseException:
        writer.drop()
        raise
    found = read_index(path, _about(handle, form))
    if found is None:
        raise OSError(f"the index {path} was changed by somebody else while it was made; try again")
    return _index(found[1])


def kept_index(handle: Handle, form: Form, folder: str | None) -> LineIndex | None:
    """Return the index that is kept for a file, if it fits."""
    for path in places(handle.path, folder):
        found = read_index(path, _about(handle, form))
        if found is not None:
            return _index(found[1])
    return None


def _about(handle: Handle, form: Form) -> dict[str, Any]:
    return {"form": form.key, "size": handle.size, "changed": handle.changed}


def _index(arrays: dict[str, Any]) -> LineIndex:
    return LineIndex(arrays["starts"], arrays["gap_rows"], arrays["gap_stops"], arrays["lines"])


def _scan(handle: Handle, form: Any, writer: IndexWriter, name: str, packing: str) -> None:
    from bestiary.records.feeds import open_feed
    from bestiary.records.marks import count as marked
    from bestiary.records.text_blocks import find_head

    feed = open_feed(handle.path, packing, handle)
    at = max(0, find_head(form, name, feed)[0])
    feed.read(1, at)
    progress = Progress(f"indexing {name}", 0 if packing else handle.size)
    count, step, end, line = 0, STEP, at, feed.line_behind(at)
    gaps: list[IntArray] = []
    lines: list[IntArray] = []
    writer.write("starts", np.empty(0, np.int64))
    ended = False
    while not ended:
        data, ended = feed.read(step, at)  # a record cut off at its end is read again
        cut = form.cut(data, ended and not feed.fault)
        if len(cut.starts):
            writer.write("starts", cut.starts + at)
            first = -count % EVERY  # the first of these whose number is a multiple
            lines.append(
                np.array([line + marked(cut.feeds, start) for start in cut.starts[first::EVERY].tolist()], np.int64)
            )
            gaps.append(_gaps(cut, at, count, end))
            count, end = count + len(cut.starts), at + int(cut.stops[-1])
        line += marked(cut.feeds, cut.used)
        at += cut.used
        step = STEP if cut.used else 2 * step  # a record longer than what was read
        progress.at(at)
    progress.close()
    rest = []
    if feed.fault:  # it comes as one more record, which raises
        rest, end = [at], at + len(feed.read(1 << 30, at)[0]) + 1
    writer.write("starts", np.array([*rest, end], np.int64))
    found = np.concatenate([np.empty((2, 0), np.int64), *gaps], axis=1)
    writer.write("gap_rows", found[0])
    writer.write("gap_stops", found[1])
    writer.write("lines", np.concatenate([np.empty(0, np.int64), *lines]))


def _gaps(cut: Cut, at: int, count: int, end: int) -> IntArray:
    """Return number and end of the records that the next one does not follow at once; ``end`` is the last one's before."""
    joined = bool(count and cut.starts[0] + at != end)
    if not joined and cut.stops[-1] - cut.starts[0] == (cut.stops - cut.starts).sum():
        return np.empty((2, 0), np.int64)
    rows = np.flatnonzero(cut.starts[1:] != cut.stops[:-1])
    found = np.stack([rows + count, cut.stops[rows] + at])
    return np.concatenate([np.array([[count - 1], [end]]), found], axis=1) if joined else found
