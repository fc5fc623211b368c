"""Class folders to names and labels; the class map, saved and loaded.

Layout::

    root/cat/001.jpg        class_from="top": "cat"
    root/dog/old/17.PNG     "top": "dog", "path": "dog/old", "leaf": "old"

Names come sorted by index of class, then folder, then file, by code point: the same on every file system. Classes are
numbered in sorted order, and in natural order (2 before 10) where all are integers. Links are followed, and a linked
file belongs to the folder in which the link lies.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from operator import index as as_int
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from bestiary.files.names import PackedNames

_INTEGER = re.compile(r"-?[0-9]+")
_SHOWN = 10
_LEFT_OUT = {
    "hidden": "hidden files or folders are left out (hidden=True takes them)",
    "odd": "broken links, pipes or devices are left out",
    "loops": "links are not followed, as they lead back to a folder above them",
    "stray": "files are left out, as they lie in no class folder",
}


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


class _ClassIndex(dict[str, int]):
    root: str = ""


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
        hidden: take files and folders whose name begins with a dot, too.
        accept: called with the path of a file, decides in place of the extensions.
        class_from: the class is the folder directly below root ("top"), the whole path below root of the folder with
            the file ("path"), or that folder's own name ("leaf").

    Raises:
        OSError: root is missing, is no folder, or a folder in it cannot be read.
        ValueError: no class folders, class folders without files, or folders that are not in the class map.
    """
    top = _existing(root)
    endings = (extensions,) if isinstance(extensions, str) else tuple(sorted(extensions))
    taken = "is accepted by accept=" if accept else f"ends in {', '.join(endings)} (any case)"
    given = None if classes is None else _class_names(classes)
    left_out: dict[str, list[str]] = defaultdict(list)
    rows = _rows(_walk(top, endings, accept, hidden, left_out), class_from, left_out)
    if given is None:
        _check_found(rows, top, taken, allow_empty, left_out)
        given = _number({row[0] for row in rows}, top)
    else:
        _check_known({row[0] for row in rows}, top, given)
    index = given.class_to_idx
    rows = sorted((row for row in rows if row[2]), key=lambda row: (index[row[0]], row[1]))
    if not rows and not allow_empty:
        raise ValueError(
            f"found no file in the class folders of {top} that {taken}; see the path, or give allow_empty=True"
        )
    _tell(top, left_out)
    labels = np.array([index[row[0]] for row in rows], np.int64)
    counts = np.array([row[2].count("\0") + 1 for row in rows], np.int64)
    names = PackedNames(f"{folder}/{name}" for _, folder, files in rows for name in files.split("\0"))
    return Tree(given, names, np.repeat(labels, counts))


def save_classes(path: str | os.PathLike[str], classes: object) -> None:
    """Write the class map, in any form that ``scan_classes`` takes, as a JSON list of names by index.

    A reader of ``path`` sees the old file or the new one, never half of it.
    """
    text = json.dumps(list(_class_names(classes)), indent=0) + "\n"
    draft = f"{os.fspath(path)}.{os.getpid()}.tmp"
    with open(draft, "w", encoding="ascii") as file:
        file.write(text)
    os.replace(draft, path)


def load_classes(path: str | os.PathLike[str]) -> ClassNames:
    """Read a class map: a JSON list of names by index, or a JSON object of name to index.

    Raises:
        OSError: the file cannot be read.
        ValueError: it holds no class map.
    """
    with open(path, encoding="utf-8") as file:
        try:
            found = json.load(file)
            if not isinstance(found, (list, dict)):
                raise TypeError(f"it holds {found!r:.80}")
            names = _class_names(found)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path} should hold a JSON list of class names, as save_classes writes, but {error}"
            ) from None
    names.root = os.fspath(path)
    return names


def _class_names(given: Any) -> ClassNames:
    """Bring a class map of any form to names by index."""
    if isinstance(given, (str, os.PathLike)):
        return load_classes(given)
    inner = getattr(given, "classes", None)
    listed = given if inner is None else inner
    if isinstance(listed, Mapping):
        names = _from_mapping(listed)
    elif isinstance(listed, Iterable) and not isinstance(listed, (str, bytes)):
        names = ClassNames(listed)
    else:
        raise TypeError(f"a class map is names, a mapping, a JSON file or has .classes, but got {type(given).__name__}")
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"class names should be str, but one is {name!r} ({type(name).__name__})")
    if len(names.class_to_idx) < len(names) - names.count(""):
        raise ValueError(
            f"the class map names a class twice: {_some({name for name in names if names.count(name) > 1})}"
        )
    if not any(names):
        raise ValueError("the class map is empty; it needs at least one class")
    names.root = str(getattr(listed, "root", "") or getattr(given, "root", ""))
    return names


def _from_mapping(index: Mapping[str, Any]) -> ClassNames:
    taken: dict[int, str] = {}
    for name, value in index.items():
        at = as_int(value)
        if at < 0 or at in taken:
            rest = f"as {taken[at]!r} has" if at in taken else "which is below 0"
            raise ValueError(
                f"the class map gives {name!r} the index {at}, {rest}; each class needs an index of its own"
            )
        taken[at] = name
    return ClassNames(taken.get(at, "") for at in range(max(taken, default=-1) + 1))


