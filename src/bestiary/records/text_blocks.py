"""The text of a file, cut into blocks of records."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from bestiary.records.faults import RecordError, fault
from bestiary.records.record_blocks import Block, FaultBlock, TextBlock

if TYPE_CHECKING:
    from bestiary.records.csv_form import CsvForm
    from bestiary.records.feeds import Feed
    from bestiary.records.json_form import JsonForm
    from bestiary.records.splitting import Cut

FIRST = 1 << 14  # bytes of a file's first block: its first record comes at once
PORTION = 3 << 15  # bytes of the records that are read at once


def several(wanted: Sequence[tuple[Block, int]]) -> Sequence[dict[str, Any]]:
    """Return records of several blocks at once; any error at all means that they have to be read one by one."""
    from bestiary.records.line_block import LineBlock

    blocks = [block for block, _ in wanted]
    if not all(type(block) in (TextBlock, LineBlock) and block.limit is None for block in blocks):  # type: ignore[attr-defined]
        raise ValueError("not all of these are plain text")
    form: Any = wanted[0][0].form  # type: ignore[attr-defined]
    if form.kind != "json":
        raise ValueError("columns are read block by block")
    found: Sequence[dict[str, Any]] = form.many([block.raw(row) for block, row in wanted])  # type: ignore[attr-defined]
    return found


def text_blocks(
    form: JsonForm | CsvForm, name: str, feed: Feed, start: int, stop: int, limit: int | None = None
) -> Iterator[Block]:
    """Yield the records that begin in [start, stop) of a file; -1 means its end.

    Lines may be asked for from any byte on; CSV from the start of the file or of a record.
    """
    from bestiary.records.line_block import LineBlock, split_lines

    at, names = find_head(form, name, feed)
    if at < 0:
        yield FaultBlock(
            fault(name, f"the file cannot be read: {feed.fault or 'its head line is cut'}"), 0, max(stop, 1)
        )
        return
    if start > at:
        at = _next_line(feed, start) if form.kind == "json" else start
    step = FIRST
    while stop < 0 or at < stop:
        data, ended = feed.read(step, at)
        final = ended and not feed.fault
        split = split_lines(data, -1 if stop < 0 else stop - at, final) if form.kind == "json" else None
        if split is not None:
            lines, used = split
            if lines:
                json: Any = form
                yield LineBlock(json, name, feed, at, lines, data[used - 1 : used] == b"\n", limit)
        else:
            cut = form.cut(data, final)
            used, count = cut.used, len(cut.starts) if stop < 0 else int((cut.starts + at < stop).sum())
            for portion in _portions(cut, count):
                block = TextBlock(form, name, feed, at, data, portion, limit)
                block.names = names
                yield block
            if count < len(cut.starts):
                return
        at += used
        if ended:
            break
        step = min(2 * step, form.step) if used and step <= form.step else 2 * step if not used else form.step
    if feed.fault and (stop < 0 or at < stop):
        rest = len(feed.read(1 << 30, at)[0])
        where = f"{name}, line {feed.line_behind(at)}, byte {at}"
        lost = f"; the {rest} bytes of a record before that are left out" if rest else ""
        yield FaultBlock(fault(where, f"{feed.fault}{lost}"), at, at + rest + 1)


def _portions(cut: Cut, count: int) -> Iterator[Cut]:
    """Yield the first so many records of a cut in parts that stay in the cache when they are read."""
    first = 0
    while first < count:
        end = np.searchsorted(cut.stops[:count], cut.starts[first] + PORTION, side="right")
        last = max(first + 1, int(end))
        used = int(cut.starts[last]) if last < len(cut.starts) else cut.used
        yield cut._replace(starts=cut.starts[first:last], stops=cut.stops[first:last], used=used)
        first = last


def find_head(form: JsonForm | CsvForm, name: str, feed: Feed) -> tuple[int, list[str]]:
    """Return where the records begin, and the columns of CSV; -1 where the file ends before that."""
    size = FIRST
    while True:
        data, ended = feed.read(size, 0)
        try:
            if form.kind == "csv":
                found = form.names(data, ended and not feed.fault)
            else:
                begin = form.head(data, ended)
                found = None if begin < 0 else (begin, [])
        except RecordError as error:
            raise fault(name, str(error)) from None
        if found is not None or ended:
            return found or (-1, [])
        size *= 4


def _next_line(feed: Feed, start: int) -> int:
    """Return the first byte of a line at or behind a byte."""
    at = start - 1
    while True:
        data, ended = feed.read(1 << 12, at)
        found = data.find(b"\n")
        if found >= 0:
            return at + found + 1
        at += len(data)
        if ended:
            return at
