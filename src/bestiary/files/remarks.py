"""What is said about class folders that are not as expected: loaded only when there is something to say."""

from __future__ import annotations

import os
import unicodedata
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence

_SHOWN = 10
_LEFT_OUT = {
    "hidden": "hidden files or folders are left out (hidden=True takes them)",
    "odd": "broken links, pipes or devices are left out",
    "loops": "links are not followed, as they lead to a folder above them, or to one that their class has already",
    "stray": "files are left out, as they lie in no class folder",
}
_LEVEL = 5  # remarks, scan, scan_classes, the dataset's __init__: the next one is the user's line


def no_folder(top: str) -> OSError:
    """Say that the root is no folder."""
    kind, found = (NotADirectoryError, "is no folder") if os.path.exists(top) else (FileNotFoundError, "does not exist")
    return kind(f"{top} {found}; expected a folder that holds one folder per class, {top}/<class>/<file>")


def no_class(top: str, taken: str, stray: Sequence[str]) -> ValueError:
    """Say that the root has no class folder, and what lies there instead."""
    there = f"{len(stray)} files directly in it ({some(stray)})" if stray else "no folder in it"
    return ValueError(
        f"{top} should hold one folder per class, but there is {there}; expected {top}/<class>/<file>, where the file {taken}"
    )


def empty_classes(top: str, taken: str, empty: Collection[str], aside: Sequence[str]) -> ValueError:
    """Name the class folders without a file."""
    left = f" (left out: {some(aside)})" if aside else ""
    return ValueError(
        f"{len(empty)} class folders in {top} hold no file that {taken}: {some(empty)}{left}; remove them, or keep them "
        "as classes by allow_empty=True"
    )


def no_file(top: str, taken: str) -> ValueError:
    """Say that not one file was found for a class map."""
    return ValueError(f"no file in the class folders of {top} {taken}; look at the path, or give allow_empty=True")


def unknown_classes(top: str, unknown: Collection[str], known: Sequence[str], source: str) -> ValueError:
    """Name the class folders that the class map does not have, and both roots."""
    plain = {unicodedata.normalize("NFC", name): name for name in known}
    twins = [
        f"{name!a} and {plain[same]!a}" for name in unknown if (same := unicodedata.normalize("NFC", name)) in plain
    ]
    look = f". Names that look the same but are spelled otherwise: {', '.join(twins[:_SHOWN])}" if twins else ""
    return ValueError(
        f"{len(unknown)} class folders in {top} are not in the class map {f'of {source}' if source else 'given by classes='}: "
        f"{some(unknown)}; its {len(known)} classes are {some(known)}. Remove or rename the folders, or use a map that has them{look}"
    )


def tell_left_out(top: str, left_out: Mapping[str, Sequence[str]]) -> None:
    """Name what was left out, once for each reason."""
    for kind, names in left_out.items():
        if names:
            text = f"in {top} {len(names)} {_LEFT_OUT[kind]}: {some(names)}"
            warnings.warn(f"bestiary: {text}", stacklevel=_LEVEL)


def tell_numbers(top: str, names: Sequence[str]) -> None:
    """Show the mapping of folders that are named with integers, where index and name differ."""
    pairs = [f"{name!r} -> {at}" for at, name in enumerate(names)]
    shown = ", ".join(pairs if len(pairs) <= _SHOWN else [*pairs[:_SHOWN], "..."])
    text = f"class folders in {top} are named with integers, but their index is another number: {shown}"
    wish = f"for an index equal to the name give the mapping, classes={{{names[0]!r}: {int(names[0])}, ...}}"
    warnings.warn(f"bestiary: {text}; {wish}", stacklevel=_LEVEL)


def some(names: Iterable[str]) -> str:
    """Show names in order, ten at most; repr keeps those printable that are not valid UTF-8.

    >>> some(["dog", "cat"])
    "'cat', 'dog'"
    """
    shown = sorted(names)
    return ", ".join(map(repr, shown[:_SHOWN])) + (f", ... ({len(shown)} in all)" if len(shown) > _SHOWN else "")
