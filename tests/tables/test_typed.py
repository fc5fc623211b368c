"""Typed columns of CSV files."""

from __future__ import annotations

import csv
import gzip
import io
import json
import math
import pickle
import statistics
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from bestiary.tables import Number, Rows, Schema, TypedTable

PETS = "age,colour,weight,kind\n1,red,4.5,cat\n3,blue,NA,dog\n5,red,20,dog\n7,,6,cat\n"


def write(folder, text, name="train.csv"):
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def test_case_d01_csv_gives_float32_and_int64(tmp_path):
    path = write(tmp_path, "a,b,y\n0.5,1,0\n1.5,2,1\n2.5,3,1\n3.5,4,0\n")
    batch = next(iter(DataLoader(TypedTable(path, label="y"), batch_size=4)))
    assert batch["features"].dtype == torch.float32
    assert batch["features"].tolist() == [[0.5, 1], [1.5, 2], [2.5, 3], [3.5, 4]]
    assert batch["label"].dtype == torch.int64
    assert batch["label"].tolist() == [0, 1, 1, 0]


def test_case_d01_regression_and_dtype(tmp_path):
    path = write(tmp_path, "a,b,y\n0.5,1,0.1\n1.5,2,0.2\n")
    assert next(iter(DataLoader(TypedTable(path, target="y"), batch_size=2)))["target"].dtype == torch.float32
    wide = next(iter(DataLoader(TypedTable(path, target="y", dtype=torch.float64), batch_size=2)))
    assert wide["features"].dtype == wide["target"].dtype == torch.float64
    assert wide["target"].tolist() == [0.1, 0.2]


def test_scan_codes_gaps_and_classes(tmp_path):
    table = TypedTable(write(tmp_path, PETS), label="kind")
    assert table.schema.feature_names == ["age", "weight", "weight is missing"]
    assert table.schema.categories == {"colour": ["blue", "red"]}
    assert table.schema.sizes == {"colour": 4}
    assert table.classes == ["cat", "dog"]
    mean = statistics.fmean([4.5, 20, 6])
    assert torch.allclose(table[1]["features"], torch.tensor([3, mean, 1.0]))
    assert table[0]["features"].tolist() == [1, 4.5, 0]
    assert [int(table[i]["categories"][0]) for i in range(4)] == [3, 2, 3, 0]
    assert table.labels.tolist() == [0, 1, 1, 0]
    assert table.locate(2).endswith("train.csv, row 3")


def test_declared_types_win(tmp_path):
    path = write(tmp_path, "year,code,x,y\n2007,1,1,a\n2008,2,2,b\n")
    table = TypedTable(path, label="y", types={"year": "category", "code": "skip"})
    assert table.schema.categories == {"year": ["2007", "2008"]}
    assert table.schema.feature_names == ["x"]
    with pytest.raises(ValueError, match="'colour'"):
        TypedTable(path, label="y", types={"colour": "category"})
    with pytest.raises(ValueError, match="'float'"):
        TypedTable(path, label="y", types={"x": "float"})


def test_codes_with_leading_zeros_are_no_numbers(tmp_path):
    table = TypedTable(write(tmp_path, "zip\n007\n010\n"))
    assert table.schema.categories == {"zip": ["007", "010"]}


def test_one_word_among_numbers_is_told(tmp_path):
    path = write(tmp_path, "x\n1\n2\n3\noops\n")
    with pytest.warns(UserWarning, match=r"bestiary: .*75\.0%.*'x'"):
        assert list(TypedTable(path).schema.categories) == ["x"]
    with pytest.raises(ValueError, match=r"train\.csv, row 4: column 'x' holds 'oops'"):
        TypedTable(path, types={"x": "number"})
    assert TypedTable(path, missing=["oops"])[3]["features"].tolist() == [2, 1]


