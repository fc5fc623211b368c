"""Class folders: what becomes a class, what is left out and said, and the class map."""

import json
import os
import pickle
import warnings
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torchvision.datasets import ImageFolder as PeerFolder

from bestiary.files import ClassNames, Tree, load_classes, save_classes, scan_classes

IMAGES = (".jpeg", ".jpg", ".png", ".webp")


def plant(root: Path, *files: str) -> Path:
    """Make empty files below root; a name that ends in a slash is a folder."""
    for name in files:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).mkdir(parents=True, exist_ok=True) if name.endswith("/") else (root / name).touch()
    return root


def scan(root, **options) -> Tree:
    return scan_classes(root, extensions=IMAGES, **options)


def pairs(tree: Tree) -> list[tuple[str, str]]:
    assert tree.labels.dtype == np.int64 and tree.labels.shape == (len(tree.names),)
    return [(name, tree.classes[label]) for name, label in zip(tree.names, tree.labels, strict=True)]


@pytest.fixture
def no_notice():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def test_lists_like_torchvision(tmp_path, no_notice):
    root = plant(
        tmp_path, "b/2.png", "b/10.png", "b/x/1.jpg", "b/x-y/1.jpg", "b/x/z/0.png", "B/1.png", "é/ü.png", "a b/1.png"
    )
    tree, peer = scan(root), PeerFolder(root)
    assert tree.classes == peer.classes and tree.classes.class_to_idx == peer.class_to_idx
    assert [(str(root / name), label) for name, label in zip(tree.names, tree.labels, strict=True)] == peer.samples


def test_says_nothing_of_a_tidy_tree(tmp_path, no_notice):
    assert pairs(scan(plant(tmp_path, "cat/1.png", "dog/1.png", "dog/notes.txt", "README.md"))) == [
        ("cat/1.png", "cat"),
        ("dog/1.png", "dog"),
    ]


@pytest.mark.parametrize("inside", [".ipynb_checkpoints/1.png", ".git/x/1.png"])
def test_case_a01_hidden_folder(tmp_path, inside):
    root = plant(tmp_path, "cat/1.png", "dog/1.png", inside)
    with pytest.warns(UserWarning, match="^bestiary: ") as notices:
        tree = scan(root)
    assert len(notices) == 1 and inside.split("/")[0] in str(notices[0].message)
    assert tree.classes == ["cat", "dog"]
    assert tree.classes.class_to_idx == {"cat": 0, "dog": 1}
    assert len(tree.names) == 2
    with_hidden = scan(root, hidden=True)
    assert with_hidden.classes == [inside.split("/")[0], "cat", "dog"] and len(with_hidden.names) == 3


def test_hidden_files_and_inner_folders_are_named_in_one_notice(tmp_path):
    root = plant(tmp_path, "cat/1.png", "cat/._1.png", "cat/.thumbs/1.png", "cat/.DS_Store")
    with pytest.warns(UserWarning) as notices:
        assert list(scan(root).names) == ["cat/1.png"]
    text = str(notices[0].message)
    assert len(notices) == 1 and "'cat/._1.png'" in text and "'cat/.thumbs'" in text and "DS_Store" not in text


def test_a_long_notice_is_shortened(tmp_path):
    root = plant(tmp_path, "cat/1.png", *(f"cat/.{i:04d}.png" for i in range(500)))
    with pytest.warns(UserWarning, match="500 in all") as notices:
        scan(root)
    assert len(str(notices[0].message)) < 600


def test_a_root_below_a_hidden_folder_is_no_matter(tmp_path, no_notice):
    assert len(scan(plant(tmp_path / ".cache" / "data", "cat/1.png")).names) == 1


class Training:
    """What a training dataset shows of itself."""

    def __init__(self, root):
        self.root, self.classes = root, scan(root).classes


@pytest.mark.parametrize("form", ["dataset", "classes", "class_to_idx", "json", "tree"])
def test_case_a03_validation_uses_the_training_map(tmp_path, form):
    train = plant(tmp_path / "train", "a/1.png", "b/1.png", "c/1.png")
    save_classes(tmp_path / "classes.json", scan(train).classes)
    known = {
        "dataset": Training(train),
        "classes": scan(train).classes,
        "class_to_idx": scan(train).classes.class_to_idx,
        "json": tmp_path / "classes.json",
        "tree": scan(train),
    }[form]
    val = plant(tmp_path / "val", "b/1.png", "c/1.png", "d/1.png")
    with pytest.raises(ValueError, match="'d'") as caught:
        scan(val, classes=known)
    assert str(val) in str(caught.value)
    assert str(tmp_path / "classes.json" if form == "json" else train) in str(caught.value)
    (val / "d/1.png").unlink()
    with pytest.raises(ValueError, match="'d'"):
        scan(val, classes=known)
    (val / "d").rmdir()
    tree = scan(val, classes=known)
    assert tree.classes == ["a", "b", "c"]
    assert list(zip(tree.names, tree.labels.tolist(), strict=True)) == [("b/1.png", 1), ("c/1.png", 2)]


