"""Class folders, packed names and splits: for datasets that are files in folders."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.files.classmap import load_classes as load_classes
    from bestiary.files.classmap import save_classes as save_classes
    from bestiary.files.names import PackedNames as PackedNames
    from bestiary.files.split import Split as Split
    from bestiary.files.split import grouped_split as grouped_split
    from bestiary.files.split import hash_split as hash_split
    from bestiary.files.split import random_split as random_split
    from bestiary.files.split import stratified_split as stratified_split
    from bestiary.files.tree import ClassNames as ClassNames
    from bestiary.files.tree import Tree as Tree
    from bestiary.files.tree import scan_classes as scan_classes

# fmt: off
__all__ = [
    "ClassNames", "PackedNames", "Split", "Tree", "grouped_split", "hash_split", "load_classes", "random_split",
    "save_classes", "scan_classes", "stratified_split",
]
# fmt: on
_WHERE = {"ClassNames": "tree", "PackedNames": "names", "Tree": "tree", "scan_classes": "tree"}
_WHERE |= {"load_classes": "classmap", "save_classes": "classmap"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE.get(name, 'split')}"), name)


def __dir__() -> list[str]:
    return __all__
