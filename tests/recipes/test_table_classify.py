"""The recipe for tables, as a program."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "recipes" / "table_classify.py"


@pytest.fixture(scope="module")
def recipe():
    spec = importlib.util.spec_from_file_location("table_classify", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_penguins_are_told_apart(recipe, tmp_path):
    assert recipe.main(["--out", str(tmp_path)]) >= 0.95
    result = json.loads((tmp_path / "result.json").read_text())
    assert result["accuracy"] >= 0.95
    assert result["rows"]["train"] + result["rows"]["val"] == 344
    assert result["classes"] == ["Adelie", "Chinstrap", "Gentoo"]
    assert "body_mass_g is missing" in result["features"]
    assert (tmp_path / "schema.json").exists()


def test_nothing_is_learned_from_rows_held_out(recipe):
    table, split = recipe.prepare(recipe.DATA, "species", seed=0)
    batch = table.__getitems__(split.train).columns()["features"].double()
    numbers = len(table.schema.numbers)
    present = [batch[batch[:, numbers + k] == 0, k] for k in range(4)]
    assert all(abs(float(column.mean())) < 1e-5 for column in present)
    assert all(abs(float(column.std(correction=0)) - 1) < 1e-5 for column in present)


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_going_on_gives_what_one_run_gives(recipe, tmp_path):
    recipe.main(["--out", str(tmp_path / "whole"), "--epochs", "3"])
    recipe.main(["--out", str(tmp_path / "parts"), "--epochs", "1"])
    recipe.main(["--out", str(tmp_path / "parts"), "--epochs", "3", "--resume"])
    one, two = (torch.load(tmp_path / name / "checkpoint.pt", weights_only=True) for name in ("whole", "parts"))
    assert all(torch.equal(one["model"][name], two["model"][name]) for name in one["model"])
    assert one["at"]["history"] == two["at"]["history"]
    assert lines(tmp_path / "whole") == lines(tmp_path / "parts")


@pytest.mark.parametrize("stop", [2, 9, 13])
def test_a_run_stopped_in_the_middle_of_an_epoch_goes_on_as_if_it_had_not(recipe, tmp_path, monkeypatch, stop):
    recipe.main(["--out", str(tmp_path / "whole"), "--epochs", "2"])

    class Killed(BaseException):
        pass

    write = recipe.run.Metrics.write

    def note(self, row):
        write(self, row)
        if row["step"] == stop + 1 and "loss" in row:
            raise Killed

    monkeypatch.setattr(recipe.run.Metrics, "write", note)
    with pytest.raises(Killed):
        recipe.main(["--out", str(tmp_path / "parts"), "--epochs", "2", "--save-every", "1"])
    monkeypatch.undo()
    recipe.main(["--out", str(tmp_path / "parts"), "--epochs", "2", "--resume"])
    assert lines(tmp_path / "parts") == lines(tmp_path / "whole")


def write(folder, text):
    (folder / "my.csv").write_text(text)
    return folder / "my.csv"


@pytest.mark.parametrize(
    ("text", "options", "said"),
    [
        (None, [], "there is no"),
        ("", [], "Empty CSV"),
        ("a,b\n1,2\n", [], "no column 'species'"),
        ("a,species\n1,x\n2,x\n3,x\n4,x\n", [], "1 different values"),
        ("a,species\n1,2.5\n2,3.5\n", [], "2 different values in 2 rows"),
        ("a,species\n" + "1,x\n2,y\n" * 5, ["--drop-last"], "no batch of 32"),
    ],
)
def test_wrong_data_is_one_line_and_exit_code_2(recipe, tmp_path, capsys, text, options, said):
    path = tmp_path / "my.csv" if text is None else write(tmp_path, text)
    with pytest.raises(SystemExit) as caught:
        recipe.main(["--data", str(path), "--out", str(tmp_path / "out"), *options])
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_a_folder_is_told_with_what_it_holds(recipe, tmp_path, capsys):
    write(tmp_path, "a\n")
    with pytest.raises(SystemExit):
        recipe.main(["--data", str(tmp_path)])
    assert "my.csv" in capsys.readouterr().err


@pytest.mark.parametrize("rows", [10, 33, 65])
def test_any_small_table_runs(recipe, tmp_path, rows):
    path = write(
        tmp_path, "kind,x,word\n" + "".join(f"{'ab'[i % 2]},{i % 2 or 'NA'},{'uvw'[i % 3]}\n" for i in range(rows))
    )
    out = tmp_path / "out"
    options = ["--epochs", "2", "--batch-size", "8", "--drop-last", "--no-shuffle", "--workers", "1"]
    recipe.main(["--data", str(path), "--label", "kind", "--out", str(out), *options])
    assert json.loads((out / "result.json").read_text())["epochs"] == 2


def test_help_and_import_need_no_data():
    assert subprocess.run([sys.executable, str(SCRIPT), "--help"], capture_output=True, check=True).stdout


def test_a_folder_with_both_parts_is_used_as_it_is(recipe, tmp_path, capsys):
    rows = [f"{'ab'[i % 2]},{i % 2}\n" for i in range(20)]
    (tmp_path / "train.csv").write_text("kind,x\n" + "".join(rows))
    (tmp_path / "val.csv").write_text("x,kind\n1,b\n")
    out = tmp_path / "out"
    recipe.main(["--data", f"{tmp_path}/", "--label", "kind", "--out", str(out), "--epochs", "1"])
    assert json.loads((out / "result.json").read_text())["rows"] == {"train": 20, "val": 1}
    (tmp_path / "val.csv").write_text("x,kind\n1,c\n")
    with pytest.raises(SystemExit):
        recipe.main(["--data", str(tmp_path), "--label", "kind", "--out", str(out)])
    said = capsys.readouterr().err
    assert "class 'c'" in said
    assert "val.csv, row 1" in said
