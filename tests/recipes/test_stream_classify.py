"""The recipe for streams: it learns, and goes on after a kill as if it had not been, with several ranks too."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

import pytest

RECIPE = Path(__file__).resolve().parent.parent.parent / "recipes" / "stream_classify.py"


def recipe() -> Any:
    spec = spec_from_file_location("stream_classify", RECIPE)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["stream_classify"] = module
    spec.loader.exec_module(module)
    return module


def write_rows(path: Path, count: int) -> Path:
    words = ["alpha beta gamma", "delta epsilon zeta", "eta theta iota"]
    rows = [json.dumps({"id": i, "text": f"{words[i % 3]} {i}", "label": "abc"[i % 3]}) for i in range(count)]
    path.write_text("\n".join(rows) + "\n")
    return path


def lines(folder: Path) -> list[dict[str, Any]]:
    path = folder / "metrics.jsonl"
    if not path.exists():
        return []
    whole = [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [json.loads(line) for line in whole]


def test_it_learns_from_packed_csv(tmp_path: Path) -> None:
    text = "words,kind\n" + "".join(f'"{"ab"[i % 2] * 3} {i}",{"ab"[i % 2]}\n' for i in range(200))
    with gzip.open(tmp_path / "rows.csv.gz", "wt", encoding="utf-8") as file:
        file.write(text)
    options = ["--data", str(tmp_path / "rows.csv.gz"), "--text", "words", "--label", "kind", "--epochs", "3"]
    assert recipe().main([*options, "--out", str(tmp_path / "out"), "--batch-size", "8"]) > 0.9
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["records"] + lines(tmp_path / "out")[-2]["records"] >= 200 - 8
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == ["a", "b"]


@pytest.mark.parametrize("data", ["none.jsonl", "bad.jsonl", "one.jsonl", "names.jsonl"])
def test_what_is_wrong_is_said_in_one_line(tmp_path: Path, data: str, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.jsonl").write_text("nonsense\n")
    (tmp_path / "one.jsonl").write_text('{"text": "a", "label": "x"}\n' * 9)
    (tmp_path / "names.jsonl").write_text('{"words": "a", "label": "x"}\n' * 9)
    with pytest.raises(SystemExit) as ended:
        recipe().main(["--data", str(tmp_path / data), "--out", str(tmp_path / "out")])
    assert ended.value.code == 2
    told = capsys.readouterr().err.strip().splitlines()
    assert told[-1].startswith("stream_classify: ") and len(told) == 1


def start(arguments: list[str], ranks: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, str(RECIPE)]
    if ranks > 1:
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node",
            str(ranks),
            str(RECIPE),
        ]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*command, *arguments],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
    )


@pytest.mark.parametrize(("ranks", "workers", "steps"), [(1, 0, 5), (1, 2, 12), (3, 0, 4)])
def test_kill_and_resume_gives_the_same_records(tmp_path: Path, ranks: int, workers: int, steps: int) -> None:
    path = write_rows(tmp_path / "rows.jsonl", 240)
    options = ["--data", str(path), "--epochs", "2", "--batch-size", "8", "--workers", str(workers), "--window", "50"]
    options += ["--save-every", "3"]
    assert start([*options, "--out", str(tmp_path / "straight")], ranks).wait(timeout=240) == 0
    killed = start([*options, "--out", str(tmp_path / "killed")], ranks)
    deadline = time.monotonic() + 200
    while len(lines(tmp_path / "killed")) < steps and killed.poll() is None and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(killed.pid, signal.SIGKILL)
    killed.wait()
    before = len(lines(tmp_path / "killed"))
    assert start([*options, "--out", str(tmp_path / "killed"), "--resume"], ranks).wait(timeout=240) == 0
    found, expected = lines(tmp_path / "killed"), lines(tmp_path / "straight")
    assert before >= steps and [row.get("crc") for row in found] == [row.get("crc") for row in expected]
    assert found[-1]["accuracy"] == pytest.approx(expected[-1]["accuracy"])
