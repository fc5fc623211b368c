"""The recipe that learns to write, as a program."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "text_generate.py"
TEXT = "The quick brown fox jumps over the lazy dog. " * 120


@pytest.fixture(scope="module")
def recipe() -> Any:
    spec = importlib.util.spec_from_file_location("text_generate", SCRIPT)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["text_generate"] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


def run(*options: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def steps(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.slow
def test_a_text_that_repeats_is_learned(recipe: Any, book: Path, tmp_path: Path, capsys: Any) -> None:
    out = tmp_path / "out"
    bits = recipe.main(
        ["--data", str(book), "--out", str(out), "--epochs", "6", "--batch-size", "4", "--prompt", "The"]
    )
    result = json.loads((out / "result.json").read_text())
    held = TEXT[len(TEXT) * 9 // 10 :].encode()
    counts = Counter(held)
    unigram = -sum(n / len(held) * math.log2(n / len(held)) for n in counts.values())
    assert result["unigram_bits_per_byte"] == pytest.approx(unigram)
    assert bits == result["bits_per_byte"] < 0.5 * unigram
    assert result["below_unigram"] == pytest.approx(1 - bits / unigram)
    assert np.load(out / "train.npy").astype(np.uint8).tobytes() + held == TEXT.encode()
    sample = (out / "sample.txt").read_text()
    assert sample.startswith("The")
    shown = capsys.readouterr().out
    assert sample in shown
    assert f"{bits:.3f}" in shown
    assert f"{unigram:.3f}" in shown
    assert (out / "curve.png").read_bytes().startswith(b"\x89PNG")


def test_a_folder_of_texts(recipe: Any, tmp_path: Path) -> None:
    for number in range(3):
        (tmp_path / "texts" / str(number)).mkdir(parents=True)
        (tmp_path / "texts" / str(number) / "part.txt").write_text(f"{number}" * 1000)
    data = recipe.prepare(recipe.arguments(["--data", str(tmp_path / "texts"), "--out", str(tmp_path / "out")]))
    assert np.load(tmp_path / "out" / "val.npy").tolist() == [48 + number for number in range(3) for _ in range(100)]
    assert data.unigram == pytest.approx(math.log2(3))
    assert len(data.train) == (2700 - 1) // 64


@pytest.mark.parametrize("workers", [0, 2])
def test_going_on_in_the_middle_of_an_epoch(
    recipe: Any, book: Path, tmp_path: Path, monkeypatch: Any, workers: int
) -> None:
    options = ["--data", str(book), "--epochs", "2", "--batch-size", "8", "--save-every", "3"]
    recipe.main([*options, "--out", str(tmp_path / "whole")])
    parts = [*options, "--out", str(tmp_path / "parts"), "--workers", str(workers)]
    real, calls = recipe.F.cross_entropy, []

    def dies(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 9:
            raise KeyboardInterrupt
        return real(*given, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(recipe.F, "cross_entropy", dies)
        recipe.main(parts)
    recipe.main([*parts, "--resume"])
    one, two = steps(tmp_path / "whole"), steps(tmp_path / "parts")
    assert len(one) == len(two) > 15
    for left, right in zip(one, two, strict=True):
        assert left == pytest.approx(right, abs=1e-6)


def test_case_g01_wrong_data_ends_with_one_message(recipe: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "short.txt").write_text("too short")
    (tmp_path / "bad.txt").write_bytes(b"caf\xe9" * 1000)
    wrong = {"empty": "no .txt file", "missing.txt": "missing.txt", "short.txt": "block=64", "bad.txt": "byte 3"}
    for name, message in wrong.items():
        with pytest.raises(SystemExit) as caught:
            recipe.main(["--data", str(tmp_path / name), "--out", str(tmp_path / "out")])
        said = capsys.readouterr().err.strip()
        assert caught.value.code == 2
        assert message in said
        assert said.count("\n") == 0


def test_case_g02_import_and_help_do_nothing_else(tmp_path: Path) -> None:
    code = f"import runpy; runpy.run_path({str(SCRIPT)!r})"
    shown = run("-c", code, cwd=tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr, os.listdir(tmp_path)) == (0, "", "", [])
    assert "--prompt" in run(SCRIPT, "--help", cwd=tmp_path).stdout


def test_case_g02_spawned_workers_do_not_start_it_again(book: Path, tmp_path: Path) -> None:
    code = (
        "import multiprocessing, runpy, sys; multiprocessing.set_start_method('spawn'); "
        f"sys.argv[0] = {str(SCRIPT)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    shown = run("-c", code, "--data", book, "--out", tmp_path / "out", "--epochs", 1, "--workers", 2)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("bits a byte held out") == 1


@pytest.mark.slow
def test_two_ranks_score_each_window_once(book: Path, tmp_path: Path) -> None:
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
    shown = run(*ranks, "--data", book, "--out", tmp_path / "out", "--epochs", 1, "--batch-size", 8)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("bits a byte held out") == 1


@pytest.mark.slow
def test_languages_are_learned(recipe: Any, tmp_path: Path) -> None:
    recipe.main(["--out", str(tmp_path)])
    assert json.loads((tmp_path / "result.json").read_text())["below_unigram"] >= 0.15
