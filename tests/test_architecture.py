"""The house: who may import whom, what comes along, how large the parts are, and that importing does nothing."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest
from torch.utils.data import IterableDataset

SOURCE = Path(__file__).resolve().parent.parent / "src"
MODALITIES = ("audio", "images", "records", "tables", "text")
BUDGET = 450  # lines of code of ours that importing one dataset module may run
HEAVY = (
    "PIL",
    "accelerate",
    "fsspec",
    "lightning",
    "matplotlib",
    "miniaudio",
    "orjson",
    "pyarrow",
    "simplejpeg",
    "soundfile",
    "soxr",
)
HEAVY += ("tokenizers", "torchaudio", "torchvision", "tqdm", "zstandard")
NEEDED = {"images": {"PIL"}, "audio": {"soundfile"}}  # what a modality may load when its modules are imported


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}
PACKAGES = sorted(name for name, path in MODULES.items() if path.name == "__init__.py" and name != "bestiary")


def room_of(name: str) -> str:
    return name.split(".")[1] if "." in name else ""


@cache
def imports(name: str, everywhere: bool) -> frozenset[str]:
    """Return our modules that a module imports: at its top level, or anywhere in it."""
    found: set[str] = set()
    todo: list[ast.AST] = list(ast.parse(MODULES[name].read_text(encoding="utf-8")).body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test) and not everywhere:
            continue
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and not everywhere:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively; a borrowed file could not"
            found |= {str(node.module)} | {f"{node.module}.{alias.name}" for alias in node.names}
        else:
            todo.extend(ast.iter_child_nodes(node))
    return frozenset(one for one in found if one in MODULES)


def drag(name: str) -> set[str]:
    """Return our modules that run when one is imported."""
    seen: set[str] = set()
    todo = [name]
    while todo:
        one = todo.pop()
        if one not in seen:
            seen.add(one)
            parent = one.rpartition(".")[0]
            todo += [*imports(one, False), *([parent] if parent else [])]
    return seen


def code_lines(path: Path) -> int:
    """Count lines that hold code: no docstrings, comments or blanks."""
    text = path.read_text(encoding="utf-8")
    hidden: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.body:
            first = node.body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                hidden |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    lines = enumerate(text.splitlines(), 1)
    return sum(
        number not in hidden and bool(line.strip()) and not line.strip().startswith("#") for number, line in lines
    )


@pytest.mark.parametrize("name", MODULES)
def test_arrows(name: str) -> None:
    room = room_of(name)
    allowed = {"": set[str](), "keys": {"keys"}, "files": {"files", "keys"}, "loading": {"loading", "keys"}}
    allowed |= {modality: {modality, "files", "keys"} for modality in MODALITIES}
    if room in allowed:
        wrong = {one for one in imports(name, True) if room_of(one) not in allowed[room] | {""}}
        assert not wrong, f"{name} imports {sorted(wrong)}"
    if room not in ("tools", "testing"):
        assert not {one for one in imports(name, True) if room_of(one) in ("tools", "testing")}


@pytest.mark.parametrize("name", [name for name in MODULES if name.count(".") == 2 and room_of(name) in MODALITIES])
def test_drag(name: str) -> None:
    pulled = drag(name)
    total = sum(code_lines(MODULES[one]) for one in pulled)
    assert total <= BUDGET, f"importing {name} runs {total} lines of {sorted(pulled)}"


@cache
def loaded_by(statement: str, after: str = "pass") -> dict[str, object]:
    """Run an import in a fresh interpreter and tell what it brought, and what else it changed, after another one."""
    code = f"""
import json, os, sys, threading
{after}
old = set(sys.modules)
before = dict(os.environ)
files = set(os.listdir("."))
{statement}
print(json.dumps({{
    "modules": sorted(set(sys.modules) - old), "threads": threading.active_count(), "environment": dict(os.environ) == before,
    "files": sorted(set(os.listdir(".")) - files),
}}))
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    told: dict[str, object] = json.loads(done.stdout.splitlines()[-1])
    return told


def test_importing_the_package_imports_nothing() -> None:
    modules = set(loaded_by("import bestiary")["modules"])  # type: ignore[call-overload]
    assert not modules & {"torch", "numpy", *HEAVY}
    assert {name for name in modules if name.startswith("bestiary")} == {"bestiary"}


@pytest.mark.parametrize("name", PACKAGES)
def test_importing_a_room_opens_no_other(name: str) -> None:
    modules = set(loaded_by(f"import {name}")["modules"])  # type: ignore[call-overload]
    assert not modules & {"torch", *HEAVY}
    assert {one for one in modules if one.startswith("bestiary.")} <= {name, *_parents(name)}


