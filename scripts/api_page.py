"""Write docs/api.md: every public name with the first line of its docstring."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("files", "images", "audio", "text", "tables", "records", "loading")


def main() -> None:
    """Write the page."""
    lines = ["# Public names", "", "Import them from their package. Written by `python scripts/api_page.py`.", ""]
    for package in PACKAGES:
        if not (ROOT / "src" / "bestiary" / package / "__init__.py").exists():
            continue
        module = import_module(f"bestiary.{package}")
        lines += [
            f"## `bestiary.{package}`",
            "",
            str(module.__doc__).strip().splitlines()[0],
            "",
            "| name | what |",
            "| --- | --- |",
        ]
        for name in module.__all__:
            thing = getattr(module, name)
            own = callable(thing) and str(getattr(thing, "__module__", "")).startswith("bestiary")
            text = (
                (thing.__doc__ or "").strip().splitlines()[0] if own and thing.__doc__ else "a type, a name for a value"
            )
            lines.append(f"| `{name}` | {text.replace('|', chr(92) + '|')} |")
        lines.append("")
    (ROOT / "docs" / "api.md").write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
