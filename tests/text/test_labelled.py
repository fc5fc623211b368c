"""Labelled texts from class folders and from tables."""

from __future__ import annotations

import codecs
import csv
import json
import os
import pickle
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from bestiary.text import ByteTokenizer, LabelledText


def write(path: Path, data: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def texts(dataset: Any) -> list[str]:
    return [dataset[index]["text"] for index in range(len(dataset))]


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    for name, text in {"pos/b.txt": "good\r\n", "pos/a.txt": "fine", "neg/c.TXT": "bad", "neg/d.md": "no"}.items():
        write(tmp_path / "reviews" / name, text)
    return tmp_path / "reviews"


def test_folder_gives_text_label_and_name(reviews: Path) -> None:
    dataset = LabelledText.from_folder(reviews)
    assert dataset.classes == ["neg", "pos"]
    assert dataset.class_to_idx == {"neg": 0, "pos": 1}
    assert [dataset[index] for index in range(len(dataset))] == [
        {"text": "bad", "label": 0, "name": "neg/c.TXT"},
        {"text": "fine", "label": 1, "name": "pos/a.txt"},
        {"text": "good\r\n", "label": 1, "name": "pos/b.txt"},
    ]
    assert dataset.labels.tolist() == [0, 1, 1]
    assert list(dataset.names) == ["neg/c.TXT", "pos/a.txt", "pos/b.txt"]
    assert dataset.locate(-1) == str(reviews / "pos/b.txt")
    assert dataset.draws is False


def test_index_past_the_end_is_an_index_error(reviews: Path) -> None:
    dataset = LabelledText.from_folder(reviews)
    for index in (3, -4):
        with pytest.raises(IndexError, match="3 samples"):
            dataset[index]
    assert dataset[-1] == dataset[2]


def test_case_a03_validation_uses_the_training_classes(reviews: Path, tmp_path: Path) -> None:
    write(tmp_path / "val/pos/x.txt", "x")
    train = LabelledText.from_folder(reviews)
    assert LabelledText.from_folder(tmp_path / "val", classes=train).labels.tolist() == [1]
    write(tmp_path / "val/odd/x.txt", "x")
    with pytest.raises(ValueError, match="odd") as caught:
        LabelledText.from_folder(tmp_path / "val", classes=train)
    assert str(reviews) in str(caught.value)
    assert str(tmp_path / "val") in str(caught.value)


def test_case_a10_order_does_not_depend_on_the_order_of_making(tmp_path: Path) -> None:
    names = [f"{kind}/{number}.txt" for kind in ("b", "a") for number in (10, 9, 1)]
    for copy, order in (("one", names), ("two", names[::-1])):
        for name in order:
            write(tmp_path / copy / name, name)
    one, two = (LabelledText.from_folder(tmp_path / copy) for copy in ("one", "two"))
    assert [one[index] for index in range(6)] == [two[index] for index in range(6)]


def test_case_a10_classes_of_a_table_do_not_depend_on_the_order_of_rows(tmp_path: Path) -> None:
    rows = [f"text {number},{kind}\n" for number, kind in enumerate("cabca")]
    one = LabelledText.from_table(write(tmp_path / "one.csv", "text,label\n" + "".join(rows)))
    two = LabelledText.from_table(write(tmp_path / "two.csv", "text,label\n" + "".join(rows[::-1])))
    assert one.classes == two.classes == ["a", "b", "c"]
    assert one.labels.tolist() == two.labels[::-1].tolist() == [2, 0, 1, 2, 0]


def test_encoding_error_names_file_and_byte(tmp_path: Path) -> None:
    path = write(tmp_path / "root/a/bad.txt", b"caf\xc3\xa9 caf\xe9")
    dataset = LabelledText.from_folder(tmp_path / "root")
    with pytest.raises(ValueError, match=r"bad\.txt: byte 9 \(0xe9\) is not utf-8") as caught:
        dataset[0]
    assert str(path) in str(caught.value)
    assert LabelledText.from_folder(tmp_path / "root", encoding="latin-1")[0]["text"] == "cafÃ© café"


def test_encoding_error_behind_a_mark_counts_the_mark(tmp_path: Path) -> None:
    write(tmp_path / "root/a/bad.txt", codecs.BOM_UTF8 + b"ab\xff")
    with pytest.raises(ValueError, match="byte 5 "):
        LabelledText.from_folder(tmp_path / "root")[0]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_encoding_error_in_a_table_names_file_and_byte(tmp_path: Path, ending: str) -> None:
    line = b"caf\xe9,x\n" if ending == "csv" else b'{"text": "caf\xe9", "label": "x"}\n'
    head = b"text,label\n" if ending == "csv" else b""
    path = write(tmp_path / f"rows.{ending}", head + line)
    with pytest.raises(ValueError, match=f"byte {path.read_bytes().index(0xE9)} ") as caught:
        LabelledText.from_table(path)
    assert str(path) in str(caught.value)
    assert texts(LabelledText.from_table(path, encoding="cp1252")) == ["café"]


def test_utf_16_is_recognised_and_unknown_encodings_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "root/a/wide.txt", "hé".encode("utf-16"))
    with pytest.raises(ValueError, match="utf-16"):
        LabelledText.from_folder(tmp_path / "root")[0]
    assert LabelledText.from_folder(tmp_path / "root", encoding="utf-16")[0]["text"] == "hé"
    with pytest.raises(ValueError, match="utf-99"):
        LabelledText.from_folder(tmp_path / "root", encoding="utf-99")
    with pytest.raises(ValueError, match="convert it to utf-8"):
        LabelledText.from_table(path.with_suffix(".csv"), encoding="utf-16")