def test_scaling_is_fitted_on_the_given_rows_only(tmp_path):
    values = [1.0, 2.0, 6.0, 1000.0, -1000.0]
    path = write(
        tmp_path, "x,c,y\n" + "".join(f"{v},{c},{y}\n" for v, c, y in zip(values, "abazz", "01010", strict=True))
    )
    table = TypedTable(path, label="y", fit_rows=[0, 1, 2], scale=True)
    mean, spread = statistics.fmean(values[:3]), statistics.pstdev(values[:3])
    got = [table[i]["features"].item() for i in range(5)]
    assert got == pytest.approx([(v - mean) / spread for v in values], rel=1e-6)
    assert table.schema.categories == {"c": ["a", "b"]}
    assert [int(table[i]["categories"][0]) for i in range(5)] == [2, 3, 2, 1, 1]  # z is unknown to the fitted rows


def test_a_constant_column_is_not_divided_by_zero(tmp_path):
    table = TypedTable(write(tmp_path, "x\n3\n3\n"), scale=True)
    assert table[0]["features"].tolist() == [0]


@pytest.mark.parametrize("how", ["table", "schema", "file"])
def test_the_schema_of_the_training_table_is_applied(tmp_path, how):
    train = TypedTable(write(tmp_path, PETS), label="kind", scale=True)
    train.schema.save(tmp_path / "schema.json")
    source = {"table": train, "schema": train.schema, "file": tmp_path / "schema.json"}[how]
    path = write(tmp_path, "weight,kind,age,colour\nNA,dog,1,green\n4.5,dog,3,red\n", "val.csv")
    val = TypedTable(path, schema=source)
    assert val.schema == train.schema
    assert val[0]["categories"].tolist() == [1]
    assert val[0]["features"][0] == train[0]["features"][0]
    assert val[0]["features"][1:].tolist() == [0, 1]
    assert val.labels.tolist() == [1, 1]  # dog stays 1 although val has no cat


def test_case_a03_an_unknown_class_names_both_files(tmp_path):
    train = TypedTable(write(tmp_path, "x,y\n1,a\n2,b\n3,c\n"), label="y")
    path = write(tmp_path, "x,y\n1,b\n2,c\n3,d\n", "val.csv")
    with pytest.raises(ValueError, match=r"(?s)val\.csv, row 3: class 'd'.*train\.csv"):
        TypedTable(path, schema=train)
    write(tmp_path, "x,y\n1,b\n2,c\n", "val.csv")
    assert TypedTable(path, schema=train).labels.tolist() == [1, 2]


def test_integer_classes_sort_by_size_and_given_classes_win(tmp_path):
    path = write(tmp_path, "x,y\n1,10\n2,9\n3,2\n")
    assert TypedTable(path, label="y").classes == ["2", "9", "10"]
    assert TypedTable(path, label="y", classes=["10", "9", "2", "1"]).labels.tolist() == [0, 1, 2]


def test_shards_share_one_schema(tmp_path):
    one = write(tmp_path, "a,b,y\n1,u,p\n2,v,q\n", "1.csv")
    two = write(tmp_path, "y,b,a\np,w,2.5\nr,u,NA\n", "2.csv")
    table = TypedTable([one, two], label="y")
    assert len(table) == 4
    assert table.schema.categories == {"b": ["u", "v", "w"]}
    assert table.classes == ["p", "q", "r"]
    assert table[2]["features"].tolist() == [2.5, 0]
    assert table.locate(2).endswith("2.csv, row 1")
    assert table.locate(1).endswith("1.csv, row 2")
    assert table.schema.fitted_on == [str(one), str(two)]
    with pytest.raises(ValueError, match=r"2\.csv, row 2: class 'r'.*1\.csv;"):
        TypedTable([one, two], label="y", fit_rows=[0, 1])


def test_shards_with_other_columns_are_refused(tmp_path):
    one, two = write(tmp_path, "a,b\n1,2\n", "1.csv"), write(tmp_path, "a,c\n1,2\n", "2.csv")
    with pytest.raises(ValueError, match=r"2\.csv lacks 'b' and adds 'c'.*1\.csv"):
        TypedTable([one, two])


def test_a_value_missing_only_later_is_told(tmp_path):
    train = TypedTable(write(tmp_path, "x\n1\n3\n"))
    path = write(tmp_path, "x\n2\nNA\n", "val.csv")
    with pytest.warns(UserWarning, match=r"bestiary: .*val\.csv, row 2: column 'x'"):
        assert TypedTable(path, schema=train)[1]["features"].tolist() == [2]
    marked = TypedTable(tmp_path / "train.csv", indicators=True)
    assert TypedTable(path, schema=marked)[1]["features"].tolist() == [2, 1]
    assert TypedTable(path, indicators=False)[1]["features"].tolist() == [2]


