"""The recipe that classifies texts, as a program."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "text_classify.py"
WORDS = {"fruit": "apple pear plum cherry grape", "tool": "hammer saw chisel drill plane"}


@pytest.fixture(scope="module")
def recipe() -> Any:
    spec = importlib.util.spec_from_file_location("text_classify", SCRIPT)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["text_classify"] = module
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return module


def folders(root: Path, count: int = 24) -> Path:
    for kind, words in WORDS.items():
        (root / kind).mkdir(parents=True)
        for number in range(count):
            text = " ".join(words.split()[(number + k) % 5] for k in range(2 + number % 4))
            (root / kind / f"{number}.txt").write_text(text)
    return root


def run(*options: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *map(str, options)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **more)


def steps(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def test_class_folders_are_learned(recipe: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    accuracy = recipe.main(
        ["--data", str(folders(tmp_path / "data")), "--out", str(out), "--epochs", "4", "--batch-size", "8"]
    )
    result = json.loads((out / "result.json").read_text())
    assert accuracy == result["accuracy"] >= 0.9
    assert result["texts"] + result["train_texts"] == 48
    assert json.loads((out / "classes.json").read_text()) == ["fruit", "tool"]
    assert (out / "confusion.png").read_bytes().startswith(b"\x89PNG")
    rows = steps(out)
    assert [row["step"] for row in rows if "loss" in row] == list(range(1, rows[-1]["step"] + 1))
    assert rows[-1]["accuracy"] == accuracy
    assert not [*out.glob("*.part"), *out.glob("*.tmp")]


def test_train_and_val_folders_share_classes(recipe: Any, tmp_path: Path) -> None:
    folders(tmp_path / "data" / "train")
    folders(tmp_path / "data" / "val", 3)
    recipe.main(["--data", f"{tmp_path / 'data'}/", "--out", str(tmp_path / "out"), "--epochs", "1"])
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["train_texts"], result["texts"]) == (48, 6)


def test_groups_of_a_table_stay_together(recipe: Any, tmp_path: Path) -> None:
    rows = [f"{text} {n},{kind},{n % 6}" for n in range(30) for kind, text in WORDS.items()]
    path = tmp_path / "rows.csv"
    path.write_text("words,kind,batch\n" + "\n".join(rows))
    options = [
        "--data",
        str(path),
        "--text",
        "words",
        "--label",
        "kind",
        "--group",
        "batch",
        "--out",
        str(tmp_path / "out"),
    ]
    data = recipe.prepare(recipe.arguments(options))
    groups = [{int(row) // 2 % 6 for row in part} for part in (data.train, data.val)]
    assert groups[0] | groups[1] == set(range(6))
    assert not groups[0] & groups[1]


def test_ngrams_are_those_of_the_text(recipe: Any) -> None:
    encode = recipe.HashedNgrams()
    ids = encode("ab")  # " ab " has 4 + 3 + 2 n-grams of up to 3 bytes
    assert len(ids) == 9
    assert ids.min() >= 1
    assert ids.max() < encode.size
    assert encode("xaby").tolist().count(ids[5]) == 1  # "ab" again
    assert len(encode("")) == 2 + 1


@pytest.mark.parametrize("workers", [0, 2])
def test_going_on_in_the_middle_of_an_epoch(recipe: Any, tmp_path: Path, monkeypatch: Any, workers: int) -> None:
    data = folders(tmp_path / "data")
    options = ["--data", str(data), "--epochs", "3", "--batch-size", "4", "--save-every", "3"]
    recipe.main([*options, "--out", str(tmp_path / "whole")])
    parts = [*options, "--out", str(tmp_path / "parts"), "--workers", str(workers)]
    real, calls = recipe.F.cross_entropy, []

    def dies(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 17:
            raise KeyboardInterrupt
        return real(*given, **named)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(recipe.F, "cross_entropy", dies)
        recipe.main(parts)
    assert len(calls) == 17
    recipe.main([*parts, "--resume"])
    one, two = steps(tmp_path / "whole"), steps(tmp_path / "parts")
    assert len(one) == len(two) > 25
    for left, right in zip(one, two, strict=True):
        assert left == pytest.approx(right, abs=1e-6)
    again = recipe.main([*parts, "--resume"])  # nothing is left to do
    assert again == pytest.approx(two[-1]["accuracy"])


def test_case_g01_wrong_data_ends_with_one_message(recipe: Any, tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "flat").mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "one" / "only").mkdir(parents=True)
    for path in ("flat/a.txt", "flat/b.txt", "one/only/a.txt", "picture.png"):
        (tmp_path / path).write_text("text")
    (tmp_path / "rows.csv").write_text("words,kind\na,b\n")
    (tmp_path / "bad.csv").write_bytes(b"text,label\ncaf\xe9,b\n")
    wrong = {
        "flat": "2 texts and no class folders",
        "empty": "which is empty",
        "missing": "missing",
        "one": "one class folder",
        "picture.png": ".csv",
        "rows.csv": "no column 'text'",
        "bad.csv": "byte 14",
    }
    for name, message in wrong.items():
        with pytest.raises(SystemExit) as caught:
            recipe.main(["--data", str(tmp_path / name), "--out", str(tmp_path / "out")])
        said = capsys.readouterr().err.strip()
        assert caught.value.code == 2
        assert message in said
        assert name in said
        assert said.count("\n") == 0


def test_a_checkpoint_of_other_options_is_refused(recipe: Any, tmp_path: Path, capsys: Any) -> None:
    options = ["--data", str(folders(tmp_path / "data")), "--out", str(tmp_path / "out"), "--epochs", "1"]
    recipe.main([*options, "--batch-size", "4"])
    capsys.readouterr()
    with pytest.raises(SystemExit) as caught:
        recipe.main([*options, "--batch-size", "8", "--resume"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert "checkpoint.pt does not fit this run" in said
    assert "batch_size=8" in said


def test_case_g02_import_and_help_do_nothing_else(tmp_path: Path) -> None:
    code = f"import runpy; runpy.run_path({str(SCRIPT)!r})"
    shown = run("-c", code, cwd=tmp_path)
    assert (shown.returncode, shown.stdout, shown.stderr, os.listdir(tmp_path)) == (0, "", "", [])
    helped = run(SCRIPT, "--help", cwd=tmp_path)
    assert helped.returncode == 0
    assert "--save-every" in helped.stdout


def test_case_g02_spawned_workers_do_not_start_it_again(tmp_path: Path) -> None:
    data = folders(tmp_path / "data")
    code = (
        "import multiprocessing, runpy, sys; multiprocessing.set_start_method('spawn'); "
        f"sys.argv[0] = {str(SCRIPT)!r}; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    shown = run("-c", code, "--data", data, "--out", tmp_path / "out", "--epochs", 1, "--workers", 2)
    assert shown.returncode == 0, shown.stderr
    assert shown.stdout.count("held out") == 1


@pytest.mark.slow
def test_two_ranks_score_each_text_once(tmp_path: Path) -> None:
    data = folders(tmp_path / "data")
    ranks = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", SCRIPT]
    options = ["--data", data, "--out", tmp_path / "out", "--epochs", 2, "--batch-size", 4]
    shown = run(*ranks, *options)
    assert shown.returncode == 0, shown.stderr
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result["texts"] + result["train_texts"] == 48
    assert shown.stdout.count("held out") == 1


@pytest.mark.slow
def test_languages_are_told_apart(recipe: Any, tmp_path: Path) -> None:
    assert recipe.main(["--out", str(tmp_path)]) >= 0.95
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["classes"] == 28
    assert result["texts"] + result["train_texts"] == 1659
