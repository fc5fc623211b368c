"""Check the types of each recipe by itself: a recipe is a file that runs alone, not a module of a package."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    """Return the number of files with type errors; print these."""
    failed = 0
    for path in [*sorted(ROOT.glob("recipes/*.py")), *sorted(ROOT.glob("recipes/lesson/*.py"))]:
        command = [sys.executable, "-m", "mypy", "--strict", str(path.relative_to(ROOT))]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode:
            print(done.stdout + done.stderr)
            failed += 1
    print(f"{failed} files with type errors")
    return failed


if __name__ == "__main__":
    sys.exit(main())
