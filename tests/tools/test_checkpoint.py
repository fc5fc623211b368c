"""Checkpoints, generators, metrics: what a run is rebuilt from."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest
import torch

from bestiary.tools import Checkpoint, Metrics, generator_states, load_checkpoint, restore_generators, save_checkpoint


def draws():
    return torch.rand(3).tolist(), np.random.rand(3).tolist(), [random.random() for _ in range(3)], np.random.randn()


def test_generators_go_on_where_they_were(tmp_path):
    np.random.randn()  # leaves a second normal number waiting inside
    save_checkpoint(tmp_path / "c.pt", generator_states())
    expected = draws()
    draws()
    restore_generators(load_checkpoint(tmp_path / "c.pt"))
    assert draws() == expected


def test_a_save_that_fails_leaves_the_old_file(tmp_path):
    path = tmp_path / "c.pt"
    save_checkpoint(path, {"step": 1})
    with pytest.raises((TypeError, AttributeError, RuntimeError)):
        save_checkpoint(path, {"step": (step for step in ())})  # generators do not pickle
    assert load_checkpoint(path) == {"step": 1}


@pytest.mark.parametrize("content", [b"", b"PK", b"not a checkpoint", b"\x80\x05K\x01."])
def test_damaged_files_are_named(tmp_path, content):
    (tmp_path / "c.pt").write_bytes(content)
    with pytest.raises(ValueError, match=r"c\.pt"):
        load_checkpoint(tmp_path / "c.pt")


def test_code_in_a_checkpoint_is_not_run(tmp_path):
    torch.save({"x": pytest.raises}, tmp_path / "c.pt")
    with pytest.raises(ValueError, match="cannot be read"):
        load_checkpoint(tmp_path / "c.pt")


def make(folder, **about):
    model = torch.nn.Linear(2, 2)
    return model, Checkpoint(folder / "c.pt", {"model": model}, about, every_steps=3, every_s=1e9)


def test_parts_and_place_come_back(tmp_path):
    model, one = make(tmp_path, classes=["a"])
    metrics = Metrics(tmp_path / "m.jsonl")
    metrics.write({"step": 1})
    one.save({"step": 1}, metrics)
    metrics.write({"step": 2})
    metrics.close()
    other, two = make(tmp_path, classes=["a"])
    at = two.load()
    assert at["step"] == 1
    assert two.seconds >= at["seconds"] >= 0
    assert torch.equal(model.weight, other.weight)
    again = Metrics(tmp_path / "m.jsonl", at["metrics"])
    again.write({"step": 2, "again": True})
    again.close()
    rows = [json.loads(line) for line in (tmp_path / "m.jsonl").read_text().splitlines()]
    assert rows == [{"step": 1}, {"step": 2, "again": True}]


def test_another_run_is_refused_by_name(tmp_path):
    _, one = make(tmp_path, classes=["a"])
    one.save({}, Metrics(None))
    _, two = make(tmp_path, classes=["b"])
    with pytest.raises(ValueError, match=r"classes \['a'\].*\['b'\]"):
        two.load()


def test_saves_fall_due_by_steps(tmp_path):
    _, checkpoint = make(tmp_path)
    assert [step for step in range(1, 10) if checkpoint.due(step, torch.device("cpu"))] == [3, 6, 9]


def test_saves_fall_due_by_time(tmp_path):
    checkpoint = Checkpoint(tmp_path / "c.pt", {}, {}, every_s=0)
    assert checkpoint.due(1, torch.device("cpu"))


def test_a_new_run_begins_with_empty_metrics(tmp_path):
    (tmp_path / "m.jsonl").write_text("old\n")
    Metrics(tmp_path / "m.jsonl").close()
    assert (tmp_path / "m.jsonl").read_text() == ""


def test_a_run_begins_where_it_was_saved_or_says_why_not(tmp_path, capsys):
    path, start = tmp_path / "checkpoint.pt", {"epoch": 0, "step": 0}
    saved = Checkpoint(path, {}, {})
    assert saved.begin(False, start) == start
    assert capsys.readouterr().err == ""
    assert saved.begin(True, start) == start
    assert capsys.readouterr().err == f"there is no {path} to go on from; this run begins at the start\n"
    saved.save({"epoch": 3, "step": 17}, Metrics(None))
    found = saved.begin(True, start)
    assert (found["epoch"], found["step"]) == (3, 17)
    assert capsys.readouterr().err == f"going on from {path}, saved in epoch 4 after step 17\n"
    assert saved.begin(False, start) == start and not path.exists()
    assert "of an earlier run" in capsys.readouterr().err