ROWS = [
    ("plain", "a"),
    ('x "q", y', "b"),
    ("one\ntwo\r\nthree", "a"),
    ("", "b"),
    ("ünï\u2028\x85\x0b", "a"),
    (" sp ", "b"),
]


def as_csv(rows: list[tuple[str, str]], delimiter: str, end: str) -> bytes:
    lines = [f'"{text.replace(chr(34), chr(34) * 2)}"{delimiter}{label}' for text, label in rows]
    return end.join([f"text{delimiter}label", "", *lines]).encode()


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
@pytest.mark.parametrize("last", [b"", b"\n", b"\r\n\r\n"])
def test_case_e17_tables_with_and_without_mark(tmp_path: Path, end: str, mark: bytes, last: bytes) -> None:
    for name, delimiter in (("rows.csv", ","), ("rows.tsv", "\t")):
        path = write(tmp_path / name, mark + as_csv(ROWS, delimiter, end) + last)
        dataset = LabelledText.from_table(path)
        assert texts(dataset) == [text for text, _ in ROWS]
        assert [dataset.classes[label] for label in dataset.labels] == [label for _, label in ROWS]
    lines = [json.dumps({"label": label, "text": text}) for text, label in ROWS]
    dataset = LabelledText.from_table(write(tmp_path / "rows.jsonl", mark + end.join(["", *lines]).encode() + last))
    assert texts(dataset) == [text for text, _ in ROWS]


def test_case_e17_mark_before_a_quoted_head(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", codecs.BOM_UTF8 + b'"text, long",label\n"a, b",x\n')
    assert LabelledText.from_table(path, text="text, long")[0]["text"] == "a, b"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.tuples(
            st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12),
            st.sampled_from(["p", "q", "a,b", 'c"d', "e\nf"]),
        ),
        min_size=1,
        max_size=8,
    ),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_a_table_gives_what_the_csv_module_wrote(tmp_path: Path, rows: list[tuple[str, str]], end: str) -> None:
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator=end, quoting=csv.QUOTE_ALL)
        writer.writerows([("text", "label"), *rows])
    dataset = LabelledText.from_table(path)
    assert texts(dataset) == [text for text, _ in rows]
    assert [dataset.classes[label] for label in dataset.labels] == [label for _, label in rows]