def test_case_a04_empty_class_folders(tmp_path):
    root = plant(tmp_path, "a/1.png", "b/", "c/notes.txt", "d/1.png")
    with pytest.raises(ValueError, match="'b', 'c'") as caught:
        scan(root)
    assert str(root) in str(caught.value) and all(ending in str(caught.value) for ending in IMAGES)
    assert "'a'" not in str(caught.value) and "allow_empty" in str(caught.value)
    tree = scan(root, allow_empty=True)
    assert tree.classes == ["a", "b", "c", "d"] and tree.classes.class_to_idx["d"] == 3
    assert Counter(tree.labels.tolist()) == {0: 1, 3: 1}


def test_a_class_with_files_in_inner_folders_only_is_not_empty(tmp_path, no_notice):
    assert pairs(scan(plant(tmp_path, "a/x/y/1.png", "a/z/"))) == [("a/x/y/1.png", "a")]


def test_an_empty_class_whose_files_are_hidden_says_so(tmp_path):
    with pytest.raises(ValueError, match=r"'a/\.1\.png'"):
        scan(plant(tmp_path, "a/.1.png", "b/1.png"))


def test_case_a07_links(tmp_path, no_notice):
    pool, root = plant(tmp_path / "pool", "others/x.png", "dir/y.png"), plant(tmp_path / "root", "abnormal/")
    (root / "abnormal/x.png").symlink_to(pool / "others/x.png")
    (root / "normal").symlink_to(pool / "dir")
    assert pairs(scan(root)) == [("abnormal/x.png", "abnormal"), ("normal/y.png", "normal")]


def test_case_a07_broken_links_are_named(tmp_path):
    root = plant(tmp_path, "a/1.png", "b/1.png")
    (root / "a/gone.png").symlink_to("nowhere.png")
    (root / "a/itself.png").symlink_to("itself.png")
    (root / "lost").symlink_to("nowhere")
    os.mkfifo(root / "b/pipe.png")
    with pytest.warns(UserWarning, match="^bestiary: ") as notices:
        tree = scan(root)
    assert len(notices) == 1
    assert all(f"'{name}'" in str(notices[0].message) for name in ("a/gone.png", "a/itself.png", "lost", "b/pipe.png"))
    assert tree.classes == ["a", "b"] and list(tree.names) == ["a/1.png", "b/1.png"]


def test_loops_of_links_end(tmp_path):
    root = plant(tmp_path, "a/1.png", "b/in/2.png")
    (root / "a/up").symlink_to(root)
    (root / "b/in/again").symlink_to(root / "b")
    (root / "a/other").symlink_to(root / "b")
    with pytest.warns(UserWarning, match="lead to a folder above") as notices:
        tree = scan(root)
    assert len(notices) == 1
    assert all(f"'{name}'" in str(notices[0].message) for name in ("a/up", "b/in/again", "a/other/in/again"))
    assert pairs(tree) == [("a/1.png", "a"), ("a/other/in/2.png", "a"), ("b/in/2.png", "b")]


def test_case_a09_extensions_in_any_case(tmp_path, no_notice):
    root = plant(
        tmp_path,
        *(f"a/{name}" for name in ("6.txt", "5.webp", "4.PNG", "3.Jpeg", "2.JPG", "1.jpg", "7.jpg.txt", "jpg")),
    )
    assert list(scan(root).names) == ["a/1.jpg", "a/2.JPG", "a/3.Jpeg", "a/4.PNG", "a/5.webp"]


def test_case_a10_order_of_the_file_system_is_no_matter(tmp_path, monkeypatch):
    root = plant(tmp_path, *(f"{label}/{i}.png" for label in "cab" for i in (10, 9, 1)), "a/z/1.png", "a/y/1.png")
    trees = [scan(root)]
    real = os.scandir

    class Reversed:
        def __init__(self, path):
            self.entries = list(real(path))[::-1]

        def __enter__(self):
            return iter(self.entries)

        def __exit__(self, *error):
            return None

    monkeypatch.setattr(os, "scandir", Reversed)
    trees.append(scan(root))
    assert list(trees[0].names) == list(trees[1].names)
    assert trees[0].labels.tolist() == trees[1].labels.tolist() == [0] * 5 + [1] * 3 + [2] * 3


