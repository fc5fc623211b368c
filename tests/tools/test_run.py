"""What goes on around a loop: ends, cores, the bar; and the figures."""

from __future__ import annotations

import os

import pytest
import torch
from PIL import Image

from bestiary.loading import Loader
from bestiary.tools import (
    calm_threads,
    check_device,
    draw_confusion,
    draw_samples,
    program,
    progress,
    stop,
    usable_cores,
)


def test_stop_says_one_line_and_ends_with_2(capsys):
    with pytest.raises(SystemExit) as caught:
        stop("recipe", ValueError("found nothing"))
    assert caught.value.code == 2
    assert capsys.readouterr().err == "recipe: found nothing\n"


def test_no_more_cores_than_the_machine_has():
    assert 1 <= usable_cores() <= (os.cpu_count() or 1)


def test_ranks_of_one_machine_share_its_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)), raising=False)
    for ranks, cores in (("1", 6), ("2", 3), ("4", 1), ("16", 1)):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        assert usable_cores() == cores


def test_a_device_has_to_be_there(monkeypatch):
    check_device("cpu")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda check_available=False: torch.device("cuda"))
    check_device("cuda:1")
    for name in ("mps", "warp", ""):
        with pytest.raises(ValueError, match="cuda"):
            check_device(name)


def test_the_bar_passes_every_batch_on(capsys):
    loader = Loader(list(range(10)), batch_size=4)
    seen = [batch.tolist() for batch in progress(loader, "epoch 1/1", 3)]
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert capsys.readouterr() == ("", "")  # no terminal, and far from 30 s


def test_the_bar_tells_figures_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    list(progress(Loader(list(range(4)), batch_size=2), "epoch 1/1", 2))
    err = capsys.readouterr().err
    assert "1/2" in err
    assert "images/s" in err
    assert "waiting for data" in err


@pytest.mark.parametrize("classes", [["a", "b"], ["$x", "_y", "\udcff"], [f"c{n}" for n in range(70)]])
def test_confusion_is_drawn_for_any_names(tmp_path, classes):
    table = torch.eye(len(classes), dtype=torch.int64) * 3
    table[0] = 0  # a class without pictures
    draw_confusion(tmp_path / "c.png", table, classes)
    with Image.open(tmp_path / "c.png") as drawn:
        assert min(drawn.size) > 200


@pytest.mark.parametrize(("count", "channels"), [(1, 3), (5, 3), (4, 1)])
def test_samples_are_drawn_for_any_number(tmp_path, count, channels):
    images = torch.zeros(count, channels, 8, 8, dtype=torch.uint8)
    draw_samples(tmp_path / "s.png", images, ["a"] * count, ["b"] * count)
    with Image.open(tmp_path / "s.png") as drawn:
        assert drawn.width > drawn.height * 0.5


def test_threads_leave_half_of_the_cores_to_others(monkeypatch):
    before = torch.get_num_threads()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    try:
        for workers, expected in ((0, 4), (2, 3), (7, 1), (100, 1)):
            torch.set_num_threads(8)
            assert calm_threads(workers) == torch.get_num_threads() == expected
        torch.set_num_threads(2)
        assert calm_threads() == 2  # never more than were set
    finally:
        torch.set_num_threads(before)


def test_ctrl_c_ends_a_program_with_a_line(capsys):
    def interrupted():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as caught:
        program("recipe", interrupted)
    assert caught.value.code == 130
    told = capsys.readouterr().err.strip()
    assert told == "recipe: stopped; the same command with --resume goes on from the last checkpoint"
    program("recipe", lambda: None)
