"""The reference solutions as programs: what they print, that they stand alone, and their last lines with bestiary."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
LESSON = ROOT / "recipes" / "lesson"
NAMES = ["ragged_lab", "assignment_1_image_folder", "assignment_2_weighted_sampler", "challenge_sharded_stream"]
sys.path.insert(0, str(LESSON))

EXPECTED = """\
[PyTorch Datasets & DataLoaders Pipeline Suite]
Constructing Custom RaggedSequenceDataset (500 samples):
  Sample 0 Length: 14, Sample 1 Length: 8, Sample 2 Length: 22
Executing DataLoader with Custom Dynamic Padding collate_fn:
  Batch Size: 32, Total Batches: 15
  Batch 0: Tensor Shape = (32, 24), Mask Shape = (32, 24) [DYNAMICALLY PADDED]
  Batch 1: Tensor Shape = (32, 21), Mask Shape = (32, 21) [DYNAMICALLY PADDED]
Verifying Pipeline Integrity across 3 Epochs:
  Processed 1,440 samples without GPU starvation or memory leakage.
"""


def run(name, *arguments):
    command = [sys.executable, str(LESSON / f"{name}.py"), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_lab_prints_the_exercise_line_for_line():
    done = run("ragged_lab")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(EXPECTED)
    last = done.stdout[len(EXPECTED) :]
    assert re.fullmatch(r"Test Suite: 4 passed in \d+\.\d\ds\n", last), last


def test_no_number_of_the_output_is_written_down_in_the_lab(monkeypatch, capsys):
    lab = importlib.import_module("ragged_lab")
    monkeypatch.setattr(lab.RaggedSequenceDataset.__init__, "__defaults__", (70, 1))
    monkeypatch.setattr(lab, "EPOCHS", 2)
    monkeypatch.setattr(lab.run_epochs, "__defaults__", (2,))
    assert lab.main(["--no-tests", "--verbose"]) == 0
    lengths = torch.randint(5, 25, (70,), generator=torch.Generator().manual_seed(1))[:3].tolist()
    out = capsys.readouterr().out
    assert "(70 samples)" in out
    assert "Sample 0 Length: {}, Sample 1 Length: {}, Sample 2 Length: {}".format(*lengths) in out
    assert "Total Batches: 2" in out
    assert "across 2 Epochs" in out
    assert "Processed 128 samples" in out
    assert "wait share" in out


@pytest.mark.parametrize("name", NAMES)
def test_a_reference_stands_alone(name):
    tree = ast.parse((LESSON / f"{name}.py").read_text(encoding="utf-8"))
    roots = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            roots |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            roots.add(node.module.split(".")[0])
    allowed = {"torch"} | ({"PIL"} if name == "assignment_1_image_folder" else set())
    assert roots - set(sys.stdlib_module_names) == allowed


def with_bestiary(name, **given):
    """Run the last lines of a reference solution, which are a comment there."""
    text = (LESSON / f"{name}.py").read_text(encoding="utf-8").partition("# The same with bestiary")[2]
    lines = [line.removeprefix("#").removeprefix(" ") for line in text.splitlines()[2:]]
    module = importlib.import_module(name)
    space = vars(module) | given
    exec("\n".join(lines), space)  # noqa: S102
    return module, space


def test_the_lab_with_bestiary():
    lab, space = with_bestiary("ragged_lab")
    batches = list(space["loader"])
    assert len(batches) == len(space["loader"]) == 15
    dataset = lab.RaggedSequenceDataset()
    by_row = {tuple(dataset[index]["tokens"].tolist()) for index in range(500)}
    for batch in batches:
        rows = [tokens[mask] for tokens, mask in zip(batch["tokens"], batch["tokens_mask"], strict=True)]
        assert batch["tokens_length"].tolist() == [len(row) for row in rows]
        assert all(tuple(row.tolist()) in by_row for row in rows)
        own = lab.dynamic_padding_collate(
            [{"tokens": row, "label": int(label)} for row, label in zip(rows, batch["label"], strict=True)]
        )
        assert torch.equal(own["tokens"], batch["tokens"])
        assert torch.equal(own["mask"], batch["tokens_mask"])
        assert torch.equal(own["labels"], batch["label"])


def test_the_image_folder_with_bestiary(tmp_path):
    image = pytest.importorskip("PIL.Image")
    for number in range(4):
        (tmp_path / "ab"[number % 2]).mkdir(exist_ok=True)
        image.new("RGB", (70, 60), (0, 255, 0)).save(tmp_path / "ab"[number % 2] / f"{number}.png")
    _, space = with_bestiary("assignment_1_image_folder", root=tmp_path)
    (batch,) = space["batches"]
    assert batch["image"].shape == (4, 3, 64, 64)
    assert sorted(batch["image"].unique().tolist()) == [-1, 1]
    assert sorted(batch["label"].tolist()) == [0, 0, 1, 1]


def test_the_weighted_sampler_with_bestiary():
    labels = [0] * 1900 + [1] * 100
    module, space = with_bestiary(
        "assignment_2_weighted_sampler", labels=labels, dataset=[{"label": label} for label in labels]
    )
    came = [int(label) for batch in space["loader"] for label in batch["label"]]
    assert abs(module.class_shares(came)[1] - 0.5) < 0.056  # five standard deviations of 2,000 fair coins


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
def test_the_stream_with_bestiary(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text('id,text\n1,"a\nb"\n2,c\n3,d\n')
    module, space = with_bestiary("challenge_sharded_stream", path=path)
    got = [str(one) for batch in space["loader"] for one in batch["id"]]
    assert sorted(got) == [row["id"] for row in module.ShardedRecords(path)] == ["1", "2", "3"]


def test_the_first_assignment_runs_and_tells_what_it_needs(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "cat").mkdir()
    image.new("RGB", (9, 9)).save(tmp_path / "cat" / "1.png")
    done = run("assignment_1_image_folder", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "1 images of 1 classes: cat" in done.stdout
    assert run("assignment_1_image_folder").returncode == 2


def test_the_second_assignment_measures_shares():
    out = run("assignment_2_weighted_sampler").stdout
    assert "in the data: class 0 95.0%, class 1 5.0%" in out
    share = float(re.search(r"in the batches: .*class 1 ([\d.]+)%", out)[1])
    assert abs(share - 50) < 5.6
    assert "2000 drawn" in out


def test_the_challenge_compares_both_readers(tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    lines = run("challenge_sharded_stream", tmp_path / "rows.jsonl").stdout.splitlines()
    assert [line.split()[:3] for line in lines[1:]] == [
        [name, workers, "2"] for workers in ("0", "4") for name in ("stream", "map")
    ]
