"""ImageFolder: what it lists, what a sample is, and what it says of files that cannot be read."""

from __future__ import annotations

import json
import pickle
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image, ImageFile
from torch.utils.data import DataLoader

from bestiary.files import PackedNames
from bestiary.images import ImageFolder, eval_transform, read_image, train_transform


def save(path: Path, value: int = 0, size: tuple[int, int] = (8, 6)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (value, 0, 0)).save(path)
    return path


def flip(sample: dict[str, Any]) -> dict[str, Any]:
    return sample | {"image": sample["image"].flip(-1)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name, value in (("cat/1.png", 10), ("cat/2.png", 20), ("dog/1.png", 30)):
        save(tmp_path / "root" / name, value)
    return tmp_path / "root"


def test_samples_of_class_folders(root: Path) -> None:
    dataset = ImageFolder(root)
    assert dataset.classes == ["cat", "dog"] and dataset.class_to_idx == {"cat": 0, "dog": 1}
    assert len(dataset) == 3 and dataset.labels.dtype == np.int64 and dataset.labels.tolist() == [0, 0, 1]
    assert isinstance(dataset.names, PackedNames) and list(dataset.names) == ["cat/1.png", "cat/2.png", "dog/1.png"]
    for index, (name, label, value) in enumerate((("cat/1.png", 0, 10), ("cat/2.png", 0, 20), ("dog/1.png", 1, 30))):
        sample = dataset[index]
        assert list(sample) == ["image", "label", "name"]
        assert sample["name"] == name and sample["label"] == label and type(sample["label"]) is int
        assert sample["image"].shape == (3, 6, 8) and sample["image"].dtype == torch.uint8
        assert sample["image"].is_contiguous() and (sample["image"][0] == value).all()
        assert dataset.locate(index) == str(root / name)
    assert dataset[-1]["name"] == "dog/1.png" and dataset[np.int64(1)]["name"] == "cat/2.png"
    for index in (3, -4):
        with pytest.raises(IndexError):
            dataset[index]
    assert [sample["label"] for sample in (dataset[i] for i in range(len(dataset)))] == [0, 0, 1]


def test_a_sample_belongs_to_the_caller(root: Path) -> None:
    dataset = ImageFolder(root)
    sample = dataset[0]
    sample["image"].fill_(99)
    assert (dataset[0]["image"][0] == 10).all()


def test_options_reach_the_decoder(root: Path, tmp_path: Path) -> None:
    assert ImageFolder(root, mode="L")[0]["image"].shape == (1, 6, 8)
    assert ImageFolder(root, mode="RGBA")[0]["image"].shape == (4, 6, 8)
    save(tmp_path / "large" / "a" / "1.jpg", size=(64, 48))
    assert ImageFolder(tmp_path / "large", min_side=12)[0]["image"].shape == (3, 12, 16)
    with pytest.raises(ValueError, match=r"sample 0, class 'a': .*1\.jpg has 3072 pixels.*limit of 100"):
        ImageFolder(tmp_path / "large", max_pixels=100)[0]
    with pytest.raises(ValueError, match="mode must be"):
        ImageFolder(root, mode="rgb")


def test_draws_tells_of_the_transform(root: Path) -> None:
    assert ImageFolder(root).draws is False
    assert ImageFolder(root, transform=flip).draws is True


def test_torchs_own_loader_takes_it(root: Path) -> None:
    batches = list(DataLoader(ImageFolder(root), batch_size=3))
    assert batches[0]["image"].shape == (3, 3, 6, 8) and batches[0]["label"].tolist() == [0, 0, 1]


def test_case_a01_hidden_folder(root: Path) -> None:
    save(root / ".ipynb_checkpoints" / "1.png")
    with pytest.warns(UserWarning, match=r"^bestiary: .*\.ipynb_checkpoints"):
        dataset = ImageFolder(root)
    assert dataset.class_to_idx == {"cat": 0, "dog": 1} and len(dataset) == 3
    assert ImageFolder(root, hidden=True).classes == [".ipynb_checkpoints", "cat", "dog"]


def test_case_a03_validation_uses_the_training_map(tmp_path: Path) -> None:
    for part, names in (("train", "abc"), ("val", "bc"), ("odd", "bcd")):
        for name in names:
            save(tmp_path / part / name / "1.png")
    train = ImageFolder(tmp_path / "train")
    (tmp_path / "map.json").write_text(json.dumps(["a", "b", "c"]))
    for classes in (train, train.classes, train.class_to_idx, tmp_path / "map.json"):
        val = ImageFolder(tmp_path / "val", classes=classes)
        assert [(sample["name"], sample["label"]) for sample in (val[0], val[1])] == [("b/1.png", 1), ("c/1.png", 2)]
        assert val.classes == ["a", "b", "c"]
    with pytest.raises(ValueError, match="'d'") as caught:
        ImageFolder(tmp_path / "odd", classes=train)
    assert str(tmp_path / "odd") in str(caught.value) and str(tmp_path / "train") in str(caught.value)


def test_case_a04_empty_classes(tmp_path: Path) -> None:
    root = tmp_path / "root"
    for name in "ad":
        save(root / name / "1.png")
    (root / "b").mkdir()
    (root / "c").mkdir()
    (root / "c" / "notes.txt").write_text("none")
    with pytest.raises(ValueError, match="'b', 'c'") as caught:
        ImageFolder(root)
    assert str(root) in str(caught.value) and ".jpeg" in str(caught.value)
    dataset = ImageFolder(root, allow_empty=True)
    assert dataset.classes == list("abcd") and dataset.class_to_idx["d"] == 3
    assert np.bincount(dataset.labels, minlength=4).tolist() == [1, 0, 0, 1]


def test_case_a07_links(tmp_path: Path) -> None:
    save(tmp_path / "pool" / "others" / "x.png", 5)
    save(tmp_path / "pool" / "fine" / "y.png", 6)
    root = tmp_path / "root"
    (root / "abnormal").mkdir(parents=True)
    (root / "abnormal" / "x.png").symlink_to(tmp_path / "pool" / "others" / "x.png")
    (root / "normal").symlink_to(tmp_path / "pool" / "fine")
    dataset = ImageFolder(root)
    assert [(s["name"], s["label"], int(s["image"][0, 0, 0])) for s in (dataset[0], dataset[1])] == [
        ("abnormal/x.png", 0, 5),
        ("normal/y.png", 1, 6),
    ]


def test_case_a09_extensions_in_any_case(tmp_path: Path) -> None:
    for name in ("1.jpg", "2.JPG", "3.Jpeg", "4.PNG", "5.webp"):
        save(tmp_path / "a" / name)
    (tmp_path / "a" / "6.txt").write_text("no picture")
    dataset = ImageFolder(tmp_path)
    assert list(dataset.names) == [f"a/{name}" for name in ("1.jpg", "2.JPG", "3.Jpeg", "4.PNG", "5.webp")]
    assert all(dataset[i]["image"].shape == (3, 6, 8) for i in range(5))


def test_accept_and_class_from(tmp_path: Path) -> None:
    for name in ("a/x/1.png", "a/y/2.png", "b/x/3.png"):
        save(tmp_path / name)
    (tmp_path / "a" / "x" / "1.png").rename(tmp_path / "a" / "x" / "1.picture")
    assert ImageFolder(tmp_path, class_from="leaf", accept=lambda path: True).classes == ["x", "y"]
    dataset = ImageFolder(
        tmp_path, class_from="path", accept=lambda path: path.endswith((".picture", "3.png")), allow_empty=True
    )
    assert dataset[0]["name"] == "a/x/1.picture" and "a/x" in dataset.class_to_idx


def test_case_a12_errors_name_the_file(tmp_path: Path) -> None:
    folder = tmp_path / "cat"
    save(folder / "ok.jpg", size=(64, 64))
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8))
    noise.save(folder / "half.jpg")
    data = (folder / "half.jpg").read_bytes()
    (folder / "half.jpg").write_bytes(data[: len(data) // 2])
    (folder / "zero.jpg").write_bytes(b"")
    (folder / "page.jpg").write_text("<!DOCTYPE html><html><body>404</body></html>")
    before = ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS
    dataset = ImageFolder(tmp_path)
    for index in range(len(dataset)):
        if dataset.names[index] == "cat/ok.jpg":
            assert dataset[index]["image"].shape == (3, 64, 64)
            continue
        with pytest.raises(OSError, match=f"sample {index}, class 'cat'") as caught:
            dataset[index]
        assert str(tmp_path / dataset.names[index]) in str(caught.value)
        assert caught.value.__cause__ is not None
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is OSError and str(again) == str(caught.value)
    assert (ImageFile.LOAD_TRUNCATED_IMAGES, Image.MAX_IMAGE_PIXELS) == before
    (folder / "ok.jpg").unlink()
    with pytest.raises(OSError, match=r"class 'cat'.*ok\.jpg"):
        dataset[list(dataset.names).index("cat/ok.jpg")]


def test_case_a23_two_halves_two_transforms(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        pixels = np.zeros((4, 4, 3), np.uint8)
        pixels[:, 0] = number + 1
        path = tmp_path / "root" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).save(path)
    reads: Counter[str] = Counter()
    monkeypatch.setattr(
        "bestiary.images.folder.read_image",
        lambda path, *args, **options: (reads.update([str(path)]), read_image(path, *args, **options))[1],
    )
    train = ImageFolder(tmp_path / "root", transform=flip)
    val = train.with_transform(None)
    assert not reads and val.names is train.names and train.transform is flip
    chosen = np.random.default_rng(0).permutation(20)
    for index in chosen[:16].tolist():
        image = train[index]["image"]
        assert (image[0, :, -1] > 0).all() and (image[0, :, 0] == 0).all()
    first = [val[index]["image"] for index in chosen[16:].tolist()]
    assert all((image[0, :, 0] > 0).all() and (image[0, :, -1] == 0).all() for image in first)
    assert len(reads) == 20 and set(reads.values()) == {1}
    assert all(
        torch.equal(val[index]["image"], image) for index, image in zip(chosen[16:].tolist(), first, strict=True)
    )


@pytest.mark.parametrize("transform", [None, train_transform(4), eval_transform(4)])
def test_case_f22_pickles_small_and_the_same(root: Path, transform: Any) -> None:
    dataset = ImageFolder(root, transform=transform)
    dataset[0]
    data = pickle.dumps(dataset)
    assert len(data) < 3000
    copied = pickle.loads(data)
    for index in range(3):
        torch.manual_seed(index)
        expected = dataset[index]
        torch.manual_seed(index)
        found = copied[index]
        assert found["name"] == expected["name"] and torch.equal(found["image"], expected["image"])
    assert copied.classes == dataset.classes and copied.class_to_idx == dataset.class_to_idx


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_of_every_kind_read_the_same(root: Path, method: str) -> None:
    dataset = ImageFolder(root, transform=eval_transform(4))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads, from Python 3.12 on
        loader = DataLoader(dataset, batch_size=3, num_workers=1, multiprocessing_context=method)
        (batch,) = list(loader)
    assert torch.equal(batch["image"], torch.stack([dataset[i]["image"] for i in range(3)]))
