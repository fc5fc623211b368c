"""The archives of a data set: listed once, kept in arrays, read at any place."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bestiary.records.faults import fault
from bestiary.records.handles import Handle, Handles
from bestiary.records.paths import packing_of, short_names

if TYPE_CHECKING:
    from bestiary.records.tar_index import Archive, Dots


class Samples(NamedTuple):
    """The samples of an archive in flat arrays, and a text of names; ``about`` counts what was left out."""

    starts: npt.NDArray[np.int64]  # (N + 1,), first field of each sample
    places: npt.NDArray[np.int64]  # (F * 2,), offset and size of each field
    words: npt.NDArray[np.int64]  # (N + F + N + 1,), ends in ``text`` of keys, fields and faults
    text: npt.NDArray[np.uint8]
    about: dict[str, Any]

    def __len__(self) -> int:
        return len(self.starts) - 1

    def word(self, number: int) -> str:
        """Return one of the names."""
        start = int(self.words[number - 1]) if number else 0
        return bytes(self.text[start : int(self.words[number])]).decode("utf-8", "surrogateescape")


class TarFiles:
    """Samples of archives, each read when asked for."""

    def __init__(self, paths: list[str], dots: Dots, folder: str | os.PathLike[str] | None, limit: int | None) -> None:
        if dots not in ("first", "last"):
            raise ValueError(f"dots should be 'first' or 'last', but is {dots!r}")
        self.paths, self.names, self.dots, self.limit = paths, short_names(paths), dots, limit
        self.folder = None if folder is None else os.fspath(folder)
        self._handles = Handles()
        self._known: dict[int, Samples] = {}

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_known": {}}

    def handle(self, file: int) -> Handle:
        """Return an open archive."""
        from bestiary.records.remote import local_copy

        return self._handles.of(local_copy(self.paths[file]))

    def samples(self, file: int) -> Samples:
        """Return the samples of an archive, listed now or before."""
        if file not in self._known:
            handle = self.handle(file)
            self._known[file] = _kept(handle, self.dots, self.folder) or _listed(handle, self.dots, self.folder)
            left_out = self._known[file].about["left_out"]
            for what, (count, first) in left_out.items():
                warnings.warn(
                    f"bestiary: {self.names[file]}: {count} members {what} are left out, the first is {first}",
                    stacklevel=6,
                )
        return self._known[file]

    def read(self, file: int, number: int, data: Mapping[tuple[int, int], bytes] | None = None) -> dict[str, Any]:
        """Return a sample: its key as ``name``, and a field of bytes for each member; ``data`` is what was read already.

        Raises:
            RecordError: it is not whole.
        """
        samples = self.samples(file)
        first, last = int(samples.starts[number]), int(samples.starts[number + 1])
        count, fields = len(samples), len(samples.places) // 2
        wrong = samples.word(count + fields + number)
        if wrong:
            raise fault(self.where(file, number), wrong)
        handle = self.handle(file)
        if (handle.size, handle.changed) != (samples.about["size"], samples.about["changed"]):
            raise ValueError(f"{self.paths[file]} has changed since it was listed; make the dataset again")
        sample: dict[str, Any] = {"name": samples.word(number)}
        for field in range(first, last):
            offset, size = int(samples.places[2 * field]), int(samples.places[2 * field + 1])
            if self.limit is not None and size > self.limit:
                what = f"{samples.word(count + field)} has {size} bytes, more than limit={self.limit}"
                raise fault(self.where(file, number), what)
            read = handle.read(size, offset) if data is None else data[offset, size]
            sample[samples.word(count + field)] = read
        return sample

    def where(self, file: int, number: int) -> str:
        """Return archive, key and the byte of the first member's data."""
        samples = self.samples(file)
        first = int(samples.starts[number])
        place = f", byte {samples.places[2 * first]}" if int(samples.starts[number + 1]) > first else ""
        return f"{self.names[file]}, sample {samples.word(number)!r}{place}"


def pack_archive(archive: Archive, handle: Handle) -> Samples:
    """Turn lists into arrays."""
    groups = archive.groups
    starts = np.cumsum([0, *(len(group.fields) for group in groups)], dtype=np.int64)
    places = np.array([number for group in groups for place in group.fields.values() for number in place], np.int64)
    words = [group.key for group in groups] + [field for group in groups for field in group.fields]
    data = [word.encode("utf-8", "surrogateescape") for word in words + [group.fault for group in groups]]
    ends = np.cumsum([*map(len, data), 0], dtype=np.int64)
    left_out: dict[str, tuple[int, str]] = {}
    for what, name in archive.left_out:
        left_out[what] = (left_out[what][0] + 1, left_out[what][1]) if what in left_out else (1, name)
    about = {"size": handle.size, "changed": handle.changed, "left_out": left_out}
    return Samples(starts, places, ends, np.frombuffer(b"".join(data), np.uint8), about)


def reading(handle: Handle) -> Callable[[int, int], bytes]:
    """Return what reads an archive, a packed one only forwards: ``read(size, offset)``."""
    packing = packing_of(handle.path)
    if not packing:
        return handle.read
    from bestiary.records.feeds import open_feed

    feed = open_feed(handle.path, packing, handle)
    return lambda size, at: feed.read(size, at)[0]


def _about(handle: Handle, dots: Dots) -> dict[str, Any]:
    return {"form": f"tar-1 {dots}", "size": handle.size, "changed": handle.changed}


def _kept(handle: Handle, dots: Dots, folder: str | None) -> Samples | None:
    from bestiary.records.index_file import places, read_index

    for path in places(handle.path, folder):
        found = read_index(path, _about(handle, dots))
        if found is not None:
            arrays = found[1]
            return Samples(arrays["starts"], arrays["places"], arrays["words"], arrays["text"], found[0])
    return None


def _listed(handle: Handle, dots: Dots, folder: str | None) -> Samples:
    from bestiary.records.index_file import IndexWriter
    from bestiary.records.tar_index import list_archive

    samples = pack_archive(list_archive(reading(handle), dots), handle)
    writer = IndexWriter(handle.path, folder)
    for name in ("starts", "places", "words", "text"):
        writer.write(name, getattr(samples, name))
    writer.finish(json.loads(json.dumps(samples.about | _about(handle, dots))))
    return samples
