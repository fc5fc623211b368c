"""Write exercises to practise on: each reference solution of the lesson with its bodies taken out, and its tests.

    python scripts/practice.py my_practice                    all four
    python scripts/practice.py my_practice ragged_lab         one of them
    cd my_practice && python -m pytest test_ragged_lab.py     see what is left to write

A starter has the signatures, the docstrings (they are the task) and the shape of each return. What a learner need not
write is kept: ``main``, and functions and classes marked ``# given``. Files that exist are left as they are.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TESTS = {
    "ragged_lab": "tests/lesson/test_ragged_lab.py",
    "assignment_1_image_folder": "tests/recipes/test_lesson_image_folder.py",
    "assignment_2_weighted_sampler": "tests/recipes/test_lesson_weighted_sampler.py",
    "challenge_sharded_stream": "tests/recipes/test_lesson_sharded_stream.py",
}
END = "# The same with bestiary"


def make_starter(source: str) -> str:
    """Return the source with the bodies of its tasks replaced by an error that names the task.

    >>> print(make_starter('def twice(x: int) -> int:\\n    "Return x two times."\\n    return x + x\\n'))
    def twice(x: int) -> int:
        "Return x two times."
        raise RuntimeError(
            'twice is not written yet. Its task: '
            'Return x two times.'
        )
        return ...
    <BLANKLINE>
    """
    lines = source.splitlines()
    for name, function in reversed(list(tasks(ast.parse(source), lines))):
        first, last = function.body[1], function.body[-1]
        lines[first.lineno - 1 : last.end_lineno] = _blank(name, function)
    kept = "\n".join(lines).split(f"\n{END}")[0].rstrip()
    return kept + "\n"


def tasks(
    tree: ast.Module | ast.ClassDef, lines: Sequence[str], outer: str = ""
) -> Iterator[tuple[str, ast.FunctionDef]]:
    """Give the functions that a learner writes, by name and in order: with a docstring and a body, neither main nor given."""
    for node in tree.body:
        if not isinstance(node, (ast.FunctionDef, ast.ClassDef)) or _given(node, lines):
            continue
        name = f"{outer}{node.name}"
        if isinstance(node, ast.ClassDef):
            yield from tasks(node, lines, f"{name}.")
        elif node.name != "main" and ast.get_docstring(node) and len(node.body) > 1:
            yield name, node


def _given(node: ast.FunctionDef | ast.ClassDef, lines: Sequence[str]) -> bool:
    """Whether the head of a function or class, up to its first statement, is marked as given."""
    return any("# given" in line for line in lines[node.lineno - 1 : node.body[0].lineno - 1])


def _blank(name: str, function: ast.FunctionDef) -> list[str]:
    """Return the body of a starter: the error, then the shape of what is returned, for the learner to fill in."""
    task = (ast.get_docstring(function) or "").splitlines()[0]
    said = ["raise RuntimeError(", f"    {name + ' is not written yet. Its task: '!r}", f"    {task!r}", ")"]
    return [" " * function.body[0].col_offset + line for line in [*said, *_shape(function)]]


def _shape(function: ast.FunctionDef) -> list[str]:
    """Return the last line of a starter: ``return`` with as many values, named where the solution has names."""
    nodes = list(own_nodes(function))
    if any(isinstance(node, (ast.Yield, ast.YieldFrom)) for node in nodes):
        return ["yield ..."]
    values = [node.value for node in nodes if isinstance(node, ast.Return) and node.value is not None]
    if not values:
        return []
    parts = values[-1].elts if isinstance(values[-1], ast.Tuple) else [values[-1]]
    return ["return " + ", ".join(part.id if isinstance(part, ast.Name) else "..." for part in parts)]


def own_nodes(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """Give the nodes of a function in the order of the source, without those of functions inside it."""
    stack: list[ast.AST] = list(reversed(function.body))
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)):
            stack.extend(reversed(list(ast.iter_child_nodes(node))))


def write(folder: Path, name: str) -> list[Path]:
    """Write one exercise, starter and tests, and return the files that were new."""
    folder.mkdir(parents=True, exist_ok=True)
    reference, test = ROOT / "recipes" / "lesson" / f"{name}.py", ROOT / TESTS[name]
    made = []
    for path, text in (
        (folder / reference.name, make_starter(reference.read_text(encoding="utf-8"))),
        (folder / test.name, test.read_text(encoding="utf-8")),
    ):
        if not path.exists():
            path.write_text(text, encoding="utf-8")
            made.append(path)
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Write the exercises that were asked for and say what to do next."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path, help="where to write, for example my_practice")
    parser.add_argument("names", nargs="*", metavar="name", help=f"of {', '.join(TESTS)}; without one all")
    args = parser.parse_args(argv)
    unknown = [name for name in args.names if name not in TESTS]
    if unknown:
        print(f"there is no exercise {unknown[0]!r}; there are {', '.join(TESTS)}", file=sys.stderr)
        return 2
    for name in args.names or TESTS:
        made = write(args.folder, name)
        print(f"{name}: " + (", ".join(path.name for path in made) if made else "is there already, left as it is"))
    ours = ROOT / ".venv" / "bin" / "python"  # where scripts/run installed what the tests need
    first = TESTS[(args.names or list(TESTS))[0]].rpartition("/")[2]
    python = ours if ours.exists() else sys.executable
    print(f"fill in what raises an error, then: cd {args.folder} && {python} -m pytest -x {first}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
