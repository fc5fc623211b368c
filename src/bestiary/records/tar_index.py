"""Which members of a tar archive make up which sample."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

from bestiary.records.tar_headers import Member, TarFault, read_members

Dots = Literal["first", "last"]


class Group(NamedTuple):
    """One sample: its key, and field -> (offset, size); ``fault`` says why it cannot be read, empty where it can."""

    key: str
    fields: dict[str, tuple[int, int]]
    at: int
    fault: str


class Archive(NamedTuple):
    """The samples of one archive, and what was left out of them: (what, name) of members."""

    groups: list[Group]
    left_out: list[tuple[str, str]]


def split_name(name: str, dots: Dots) -> tuple[str, str] | None:
    """Return key and field of a member: parted at the first dot of its file name, or at the last; None without a dot.

    >>> split_name("train.v1/22.0/1.1.png", "first"), split_name("train.v1/22.0/1.1.png", "last")
    (('train.v1/22.0/1', '1.png'), ('train.v1/22.0/1.1', 'png'))
    """
    folder, slash, base = name.rpartition("/")
    stem, dot, field = base.partition(".") if dots == "first" else base.rpartition(".")
    if not dot or not field or (not stem and dots == "last"):
        return None
    return folder + slash + stem, field.lower()


def list_archive(read: Callable[[int, int], bytes], dots: Dots) -> Archive:
    """Read all headers of an archive, and put the members of each sample together, neighbours or not.

    Where the archive is cut, the sample before the cut may lack members: it and the rest become one group with a fault.
    """
    found: dict[str, dict[str, tuple[int, int]]] = {}
    at: dict[str, int] = {}
    faults: dict[str, str] = {}
    left_out: list[tuple[str, str]] = []
    broken, end = "", ""
    try:
        for member, offset, size in _resolved(read_members(read), left_out, faults, dots):
            parted = split_name(member.name, dots)
            if parted is None:
                left_out.append(("without an extension", member.name))
                continue
            key, field = parted
            at.setdefault(key, member.offset)
            fields = found.setdefault(key, {})
            if field in fields and fields[field] != (offset, size):
                faults.setdefault(key, f"it has {field!r} twice; {member.name} comes again in this archive")
            fields[field] = (offset, size)
            broken = key
    except TarFault as error:
        end = str(error)
        parted = split_name(error.name, dots)
        broken = parted[0] if parted else broken if not error.name else ""
    groups = [Group(key, fields, at[key], faults.get(key, "")) for key, fields in found.items()]
    groups += [Group(key, {}, 0, what) for key, what in faults.items() if key not in found]
    if end:
        whole = [group for group in groups if group.key != broken]
        told = f"the archive cannot be read further: {end}; {len(whole)} samples before were whole"
        groups = [*whole, Group(broken, {}, at.get(broken, 0), told)]
    return Archive(groups, left_out)


def _resolved(
    members: Iterator[Member], left_out: list[tuple[str, str]], faults: dict[str, str], dots: Dots
) -> Iterator[tuple[Member, int, int]]:
    """Yield files with the place of their data, links among them; the rest is noted."""
    files: dict[str, tuple[int, int]] = {}
    waiting: list[tuple[Member, str]] = []
    for member in members:
        base = os.path.basename(member.name)
        if base.startswith("._") or "__MACOSX/" in member.name:
            left_out.append(("of macOS, twins of real ones", member.name))
        elif member.kind == "file":
            files[_clean(member.name)] = member.offset, member.size
            yield member, member.offset, member.size
        elif member.kind in ("hard", "soft"):
            folder = posixpath.dirname(member.name) if member.kind == "soft" else ""
            target = _clean(posixpath.join(folder, member.link))
            if target in files:
                yield member, *files[target]
            else:
                waiting.append((member, target))
    for member, target in waiting:
        if target in files:
            yield member, *files[target]
        else:
            key = (split_name(member.name, dots) or (member.name, ""))[0]
            faults[key] = f"{member.name} is a link to {member.link}, which is not in the archive"


def _clean(name: str) -> str:
    return posixpath.normpath(name.lstrip("/"))
