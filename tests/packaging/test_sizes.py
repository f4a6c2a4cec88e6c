"""Functions fit on a screen and modules are small: nothing grows past what one can read at once."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "hopfy"
LONGEST_FUNCTION = 54  # lines, docstrings and decorators not counted
LONGEST_MODULE = 500
# Longer ones; none is to be added without a reason.
LONG_FUNCTIONS = {
    # One pass over tiles in registers: Triton helpers cannot carry a loop's state by reference.
    "_kernels/attention/gpu_backward.py queries_kernel",
}


def _lengths(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first, lines = node.body[0], (node.end_lineno or 0) - node.lineno + 1
            if ast.get_docstring(node, clean=False) is not None:
                lines -= (first.end_lineno or 0) - first.lineno + 1
            yield node.name, lines


def test_functions_are_short() -> None:
    long = {
        f"{path.relative_to(SOURCE).as_posix()} {name}"
        for path in SOURCE.rglob("*.py")
        for name, lines in _lengths(ast.parse(path.read_text(encoding="utf-8")))
        if lines > LONGEST_FUNCTION
    }
    assert long <= LONG_FUNCTIONS


def test_modules_are_short() -> None:
    long = {
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if len(path.read_text(encoding="utf-8").splitlines()) > LONGEST_MODULE
    }
    assert not long
