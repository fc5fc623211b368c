"""What a loader tells of its time: waiting, and the stages of making batches."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from bestiary.images import ImageFolder
from bestiary.loading import Collate, Loader
from loader_datasets import Plain


class Staged:
    """Tells in ``spent`` what each sample took."""

    def __init__(self) -> None:
        self.spent = {"read": 0.0, "decode": 0.0}

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        for stage, seconds in (("read", 0.002), ("decode", 0.010)):
            begun = time.perf_counter()
            time.sleep(seconds)
            self.spent[stage] += time.perf_counter() - begun
        time.sleep(0.004)
        return {"x": torch.zeros(3)}


def slow_collate(samples: Any) -> Any:
    time.sleep(0.02)
    return Collate()(samples)


@pytest.mark.parametrize("workers", [0, 2])
def test_stages_add_up_to_what_making_batches_took(workers: int) -> None:
    loader = Loader(Staged(), batch_size=4, collate=slow_collate, num_workers=workers)
    list(loader)
    report = loader.report()
    least = {"read": 12 * 0.002, "decode": 12 * 0.010, "sample": 12 * 0.004, "collate": 3 * 0.02}
    assert {name: report.stages[name] >= seconds for name, seconds in least.items()} == dict.fromkeys(least, True)
    assert ("hand-over" in report.stages) == (workers > 0)
    made = sum(seconds for name, seconds in report.stages.items() if name != "hand-over")
    assert made == pytest.approx(report.fetch_s, rel=0.05)
    assert "most of the work: decode" in report.line
    rows = str(report).splitlines()
    assert rows[0] == report.line and rows[1].split()[0] == "decode"


class Counted(Plain):
    """Says that every sample took a second."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.spent = {"decode": 0.0}

    def __getitem__(self, index: int) -> Any:
        self.spent["decode"] += 1.0
        return super().__getitem__(index)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_next_pass_begins_at_zero(workers: int) -> None:
    loader = Loader(Counted(10), batch_size=4, num_workers=workers)
    for _ in range(2):
        list(loader)
        assert loader.report().stages["decode"] == 10.0


def test_a_folder_of_pictures_tells_read_decode_and_transform(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(4):
        Image.fromarray(np.zeros((64, 64, 3), np.uint8)).save(tmp_path / "a" / f"{number}.png")
    loader = Loader(ImageFolder(tmp_path, transform=dict), batch_size=2)
    list(loader)
    stages = loader.report().stages
    assert stages.keys() == {"read", "decode", "transform", "sample", "collate"}
    assert stages["decode"] > 0 and stages["read"] > 0 and stages["transform"] > 0


@pytest.mark.parametrize(("workers", "transport"), [(0, "slots"), (2, "slots"), (2, "torch")])
def test_the_bound_of_memory_is_told(workers: int, transport: Any) -> None:
    loader = Loader(Plain(8), batch_size=2, num_workers=workers, transport=transport)
    list(loader)
    report = loader.report()
    if transport == "torch":
        assert report.most_bytes == report.held_bytes == 0 and "bound" not in str(report)
    else:
        assert f"bound {report.most_bytes / 1e6:,.0f} MB" in str(report)
        assert 0 <= report.held_bytes < report.most_bytes < 4e12


def test_memory_held_is_that_of_large_batches() -> None:
    loader = Loader(Million(8), batch_size=2, num_workers=1)
    list(loader)
    assert 2e6 <= loader.report().held_bytes <= 4 * 3 * 1024 * 1024  # at most four slots of two samples, in whole MB


class Million(Plain):
    """Samples of a million bytes."""

    def __getitem__(self, index: int) -> Any:
        return {"x": torch.zeros(1_000_000, dtype=torch.uint8)}
