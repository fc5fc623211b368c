"""Files of records: JSON lines, CSV, tar and Parquet, by index or as a stream."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bestiary.records.csv_rows import CsvRows as CsvRows
    from bestiary.records.faults import RecordError as RecordError
    from bestiary.records.json_lines import JsonLines as JsonLines
    from bestiary.records.parquet_rows import ParquetRows as ParquetRows
    from bestiary.records.stream import RecordStream as RecordStream
    from bestiary.records.tar_samples import TarSamples as TarSamples

_WHERE = {
    "CsvRows": "csv_rows",
    "JsonLines": "json_lines",
    "ParquetRows": "parquet_rows",
    "RecordError": "faults",
    "RecordStream": "stream",
    "TarSamples": "tar_samples",
}

__all__ = ["CsvRows", "JsonLines", "ParquetRows", "RecordError", "RecordStream", "TarSamples"]


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return __all__
