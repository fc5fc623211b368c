"""The recipe for sounds, as a program."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from sounds import encoded, tone, wav, write

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "audio_classify.py"
FAULTY = ROOT / "recipes" / "data" / "faulty" / "is.wav"


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("audio_classify", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def make(root, count=8, classes=("high", "low"), rate=8000):
    """Tones of two pitches, 0.1 to 0.5 s long."""
    for place, name in enumerate(classes):
        for number in range(count):
            values = tone(800 + 400 * (number % 9), rate, 300.0 + 1200 * place + 20 * number)
            write(root / name / f"{number}.wav", encoded(values, rate))
    return root


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def fast(out, data, *options):
    return ["--data", str(data), "--out", str(out), "--epochs", "2", "--workers", "0", "--batch-size", "4", *options]


def test_tones_are_told_apart_and_everything_is_written(recipe, tmp_path, capsys):
    out = tmp_path / "out"
    score = recipe.main(fast(out, make(tmp_path / "data"), "--folds", "2", "--epochs", "12", "--batch-size", "2"))
    result = json.loads((out / "result.json").read_text())
    assert score == result["accuracy"] >= 0.9
    assert (result["clips"], result["folds"]) == (16, 2)
    assert json.loads((out / "classes.json").read_text()) == ["high", "low"]
    for name in ("confusion.png", "spectrograms.png"):
        assert (out / name).read_bytes().startswith(b"\x89PNG")
    rows = lines(out)
    steps = [row["step"] for row in rows if "loss" in row]
    assert steps == list(range(1, len(steps) + 1))
    assert [(row["fold"], row["epoch"]) for row in rows if "accuracy" in row] == [
        (f, e) for f in range(2) for e in range(12)
    ]
    said = capsys.readouterr().out
    assert "padding waste" in said
    assert "batches of like lengths are" in said
    assert "random batches of 2 would be" in said
    assert f"accuracy {score:.3f} of 16 clips in 2 folds" in said


def test_train_and_val_folders_share_classes(recipe, tmp_path):
    make(tmp_path / "data" / "train", 6)
    make(tmp_path / "data" / "val", 3, classes=("low",))
    recipe.main(fast(tmp_path / "out", tmp_path / "data"))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert (result["clips"], result["folds"]) == (3, 1)


def test_folds_hold_out_each_clip_once(recipe, tmp_path):
    args = recipe.arguments(["--data", str(make(tmp_path, 7)), "--folds", "3"])
    folds = recipe.prepare(args).folds
    assert sorted(np.concatenate([held_out for _, held_out in folds]).tolist()) == list(range(14))
    for rows, held_out in folds:
        assert sorted([*rows, *held_out]) == list(range(14))
        assert 4 <= len(held_out) <= 6


def test_a_clip_is_seen_alike_alone_and_beside_longer_ones(recipe):
    torch.manual_seed(0)
    net = recipe.SoundNet(3, 64).eval()
    clips = [torch.randn(1, 1, 64, frames) for frames in (1, 2, 13, 40)]
    mel, mask = torch.zeros(4, 1, 64, 40), torch.zeros(4, 40, dtype=torch.bool)
    for place, clip in enumerate(clips):
        mel[place, :, :, : clip.shape[3]], mask[place, : clip.shape[3]] = clip[0], True
    together = net(mel, mask)
    for place, clip in enumerate(clips):
        alone = net(clip, torch.ones(1, clip.shape[3], dtype=torch.bool))
        assert torch.allclose(together[place], alone[0], atol=1e-5)
    assert bool(net(mel, torch.zeros_like(mask)).isfinite().all())


def test_a_clip_without_samples_is_reported_by_name_and_the_run_ends_well(recipe, tmp_path, capsys):
    data = make(tmp_path / "data")
    shutil.copy(FAULTY, data / "low" / "is.wav")
    write(data / "high" / "other_rate.wav", wav([], rate=44100))
    write(data / "low" / "page.wav", b"<html>")
    with pytest.warns(UserWarning, match="bestiary"):
        recipe.main(fast(tmp_path / "out", data, "--folds", "1"))
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert 2 <= result["clips"] <= 8
    err = capsys.readouterr().err
    assert "2 clips hold no samples and were left out:\n  high/other_rate.wav\n  low/is.wav" in err
    assert "1 clips could not be read" in err
    assert "page.wav" in err


def same(one, two):
    assert one.keys() == two.keys()
    return all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize("folds", [1, 2])
def test_going_on_gives_what_one_run_gives(recipe, tmp_path, folds):
    data = make(tmp_path / "data")
    recipe.main(fast(tmp_path / "whole", data, "--folds", str(folds)))

    class Stop(Exception):
        pass

    calls, evaluate = [], recipe.evaluate

    def stopping(*args):
        calls.append(args)
        if len(calls) == 2 * folds - 1:  # in the last fold, before its first epoch is measured
            raise Stop
        return evaluate(*args)

    recipe.evaluate = stopping
    try:
        with pytest.raises(Stop):
            recipe.main(fast(tmp_path / "parts", data, "--folds", str(folds), "--save-every", "2"))
    finally:
        recipe.evaluate = evaluate
    recipe.main(fast(tmp_path / "parts", data, "--folds", str(folds), "--resume"))
    one, two = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "parts"))
    assert same(one["net"], two["net"])
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "parts")]
    assert results[0]["accuracy"] == results[1]["accuracy"]
    recipe.main(fast(tmp_path / "parts", data, "--folds", str(folds), "--resume"))  # all done already
    assert json.loads((tmp_path / "parts" / "result.json").read_text())["accuracy"] == results[0]["accuracy"]


@pytest.mark.parametrize(
    ("build", "options", "said"),
    [
        (lambda root: root / "nowhere", [], "found nothing at"),
        (lambda root: write(root / "x" / "a.wav", wav([1])).parent, [], "no class folders"),
        (lambda root: make(root / "x", classes=("one",)), [], "one class folder"),
        (lambda root: make(make(root / "x"), classes=("third",), rate=16000), [], "sample rates"),
        (lambda root: make(root / "x", 1), ["--folds", "2"], "fewer than a batch of 4"),
    ],
)
def test_wrong_data_is_one_line_and_exit_code_2(recipe, tmp_path, capsys, build, options, said):
    data = build(tmp_path)
    with pytest.raises(SystemExit) as caught:
        recipe.main(fast(tmp_path / "out", data, *options))
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_mixed_rates_run_when_one_is_given(recipe, tmp_path):
    make(make(tmp_path / "data"), classes=("third",), rate=16000)
    recipe.main(fast(tmp_path / "out", tmp_path / "data", "--sample-rate", "8000", "--folds", "1"))
    assert json.loads((tmp_path / "out" / "result.json").read_text())["clips"] >= 3


def test_help_and_import_need_no_data():
    assert subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, check=True).stdout


@pytest.mark.slow
def test_percussion(tmp_path):
    start = time.monotonic()
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--out", str(tmp_path)], capture_output=True, text=True, check=True
    )
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["accuracy"] >= 0.75, done.stdout
    assert result["clips"] == 80
    print(f"{time.monotonic() - start:.0f} s")


@pytest.mark.slow
def test_killed_and_gone_on(tmp_path):
    data = make(tmp_path / "data", 12)
    command = [
        sys.executable,
        str(SCRIPT),
        *fast(tmp_path / "out", data, "--folds", "2", "--epochs", "8", "--save-every", "1", "--workers", "1"),
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    metrics = tmp_path / "out" / "metrics.jsonl"
    while process.poll() is None and not (metrics.exists() and metrics.read_text().count('"loss"') > 5):
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    subprocess.run([*command, "--resume"], check=True, capture_output=True)
    whole = [part if part != str(tmp_path / "out") else str(tmp_path / "whole") for part in command]
    subprocess.run(whole, check=True, capture_output=True)
    parts, one = lines(tmp_path / "out"), lines(tmp_path / "whole")
    assert len(parts) == len(one)
    for left, right in zip(parts, one, strict=True):
        assert left == pytest.approx(right, rel=0, abs=1e-6)  # the last digit depends on where memory lies
        assert [left[key] for key in ("fold", "epoch", "step")] == [right[key] for key in ("fold", "epoch", "step")]


@pytest.mark.slow
def test_two_ranks_measure_each_clip_once(tmp_path):
    data = make(tmp_path / "data", 12)
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(SCRIPT)]
    subprocess.run(
        [*command, *fast(tmp_path / "out", data, "--folds", "2", "--device", "cpu")], check=True, capture_output=True
    )
    assert json.loads((tmp_path / "out" / "result.json").read_text())["clips"] == 24
