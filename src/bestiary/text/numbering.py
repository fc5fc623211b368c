"""Words for labels to indices: numbered as found, or by a class map that exists already."""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence

from bestiary.files.classmap import class_names
from bestiary.files.tree import ClassNames


def number_labels(found: Sequence[str], path: str) -> ClassNames:
    """Sort the labels found; integers by value, and say so where the index is another number than the name."""
    whole = all(re.fullmatch(r"-?[0-9]+", word) for word in found)
    names = ClassNames(sorted(found, key=lambda word: (int(word) if whole else 0, word)))
    names.root = path
    if whole and any(int(word) != at for at, word in enumerate(names)):
        pairs = ", ".join(f"{word!r} -> {at}" for at, word in enumerate(names[:10]))
        warnings.warn(
            f"bestiary: the labels in {path} are integers, but the index is another number: {pairs}; "
            f"for index = label give the mapping, classes={{{names[0]!r}: {names[0]}, ...}}",
            stacklevel=3,
        )
    return names


def known_labels(classes: object, found: Sequence[str], path: str) -> ClassNames:
    """Return the class map that the caller gave.

    Raises:
        ValueError: a label found is not in it.
    """
    known = class_names(classes)
    unknown = sorted(set(found) - set(known))
    if unknown:
        source = f"the class map of {known.root}" if known.root else "the class map given by classes="
        raise ValueError(f"labels in {path} are not in {source}: {unknown[:10]}; its classes are {list(known)[:20]}")
    return known
