"""Starters: what a learner gets, compared with the reference solutions."""

from __future__ import annotations

import ast
import importlib.util
import shutil
import subprocess
import sys
import xml.etree.ElementTree as Xml
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
NAMES = ["ragged_lab", "assignment_1_image_folder", "assignment_2_weighted_sampler", "challenge_sharded_stream"]


@pytest.fixture(scope="module")
def practice():
    spec = importlib.util.spec_from_file_location("practice_script", ROOT / "scripts" / "practice.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(practice, tmp_path_factory):
    place = tmp_path_factory.mktemp("practice")
    assert practice.main([str(place)]) == 0
    return place


def functions(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {
        f"{getattr(outer, 'name', '')}.{node.name}": node
        for outer in [tree, *(node for node in tree.body if isinstance(node, ast.ClassDef))]
        for node in outer.body
        if isinstance(node, ast.FunctionDef)
    }


def returns(function):
    """How many values are returned (all ends of a function agree), and whether it is a generator."""
    nodes = list(ast.walk(function))
    found = {
        len(node.value.elts) if isinstance(node.value, ast.Tuple) else 1
        for node in nodes
        if isinstance(node, ast.Return) and node.value is not None
    }
    return found, any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes)


@pytest.mark.parametrize("name", NAMES)
def test_case_h01_starter_and_reference_have_one_shape(folder, name):
    starter, reference = functions(folder / f"{name}.py"), functions(ROOT / "recipes" / "lesson" / f"{name}.py")
    assert starter.keys() == reference.keys()
    for key, function in reference.items():
        assert ast.dump(starter[key].args) == ast.dump(function.args), key
        assert ast.dump(starter[key].returns) == ast.dump(function.returns), key
        assert ast.get_docstring(starter[key]) == ast.get_docstring(function), key
        assert returns(starter[key]) == returns(function), key


@pytest.mark.parametrize("name", NAMES)
def test_case_h01_the_reference_gives_nothing_away(folder, name):
    text = (folder / f"{name}.py").read_text(encoding="utf-8")
    assert "is not written yet" in text
    assert "bestiary" not in text
    reference = (ROOT / "recipes" / "lesson" / f"{name}.py").read_text(encoding="utf-8")
    assert "# The same with bestiary" in reference


@pytest.mark.parametrize("name", NAMES)
def test_case_h01_the_starter_fails_each_test_with_its_task(folder, practice, name, tmp_path):
    test = Path(practice.TESTS[name]).name
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        test,
        f"--junitxml={tmp_path / 'out.xml'}",
    ]
    assert subprocess.run(command, cwd=folder, capture_output=True, check=False).returncode == 1
    cases = list(Xml.parse(tmp_path / "out.xml").iter("testcase"))
    assert cases
    for case in cases:
        text = "".join("".join(found.itertext()) + found.get("message", "") for found in case)
        assert "is not written yet. Its task: " in text, case.get("name")


def test_case_h01_the_reference_passes_beside_its_tests(practice, tmp_path):
    for name in ("ragged_lab", "assignment_2_weighted_sampler"):
        shutil.copy(ROOT / "recipes" / "lesson" / f"{name}.py", tmp_path)
        practice.write(tmp_path, name)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert (tmp_path / "ragged_lab.py").read_text() == (ROOT / "recipes" / "lesson" / "ragged_lab.py").read_text()


def test_one_exercise_and_unknown_ones(practice, tmp_path, capsys):
    assert practice.main([str(tmp_path / "new"), "ragged_lab"]) == 0
    assert sorted(path.name for path in (tmp_path / "new").iterdir()) == ["ragged_lab.py", "test_ragged_lab.py"]
    assert practice.main([str(tmp_path / "new"), "raged_lab"]) == 2
    assert "ragged_lab" in capsys.readouterr().err


def test_work_that_was_done_is_never_written_over(practice, tmp_path, capsys):
    (tmp_path / "ragged_lab.py").write_text("mine")
    practice.main([str(tmp_path), "ragged_lab"])
    practice.main([str(tmp_path), "ragged_lab"])
    assert (tmp_path / "ragged_lab.py").read_text() == "mine"
    assert "left as it is" in capsys.readouterr().out


def test_shapes_of_returns(practice):
    source = (
        'def pair(x):\n    """Give two."""\n    if x:\n        return x, 1\n    def inner():\n        return 1, 2, 3\n'
        '    return x, inner()\n\ndef stream():\n    """Give some."""\n    yield from ()\n\ndef nothing():\n    """Do."""\n    print()\n'
        '\ndef kept():  # given\n    """Stay."""\n    return 5\n'
    )
    tree = {node.name: ast.unparse(node) for node in ast.parse(practice.make_starter(source)).body}
    assert tree["pair"].endswith("return (x, ...)")
    assert tree["stream"].endswith("yield ...")
    assert "return" not in tree["nothing"]
    assert tree["kept"].endswith("return 5")
