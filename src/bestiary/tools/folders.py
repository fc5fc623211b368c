"""Find the class folders that a user means, or say what is wrong with the path: what was found, what is expected, a fix.

Layout::

    data/cat/001.jpg          one folder per class, to be split
    data/train/cat/001.jpg    or two parts that are split already
    data/val/cat/002.jpg
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator
from pathlib import Path

_ARCHIVES = (".zip", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst", ".7z", ".rar")
_HELD_OUT = ("test", "valid", "validation", "dev", "eval", "holdout")


def class_folders(
    data: str | os.PathLike[str], *, endings: Collection[str], what: str = "images"
) -> tuple[Path, Path | None]:
    """Return the folder to train on and the one to measure on; None where there is but one folder, which is to be split.

    Args:
        data: a folder of class folders, or one that holds ``train`` and ``val``, each of them such a folder.
        endings: of the files that count, in lower case and with the dot.
        what: the word for such files in messages.

    Raises:
        ValueError: anything else; the message says what was found, what is expected, and the nearest fix.
    """
    root = Path(data).expanduser()
    look = _Look(tuple(endings), what)
    if not root.is_dir():
        raise ValueError(look.no_folder(root))
    if (root / "train").is_dir() and (root / "val").is_dir():
        look.check(root / "train", least=2)
        look.check(root / "val", least=1)
        return root / "train", root / "val"
    look.check(root, least=2)
    return root, None


class _Look:
    """A look at a folder, as far down as it takes to know what it is."""

    def __init__(self, endings: tuple[str, ...], what: str) -> None:
        self.endings, self.what = endings, what

    def check(self, root: Path, least: int) -> None:
        """Raise ValueError unless root holds at least so many class folders."""
        folders = [entry for entry in _entries(root) if entry.is_dir()]
        if not folders:
            raise ValueError(self._no_classes(root))
        if not any(self._holds(folder) for folder in folders):
            raise ValueError(self._other_level(root, folders))
        if len(folders) < least:
            raise ValueError(
                f"found one class folder in {root}, {folders[0].name!r}; a classifier needs at least two classes, "
                f"{root}/<class>/<file>; add a folder with {self.what} of another class"
            )

    def no_folder(self, root: Path) -> str:
        """Say what is at a path that is no folder."""
        expected = f"expected a folder with one folder of {self.what} per class, <folder>/<class>/<file>"
        if root.exists():
            if root.name.lower().endswith(_ARCHIVES):
                fix = "unpack it and give the folder that comes out"
            elif sum(map(self._holds, filter(Path.is_dir, _entries(_above(_above(root)))))) > 1:
                fix = f"if it lies in a class folder, give the folder above that one: --data {_above(_above(root))}"
            else:
                fix = "give the folder that holds the class folders"
            return f"found a file at {root}; {expected}; {fix}"
        near = root.absolute().parent
        while not near.is_dir():
            near = near.parent
        beside = [entry.name for entry in _entries(near) if entry.is_dir()]
        close = difflib.get_close_matches(root.name, beside, n=1) if near == root.absolute().parent else []
        fix = f"did you mean --data {root.parent / close[0]}?" if close else f"the nearest folder that exists is {near}"
        return f"found nothing at {root}; {expected}; {fix}"

    def _files(self, folder: Path) -> Iterator[Path]:
        return (entry for entry in _entries(folder) if entry.name.lower().endswith(self.endings) and entry.is_file())

    def _holds(self, folder: Path) -> bool:
        return next(self._files(folder), None) is not None

    def _no_classes(self, root: Path) -> str:
        count, expected = sum(1 for _ in self._files(root)), f"expected {root}/<class>/<file>"
        if count:
            above = [entry for entry in _entries(root.absolute().parent) if entry.is_dir() and self._holds(entry)]
            fix = f"make a folder for each class in {root} and move the {self.what} there"
            if len(above) > 1:
                fix = f"if {root.name!r} is one class of several, give the folder above: --data {_above(root)}"
            return f"found {count} {self.what} and no class folders in {root}; {expected}; {fix}"
        names = [entry.name for entry in _entries(root)]
        found = f"{len(names)} files and no class folders in {root} (such as {names[0]!r})" if names else "nothing"
        found = found if names else f"nothing in {root}, which is empty"
        return (
            f"found {found}; {expected}; put one folder with {self.what} for each class there, or give another --data"
        )

    def _other_level(self, root: Path, folders: list[Path]) -> str:
        names = ", ".join(repr(folder.name) for folder in folders[:5]) + (", ..." if len(folders) > 5 else "")
        kinds = ", ".join(sorted(self.endings)[:20])
        expected = f"expected {root}/<class>/<file>, or {root}/train and {root}/val"
        deep = [folder for folder in folders if any(self._holds(inner) for inner in _entries(folder) if inner.is_dir())]
        if not deep:
            return f"found no {self.what} in the folders of {root} ({names}); {expected}, where <file> ends in {kinds}"
        other = [folder.name for folder in folders if folder.name.lower() in _HELD_OUT]
        if (root / "train") in folders and other:
            fix = f"rename {other[0]!r} to 'val', or give --data {root / 'train'} to have it split"
        else:
            fix = f"give the folder that holds the class folders: --data {deep[0]}"
        return f"found {self.what} one level deeper than expected, below {names} in {root}; {expected}; {fix}"


def _entries(folder: Path) -> list[Path]:
    """List what is not hidden, in order."""
    try:
        return sorted(entry for entry in folder.iterdir() if not entry.name.startswith("."))
    except PermissionError:
        return []


def _above(root: Path) -> Path:
    """Return the folder above, written the way that root is."""
    return root.parent if root.name and root.parent != root and str(root) not in (".", "..") else root.absolute().parent
