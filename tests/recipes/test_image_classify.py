"""The recipe for image folders, as a program: what it writes, how it fails, and that it goes on after a kill."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "image_classify.py"
ALONE = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")} | {
    "OMP_NUM_THREADS": "1",
    "CUDA_VISIBLE_DEVICES": "",
}


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("image_classify", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(autouse=True)
def _threads_and_device(monkeypatch):
    """The recipe chooses the number of threads; later tests get theirs back. Accelerators are hidden from it."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    yield
    torch.set_num_threads(threads)


def picture(path, shade, side=12):
    """Write a noisy grey PNG that is darker or brighter by its class."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(zlib.crc32(path.name.encode())).integers(0, 40, (side, side), dtype=np.uint8)
    Image.fromarray(noise + np.uint8(shade)).save(path)


def class_folders(root, counts, side=12):
    """Write so many pictures for each class, the first class dark, the last one bright."""
    for place, (name, count) in enumerate(counts.items()):
        for number in range(count):
            picture(root / name / f"{number:02d}.png", 200 * place // max(1, len(counts) - 1), side)
    return root


def start(*options, command=(sys.executable,), env=ALONE):
    """Start the recipe in a process of its own."""
    line = [*command, str(SCRIPT), *map(str, options)]
    return subprocess.Popen(line, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT)


def run(*options, command=(sys.executable,), env=ALONE):
    """Run the recipe to its end in a process of its own and return what it printed."""
    process = start(*options, command=command, env=env)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    return out


def lines(out):
    return [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]


def same_metrics(one, two):
    """Hold two runs equal line by line, losses to 1e-6."""
    assert [sorted(line) for line in one] == [sorted(line) for line in two]
    for left, right in zip(one, two, strict=True):
        assert left == pytest.approx(right, rel=0, abs=1e-6)


# -- what comes out


def test_everything_promised_is_written(recipe, tmp_path, capsys):
    data = class_folders(tmp_path / "imgs", {"dark": 10, "bright": 10}, side=20)
    score = recipe.main(["--data", f"{data}/", "--out", str(tmp_path / "out"), "--epochs", "8", "--workers", "0"])
    result = json.loads((tmp_path / "out" / "result.json").read_text())
    assert result.keys() == {"accuracy", "images", "seconds"}
    assert score == result["accuracy"] == 1.0  # dark and bright pictures are not hard to tell apart
    assert json.loads((tmp_path / "out" / "classes.json").read_text()) == ["bright", "dark"]
    for name in ("confusion.png", "samples.png"):
        with Image.open(tmp_path / "out" / name) as drawn:
            assert drawn.format == "PNG"
    steps = [line for line in lines(tmp_path / "out") if "loss" in line]
    epochs = [line for line in lines(tmp_path / "out") if "accuracy" in line]
    assert [line["epoch"] for line in epochs] == list(range(8))
    assert [line["step"] for line in steps] == list(range(1, len(steps) + 1))
    assert torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)["at"]["epoch"] == 8
    assert "accuracy 1.000" in capsys.readouterr().out


def test_a_split_of_the_users_own_is_kept(recipe, tmp_path):
    class_folders(tmp_path / "imgs" / "train", {"a": 6, "b": 6, "c": 6})
    class_folders(tmp_path / "imgs" / "val", {"b": 3, "c": 4})  # a is without pictures here and keeps its index
    data = recipe.prepare(recipe.arguments(["--data", str(tmp_path / "imgs")]))
    assert list(data.val.classes) == list(data.train.classes) == ["a", "b", "c"]
    assert data.val.labels.tolist() == [1] * 3 + [2] * 4
    assert (len(data.train_rows), len(data.val_rows), data.size) == (18, 7, 16)
    first = data.val[0]["image"]
    assert torch.equal(data.val[0]["image"], first)  # nothing random in validation


@pytest.mark.parametrize("drop_last", [False, True])
def test_case_g05_schedule_ends_with_the_last_step(recipe, tmp_path, drop_last):
    data = class_folders(tmp_path / "imgs" / "train", {"a": 12, "b": 11}).parent
    class_folders(data / "val", {"a": 2, "b": 2})
    options = ["--epochs", "3", "--batch-size", "5", "--lr", "0.01", "--workers", "0"] + ["--drop-last"] * drop_last
    recipe.main(["--data", str(data), "--out", str(tmp_path / "out"), *options])
    rates = [line["lr"] for line in lines(tmp_path / "out") if "lr" in line]
    assert len(rates) == 3 * (23 // 5 + (not drop_last))
    assert max(rates) == pytest.approx(0.01)
    assert rates[-1] == pytest.approx(0.01 * 0.01)


def test_bad_pictures_are_left_out_counted_and_named(recipe, tmp_path, capsys):
    class_folders(tmp_path / "imgs" / "train", {"a": 8, "b": 8})
    class_folders(tmp_path / "imgs" / "val", {"a": 3, "b": 3})
    bad = [tmp_path / "imgs" / part / "a" / "01.png" for part in ("train", "val")]
    for path in bad:
        path.write_bytes(path.read_bytes()[:50])
    options = ["--epochs", "2", "--batch-size", "4", "--workers", "1"]
    recipe.main(["--data", str(tmp_path / "imgs"), "--out", str(tmp_path / "out"), *options])
    assert json.loads((tmp_path / "out" / "result.json").read_text())["images"] == 5
    err = capsys.readouterr().err
    assert "2 images could not be read" in err
    assert all(err.count(f"\n  {path}: ") == 1 for path in bad)


@pytest.mark.slow
def test_clothes_are_told_apart(recipe, tmp_path):
    assert recipe.main(["--out", str(tmp_path)]) >= 0.84
    assert json.loads((tmp_path / "result.json").read_text())["images"] == 400


def test_any_classifier_of_torchvisions_fits(recipe):
    net = recipe.build("resnet18", 3, 32)
    assert net(torch.zeros(2, 3, 32, 32)).shape == (2, 3)
    with pytest.raises(ValueError, match="resnet18"):
        recipe.build("resnet-18", 3, 32)
    with pytest.raises(ValueError, match="--size 224"):
        recipe.build("alexnet", 3, 32)


# -- how it begins


def wrong(root, name):
    """Make what the case asks for and return the path to give."""
    root.mkdir()
    if name == "loose":
        for number in range(5):
            picture(root / f"{number}.png", 100)
    elif name == "one class":
        class_folders(root, {"cat": 4})
    elif name in ("class itself", "file"):
        class_folders(root, {"cat": 4, "dog": 4})
        return root / "cat" if name == "class itself" else root / "cat" / "00.png"
    elif name == "too deep":
        class_folders(root / "one", {"cat": 4, "dog": 4})
        class_folders(root / "two", {"cat": 4, "dog": 4})
    elif name == "train and test":
        class_folders(root / "train", {"cat": 4, "dog": 4})
        class_folders(root / "test", {"cat": 4, "dog": 4})
    elif name == "other files":
        class_folders(root, {"cat": 0, "dog": 0})
        for kind in ("cat", "dog"):
            (root / kind).mkdir()
            (root / kind / "a.wav").write_bytes(b"RIFF")
    elif name == "one each":
        class_folders(root, {"cat": 1, "dog": 1})
    elif name == "other classes in val":
        class_folders(root / "train", {"cat": 4, "dog": 4})
        class_folders(root / "val", {"cat": 4, "emu": 4})
    elif name == "misspelt":
        return root.with_name("imgz")
    return root


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("loose", ["found 5 images and no class folders", "expected"]),
        ("misspelt", ["found nothing at", "did you mean", "imgs"]),
        ("empty", ["which is empty", "expected"]),
        ("file", ["found a file", "expected a folder", "--data"]),
        ("class itself", ["found 4 images and no class folders", "give the folder above"]),
        ("one class", ["found one class folder", "'cat'", "at least two"]),
        ("too deep", ["one level deeper", "'one', 'two'", "--data"]),
        ("train and test", ["one level deeper", "rename 'test' to 'val'"]),
        ("other files", ["found no images", "'cat', 'dog'", ".png"]),
        ("one each", ["0 to measure on", "two or more for each class"]),
        ("other classes in val", ["'emu'", "train", "val"]),
    ],
)
def test_case_g01_wrong_data_is_one_line_and_exit_code_2(recipe, tmp_path, capsys, name, said):
    path = wrong(tmp_path / "imgs", name)
    with pytest.raises(SystemExit) as caught:
        recipe.main(["--data", str(path), "--out", str(tmp_path / "out")])
    assert caught.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert all(word in err for word in said), err
    assert not (tmp_path / "out").exists()


def test_fewer_images_than_a_batch_is_told(recipe, tmp_path, capsys):
    data = class_folders(tmp_path / "imgs", {"a": 10, "b": 10})
    with pytest.raises(SystemExit) as caught:
        recipe.main(["--data", str(data), "--out", str(tmp_path / "out"), "--batch-size", "64"])
    assert caught.value.code == 2
    assert "fewer than a batch of 64" in capsys.readouterr().err


def test_case_g01_a_folder_with_both_parts_takes_them(recipe, tmp_path):
    class_folders(tmp_path / "imgs" / "train", {"a": 3, "b": 3})
    class_folders(tmp_path / "imgs" / "val", {"a": 2, "b": 2})
    data = recipe.prepare(recipe.arguments(["--data", f"{tmp_path}/imgs/"]))
    assert (data.train.root.name, data.val.root.name) == ("train", "val")


def test_case_g02_runs_once_where_workers_are_spawned(tmp_path):
    data = class_folders(tmp_path / "imgs", {"a": 6, "b": 6})
    (tmp_path / "sitecustomize.py").write_text("import multiprocessing\nmultiprocessing.set_start_method('spawn')\n")
    env = ALONE | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT / "src")])}
    out = run("--data", data, "--out", tmp_path / "out", "--epochs", "1", "--workers", "2", env=env)
    assert out.count("epoch 1/1") == out.count("accuracy ") - 1 == 1
    assert json.loads((tmp_path / "out" / "result.json").read_text())["images"] >= 2


def test_case_g02_import_has_no_effect_and_help_needs_no_data(tmp_path):
    code = (
        "import runpy, sys, os, threading; before = dict(os.environ); runpy.run_path(sys.argv[1], run_name='other');"
        "assert dict(os.environ) == before and threading.active_count() == 1 and not os.listdir('.');"
        "heavy = {'torchvision', 'matplotlib'} & sys.modules.keys(); assert not heavy, heavy;"
        "sys.argv = [sys.argv[1], '--help']; runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    line = [sys.executable, "-c", code, str(SCRIPT)]
    done = subprocess.run(line, cwd=tmp_path, env=ALONE, capture_output=True, text=True, check=True)
    assert "--data" in done.stdout
    assert done.stderr == ""


def test_case_g03_twelve_images_and_default_arguments(tmp_path):
    data = class_folders(tmp_path / "imgs", {"a": 6, "b": 6})
    out = run("--data", data, "--out", tmp_path / "out")
    assert "epoch 20/20" in out
    assert "accuracy" in out


def test_case_g03_no_more_workers_than_cores(recipe, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    assert recipe.arguments(["--workers", "64"]).workers == 1


# -- how it goes on


def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path):
    data = class_folders(tmp_path / "imgs", {"a": 14, "b": 14})
    options = ["--data", data, "--epochs", "60", "--batch-size", "4", "--workers", "1", "--save-every", "3"]
    run(*options, "--out", tmp_path / "whole")
    out = tmp_path / "parts"
    process = start(*options, "--out", out)
    seen = 0
    while seen < 20 and process.poll() is None:
        time.sleep(0.01)
        seen = (out / "metrics.jsonl").read_text().count("\n") if (out / "metrics.jsonl").exists() else 0
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=60)  # at the end of all who hold the pipes: the workers end with their parent
    assert process.returncode == -signal.SIGKILL
    assert torch.load(out / "checkpoint.pt", weights_only=True)["at"]["epoch"] < 60
    run(*options, "--out", out, "--resume")
    same_metrics(lines(out), lines(tmp_path / "whole"))
    results = [json.loads((tmp_path / name / "result.json").read_text()) for name in ("whole", "parts")]
    assert results[0]["accuracy"] == results[1]["accuracy"]


class PowerCut(BaseException):
    """Nothing in the recipe expects this one."""


@pytest.fixture(scope="module")
def uncut(recipe, tmp_path_factory):
    """A run of two epochs of three steps, with four saves each; returns its folder and its options."""
    root = tmp_path_factory.mktemp("uncut")
    class_folders(root / "imgs" / "train", {"a": 6, "b": 5})
    class_folders(root / "imgs" / "val", {"a": 2, "b": 2})
    options = ["--data", str(root / "imgs"), "--epochs", "2", "--batch-size", "4"]
    options += ["--workers", "0", "--save-every", "1"]
    recipe.main([*options, "--out", str(root / "out")])
    return root / "out", options


@pytest.mark.parametrize("saves", range(1, 9))
def test_it_goes_on_from_every_checkpoint(recipe, uncut, tmp_path, monkeypatch, saves):
    whole, options = uncut
    save, made = recipe.Checkpoint.save, []

    def cut(self, at, metrics):
        save(self, at, metrics)
        made.append(at["step"])
        if len(made) == saves:
            raise PowerCut

    with monkeypatch.context() as patch:
        patch.setattr(recipe.Checkpoint, "save", cut)
        with pytest.raises(PowerCut):
            recipe.main([*options, "--out", str(tmp_path)])
    recipe.main([*options, "--out", str(tmp_path), "--resume"])
    same_metrics(lines(tmp_path), lines(whole))
    one, two = (torch.load(out / "checkpoint.pt", weights_only=True) for out in (whole, tmp_path))
    assert all(torch.equal(one["net"][name], two["net"][name]) for name in one["net"])


def test_a_checkpoint_of_another_run_is_refused(recipe, tmp_path, capsys):
    data = class_folders(tmp_path / "imgs", {"a": 8, "b": 8})
    options = ["--data", str(data), "--out", str(tmp_path / "out"), "--epochs", "1", "--workers", "0"]
    recipe.main([*options, "--batch-size", "4"])
    for other, said in ((["--batch-size", "3"], "FixedSize"), (["--batch-size", "4", "--size", "24"], "size 16")):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            recipe.main([*options, *other, "--resume"])
        assert caught.value.code == 2
        assert said in capsys.readouterr().err
    (tmp_path / "out" / "checkpoint.pt").write_bytes(b"PK")
    with pytest.raises(SystemExit):
        recipe.main([*options, "--batch-size", "4", "--resume"])
    assert "cannot be read as a checkpoint" in capsys.readouterr().err


def test_two_ranks_share_the_work_and_count_each_picture_once(tmp_path):
    class_folders(tmp_path / "imgs" / "train", {"a": 9, "b": 9})
    class_folders(tmp_path / "imgs" / "val", {"a": 4, "b": 3})
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    options = ["--epochs", "2", "--batch-size", "4", "--workers", "1"]
    out = run("--data", tmp_path / "imgs", "--out", tmp_path / "out", *options, command=command)
    assert out.count("epoch 2/2") == 1
    assert json.loads((tmp_path / "out" / "result.json").read_text())["images"] == 7
    steps = [line["step"] for line in lines(tmp_path / "out") if "loss" in line]
    assert steps == [1, 2, 3, 4]  # 5 batches on two ranks are two steps an epoch
    state = torch.load(tmp_path / "out" / "checkpoint.pt", weights_only=True)
    assert len(state["generators"]) == 2
    # one rank alone goes on from there, and its schedule ends where its steps do
    run("--data", tmp_path / "imgs", "--out", tmp_path / "out", *options[2:], "--epochs", "3", "--resume")
    steps = [line for line in lines(tmp_path / "out") if "lr" in line]
    assert [line["step"] for line in steps] == list(range(1, 10))
    assert steps[-1]["lr"] == pytest.approx(4e-3 * 0.01)


def test_more_epochs_lengthen_the_schedule(recipe, tmp_path):
    data = class_folders(tmp_path / "imgs", {"a": 10, "b": 10})
    options = ["--data", str(data), "--out", str(tmp_path / "out"), "--batch-size", "4", "--workers", "0"]
    recipe.main([*options, "--epochs", "1"])
    first = len([line for line in lines(tmp_path / "out") if "lr" in line])
    recipe.main([*options, "--epochs", "3", "--resume"])
    rates = [line["lr"] for line in lines(tmp_path / "out") if "lr" in line]
    assert len(rates) == 3 * first
    assert rates[-1] == pytest.approx(4e-3 * 0.01)


def test_an_older_run_is_not_gone_on_with_by_mistake(recipe, tmp_path, monkeypatch):
    data = class_folders(tmp_path / "imgs", {"a": 8, "b": 8})
    options = ["--data", str(data), "--out", str(tmp_path / "out"), "--epochs", "1", "--workers", "0"]
    recipe.main(options)
    old = (tmp_path / "out" / "result.json").read_text()

    def cut(*_, **__):
        raise PowerCut

    monkeypatch.setattr(recipe.run, "progress", cut)  # before the first step
    with pytest.raises(PowerCut):
        recipe.main(options)
    assert not (tmp_path / "out" / "checkpoint.pt").exists()
    assert (tmp_path / "out" / "result.json").read_text() == old


@pytest.mark.parametrize("device", ["warp", "cuda", "cuda:1"])
def test_a_device_that_is_not_there_is_told(recipe, capsys, monkeypatch, device):
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: None)
    with pytest.raises(SystemExit) as caught:
        recipe.arguments(["--device", device])
    assert caught.value.code == 2
    assert "give cpu" in capsys.readouterr().err


@pytest.mark.parametrize("rest", range(4))
def test_case_f13_every_rest_of_a_batch_trains(recipe, tmp_path, rest):
    class_folders(tmp_path / "imgs" / "train", {"a": 8, "b": rest + 1})
    class_folders(tmp_path / "imgs" / "val", {"a": 4, "b": 1})
    # a picture of 32 ends as one pixel in this net: a batch of one would have no variance
    options = ["--arch", "mobilenet_v3_small", "--size", "32", "--epochs", "1", "--batch-size", "4", "--workers", "0"]
    recipe.main(["--data", str(tmp_path / "imgs"), "--out", str(tmp_path / "out"), *options])
    steps = [line["loss"] for line in lines(tmp_path / "out") if "loss" in line]
    assert len(steps) == 2 + (rest > 0)  # 9 to 12 pictures: a last batch of one is left out
    assert np.isfinite(steps).all()
    assert json.loads((tmp_path / "out" / "result.json").read_text())["images"] == 5
