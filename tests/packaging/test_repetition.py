"""No passage of six lines stands in two function bodies without a reason."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ["src", "tests", "examples", "docs"]
PASSAGE = 6  # lines of code; blank lines and comments are not counted
SHORTEST = 60  # characters: a column of closing brackets is no passage

# Files that repeat a passage, and why; see "Repetition" in CONTRIBUTING.md.
KERNELS = "src/hopfy/_kernels"
REASONS = {
    (
        f"{KERNELS}/attention/cpu_short_nonconvex.py",
        f"{KERNELS}/attention/cpu_short_nonconvex.py",
    ): "compiled loops that differ in the rest of their body",
    (f"{KERNELS}/capped/cpu.py", f"{KERNELS}/threshold/cpu.py"): "how a compiled loop starts a row",
    (f"{KERNELS}/entmax/cpu.py", f"{KERNELS}/threshold/cpu.py"): "how a compiled loop starts a row",
    (
        "src/hopfy/estimators/_rationale.py",
        "src/hopfy/estimators/_rationale.py",
    ): "constructors pass their arguments on",
    (
        "src/hopfy/nn/_hopfield.py",
        "src/hopfy/nn/_hopfield.py",
    ): "constructors pass their arguments on",
}


def _body(node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) -> list[ast.stmt]:
    documented = ast.get_docstring(node, clean=False) is not None
    return node.body[1:] if documented else node.body


def _code(path: Path) -> list[str]:
    """The lines of all function bodies, without signatures and docstrings, in their order."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    scopes = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    nodes = [node for node in ast.walk(ast.parse(text)) if isinstance(node, scopes)]
    inside: set[int] = set()
    for node in nodes:
        if not isinstance(node, ast.ClassDef):
            for statement in _body(node):
                inside.update(range(statement.lineno, (statement.end_lineno or 0) + 1))
    for node in nodes:
        body = _body(node)
        end = body[0].lineno if body else (node.end_lineno or 0) + 1
        inside.difference_update(range(node.lineno, end))
    code = [lines[number - 1].strip() for number in sorted(inside)]
    return [line for line in code if line and not line.startswith("#")]


def _passages(path: Path) -> Iterator[str]:
    code = _code(path)
    for first in range(len(code) - PASSAGE + 1):
        passage = "\n".join(code[first : first + PASSAGE])
        if len(passage) >= SHORTEST:
            yield passage


def test_repeated_passages_have_a_reason() -> None:
    places: defaultdict[str, list[str]] = defaultdict(list)
    for folder in FOLDERS:
        for path in sorted((ROOT / folder).rglob("*.py")):
            for passage in _passages(path):
                places[passage].append(path.relative_to(ROOT).as_posix())
    repeated = {
        pair: passage
        for passage, files in places.items()
        for pair in combinations(files, 2)
        if pair not in REASONS
    }
    assert not repeated, "\n\n".join(f"{pair}:\n{text}" for pair, text in repeated.items())
    still = {pair for files in places.values() for pair in combinations(files, 2)}
    assert set(REASONS) <= still, "remove reasons for passages that are no longer repeated"