def _existing(root: str | os.PathLike[str]) -> str:
    top = os.path.expanduser(os.fspath(root))
    if not os.path.exists(top):
        raise FileNotFoundError(f"found no folder {top}; expected a folder that holds one folder per class")
    if not os.path.isdir(top):
        raise NotADirectoryError(f"{top} is a file; expected a folder that holds one folder per class")
    return top


def _walk(
    top: str,
    endings: tuple[str, ...],
    accept: Callable[[str], bool] | None,
    hidden: bool,
    left_out: dict[str, list[str]],
) -> Iterator[tuple[str, list[str], bool]]:
    """Yield each folder's path below top, its files in order, and whether it holds folders."""
    waiting: list[tuple[str, tuple[tuple[int, int], ...]]] = [("", ())]
    while waiting:
        folder, above = waiting.pop()
        path = f"{top}/{folder}" if folder else top
        status = os.stat(path)
        here = (status.st_dev, status.st_ino)
        if here in above:
            left_out["loops"].append(folder)
            continue
        below = f"{folder}/" if folder else ""
        files, folders, odd = _read_folder(path)
        if accept is None:
            files = [name for name in files if name.lower().endswith(endings)]
        if not hidden:
            left_out["hidden"] += [below + name for name in (*files, *folders) if name[0] == "."]
            files, folders, odd = ([name for name in kind if name[0] != "."] for kind in (files, folders, odd))
        if accept is not None:
            files = [name for name in files if accept(f"{path}/{name}")]
        left_out["odd"] += [below + name for name in odd]
        yield folder, sorted(files), bool(folders)
        waiting += [(below + name, (*above, here)) for name in folders]


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


def _rows(
    folders: Iterable[tuple[str, list[str], bool]], class_from: str, left_out: dict[str, list[str]]
) -> list[tuple[str, str, str]]:
    """List (class, folder, files joined by NUL) for each folder that is or belongs to a class."""
    label = _LABELS.get(class_from)
    if label is None:
        raise ValueError(f"class_from should be one of {_some(_LABELS)}, but is {class_from!r}")
    rows = []
    for folder, files, inner in folders:
        if not folder:
            left_out["stray"] += files
        elif files or class_from == "top" or not inner:
            rows.append((label(folder), folder, "\0".join(files)))
    return rows


def _check_found(
    rows: list[tuple[str, str, str]], top: str, taken: str, allow_empty: bool, left_out: dict[str, list[str]]
) -> None:
    if not rows:
        stray = left_out["stray"]
        found = f"{len(stray)} files directly in it ({_some(stray)})" if stray else "none"
        raise ValueError(
            f"{top} should hold one folder per class, but there are {found}; expected {top}/<class>/<file>"
        )
    empty = {row[0] for row in rows} - {row[0] for row in rows if row[2]}
    if empty and not allow_empty:
        aside = [*left_out["hidden"], *left_out["odd"]]
        raise ValueError(
            f"{len(empty)} class folders in {top} hold no file that {taken}: {_some(empty)}"
            + (f" (left out as hidden or broken: {_some(aside)})" if aside else "")
            + "; remove them, or give allow_empty=True to keep them as classes"
        )


def _number(found: set[str], top: str) -> ClassNames:
    """Sort the classes; integers by value, and say so where the index is another number than the name."""
    whole = all(_INTEGER.fullmatch(name) for name in found)
    names = ClassNames(sorted(found, key=lambda name: (int(name) if whole else 0, name)))
    names.root = top
    if whole and any(int(name) != at for at, name in enumerate(names)):
        pairs = ", ".join(f"{name!r} -> {at}" for at, name in enumerate(names[:_SHOWN])) + ", ..." * (
            len(names) > _SHOWN
        )
        wish = f"classes={{{names[0]!r}: {names[0]}, ...}}"
        text = f"the class folders in {top} are named with integers, but the index is another number: {pairs}"
        warnings.warn(f"bestiary: {text}; for index = name give the mapping, {wish}", stacklevel=4)
    return names


def _check_known(found: set[str], top: str, known: ClassNames) -> None:
    unknown = found - set(known)
    if unknown:
        source = f"the class map of {known.root}" if known.root else "the class map given by classes="
        raise ValueError(
            f"{len(unknown)} class folders in {top} are not in {source}: {_some(unknown)}; its {len(known)} classes are "
            f"{_some(known)}. Remove or rename the folders, or use a class map that has them"
        )


def _tell(top: str, left_out: dict[str, list[str]]) -> None:
    for kind, text in _LEFT_OUT.items():
        if left_out[kind]:
            warnings.warn(f"bestiary: in {top} {len(left_out[kind])} {text}: {_some(left_out[kind])}", stacklevel=4)


def _some(names: Iterable[str]) -> str:
    """Show names in order, ten at most; repr keeps names printable that are not valid UTF-8."""
    shown = sorted(names)
    return ", ".join(map(repr, shown[:_SHOWN])) + (f", ... ({len(shown)} in all)" if len(shown) > _SHOWN else "")


_LABELS: dict[str, Callable[[str], str]] = {
    "top": lambda folder: folder.partition("/")[0],
    "path": lambda folder: folder,
    "leaf": lambda folder: folder.rpartition("/")[2],
}
