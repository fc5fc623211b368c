"""Class folders to names and labels.

Layout::

    root/cat/001.jpg        class_from="top": "cat"
    root/dog/old/17.PNG     "top": "dog", "path": "dog/old", "leaf": "old"

Names come sorted by class, then folder, then file, by code point: the same on every file system. Classes are numbered
in sorted order, and in natural order (2 before 10) where all are integers. Links are followed, and a linked file belongs
to the folder in which the link lies.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterator
from types import ModuleType
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bestiary.files.names import PackedNames

_LABELS: dict[str, Callable[[str], str]] = {
    "top": lambda folder: folder.partition("/")[0],
    "path": lambda folder: folder,
    "leaf": lambda folder: folder.rpartition("/")[2],
}


class _ClassIndex(dict[str, int]):
    root: str = ""


class ClassNames(list[str]):
    """The names of the classes by index: a list that remembers in ``root`` where it comes from.

    An empty string is an index without a class, such as an explicit mapping with gaps leaves.
    """

    root: str = ""

    @property
    def class_to_idx(self) -> dict[str, int]:
        """Map each class to its index."""
        index = _ClassIndex((name, at) for at, name in enumerate(self) if name)
        index.root = self.root
        return index


class Tree(NamedTuple):
    """What class folders hold: classes by index, names below the root, and the label of each name, (N,)."""

    classes: ClassNames
    names: PackedNames
    labels: npt.NDArray[np.int64]


def scan_classes(
    root: str | os.PathLike[str],
    *,
    extensions: Collection[str],
    classes: object = None,
    allow_empty: bool = False,
    hidden: bool = False,
    accept: Callable[[str], bool] | None = None,
    class_from: Literal["top", "path", "leaf"] = "top",
) -> Tree:
    """List the files below ``root`` whose name ends in one of ``extensions``, labelled by their folder.

    Args:
        root: the folder that holds the class folders.
        extensions: in lower case, with the dot; files match in any case.
        classes: the class map to use instead of numbering the folders found: names by index, a mapping from name to
            index, the path of a JSON file from ``save_classes``, or anything with ``.classes``, such as the training
            dataset. A class of the map may then be without files.
        allow_empty: keep class folders without files.
        hidden: take files and folders whose name begins with a dot, and those that systems make (``__MACOSX``), too.
        accept: called with the path of a file, decides in place of the extensions.
        class_from: the class is the folder directly below root ("top"), the whole path below root of the folder with
            the file ("path"), or that folder's own name ("leaf").

    Raises:
        OSError: root is missing, is no folder, or a folder in it cannot be read.
        ValueError: no class folders, class folders without files, or folders that are not in the class map.
    """
    known = None
    if classes is not None:
        from bestiary.files.classmap import class_names

        known = class_names(classes)
    scan = _Scan(root, (extensions,) if isinstance(extensions, str) else tuple(sorted(extensions)), accept, hidden)
    rows = scan.rows(class_from)
    known = scan.number(rows, allow_empty) if known is None else scan.check(rows, known, allow_empty)
    scan.tell()
    index = known.class_to_idx
    rows = sorted((row for row in rows if row[2]), key=lambda row: (index[row[0]], row[1]))
    labels = np.array([index[row[0]] for row in rows], np.int64)
    counts = np.array([row[2].count("\0") + 1 for row in rows], np.int64)
    return Tree(known, PackedNames(_names(rows)), np.repeat(labels, counts))


_MADE_BY_SYSTEMS = frozenset({"__MACOSX", "@eaDir", "$RECYCLE.BIN", "System Volume Information", "lost+found"})


class _Scan:
    """One pass over a root: what is taken, and what is left out and why."""

    def __init__(
        self, root: str | os.PathLike[str], endings: tuple[str, ...], accept: Callable[[str], bool] | None, hidden: bool
    ) -> None:
        self.top = os.path.expanduser(os.fspath(root))
        self.endings, self.accept, self.hidden = endings, accept, hidden
        self.taken = "is accepted by accept=" if accept else f"ends in {', '.join(endings)} (any case)"
        self.left_out: dict[str, list[str]] = {"hidden": [], "odd": [], "loops": [], "stray": []}

    def rows(self, class_from: str) -> list[tuple[str, str, str]]:
        """List (class, folder, files joined by NUL) of each folder that is a class or belongs to one."""
        if class_from not in _LABELS:
            raise ValueError(f"class_from should be one of {', '.join(_LABELS)}, but is {class_from!r}")
        if not os.path.isdir(self.top):
            raise _remarks().no_folder(self.top)
        rows = []
        for folder, files, inner in self._walk(class_from == "top"):
            if not folder:
                self.left_out["stray"] += files
            elif files or class_from == "top" or not inner:
                rows.append((_LABELS[class_from](folder), folder, "\0".join(files)))
        return rows

    def _walk(self, once: bool) -> Iterator[tuple[str, list[str], bool]]:
        """Yield each folder's path below top, its files in order, and whether it holds folders.

        Links that lead back end. With ``once`` a class takes a folder once, however many links in it lead there.
        """
        seen: set[tuple[str, tuple[int, int]]] = set()
        waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
        while waiting:
            folder, above = waiting.pop()
            status = os.stat(f"{self.top}/{folder}")
            here = (status.st_dev, status.st_ino)
            marked = (folder.partition("/")[0], here)
            if here in above or (once and marked in seen):
                self.left_out["loops"].append(folder)
                continue
            seen.add(marked)
            below = f"{folder}/" if folder else ""
            files, folders = self._choose(below)
            yield folder, files, bool(folders)
            waiting += [(below + name, (*above, here)) for name in folders]

    def _choose(self, below: str) -> tuple[list[str], list[str]]:
        """List the files to take, in order, and the folders to enter; note what is left out."""
        files, folders, odd = _read_folder(f"{self.top}/{below}")
        if self.accept is None:
            files = [name for name in files if name.endswith(self.endings) or name.lower().endswith(self.endings)]
        if not self.hidden:
            self.left_out["hidden"] += [below + name for name in (*files, *folders) if _is_hidden(name)]
            files, folders, odd = ([name for name in kind if not _is_hidden(name)] for kind in (files, folders, odd))
        if self.accept is not None:
            files = [name for name in files if self.accept(f"{self.top}/{below}{name}")]
        self.left_out["odd"] += [below + name for name in odd]
        return sorted(files), folders

    def number(self, rows: list[tuple[str, str, str]], allow_empty: bool) -> ClassNames:
        """Number the classes found: sorted as text, or by value where all are integers."""
        found = {row[0] for row in rows}
        if not found:
            raise _remarks().no_class(self.top, self.taken, self.left_out["stray"])
        empty = found - {row[0] for row in rows if row[2]}
        if empty and not allow_empty:
            raise _remarks().empty_classes(self.top, self.taken, empty, self.left_out["hidden"] + self.left_out["odd"])
        whole = all(re.fullmatch("-?[0-9]+", name) for name in found)
        names = ClassNames(sorted(found, key=lambda name: (int(name) if whole else 0, name)))
        names.root = self.top
        if whole and any(int(name) != at for at, name in enumerate(names)):
            _remarks().tell_numbers(self.top, names)
        return names

    def check(self, rows: list[tuple[str, str, str]], known: ClassNames, allow_empty: bool) -> ClassNames:
        """Refuse folders that the class map does not have, and a root without a single file."""
        unknown = {row[0] for row in rows}.difference(known)
        if unknown:
            raise _remarks().unknown_classes(self.top, unknown, known, known.root)
        if not allow_empty and not any(row[2] for row in rows):
            raise _remarks().no_file(self.top, self.taken)
        return known

    def tell(self) -> None:
        """Name what was left out."""
        if any(self.left_out.values()):
            _remarks().tell_left_out(self.top, self.left_out)


def _is_hidden(name: str) -> bool:
    return name[0] == "." or name in _MADE_BY_SYSTEMS


def _read_folder(path: str) -> tuple[list[str], list[str], list[str]]:
    """Sort the entries of one folder into files, folders, and what is neither."""
    files: list[str] = []
    folders: list[str] = []
    odd: list[str] = []
    with os.scandir(path) as entries:
        for entry in entries:
            # The kind comes with the listing: no call to the system for an ordinary file.
            if entry.is_file(follow_symlinks=False):
                files.append(entry.name)
                continue
            try:
                (folders if entry.is_dir() else files if entry.is_file() else odd).append(entry.name)
            except OSError:  # a link to itself, or into a place that may not be entered
                odd.append(entry.name)
    return files, folders, odd


def _names(rows: list[tuple[str, str, str]]) -> Iterator[str]:
    """Yield the names below top and empty the list meanwhile, so that no folder is held twice."""
    rows.reverse()
    while rows:
        _, folder, files = rows.pop()
        for name in files.split("\0"):
            yield f"{folder}/{name}"


def _remarks() -> ModuleType:
    from bestiary.files import remarks

    return remarks
