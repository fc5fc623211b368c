"""ImageManifest: tables of every kind, their faults by file and line, and columns instead of objects."""

from __future__ import annotations

import csv
import json
import pickle
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from bestiary.images import ImageFolder, ImageManifest, train_transform


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "imgs").mkdir()
    for number in range(4):
        Image.new("RGB", (8, 6), (number, 0, 0)).save(tmp_path / "imgs" / f"{number}.png")
    return tmp_path


def table(folder: Path, text: str, name: str = "rows.csv") -> Path:
    (folder / name).write_text(text, encoding="utf-8", newline="")
    return folder / name


ROWS = "file_name,label,age,note\nimgs/1.png,dog,3,good\nimgs/0.png,cat,4,\n"


def test_a_csv_table(folder: Path) -> None:
    dataset = ImageManifest(table(folder, ROWS), fields={"age": float, "note": str})
    assert dataset.classes == ["cat", "dog"] and dataset.class_to_idx == {"cat": 0, "dog": 1}
    assert len(dataset) == 2 and dataset.labels.tolist() == [1, 0] and dataset.labels.dtype == np.int64
    assert list(dataset.names) == ["imgs/1.png", "imgs/0.png"]
    sample = dict(dataset[0])
    image = sample.pop("image")
    assert image.shape == (3, 6, 8) and image.dtype == torch.uint8 and image[0, 0, 0] == 1
    assert sample == {"label": 1, "name": "imgs/1.png", "age": 3.0, "note": "good"}
    assert type(sample["age"]) is float and type(sample["label"]) is int
    assert dataset.locate(1) == f"{folder / 'imgs/0.png'} ({folder / 'rows.csv'}, line 3)"
    assert dict(dataset[-1])["note"] == ""
    with pytest.raises(IndexError):
        dataset[2]


def test_further_columns_are_text_in_csv_and_typed_in_json(folder: Path) -> None:
    assert {name: dict(ImageManifest(table(folder, ROWS))[0])[name] for name in ("age", "note")} == {
        "age": "3",
        "note": "good",
    }
    assert set(ImageManifest(table(folder, ROWS), fields={})[0]) == {"image", "label", "name"}
    lines = [
        {"file_name": "imgs/0.png", "label": 7, "age": 3, "height": 1.5, "note": "a"},
        {"height": 2, "note": "ü", "label": 5, "age": 2**53 + 1, "file_name": "imgs/1.png"},
    ]
    text = "\n\n".join(map(json.dumps, lines))
    dataset = ImageManifest(table(folder, text, "rows.jsonl"), classes={"5": 5, "7": 7})
    assert [dataset[i]["label"] for i in range(2)] == [7, 5]
    assert {name: dict(dataset[1])[name] for name in ("age", "height", "note")} == {
        "age": 2**53 + 1,
        "height": 2.0,
        "note": "ü",
    }
    assert dataset.locate(1).endswith("rows.jsonl, line 3)")


def test_columns_root_and_tabs(folder: Path) -> None:
    path = table(folder / "imgs", "kind\tpicture\na\t0.png\nb\t1.png\n", "rows.tsv")
    dataset = ImageManifest(path, file_column="picture", label_column="kind")
    assert dataset[1]["image"][0, 0, 0] == 1 and dataset.classes == ["a", "b"]
    (folder / "lists").mkdir()
    path = table(folder / "lists", "path,class\nimgs/2.png,a\n")
    assert ImageManifest(path, root=folder)[0]["image"][0, 0, 0] == 2
    assert ImageManifest(table(folder, f"path,class\n{folder / 'imgs/3.png'},a\n"))[0]["image"][0, 0, 0] == 3


def test_a_mark_at_the_start_and_line_ends_of_windows(folder: Path) -> None:
    path = folder / "rows.csv"
    path.write_bytes(b"\xef\xbb\xbffile_name,label\r\n\r\nimgs/0.png,a\r\nimgs/1.png,b\r\n")
    dataset = ImageManifest(path)
    assert list(dataset.names) == ["imgs/0.png", "imgs/1.png"] and dataset.classes == ["a", "b"]
    assert dataset.lines.tolist() == [3, 4]


