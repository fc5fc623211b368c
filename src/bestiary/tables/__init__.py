"""Tables: rows in arrays, rows in memory-mapped files, and typed columns of CSV files."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.tables.arrays import TabularDataset as TabularDataset
    from bestiary.tables.mapped import MemmapTable as MemmapTable
    from bestiary.tables.rows import Rows as Rows
    from bestiary.tables.schema import Number as Number
    from bestiary.tables.schema import Schema as Schema
    from bestiary.tables.typed import TypedTable as TypedTable

_WHERE = {
    "MemmapTable": "mapped",
    "Number": "schema",
    "Rows": "rows",
    "Schema": "schema",
    "TabularDataset": "arrays",
    "TypedTable": "typed",
}

__all__ = ["MemmapTable", "Number", "Rows", "Schema", "TabularDataset", "TypedTable"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
