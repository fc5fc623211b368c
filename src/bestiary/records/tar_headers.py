"""The members of a tar archive, header by header: ustar, GNU and pax, and where the archive is cut."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

BLOCK = 512
LONG = 1 << 20  # bytes; no name is longer than that
PAX = re.compile(rb"(\d+) ([^=]+)=")
MARKS = (b"ustar\x00", b"ustar ")


class Member(NamedTuple):
    """One member: its name, kind ("file", "hard", "soft" or "other"), the place of its data, and what a link names."""

    name: str
    kind: str
    offset: int
    size: int
    link: str


class TarFault(ValueError):
    """The archive is cut or damaged; ``name`` is the member in whose data it is cut, where that is known."""

    def __init__(self, what: str, name: str = "") -> None:
        super().__init__(what)
        self.name = name


def read_members(read: Callable[[int, int], bytes], start: int = 0) -> Iterator[Member]:
    """Yield the members of an archive; ``read(size, offset)`` returns fewer bytes only at the end of the archive.

    Raises:
        TarFault: the archive ends within a header, within data, or without the blocks of zeros that end one.
    """
    at, extra = start, dict[str, str]()
    while True:
        header = read(BLOCK, at)
        if header == bytes(BLOCK):
            return
        if len(header) < BLOCK:
            raise TarFault(_cut_at(at, len(header)))
        member, kind = _member(header, at)
        behind = member.offset + -(-member.size // BLOCK) * BLOCK
        if kind in b"xLK":
            data = read(min(member.size, LONG), member.offset)
            if len(data) < min(member.size, LONG):
                raise TarFault(_cut_at(at, BLOCK))
            extra |= _extras(kind, data)
        elif kind != b"g":
            size = int(extra.get("size", member.size)) if member.kind == "file" else 0
            name = extra.get("path", member.name)
            behind = member.offset + -(-size // BLOCK) * BLOCK
            if size and len(read(1, member.offset + size - 1)) < 1:
                raise TarFault(f"it is cut within the data of {name}, which begins at byte {member.offset}", name)
            yield member._replace(name=name, link=extra.get("linkpath", member.link), size=size)
            extra = {}
        at = behind


def _cut_at(at: int, have: int) -> str:
    if at == 0 and not have:
        return "the file is empty, which no tar archive is"
    if not have:
        return f"it ends at byte {at} without the two blocks of zeros that end an archive, so it may be cut there"
    return f"it is cut at byte {at + have}, within a header"


def _member(header: bytes, at: int) -> tuple[Member, bytes]:
    total = sum(header) - sum(header[148:156]) + 8 * 32
    try:
        told = _number(header[148:156])
        size = _number(header[124:136])
    except ValueError:
        told, size = -1, 0
    if told != total:
        raise TarFault(f"there is no header at byte {at}, where one should be: its checksum does not fit")
    name, kind = _text(header[:100]), header[156:157]
    if header[257:263] == MARKS[0] and header[345:346] != b"\0":
        name = f"{_text(header[345:500])}/{name}"
    what = {b"0": "file", b"\0": "file", b"7": "file", b"1": "hard", b"2": "soft"}.get(kind, "other")
    if what == "file" and name.endswith("/"):
        what = "other"  # a folder, as old archives have it
    holds = what == "file" or kind in b"xgLK"
    return Member(name, what, at + BLOCK, size if holds else 0, _text(header[157:257])), kind


def _number(field: bytes) -> int:
    if field[:1] in (b"\x80", b"\xff"):  # base 256, for large files
        return int.from_bytes(field[1:], "big")
    return int(field.split(b"\0")[0].strip() or b"0", 8)


def _text(field: bytes) -> str:
    return field.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _extras(kind: bytes, data: bytes) -> dict[str, str]:
    if kind == b"L":
        return {"path": _text(data)}
    if kind == b"K":
        return {"linkpath": _text(data)}
    found, at = dict[str, str](), 0
    while match := PAX.match(data, at):
        end = at + int(match[1])
        found[match[2].decode("utf-8", "replace")] = data[match.end() : end - 1].decode("utf-8", "surrogateescape")
        at = max(end, match.end())
    return {key: value for key, value in found.items() if key in ("path", "linkpath", "size")}