def test_case_a11_integer_folders_sort_naturally(tmp_path, no_notice):
    tree = scan(plant(tmp_path, *(f"{i}/1.png" for i in range(12))))
    assert all(index == int(name) for name, index in tree.classes.class_to_idx.items())
    assert [int(name.split("/")[0]) for name in tree.names] == tree.labels.tolist() == list(range(12))


@pytest.mark.parametrize("numbers", [range(1, 13), [0, 5, 10], [2], [-1, 1]])
def test_case_a11_other_integers_are_shown_once(tmp_path, numbers):
    root = plant(tmp_path, *(f"{i}/1.png" for i in numbers))
    with pytest.warns(UserWarning, match=r"^bestiary: .*classes=") as notices:
        tree = scan(root)
    assert len(notices) == 1 and f"'{numbers[0]}' -> 0" in str(notices[0].message)
    assert tree.classes == [str(i) for i in numbers]


def test_case_a11_an_explicit_mapping_gives_the_index(tmp_path, no_notice):
    root = plant(tmp_path, *(f"{i}/1.png" for i in (1, 2, 10)))
    tree = scan(root, classes={str(i): i for i in range(1, 13)})
    assert tree.labels.tolist() == [1, 2, 10]
    assert tree.classes[10] == "10" and len(tree.classes) == 13
    assert tree.classes.class_to_idx == {str(i): i for i in range(1, 13)}
    assert scan(root, classes=tree.classes).labels.tolist() == [1, 2, 10]


def test_folders_that_are_not_all_integers_sort_as_text(tmp_path, no_notice):
    assert scan(plant(tmp_path, "10/1.png", "9/1.png", "x/1.png")).classes == ["10", "9", "x"]


def test_class_from(tmp_path, no_notice):
    root = plant(tmp_path, "a/x/1.png", "b/x/2.png", "b/y/3.png", "b/4.png", "c/z/5.png")
    assert [label for _, label in pairs(scan(root))] == ["a", "b", "b", "b", "c"]
    assert pairs(scan(root, class_from="path")) == [
        ("a/x/1.png", "a/x"),
        ("b/4.png", "b"),
        ("b/x/2.png", "b/x"),
        ("b/y/3.png", "b/y"),
        ("c/z/5.png", "c/z"),
    ]
    assert pairs(scan(root, class_from="leaf")) == [
        ("b/4.png", "b"),
        ("a/x/1.png", "x"),
        ("b/x/2.png", "x"),
        ("b/y/3.png", "y"),
        ("c/z/5.png", "z"),
    ]
    plant(root, "c/empty/")
    with pytest.raises(ValueError, match="'c/empty'"):
        scan(root, class_from="path")
    with pytest.raises(ValueError, match="middle"):
        scan(root, class_from="middle")


def test_accept_decides_in_place_of_the_extensions(tmp_path, no_notice):
    root = plant(tmp_path, "a/1.png", "a/2.raw", "b/2.raw")
    seen = []
    tree = scan(root, accept=lambda path: seen.append(path) or path.endswith("2.raw"))
    assert list(tree.names) == ["a/2.raw", "b/2.raw"]
    assert sorted(seen) == sorted(str(root / name) for name in ("a/1.png", "a/2.raw", "b/2.raw"))


def test_files_without_a_class_are_named(tmp_path):
    root = plant(tmp_path, "1.png", "2.png", "notes.txt")
    with pytest.raises(ValueError, match=r"2 files.*'1.png', '2.png'.*<class>"):
        scan(root)
    plant(root, "cat/1.png")
    with pytest.warns(UserWarning, match=r"^bestiary: .*'1.png', '2.png'"):
        assert list(scan(root).names) == ["cat/1.png"]


def test_a_wrong_root_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        scan(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError, match=r"1\.png"):
        scan(plant(tmp_path, "1.png") / "1.png")
    with pytest.raises(ValueError, match="one folder per class"):
        scan(plant(tmp_path / "empty", "x/").joinpath("x"))
    for options in ({}, {"allow_empty": True}):
        with pytest.raises(ValueError, match="one folder per class"):
            scan(tmp_path / "empty" / "x", **options)