def test_files_without_labels(tmp_path):
    train = TypedTable(write(tmp_path, PETS), label="kind")
    path = write(tmp_path, "age,colour,weight\n1,red,2\n", "ask.csv")
    with pytest.raises(ValueError, match=r"ask\.csv lacks 'kind'.*without_target"):
        TypedTable(path, schema=train)
    assert list(TypedTable(path, schema=train.schema.without_target())[0]) == ["features", "categories"]


def test_new_columns_are_left_out_with_a_notice(tmp_path):
    train = TypedTable(write(tmp_path, "x,y\n1,a\n"), label="y")
    path = write(tmp_path, "x,extra,y\n1,2,a\n", "val.csv")
    with pytest.warns(UserWarning, match="bestiary: .*'extra'"):
        assert TypedTable(path, schema=train)[0]["features"].tolist() == [1]


def test_rare_values_are_unknown(tmp_path):
    table = TypedTable(write(tmp_path, "c\na\na\nb\n"), min_count=2)
    assert [int(table[i]["categories"]) for i in range(3)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        ("a,b\n1\n", {}, "Expected 2 columns"),
        ("", {}, "Empty"),
        ("a,y\n", {"label": "y"}, "no row"),
        ("a,a\n1,2\n", {}, "more than one column named 'a'"),
        ("a,b\n1,\n", {}, "'b' .*no value at all"),
        ("a,y\n1,\n2,1\n", {"label": "y"}, "row 1: column 'y' has no value"),
        ("a,y\n1,2\n1,NA\n", {"target": "y"}, "row 2: column 'y' has no value"),
        ("a,y\n1,2\n", {"label": "q"}, "no column 'q'"),
        ("a,y\n1,2\n", {"label": "y", "target": "a"}, "label or a target"),
        ("a,y\n1,c\n", {"label": "y", "classes": ["d"]}, "class 'c'"),
        ("a\ninf\n", {"types": {"a": "number"}}, "row 1: column 'a' holds 'inf'"),
        ("a\n1_000\n", {"types": {"a": "number"}}, "holds '1_000'"),
        ("a\nNA\n1\n", {"fit_rows": [0]}, "no value in the 1 rows"),
    ],
)
def test_bad_files_are_named(tmp_path, text, options, said):
    with pytest.raises(ValueError, match=said) as caught:
        TypedTable(write(tmp_path, text), **options)
    assert "train.csv" in str(caught.value) or "label" in str(caught.value) or "fit on" in str(caught.value)


def test_other_bad_input(tmp_path):
    (tmp_path / "latin.csv").write_bytes("a\né\n".encode("latin-1"))
    with pytest.raises(ValueError, match=r"latin\.csv.*UTF8"):
        TypedTable(tmp_path / "latin.csv")
    with pytest.raises(FileNotFoundError):
        TypedTable(tmp_path / "gone.csv")
    with pytest.raises(ValueError, match="no CSV file"):
        TypedTable([])
    train = TypedTable(write(tmp_path, PETS), label="kind")
    with pytest.raises(ValueError, match="leave them out"):
        TypedTable(tmp_path / "train.csv", schema=train, label="kind")
    with pytest.raises(AttributeError, match="no label"):
        TypedTable(tmp_path / "train.csv").labels  # noqa: B018


def test_spellings_of_csv(tmp_path):
    body = '\ufeffa, b ,y\r\n1, x,0\r\n\r\n2,"x\nz",1\r\n'
    (tmp_path / "a.csv").write_bytes(body.encode())
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(body.encode()))
    (tmp_path / "a.tsv").write_bytes(body.replace(",", "\t").encode())
    for name in ("a.csv", "a.csv.gz", "a.tsv"):
        table = TypedTable(tmp_path / name, label="y")
        assert table.schema.categories == {"b": ["x", "x\nz"]}, name
        assert [table[i]["features"].item() for i in range(2)] == [1, 2]
    (tmp_path / "b.csv").write_text("a;y\n1;0\n2;1\n")
    assert TypedTable(tmp_path / "b.csv", delimiter=";", label="y").labels.tolist() == [0, 1]


