"""The sample data is what its SOURCE.json says, with its licence beside it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parent.parent / "recipes" / "data"
FOLDERS = sorted(path.name for path in DATA.iterdir() if path.is_dir())


@pytest.mark.parametrize("name", FOLDERS)
def test_every_file_is_the_one_it_was(name: str) -> None:
    source = json.loads((DATA / name / "SOURCE.json").read_text(encoding="utf-8"))
    sums = {path: entry for path, entry in source["files"].items()}
    assert sums
    for path, entry in sums.items():
        expected = entry if isinstance(entry, str) else entry["sha256"]
        assert hashlib.sha256((DATA / name / path).read_bytes()).hexdigest() == expected, path
    assert (DATA / name / "LICENSE").read_text(encoding="utf-8").strip()


def test_the_folders_are_told_of_in_the_readme() -> None:
    text = (DATA / "README.md").read_text(encoding="utf-8")
    assert FOLDERS == ["digits", "fashion", "faulty", "percussion", "photos", "spoken", "tables", "udhr"]
    assert all(f"`{name}/`" in text for name in FOLDERS)