def _parents(name: str) -> set[str]:
    parts = name.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


@pytest.mark.parametrize("room", sorted({room_of(name) for name in PACKAGES} - {"tools"}))
def test_importing_every_module_of_a_room_brings_only_what_it_needs(room: str) -> None:
    names = [name for name in MODULES if room_of(name) == room]
    told = loaded_by("; ".join(f"import {name}" for name in names), after="import torch, numpy")
    brought = {name.partition(".")[0] for name in told["modules"]}  # type: ignore[attr-defined]
    assert not brought & (set(HEAVY) - NEEDED.get(room, set()))
    assert told["threads"] == 1 and told["environment"] is True and told["files"] == []


def test_no_module_is_named_like_one_of_the_standard_library() -> None:
    names = {path.stem for path in MODULES.values() if path.stem not in ("__init__", "__main__")}
    names |= {part for name in MODULES for part in name.split(".")}
    assert not names & (set(sys.stdlib_module_names) | {"utils", "base", "common", "helpers"})


def docstrings(thing: object, name: str) -> dict[str, str | None]:
    """Return what a public name says of itself, and each public method and property of a class."""
    found = {name: thing.__doc__}
    if isinstance(thing, type):
        for inner, value in vars(thing).items():
            if not inner.startswith("_") and (callable(value) or isinstance(value, (property, classmethod))):
                found[f"{name}.{inner}"] = value.__doc__
    return found


def datasets() -> list[str]:
    """Return the public datasets: classes of a modality that know where a sample comes from, or are streams."""
    found = []
    for package in (name for name in PACKAGES if room_of(name) in MODALITIES and name.count(".") == 1):
        things = {name: getattr(import_module(package), name) for name in import_module(package).__all__}
        found += [
            f"{package}.{name}"
            for name, thing in things.items()
            if isinstance(thing, type) and (hasattr(thing, "locate") or issubclass(thing, IterableDataset))
        ]
    return found


@pytest.mark.parametrize("name", datasets())
def test_the_readme_has_a_row_for_each_dataset(name: str) -> None:
    lines = (SOURCE.parent / "README.md").read_text(encoding="utf-8").splitlines()
    assert any(line.startswith(f"| `{name}` |") for line in lines), f"no row for {name} in README.md's table"


def test_the_pages_name_what_exists() -> None:
    for page in [*SOURCE.parent.glob("*.md"), *(SOURCE.parent / "docs").glob("*.md")]:
        text = page.read_text(encoding="utf-8")
        for name in set(re.findall(r"`(bestiary(?:\.\w+)+)`", text)):
            package, _, last = name.rpartition(".")
            there = name in MODULES or (package in MODULES and last in import_module(package).__all__)
            assert there, f"{page.name} names {name}"
        for package, names in re.findall(r"^(?:>>> )?from (bestiary\.\w+) import ([\w, ]+)$", text, flags=re.MULTILINE):
            assert set(names.split(", ")) <= set(import_module(package).__all__), f"{page.name}: {package} {names}"


@pytest.mark.parametrize("name", PACKAGES)
def test_public_names(name: str) -> None:
    package = import_module(name)
    assert list(package.__all__) == sorted(set(package.__all__)), "sorted, each once"
    assert set(dir(package)) == set(package.__all__)
    for public in package.__all__:
        thing = getattr(package, public)
        if callable(thing) and getattr(thing, "__module__", "").startswith("bestiary"):
            silent = [one for one, doc in docstrings(thing, public).items() if not (doc or "").strip()]
            assert not silent, f"{name}: no docstring in {silent}"
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = package.no_such_name


def test_the_api_page_names_what_is_public() -> None:
    page = (SOURCE.parent / "docs" / "api.md").read_text(encoding="utf-8")
    told: dict[str, set[str]] = {}
    package = ""
    for line in page.splitlines():
        if line.startswith("## `bestiary."):
            package = line.split("`")[1]
        elif line.startswith("| `") and package:
            told.setdefault(package, set()).add(line.split("`")[1])
    assert told == {name: set(import_module(name).__all__) for name in PACKAGES if room_of(name) != "tools"}


def test_the_version_is_said_once_and_the_same() -> None:
    import bestiary

    text = (SOURCE.parent / "pyproject.toml").read_text(encoding="utf-8")
    assert f'version = "{bestiary.__version__}"' in text
    assert (SOURCE / "bestiary" / "py.typed").exists()
