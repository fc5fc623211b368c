"""The shell scripts: what they say, what they pass on, and that an environment is made once."""

from __future__ import annotations

import os
import re
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


def test_a_call_without_pip_args_takes_what_is_there_and_one_with_others_installs_again(checkout: Path) -> None:
    maker = str(checkout / "maker")
    script = checkout / "scripts" / "run"
    assert "installing" in run(script, "recipes/one.py", PYTHON=maker, PIP_ARGS="-c some.txt").stderr
    assert run(script, "recipes/one.py", PYTHON=maker, PIP_ARGS="").stderr == ""
    assert "installing" in run(script, "recipes/one.py", PYTHON=maker, PIP_ARGS="-c other.txt").stderr


@pytest.mark.skipif(shutil.which("flock") is None, reason="needs flock to keep two callers apart")
def test_two_callers_at_once_install_once(checkout: Path) -> None:
    maker = checkout / "maker"
    maker.write_text(maker.read_text().replace("exit 0\n", 'case "$*" in *install*) sleep 1;; esac\nexit 0\n'))
    command = [str(checkout / "scripts" / "run"), "recipes/one.py"]
    both = [subprocess.Popen(command, env=os.environ | {"PYTHON": str(maker)}, stderr=subprocess.PIPE) for _ in "ab"]
    told = b"".join(process.communicate(timeout=60)[1] for process in both)
    assert [process.returncode for process in both] == [0, 0]
    assert told.count(b"installing") == 1
    calls = (checkout / ".venv" / "bin" / "calls").read_text().splitlines()
    assert len([call for call in calls if "--editable" in call]) == 1 and calls.count("recipes/one.py") == 2


@pytest.mark.parametrize(
    ("fails", "says"),
    [
        ("-c import", "3.10"),  # the question for the version
        ("-m venv", "python3-venv"),
        ("-m pip install", "PIP_ARGS"),
        ("-m pip --version|-m ensurepip", "remove .venv"),
    ],
)
def test_a_failure_says_what_to_do_and_leaves_no_stamp(checkout: Path, fails: str, says: str) -> None:
    maker = checkout / "maker"
    cases = "|".join(f'"{one}"*' for one in fails.split("|"))
    maker.write_text(maker.read_text().replace("exit 0\n", f'case "$*" in {cases}) exit 1;; esac\nexit 0\n'))
    done = run(checkout / "scripts" / "run", "recipes/one.py", PYTHON=str(maker), PIP_ARGS="")
    assert done.returncode == 3 and says in done.stderr
    assert not (checkout / ".venv" / "bestiary.stamp").exists()


def test_check_goes_through_all_steps_and_names_those_that_failed(checkout: Path) -> None:
    maker = checkout / "maker"
    maker.write_text(maker.read_text().replace("exit 0\n", 'case "$*" in "-m ruff check"*) exit 1;; esac\nexit 0\n'))
    done = run(checkout / "scripts" / "check", PYTHON=str(maker))
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "failed: lint doctests tests"  # the interpreter lets pytest fail with 7
    assert [line.split(":")[0] for line in done.stdout.splitlines() if line.startswith("== ")] == [
        "== format",
        "== lint",
        "== types",
        "== types-of-programs",
        "== doctests",
        "== tests",
    ]
    fine = run(checkout / "scripts" / "check", "--wrong", PYTHON=str(maker))
    assert fine.returncode == 2 and fine.stdout.startswith("usage:")


def test_ci_pins_versions_goes_through_both_parts_and_fails_if_one_did(checkout: Path) -> None:
    (checkout / ".ci").mkdir()
    shutil.copy(ROOT / ".ci" / "run", checkout / ".ci")
    maker = str(checkout / "maker")
    environment = {name: value for name, value in os.environ.items() if name != "PIP_ARGS"} | {"PYTHON": maker}
    command = ["bash", str(checkout / ".ci" / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 7
    calls = (checkout / ".venv" / "bin" / "calls").read_text().splitlines()
    assert any("-c scripts/constraints.txt --editable" in call for call in calls)
    assert calls[-1] == "-m pytest -n 2" and "-m ruff format --check ." in calls


def test_without_arguments_two_processes_share_the_tests(checkout: Path) -> None:
    run(checkout / "tests" / "run_tests.sh", PYTHON=str(checkout / "maker"))
    assert (checkout / ".venv" / "bin" / "calls").read_text().splitlines()[-1] == "-m pytest -n 2"


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


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    """``scripts/oldest.txt`` is what the lower bounds were tried with, so both change together."""
    listed = re.findall(r'"([\w-]+)>=([\d.]+)"', (ROOT / "pyproject.toml").read_text().partition("[project]")[2])
    bounds = {name: bound for name, bound in listed if name not in ("mypy", "ruff")}
    oldest = dict(
        re.findall(r"^([\w-]+)==([\d.]+)$", (ROOT / "scripts" / "oldest.txt").read_text(), flags=re.MULTILINE)
    )
    assert len(bounds) > 15 and oldest.keys() == bounds.keys()
    for name, bound in bounds.items():
        assert oldest[name] == bound or oldest[name].startswith(f"{bound}."), name


def test_no_upper_bounds() -> None:
    listed = re.findall(
        r"^(?:dependencies|\w+) = (\[[^\]]*\])", (ROOT / "pyproject.toml").read_text(), flags=re.MULTILINE
    )
    assert not re.findall(r'"[\w-]+[^"]*(?:<|==|~=)[^"]*"', " ".join(listed))
