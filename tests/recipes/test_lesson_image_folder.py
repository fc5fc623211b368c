"""Assignment 1, for the reference solution and for anybody's own."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from PIL import Image
from torch.utils.data import DataLoader

HERE = Path(__file__).resolve().parent
NAME = "assignment_1_image_folder"
sys.path.insert(0, str(HERE if (HERE / f"{NAME}.py").exists() else HERE.parents[1] / "recipes" / "lesson"))

import assignment_1_image_folder as lesson


@pytest.fixture
def root(tmp_path):
    for number in range(20):
        folder = tmp_path / ("cat" if number % 2 else "dog") / "deeper"
        folder.mkdir(parents=True, exist_ok=True)
        image = Image.new("RGB", (8, 8), (255, 255, 255))
        image.paste((0, 0, 0), (0, 0, 4, 8))  # black on the left, white on the right
        image.save(folder / f"{number:02}.{'PNG' if number % 3 else 'png'}")
    (tmp_path / ".hidden").mkdir()
    Image.new("L", (8, 8)).save(tmp_path / ".hidden" / "x.png")
    (tmp_path / "cat" / "notes.txt").write_text("no image")
    Image.new("L", (8, 8)).save(tmp_path / "cat" / "._x.png")
    return tmp_path


def test_classes_and_files_are_listed(root):
    classes, files = lesson.find_images(root)
    assert classes == ["cat", "dog"]
    assert len(files) == 20
    assert [label for _, label in files] == [0] * 10 + [1] * 10
    assert [path.name for path, _ in files] == sorted(path.name for path, _ in files if "cat" in path.parts) + sorted(
        path.name for path, _ in files if "dog" in path.parts
    )


def test_a_root_without_images_is_told(tmp_path):
    with pytest.raises(ValueError, match="one folder a class"):
        lesson.find_images(tmp_path)


def test_any_image_becomes_rgb_channels_first(tmp_path):
    Image.new("RGBA", (5, 9), (10, 20, 30, 40)).save(tmp_path / "x.png")
    image = lesson.read_image(tmp_path / "x.png", 4)
    assert image.dtype == torch.uint8
    assert image.shape == (3, 4, 4)
    assert [int(channel.unique()) for channel in image] == [10, 20, 30]


def test_pixels_reach_both_ends_of_the_range_exactly():
    levels = torch.arange(256, dtype=torch.uint8).reshape(1, 1, 256)
    out = lesson.normalize(levels)
    assert out.dtype == torch.float32
    assert out[0, 0, 0] == -1
    assert out[0, 0, 255] == 1
    wanted = torch.tensor([2 * level / 255 - 1 for level in range(256)])
    assert torch.allclose(out[0, 0], wanted, atol=1e-6, rtol=0)


def test_normalising_the_batch_late_is_the_same(root):
    files = lesson.find_images(root)[1]
    raw = [lesson.read_image(path, 8) for path, _ in files[:4]]
    late = lesson.normalize(torch.stack(raw))
    early = torch.stack([lesson.normalize(image) for image in raw])
    assert torch.allclose(late, early, atol=1e-6, rtol=0)


def test_flip_mirrors_left_and_right():
    image = torch.arange(6).reshape(1, 2, 3)
    assert lesson.flip(image).tolist() == [[[2, 1, 0], [5, 4, 3]]]
    assert torch.equal(lesson.flip(lesson.flip(image)), image)


def test_flips_are_keyed_by_seed_epoch_and_index():
    draws = [[lesson.wants_flip(0, epoch, index) for index in range(2000)] for epoch in range(2)]
    assert draws[0] == [lesson.wants_flip(0, 0, index) for index in range(2000)]
    assert draws[0] != draws[1]
    assert draws[0] != [lesson.wants_flip(1, 0, index) for index in range(2000)]
    for flips in draws:
        assert abs(sum(flips) - 1000) < 112  # five standard deviations of 2,000 fair coins: 5 * sqrt(500)
    assert not any(lesson.wants_flip(0, 0, index, 0.0) for index in range(50))
    assert all(lesson.wants_flip(0, 0, index, 1.0) for index in range(50))


def test_the_dataset_flips_as_told_and_each_epoch_anew(root):
    dataset = lesson.ImageFolderDataset(root, size=8)
    assert type(len(dataset)) is int
    assert len(dataset) == 20
    seen = []
    for epoch in range(2):
        dataset.set_epoch(epoch)
        left = [float(dataset[index]["image"][0, 0, 0]) for index in range(20)]
        assert left == [1.0 if lesson.wants_flip(0, epoch, index) else -1.0 for index in range(20)]
        seen.append(left)
    assert seen[0] != seen[1]


def test_batches_do_not_depend_on_workers(root):
    dataset = lesson.ImageFolderDataset(root, size=8)
    runs = [list(DataLoader(dataset, batch_size=6, num_workers=workers)) for workers in (0, 2)]
    for one, two in zip(*runs, strict=True):
        assert torch.equal(one["image"], two["image"])
        assert torch.equal(one["label"], two["label"])
