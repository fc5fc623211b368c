"""Record files: rows a second of JSON lines, CSV and tar, index speed and random access, beside line readers and peers.

    scripts/bench records
    scripts/bench records --only jsonl,json_lines,hf_jsonl --workers 0 --rounds 5 --data /data/bench

Made once, about 1 GB each: the same rows {id, text, label} as JSON lines and as CSV with quoted commas and line ends, and 20,000
small samples in ten tar files. All contenders of a kind deliver batches {id, text, label} of 256 rows of one file. ``cpu_us``
is processor time a row of the main process and its workers, which hardly depends on what else is running.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import Any

from harness import processor_s, run_rounds, table
from record_peers import BATCH, Offsets, collate, every_line, every_row, hugging_face, iterable, make, web_dataset

KINDS = {  # the first of a kind is what the others are compared with
    "jsonl": ["json_lines", "orjson_lines", "hf_jsonl", "jsonl", "jsonl_shuffled"],
    "csv": ["csv_lines", "hf_csv", "csv"],
    "tar": ["webdataset", "tar"],
    "random": ["offsets_json", "random"],
    "index": ["read", "index_jsonl", "index_csv"],
}
FIELDS = {
    "rate": "rows a second (index: MB)",
    "cpu_us": "CPU us a row",
    "first_s": "first batch, s",
    "memory_mb": "peak MB",
}


def ours(name: str, folder: Path, workers: int) -> Iterable[Any]:
    """Return one of our loaders."""
    from bestiary.loading import Loader
    from bestiary.records import JsonLines, RecordStream

    if name == "random":
        return Loader(JsonLines(folder / "rows.jsonl"), batch_size=BATCH, shuffle=True, num_workers=workers)
    if name == "tar":
        stream = RecordStream(folder / "shard-*.tar", transform=as_text)
    elif name.startswith("csv"):
        stream = RecordStream(folder / "rows.csv", types={"id": int, "label": int})
    else:
        stream = RecordStream(folder / "rows.jsonl", shuffle=name.endswith("shuffled"))
    return Loader(stream, batch_size=BATCH, num_workers=workers)


def as_text(sample: dict[str, Any]) -> dict[str, Any]:
    """Name the data as in the other files."""
    return {"text": sample["txt"]}


def loader_of(name: str, folder: Path, workers: int) -> Iterable[Any]:
    """Return the batches of a contender."""
    lines = folder / "rows.jsonl"
    if name == "offsets_json":
        data = import_module("torch.utils.data")
        found: Iterable[Any] = data.DataLoader(
            Offsets(lines), BATCH, shuffle=True, collate_fn=collate, num_workers=workers
        )
        return found
    others: dict[str, Callable[[], Iterable[Any]]] = {
        "json_lines": lambda: iterable(every_line(lines, json.loads), workers),
        "orjson_lines": lambda: iterable(every_line(lines, import_module("orjson").loads), workers),
        "csv_lines": lambda: iterable(every_row(folder / "rows.csv"), workers),
        "hf_jsonl": lambda: hugging_face("json", lines, workers),
        "hf_csv": lambda: hugging_face("csv", folder / "rows.csv", workers),
        "webdataset": lambda: web_dataset(folder, workers),
    }
    return others[name]() if name in others else ours(name, folder, workers)


def measure_index(name: str, folder: Path) -> dict[str, Any]:
    """Measure reading alone, or the making of an index."""
    from bestiary.records import CsvRows, JsonLines

    path = folder / ("rows.csv" if name == "index_csv" else "rows.jsonl")
    begun, cpu = time.perf_counter(), processor_s()
    if name == "read":
        block = bytearray(1 << 20)
        with path.open("rb", buffering=0) as file:
            while file.readinto(block):
                pass
    else:
        with tempfile.TemporaryDirectory(dir=folder) as where:
            len((CsvRows if name == "index_csv" else JsonLines)(path, index_folder=where))
    megabytes = path.stat().st_size / 1e6
    return {"rate": megabytes / (time.perf_counter() - begun), "cpu_mb_s": megabytes / (processor_s() - cpu)}


def measure(name: str, folder: Path, workers: int, rows: int) -> dict[str, Any]:
    """Run one contender in this process."""
    if name in KINDS["index"]:
        return measure_index(name, folder)
    import_module("torch.utils.data")
    import_module("bestiary.loading.loader")
    begun, cpu, first, count, start = time.perf_counter(), processor_s(), 0.0, 0, 0.0
    skip = 2 * workers + 1  # what was made ahead when the clock starts
    iterator = iter(loader_of(name, folder, workers))
    for number, batch in enumerate(islice(iterator, rows // BATCH)):
        first = first or time.perf_counter() - begun
        if number >= skip:
            count += len(batch["text"])
        else:
            start = time.perf_counter()
    seconds = time.perf_counter() - start
    close = getattr(iterator, "close", None) or getattr(iterator, "_shutdown_workers", None)
    if close is not None:
        close()
    return {"rate": count / seconds, "cpu_us": 1e6 * (processor_s() - cpu) / max(count, 1), "first_s": first}


def main() -> None:
    """Measure one contender, or all of them in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, default=Path(tempfile.gettempdir()) / "bestiary-bench" / "records")
    parser.add_argument("--size", type=int, default=10**9, help="bytes of the JSON lines, when they are made")
    parser.add_argument("--rows", type=int, default=200_000, help="rows read in a run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--only", help="contenders or kinds, with commas between them")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    args = parser.parse_args()
    make(args.data, args.size)
    if args.measure:
        print(json.dumps(measure(args.measure, args.data, args.workers[0], args.rows)))
        return
    chosen = args.only.split(",") if args.only else list(KINDS)
    print(
        f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}, {args.rows:,} rows of {(args.data / 'rows.jsonl').stat().st_size:,} bytes"
    )
    for kind, names in KINDS.items():
        names = names if kind in chosen else [name for name in names if name in chosen]
        for workers in args.workers if kind != "index" else args.workers[:1]:
            if names:
                options = ["--data", str(args.data), "--rows", str(args.rows), "--workers", str(workers)]
                rows = run_rounds(__file__, names, options, rounds=args.rounds)
                fields = (
                    FIELDS
                    if kind != "index"
                    else {"rate": "MB a second", "cpu_mb_s": "MB a CPU second", "memory_mb": "peak MB"}
                )
                print(
                    f"\n{kind}, {workers} workers\n\n{table(rows, fields, ratio='rate', reference=names[0])}",
                    flush=True,
                )


if __name__ == "__main__":
    main()
