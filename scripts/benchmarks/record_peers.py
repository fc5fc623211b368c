"""Record files for the benchmark, and what others read them with: lines, csv, datasets, webdataset, offsets."""

from __future__ import annotations

import csv
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

BATCH = 256
WORDS = [
    "the",
    "of",
    "and",
    "to",
    "in",
    "is",
    "that",
    "it",
    "was",
    "for",
    "on",
    "are",
    "as",
    "with",
    "his",
    "they",
    "at",
    "be",
    "this",
    "from",
    "have",
    "or",
    "by",
    "one",
    "had",
    "not",
    "but",
    "what",
]


def make(folder: Path, size: int) -> None:
    """Write the files, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "rows.csv").exists() or not (folder / "rows.jsonl").exists():
        _make_rows(folder, size)
    if not (folder / "shard-9.tar").exists():
        _make_tars(folder)


def _texts(rng: np.random.Generator) -> list[str]:
    texts = []
    for _ in range(20_000):
        words = list(rng.choice(np.array(WORDS), max(8, int(rng.normal(42, 12)))))
        third = len(words) // 3
        words[third] += "," * int(rng.random() < 0.5)
        words[2 * third] += "\n" * int(rng.random() < 0.3)
        if rng.random() < 0.2:
            words[third + 1] = f'"{words[third + 1]}"'
        texts.append(" ".join(words))
    return texts


def _make_rows(folder: Path, size: int) -> None:
    rng, written, number = np.random.default_rng(4), 0, 0
    texts = _texts(rng)
    drafts = [folder / "rows.jsonl.part", folder / "rows.csv.part"]
    with drafts[0].open("w", newline="\n") as lines, drafts[1].open("w", newline="") as rows:
        writer = csv.writer(rows)
        writer.writerow(["id", "text", "label"])
        while written < size:
            picks, labels = rng.integers(0, len(texts), 5000).tolist(), rng.integers(0, 10, 5000).tolist()
            part = [(number + n, f"{texts[p]} {number + n}", labels[n]) for n, p in enumerate(picks)]
            text = "".join(json.dumps({"id": i, "text": t, "label": c}) + "\n" for i, t, c in part)
            lines.write(text)
            writer.writerows(part)
            written, number = written + len(text), number + 5000
    for draft in drafts:
        os.replace(draft, draft.with_suffix(""))


def _make_tars(folder: Path) -> None:
    for shard in range(10):
        with tarfile.open(folder / f"shard-{shard}.tar", "w") as archive:
            for number in range(2000 * shard, 2000 * shard + 2000):
                for kind, data in (("txt", b"x" * 2000), ("cls", str(number % 10).encode())):
                    info = tarfile.TarInfo(f"{number:06d}.{kind}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))


# -- contenders: what each batch has is counted by its list of texts


def collate(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Make a batch by hand."""
    torch = import_module("torch")
    numbers = {name: torch.tensor([row[name] for row in rows]) for name in ("id", "label")}
    return numbers | {"text": [row["text"] for row in rows]}


def iterable(rows: Callable[[int, int], Iterator[Any]], workers: int, make_batch: Any = collate) -> Iterable[Any]:
    """Return torch's loader over rows that a function yields for worker k of n."""
    data = import_module("torch.utils.data")

    class Rows(data.IterableDataset):  # type: ignore[misc, name-defined]
        def __iter__(self) -> Iterator[Any]:
            info = data.get_worker_info()
            return rows(0 if info is None else info.id, 1 if info is None else info.num_workers)

    loader: Iterable[Any] = data.DataLoader(Rows(), BATCH, collate_fn=make_batch, num_workers=workers)
    return loader


def every_line(path: Path, loads: Callable[[bytes], Any]) -> Callable[[int, int], Iterator[Any]]:
    """Every worker reads all lines, and parses its own."""

    def rows(worker: int, workers: int) -> Iterator[Any]:
        with path.open("rb", buffering=1 << 20) as file:
            for number, line in enumerate(file):
                if number % workers == worker:
                    yield loads(line)

    return rows


def every_row(path: Path) -> Callable[[int, int], Iterator[Any]]:
    """Every worker reads all rows by Python's csv, and keeps its own."""

    def rows(worker: int, workers: int) -> Iterator[Any]:
        with path.open(encoding="utf-8", newline="") as file:
            reader = csv.reader(file)
            next(reader)
            for number, row in enumerate(reader):
                if number % workers == worker:
                    yield {"id": int(row[0]), "text": row[1], "label": int(row[2])}

    return rows


def hugging_face(kind: str, path: Path, workers: int) -> Iterable[Any]:
    """Datasets, streaming."""
    stream = import_module("datasets").load_dataset(kind, data_files=str(path), streaming=True, split="train")
    data = import_module("torch.utils.data")
    loader: Iterable[Any] = data.DataLoader(stream, BATCH, collate_fn=collate, num_workers=workers)
    return loader


def web_dataset(folder: Path, workers: int) -> Iterable[Any]:
    """webdataset's own pipeline over the tar files."""
    wds = import_module("webdataset")
    stream = wds.WebDataset(sorted(map(str, folder.glob("shard-*.tar"))), shardshuffle=False, empty_check=False)
    data = import_module("torch.utils.data")
    loader: Iterable[Any] = data.DataLoader(
        stream, BATCH, collate_fn=lambda rows: {"text": [r["txt"] for r in rows]}, num_workers=workers
    )
    return loader


class Offsets:
    """What one writes at first: offsets of lines by numpy, and json at each of them."""

    def __init__(self, path: Path) -> None:
        self.path, parts, at = path, [np.zeros(1, np.int64)], 0
        with path.open("rb", buffering=0) as file:
            while block := file.read(1 << 24):
                parts.append(np.flatnonzero(np.frombuffer(block, np.uint8) == 10) + at + 1)
                at += len(block)
        self.starts, self.number = np.concatenate(parts), -1

    def __len__(self) -> int:
        return len(self.starts) - 1

    def __getitem__(self, index: int) -> Any:
        if self.number < 0:
            self.number = os.open(self.path, os.O_RDONLY)
        start = int(self.starts[index])
        return json.loads(os.pread(self.number, int(self.starts[index + 1]) - start, start))