def test_names_and_places_of_records(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", 'id,text,label\r\n7,"a\nb",x\r\n\r\n8,c,y\r\n')
    plain = LabelledText.from_table(path)
    assert [plain[index]["name"] for index in range(2)] == ["rows.csv:2", "rows.csv:5"]
    assert plain.locate(1) == f"{path}, line 5"
    assert list(plain.names) == ["rows.csv:2", "rows.csv:5"]
    named = LabelledText.from_table(path, name="id")
    assert [named[index]["name"] for index in range(2)] == list(named.names) == ["7", "8"]


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_case_e19_long_field_leaves_the_limit_of_the_process(tmp_path: Path, ending: str) -> None:
    long = "x" * 200_000 + "é"
    line = f"{long},a\n" if ending == "csv" else json.dumps({"text": long, "label": "a"}) + "\n"
    path = write(tmp_path / f"rows.{ending}", ("text,label\n" if ending == "csv" else "") + line)
    before = csv.field_size_limit()
    dataset = LabelledText.from_table(path)
    assert dataset[0]["text"] == long
    assert csv.field_size_limit() == before
    got: list[str] = []
    threads = [threading.Thread(target=lambda: got.append(dataset[0]["text"])) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [long] * 8
    assert csv.field_size_limit() == before


def test_case_e19_limit_is_put_back_after_an_error(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    with pytest.raises(ValueError, match="line 2"):
        LabelledText.from_table(write(tmp_path / "rows.csv", 'text,label\n"open'))
    assert csv.field_size_limit() == before


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("a.csv", "text;label\nx;y\n", r"no column 'text' among \['text;label'\].*delimiter="),
        ("a.csv", "", "no column 'text'"),
        ("a.csv", "text,label\n", "no records"),
        ("a.csv", "text,label\nx,y\nz\n", "line 3: 1 columns, but the head has 2"),
        ("a.csv", "text,label\nx,y,z\n", "line 2: 3 columns"),
        ("a.csv", "text,label\nx,\n", "line 2: the label"),
        ("a.csv", 'text,label\nx,y\n"never closed,z\n', "line 3: .*quotes=False"),
        ("a.csv", "text,text,label\nx,y,z\n", "'text' comes twice"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "x"', "line 2, byte 26: no JSON"),
        ("a.jsonl", '["x", 1]\n', "line 1: expected a JSON object"),
        ("a.jsonl", '{"text": 5, "label": 1}\n', "line 1: the text should be a string, but is 5"),
        ("a.jsonl", '{"text": "x", "label": null}\n', "line 1: the label .* None"),
        ("a.jsonl", '{"text": "x", "label": 1}\n{"text": "x"}\n', "line 2: no column 'label'"),
        ("a.json", "[]", r"\.jsonl"),
    ],
)
def test_broken_tables_name_file_and_line(tmp_path: Path, name: str, data: str, message: str) -> None:
    path = write(tmp_path / name, data)
    with pytest.raises(ValueError, match=message) as caught:
        LabelledText.from_table(path)
    assert str(path) in str(caught.value)


def test_other_delimiters_and_plain_quotes(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.tsv", 'text\tlabel\n"it\'s 5" long\tx\n6" wide\ty\n')
    assert texts(LabelledText.from_table(path, quotes=False)) == ['"it\'s 5" long', '6" wide']
    assert texts(LabelledText.from_table(write(tmp_path / "rows.csv", "text;label\na,b;x\n"), delimiter=";")) == ["a,b"]
    assert texts(LabelledText.from_table(write(tmp_path / "rows.txt", "text|label\na|x\n"), delimiter="|")) == ["a"]


def test_case_a11_integer_labels_are_told(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "text,label\na,10\nb,9\nc,11\n")
    with pytest.warns(UserWarning, match="bestiary: .*'9' -> 0, '10' -> 1, '11' -> 2"):
        dataset = LabelledText.from_table(path)
    assert dataset.classes == ["9", "10", "11"]
    mapped = LabelledText.from_table(path, classes={str(number): number for number in (9, 10, 11)})
    assert mapped.labels.tolist() == [10, 9, 11]


def test_labels_of_json_may_be_integers(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", '{"text": "a", "label": 1}\n{"text": "b", "label": 0}\n')
    dataset = LabelledText.from_table(path)
    assert (dataset.classes, dataset.labels.tolist()) == (["0", "1"], [1, 0])


def test_table_with_the_classes_of_another(tmp_path: Path) -> None:
    train = LabelledText.from_table(write(tmp_path / "train.csv", "text,label\na,x\nb,y\nc,z\n"))
    val = LabelledText.from_table(write(tmp_path / "val.csv", "text,label\na,z\n"), classes=train)
    assert (val.classes, val.labels.tolist()) == (["x", "y", "z"], [2])
    with pytest.raises(ValueError, match="odd") as caught:
        LabelledText.from_table(write(tmp_path / "odd.csv", "text,label\na,odd\n"), classes=train)
    assert "train.csv" in str(caught.value)
    assert "odd.csv" in str(caught.value)


def test_case_c04_empty_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "text,label\na b,x\n,y\nc,x\n  ,y\n")
    assert texts(LabelledText.from_table(path)) == ["a b", "", "c", "  "]
    dropped = LabelledText.from_table(path, empty="drop")
    assert texts(dropped) == ["a b", "c"]
    assert dropped.labels.tolist() == [0, 0]
    assert dropped.locate(1).endswith("line 4")
    with pytest.raises(ValueError, match="line 3, line 5"):
        LabelledText.from_table(path, empty="error")
    with pytest.raises(ValueError, match="empty should be"):
        LabelledText.from_table(path, empty="skip")  # type: ignore[arg-type]


def test_case_c04_empty_files(tmp_path: Path) -> None:
    for name, data in {"a/1.txt": b"x", "a/2.txt": b"", "b/3.txt": codecs.BOM_UTF8 + b" \n", "b/4.txt": b"y"}.items():
        write(tmp_path / name, data)
    assert texts(LabelledText.from_folder(tmp_path)) == ["x", "", " \n", "y"]
    dropped = LabelledText.from_folder(tmp_path, empty="drop")
    assert (texts(dropped), dropped.labels.tolist()) == (["x", "y"], [0, 1])
    with pytest.raises(ValueError, match=r"2\.txt.*3\.txt"):
        LabelledText.from_folder(tmp_path, empty="error")


def test_tokenizer_and_transform(reviews: Path) -> None:
    dataset = LabelledText.from_folder(reviews, tokenizer=ByteTokenizer(reserved=0))
    assert dataset[0]["tokens"].tolist() == list(b"bad")
    assert dataset[0]["tokens"].dtype == torch.int64
    assert dataset.draws is False
    changed = LabelledText.from_folder(reviews, tokenizer=bytes.fromhex, transform=lambda sample: sample["label"])
    assert changed.draws is True
    lists = LabelledText.from_folder(reviews, tokenizer=lambda text: [len(text)])
    assert lists[0]["tokens"].tolist() == [3]


def test_a_table_that_changed_is_not_read(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "text,label\na,x\n")
    dataset = LabelledText.from_table(path)
    write(path, "text,label\nother,x\n")
    with pytest.raises(ValueError, match="has changed"):
        dataset[0]


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker")  # on a machine of few cores
def test_case_d04_forked_workers_and_threads_read_their_own_rows(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.csv", "text,label\n" + "".join(f"row {number},x\n" for number in range(2000)))
    dataset = LabelledText.from_table(path)
    assert dataset[0]["text"] == "row 0"
    batches = DataLoader(dataset, batch_size=50, num_workers=4, multiprocessing_context="fork", collate_fn=list)
    assert [sample["text"] for batch in batches for sample in batch] == [f"row {number}" for number in range(2000)]
    wrong: list[int] = []

    def read(first: int) -> None:
        wrong.extend(number for number in range(first, 2000, 4) if dataset[number]["text"] != f"row {number}")

    threads = [threading.Thread(target=read, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_nothing_stays_open(tmp_path: Path, reviews: Path) -> None:
    path = write(tmp_path / "rows.csv", "text,label\na,x\nb,y\n")
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    datasets = [LabelledText.from_table(path), LabelledText.from_folder(reviews)]
    assert [texts(dataset) for dataset in datasets] == [["a", "b"], ["bad", "fine", "good\r\n"]]
    if before is None:
        pytest.skip("this system does not list open files")
    assert len(os.listdir("/proc/self/fd")) == before


def test_case_d06_many_rows_take_a_few_arrays(tmp_path: Path) -> None:
    count = 100_000
    path = write(tmp_path / "rows.csv", "text,label\n" + "".join(f"text number {n},c{n % 7}\n" for n in range(count)))
    tracemalloc.start()
    dataset = LabelledText.from_table(path)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # A start, a line, a code, a row and a label, 8 bytes each (arrays grow with some room): a str alone takes 60 and more.
    assert held < count * 8 * 8
    assert dataset[count - 1]["text"] == f"text number {count - 1}"
    assert len(pickle.dumps(dataset)) < count * 8 * 6


def test_case_f22_pickle_and_spawn(tmp_path: Path, reviews: Path) -> None:
    path = write(tmp_path / "rows.csv", "text,label\na,x\nbc,y\n")
    for dataset in (
        LabelledText.from_table(path, tokenizer=ByteTokenizer()),
        LabelledText.from_folder(reviews, tokenizer=ByteTokenizer()),
    ):
        again = pickle.loads(pickle.dumps(dataset))
        assert [str(again[index]) for index in range(len(again))] == [str(dataset[i]) for i in range(len(dataset))]
        assert again.classes == dataset.classes
        batches = DataLoader(dataset, batch_size=1, num_workers=1, multiprocessing_context="spawn", collate_fn=list)
        assert [batch[0]["name"] for batch in batches] == [dataset[i]["name"] for i in range(len(dataset))]


def test_samples_are_the_callers(reviews: Path) -> None:
    dataset = LabelledText.from_folder(reviews, tokenizer=ByteTokenizer())
    sample = dataset[0]
    sample["tokens"].zero_()
    sample["text"] = ""
    assert dataset[0]["tokens"].tolist() == [99, 98, 101]
    dataset.labels[:] = 9
    assert dataset.labels.tolist() == [0, 1, 1]
