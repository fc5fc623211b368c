"""The class map: saved, loaded, and taken in any form that people keep it in.

Layout::

    classes.json    ["cat", "dog", "emu"], the names of the classes by index; "" is an index without a class
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from operator import index as as_int
from typing import Any

from bestiary.files.tree import ClassNames


def save_classes(path: str | os.PathLike[str], classes: object) -> None:
    """Write the class map, in any form that ``scan_classes`` takes, as a JSON list of names by index.

    A reader of ``path`` sees the old file or the new one, never half of it.
    """
    text = json.dumps(list(class_names(classes)), indent=0) + "\n"
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
            names = class_names(found)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{path} should hold a JSON list of class names, as save_classes writes, but {error}"
            ) from None
    names.root = os.fspath(path)
    return names


def class_names(given: Any) -> ClassNames:
    """Bring a class map of any form to names by index."""
    if isinstance(given, (str, os.PathLike)):
        return load_classes(given)
    inner = getattr(given, "classes", None)
    listed = given if inner is None else inner
    if isinstance(listed, Mapping):
        names = _from_mapping(listed)
    elif isinstance(listed, Iterable) and not isinstance(listed, (str, bytes, set, frozenset)):
        names = ClassNames(listed)
    else:
        raise TypeError(
            f"a class map is a list of names, a mapping, a JSON file or has .classes, but this is {type(given).__name__}"
        )
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"class names should be str, but one is {name!r} ({type(name).__name__})")
    if len(names.class_to_idx) < len(names) - names.count(""):
        raise ValueError(f"the class map names a class twice: {max(filter(None, names), key=names.count)!r}")
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