def test_a_quoted_cell_may_hold_line_breaks(folder: Path) -> None:
    dataset = ImageManifest(table(folder, 'file_name,label,note\nimgs/0.png,a,"one\ntwo, ""three"""\nimgs/1.png,b,x\n'))
    assert dict(dataset[0])["note"] == 'one\ntwo, "three"'
    assert dataset.lines.tolist() == [2, 4]


def test_the_class_map_of_the_training_data(folder: Path) -> None:
    for name in ("ant", "cat", "dog"):
        (folder / "train" / name).mkdir(parents=True)
        Image.new("L", (2, 2)).save(folder / "train" / name / "1.png")
    train = ImageFolder(folder / "train")
    dataset = ImageManifest(table(folder, ROWS), classes=train)
    assert dataset.classes == ["ant", "cat", "dog"] and dataset.labels.tolist() == [2, 1]
    assert ImageManifest(table(folder, ROWS), classes=["dog", "cat"]).labels.tolist() == [0, 1]
    with pytest.raises(ValueError, match=r"rows\.csv, line 3: label 'cat' is not in the class map"):
        ImageManifest(table(folder, ROWS), classes=["dog"])
    assert ImageFolder(folder / "train", classes=dataset).classes == train.classes


def test_labels_that_are_integers_sort_by_value(folder: Path) -> None:
    text = "file_name,label\n" + "".join(f"imgs/0.png,{number}\n" for number in (10, 9, *range(9)))
    dataset = ImageManifest(table(folder, text))
    assert dataset.labels.tolist() == [10, 9, *range(9)]
    with pytest.warns(UserWarning, match=r"^bestiary: .*'5' -> 0, '7' -> 1.*classes="):
        dataset = ImageManifest(table(folder, "file_name,label\nimgs/0.png,7\nimgs/0.png,5\n"))
    assert dataset.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rows.csv", "", "rows.csv has no rows"),
        ("rows.csv", "file_name,label\n", "rows.csv has no rows"),
        (
            "rows.csv",
            "picture,label\na,b\n",
            r"expected a column 'file_name' or .*'picture', 'label'; name it by file_column=",
        ),
        ("rows.csv", "path,kind\na,b\n", r"'label' or 'class', .*label_column="),
        ("rows.csv", "path,label\na,b\nc\n", r"rows\.csv, line 3: found 1 cells, but the header has 2"),
        ("rows.csv", "path,label\na,b,c\n", r"rows\.csv, line 2: found 3 cells"),
        ("rows.csv", "path,label,label\na,b,c\n", "line 1: the header names a column twice"),
        ("rows.csv", "path,label\na,b\nc,\n", r"rows\.csv, line 3: column 'label' is empty"),
        ("rows.csv", "path,label\n,b\n", r"rows\.csv, line 2: column 'path' is empty"),
        ("rows.csv", 'path,label\na,b\n"c,d\n', r"rows\.csv, line 3: "),
        ("rows.csv", "path,label,name\na,b,c\n", "column 'name' has the name of a field"),
        ("rows.jsonl", '{"path": "a", "label": "b"}\n{"path": "a"\n', r"rows\.jsonl, line 2: "),
        ("rows.jsonl", '{"path": "a", "label": "b"}\n[1]\n', r"rows\.jsonl, line 2: expected an object"),
        ("rows.jsonl", '{"path": "a", "label": "b"}\n{"path": "a"}\n', r"line 2: column 'label' is missing"),
        ("rows.jsonl", '{"path": "a", "label": null}\n', r"line 1: column 'label' is None"),
        ("rows.jsonl", '{"path": "a", "label": "b", "n": [1]}\n', "column 'n' is list; fields="),
        (
            "rows.jsonl",
            '{"path": "a", "label": "b", "n": 1}\n{"path": "a", "label": "b", "n": 1.5}\n',
            "line 2: column 'n' is 1.5, expected int",
        ),
        ("rows.txt", "path,label\na,b\n", r"should end in \.csv"),
    ],
)
def test_faults_name_file_and_line(folder: Path, name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ImageManifest(table(folder, text, name))


def test_fields_that_do_not_fit(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"line 2: column 'note' is 'good', expected int"):
        ImageManifest(table(folder, ROWS), fields={"note": int})
    with pytest.raises(ValueError, match="no column 'size'"):
        ImageManifest(table(folder, ROWS), fields={"size": int})
    with pytest.raises(FileNotFoundError, match="none.csv"):
        ImageManifest(folder / "none.csv")


def test_case_a12_read_errors_name_picture_table_and_class(folder: Path) -> None:
    (folder / "imgs" / "0.png").write_bytes(b"<html>")
    dataset = ImageManifest(table(folder, ROWS))
    with pytest.raises(
        OSError, match=r"sample 1 \(.*rows\.csv, line 3\), class 'cat': cannot read image .*imgs/0\.png"
    ) as caught:
        dataset[1]
    assert caught.value.__cause__ is not None
    with pytest.raises(ValueError, match=r"line 2.*48 pixels.*limit of 10"):
        ImageManifest(table(folder, ROWS), max_pixels=10)[0]


def test_transform_mode_and_draws(folder: Path) -> None:
    path = table(folder, ROWS)
    assert ImageManifest(path, mode="L")[0]["image"].shape == (1, 6, 8)
    assert not ImageManifest(path).draws
    dataset = ImageManifest(path, transform=train_transform(4))
    assert dataset.draws and dataset[0]["image"].shape == (3, 4, 4) and dict(dataset[0])["age"] == "3"


def test_case_f22_pickles_small_and_the_same(folder: Path) -> None:
    dataset = ImageManifest(table(folder, ROWS), fields={"age": int, "note": str}, transform=train_transform(4))
    data = pickle.dumps(dataset)
    copied = pickle.loads(data)
    assert len(data) < 4000 and copied.locate(1) == dataset.locate(1) and copied.classes == dataset.classes
    torch.manual_seed(0)
    expected = dict(dataset[0])
    torch.manual_seed(0)
    found = dict(copied[0])
    assert torch.equal(found.pop("image"), expected.pop("image")) and found == expected


def test_many_rows_are_a_few_arrays(tmp_path: Path) -> None:
    rows = 20_000
    with open(tmp_path / "rows.csv", "w") as file:
        file.write("file_name,label,age,note\n")
        file.writelines(f"imgs/{number:040d}.png,{number % 10},{number},note {number}\n" for number in range(rows))
    tracemalloc.start()
    dataset = ImageManifest(tmp_path / "rows.csv", fields={"age": int, "note": str})
    held, _ = tracemalloc.get_traced_memory()
    objects = sum(stat.count for stat in tracemalloc.take_snapshot().statistics("filename"))
    tracemalloc.stop()
    # names 49, note 11, four arrays of 8 bytes, with the reserve of growing arrays; as objects it would be 300 and more
    assert held / rows < 150 and objects < rows / 10
    assert dataset.names[-1].endswith("19999.png") and len(pickle.dumps(dataset)) / rows < 120


CELLS = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0"), min_size=1, max_size=12)


@given(st.lists(st.tuples(CELLS, CELLS, CELLS, st.integers(-(2**63), 2**63 - 1)), min_size=1, max_size=8))
@settings(max_examples=40, deadline=None)
def test_csv_and_json_tables_hold_the_same(
    tmp_path_factory: pytest.TempPathFactory, rows: list[tuple[str, str, str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("tables")
    header = ("file_name", "label", "note", "number")
    with open(folder / "rows.csv", "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    lines = (json.dumps(dict(zip(header, row, strict=True))) for row in rows)
    (folder / "rows.jsonl").write_text("\n".join(lines), encoding="utf-8")
    kinds = {"note": str, "number": int}
    classes = sorted({row[1] for row in rows})
    for name in ("rows.csv", "rows.jsonl"):
        dataset = ImageManifest(folder / name, fields=kinds, classes=classes)
        assert list(dataset.names) == [row[0] for row in rows]
        assert [dataset.classes[label] for label in dataset.labels] == [row[1] for row in rows]