def test_a_map_without_any_file_is_refused_or_allowed(tmp_path):
    root = plant(tmp_path, "a/", "b/")
    with pytest.raises(ValueError, match=r"no file.*\.png"):
        scan(root, classes=["a", "b"])
    tree = scan(root, classes=["a", "b"], allow_empty=True)
    assert len(tree.names) == 0 and tree.labels.dtype == np.int64 and tree.classes == ["a", "b"]


@given(st.lists(st.text(min_size=1).filter(lambda name: not name.isspace()), min_size=1, unique=True))
def test_the_class_map_survives_a_json_file(tmp_path_factory, names):
    path = tmp_path_factory.mktemp("map") / "classes.json"
    save_classes(path, names)
    assert load_classes(path) == names and load_classes(path).root == str(path)
    assert json.loads(path.read_text(encoding="utf-8")) == names
    path.write_text(json.dumps({name: at for at, name in enumerate(names)}), encoding="utf-8")
    assert load_classes(path) == names
    assert os.listdir(path.parent) == ["classes.json"]


def test_names_that_are_not_utf8_survive(tmp_path):
    folder = os.path.join(os.fsencode(tmp_path), b"root", b"caf\xe9")
    os.makedirs(folder)
    open(os.path.join(folder, b"\xff.png"), "w").close()
    tree = scan(tmp_path / "root")
    assert os.fsencode(tree.names[0]) == b"caf\xe9/\xff.png"
    save_classes(tmp_path / "classes.json", tree.classes)
    assert [os.fsencode(name) for name in load_classes(tmp_path / "classes.json")] == [b"caf\xe9"]
    with pytest.raises(ValueError) as caught:
        scan(tmp_path / "root", classes=["cat"])
    assert str(caught.value).encode()


@pytest.mark.parametrize(
    ("classes", "kind", "text"),
    [
        (["a", "b", "a"], ValueError, "twice.*'a'"),
        ([], ValueError, "empty"),
        ({}, ValueError, "empty"),
        ({"a": 0, "b": 0}, ValueError, "'b'.*'a'"),
        ({"a": -1}, ValueError, "-1"),
        ([1, 2], TypeError, "1"),
        ({"a", "b"}, TypeError, "set"),
        (7, TypeError, "int"),
    ],
)
def test_a_wrong_class_map_is_refused(tmp_path, classes, kind, text):
    with pytest.raises(kind, match=text):
        scan(plant(tmp_path, "a/1.png"), classes=classes)


@pytest.mark.parametrize("text", ["", "7", '"cat"', '["a", "a"]', "[1]", '{"a": "x"}'])
def test_a_wrong_class_file_is_named(tmp_path, text):
    path = tmp_path / "classes.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"classes\.json.*list of class names"):
        load_classes(path)


def test_class_names_pickle_and_stay_a_list(tmp_path):
    names = scan(plant(tmp_path, "a/1.png")).classes
    again = pickle.loads(pickle.dumps(names))
    assert isinstance(again, ClassNames) and again == ["a"] and again.root == str(tmp_path)
    assert json.dumps(names) == '["a"]'


def test_folders_that_systems_make_are_no_classes(tmp_path: Path) -> None:
    for name in ("cat/1.png", "__MACOSX/cat/._1.png", "@eaDir/1.png"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    with pytest.warns(UserWarning, match="__MACOSX"):
        tree = scan_classes(tmp_path, extensions={".png"})
    assert list(tree.classes) == ["cat"] and list(tree.names) == ["cat/1.png"]


def test_folders_that_link_to_one_another_are_taken_once_for_each_class(tmp_path: Path) -> None:
    names = [f"c{number}" for number in range(7)]
    for name in names:
        (tmp_path / name).mkdir()
        (tmp_path / name / "1.png").touch()
    for name in names:
        for other in names:
            if other != name:
                (tmp_path / name / other).symlink_to(tmp_path / other)
    with pytest.warns(UserWarning, match="links are not followed"):
        tree = scan_classes(tmp_path, extensions={".png"})
    assert len(tree.names) == 7 * 7


def test_names_that_only_look_the_same_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "caf\u00e9").mkdir()
    (tmp_path / "caf\u00e9" / "1.png").touch()
    with pytest.raises(ValueError, match=r"spelled otherwise: 'caf\\xe9.*cafe\\u0301"):
        scan_classes(tmp_path, extensions={".png"}, classes=["cafe\u0301"])
