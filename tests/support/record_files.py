"""Files of records for tests, and small archives made by hand."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from bestiary.records import RecordStream


def write_jsonl(path: Path, ids: Iterable[int]) -> Path:
    path.write_text("".join(json.dumps({"id": i, "text": f"row {i}"}) + "\n" for i in ids), encoding="utf-8")
    return path


def write_csv(path: Path, ids: Iterable[int]) -> Path:
    path.write_text("id,text\n" + "".join(f'{i},"row ""{i}"",\n{i}"\n' for i in ids), encoding="utf-8", newline="")
    return path


def write_tar(path: Path, members: Sequence[tuple[str, bytes]], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


def write_ids_tar(path: Path, ids: Iterable[int]) -> Path:
    return write_tar(path, [(f"{i:05d}.{kind}", str(i).encode()) for i in ids for kind in ("id", "txt")])


def write_parquet(path: Path, ids: Iterable[int], group: int = 7) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    numbers = list(ids)
    table = pa.table({"id": pa.array(numbers, pa.int64()), "text": pa.array([f"row {i}" for i in numbers])})
    pq.write_table(table, path, row_group_size=group)
    return path


def write_records(path: Path, ids: Iterable[int]) -> Path:
    """Write numbered records in the format that the path's ending names."""
    return {
        ".jsonl": write_jsonl, ".csv": write_csv, ".tar": write_ids_tar, ".parquet": write_parquet
    }[path.suffix](path, ids)  # fmt: skip


def id_of(sample: Any) -> int:
    return int(sample["id"])


def read_all(stream: RecordStream, readers: int, epoch: int = 0, positions: Any = None) -> list[list[int]]:
    """Return the ids that each of so many readers gets."""
    return [[id_of(s) for s in stream.open(k, readers, epoch, 0, positions)] for k in range(readers)]
