"""The shell scripts: what they say, what they pass on, and that an environment is made once."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = ["scripts/run", "scripts/check", "scripts/bench", "tests/run_tests.sh", ".ci/run"]


def run(*command: str | Path, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | environment,
    )


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """Return a copy of the scripts with an environment of its own: an interpreter that notes how it is called."""
    (tmp_path / "tests").mkdir()
    (tmp_path / "recipes").mkdir()
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "tests" / "run_tests.sh", tmp_path / "tests")
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    (tmp_path / "recipes" / "one.py").write_text("")
    maker = tmp_path / "maker"
    maker.write_text(
        "#!/usr/bin/env bash\n"
        'echo "$@" >> "$(dirname "$0")/calls"\n'
        'if [ "$1" = -m ] && [ "$2" = venv ]; then mkdir -p "$3/bin" && cp "$0" "$3/bin/python"; fi\n'
        'case "$*" in "-m pytest"*) exit 7;; esac\n'
        "exit 0\n"
    )
    maker.chmod(0o755)
    return tmp_path


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_parse_and_may_be_run(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    assert run("bash", "-n", ROOT / script).returncode == 0


def test_an_environment_is_made_once_and_completed_when_its_list_changes(checkout: Path) -> None:
    maker = str(checkout / "maker")
    first = run(checkout / "scripts" / "run", "recipes/one.py", "--flag", PYTHON=maker, PIP_ARGS="--pre")
    assert first.returncode == 0 and "installing" in first.stderr
    calls = (checkout / "calls").read_text().splitlines()
    assert any("venv" in call for call in calls)
    inside = (checkout / ".venv" / "bin" / "calls").read_text().splitlines()
    assert f"--pre --editable {checkout}[all,dev]" in inside[-2] and inside[-1] == "recipes/one.py --flag"
    again = run(checkout / "scripts" / "run", "recipes/one.py", PYTHON=maker, PIP_ARGS="--pre")
    assert again.stderr == ""
    with (checkout / "pyproject.toml").open("a") as file:
        file.write("\n# more\n")
    assert "installing" in run(checkout / "scripts" / "run", "recipes/one.py", PYTHON=maker, PIP_ARGS="--pre").stderr
    assert len([call for call in (checkout / "calls").read_text().splitlines() if "venv" in call]) == 1


def test_run_tests_passes_arguments_and_exit_code_on(checkout: Path) -> None:
    done = run(checkout / "tests" / "run_tests.sh", "lesson", "-k", "a b", PYTHON=str(checkout / "maker"))
    assert done.returncode == 7
    assert (checkout / ".venv" / "bin" / "calls").read_text().splitlines()[-1] == "-m pytest tests/lesson -k a b"


def test_no_interpreter_is_told(checkout: Path) -> None:
    done = run(checkout / "scripts" / "run", "recipes/one.py", PYTHON="no-such-python")
    assert done.returncode == 3
    assert "no-such-python" in done.stderr and "3.10" in done.stderr and "Traceback" not in done.stderr


def test_run_without_a_script_lists_the_recipes() -> None:
    done = run(ROOT / "scripts" / "run")
    assert done.returncode == 2 and "recipes/image_classify.py" in done.stdout
    assert run(ROOT / "scripts" / "run", "--help").returncode == 0


def test_bench_lists_what_there_is_and_names_what_is_not() -> None:
    done = run(ROOT / "scripts" / "bench")
    assert done.returncode == 0 and "images" in done.stdout and "harness" not in done.stdout
    wrong = run(ROOT / "scripts" / "bench", "nothing")
    assert wrong.returncode == 2 and "nothing" in wrong.stderr
