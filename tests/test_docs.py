"""Every example in README.md and docs runs and gives what it shows; every link inside leads somewhere."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def names(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_examples_at_a_prompt(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    text = re.sub(r"^```.*$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    test = doctest.DocTestParser().get_doctest(text, {"__name__": "__main__"}, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    told: list[str] = []
    runner.run(test, out=told.append)
    assert runner.failures == 0, "".join(told)


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_listings_run(page: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Blocks marked ``python`` without a prompt run from top to bottom in one namespace, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    space: dict[str, object] = {"__name__": "__main__"}
    for block in re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL):
        if ">>>" not in block:
            exec(compile(block, names(page), "exec"), space)  # noqa: S102 - that is the test


@pytest.mark.parametrize("page", PAGES, ids=names)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
        if not target.startswith(("http://", "https://", "mailto:")):
            assert (page.parent / target).exists(), target


def test_commands_name_files_that_exist() -> None:
    for page in PAGES:
        for name in re.findall(
            r"\b((?:recipes|scripts|tests|docs)/[\w./-]+\.(?:py|sh|md|txt))\b", page.read_text(encoding="utf-8")
        ):
            assert (ROOT / name).exists(), f"{names(page)} names {name}"


def test_the_readme_has_a_row_for_each_recipe() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = [path.name for path in (ROOT / "recipes").glob("*.py") if f"| `recipes/{path.name}` |" not in text]
    assert not missing


def test_the_index_names_every_page() -> None:
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert not [
        path.name for path in (ROOT / "docs").glob("*.md") if path.name != "README.md" and f"({path.name})" not in text
    ]