CELLS = st.text(st.characters(codec="utf-8", exclude_categories=("C", "Z")), min_size=1, max_size=8)


@settings(max_examples=60)
@given(st.lists(st.tuples(st.floats(-1e6, 1e6), CELLS), min_size=1, max_size=12))
def test_any_table_written_by_the_standard_library_is_read_back(tmp_path_factory, rows):
    path = tmp_path_factory.mktemp("any") / "t.csv"
    sheet = io.StringIO(newline="")
    csv.writer(sheet).writerows([("x", "c"), *[(repr(x), c) for x, c in rows]])
    path.write_text(sheet.getvalue(), encoding="utf-8", newline="")
    table = TypedTable(path, types={"x": "number", "c": "category"}, missing=[], dtype=torch.float64)
    words = table.schema.categories["c"]
    assert [table[i]["features"].item() for i in range(len(table))] == [x for x, _ in rows]
    assert [words[int(table[i]["categories"][0]) - 2] for i in range(len(table))] == [c for _, c in rows]


def double(sample):
    return sample | {"features": sample["features"] * 2}


def test_batches_at_once_and_transforms(tmp_path):
    path = write(tmp_path, PETS)
    plain, doubled = TypedTable(path, label="kind"), TypedTable(path, label="kind", transform=double)
    assert not plain.draws
    assert doubled.draws
    batch = plain.__getitems__([3, 0])
    assert isinstance(batch, Rows)
    assert batch.columns()["label"].tolist() == [0, 0]
    for sample, other, index in zip(batch, doubled.__getitems__([3, 0]), (3, 0), strict=True):
        assert torch.equal(sample["features"], plain[index]["features"])
        assert torch.equal(sample["features"] * 2, other["features"])
        assert torch.equal(doubled[index]["features"], other["features"])
        assert sample["label"] == plain[index]["label"]


def test_a_sample_may_be_written_into(tmp_path):
    table = TypedTable(write(tmp_path, PETS), label="kind")
    table[0]["features"].fill_(9)
    table[0]["categories"].fill_(9)
    table.__getitems__([0]).columns()["label"].fill_(9)
    assert table[0]["features"].tolist() == [1, 4.5, 0]
    assert table[0]["categories"].tolist() == [3]
    assert table[0]["label"] == 0


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_case_f22_equal_batches_in_all_start_methods(tmp_path, method):
    table = TypedTable(write(tmp_path, PETS), label="kind")
    assert pickle.loads(pickle.dumps(table)).schema == table.schema
    got = next(iter(DataLoader(table, batch_size=4, num_workers=2, multiprocessing_context=method)))
    for name, column in table.__getitems__(range(4)).columns().items():
        assert torch.equal(got[name], column)


def test_the_schema_file_is_exact_and_readable(tmp_path):
    schema = Schema(
        numbers={"x": Number(fill=0.1, shift=1 / 3, scale=math.pi, indicator=True)}, categories={"c": ["é", '"']}
    )
    schema.save(tmp_path / "s.json")
    assert Schema.load(tmp_path / "s.json") == schema
    assert json.loads((tmp_path / "s.json").read_text(encoding="utf-8"))["categories"] == {"c": ["é", '"']}
    for text in ("{}", "[]", "no json", '{"format": "another"}'):
        (tmp_path / "s.json").write_text(text)
        with pytest.raises(ValueError, match=r"s\.json is no schema"):
            Schema.load(tmp_path / "s.json")


def test_importing_the_room_loads_no_reader():
    code = "import sys, bestiary.tables.typed; print([m for m in ('pyarrow', 'PIL', 'soundfile', 'torchvision') if m in sys.modules])"
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
    )


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r"bestiary\[tables\]"):
        TypedTable(write(tmp_path, PETS))


@pytest.mark.parametrize("index", [4, -5])
def test_past_the_end(tmp_path, index):
    table = TypedTable(write(tmp_path, PETS))
    with pytest.raises(IndexError, match="4 rows"):
        table[index]
    with pytest.raises(IndexError, match="4 rows"):
        table.__getitems__(np.array([index]))
