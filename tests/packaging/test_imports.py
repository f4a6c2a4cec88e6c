"""No package imports another package's private modules; the paper and the bench use the public API."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "hopfy"
# The private modules of the library itself (_checks, _kernels ...) are open to its packages; in which
# order is import-linter's contract. Experiments and timings take from them only files that are
# written whole or not at all.
ABOVE_THE_LIBRARY = {
    "paper": {"_files"},
    "app": set(),
    "bench": set(),
    "cli": {"_commands"},
    "_commands": {"_warm_up"},
}


def imports_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports from hopfy."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for name in names:
            if name.split(".")[0] == "hopfy":
                yield node.lineno, name


def crossings(path: Path) -> Iterator[str]:
    """Imports that reach into the private part of another package."""
    own = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    for line, name in imports_of(path):
        package, *rest = name.split(".")[1:] or [""]
        if package == own or own == "__init__":
            continue
        place = f"{path.relative_to(SOURCE)}:{line} imports {name}"
        if package.startswith("_"):
            above = ABOVE_THE_LIBRARY.get(own)
            if above is not None and package not in above and not package.startswith("__"):
                yield place
        elif any(part.startswith("_") and not part.startswith("__") for part in rest):
            yield place


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_no_private_crossing(path: Path) -> None:
    assert list(crossings(path)) == []


def test_the_check_sees_crossings(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(f"{__name__}.SOURCE", tmp_path)
    (tmp_path / "paper").mkdir()
    (tmp_path / "paper" / "x.py").write_text(
        "import hopfy.nn._heads\nfrom hopfy.nn import _heads, Hopfield\n"
        "from hopfy._kernels import entmax\nfrom hopfy._files.atomic import replacing\n"
        "from hopfy.paper._base import Row\n"
    )
    found = list(crossings(tmp_path / "paper" / "x.py"))
    assert [entry.split(" imports ")[1] for entry in found] == [
        "hopfy.nn._heads",
        "hopfy.nn._heads",
        "hopfy._kernels.entmax",
    ]


# Questions about torch's dispatcher, tracers, autocast and threads.
PROBES = re.compile(
    r"torch\._C\b|torch\._subclasses|torch\._dynamo|torch\._functorch|torch\.compiler\.is_"
    r"|is_autocast|get_autocast|get_num_threads|onnx\.is_in_onnx_export|cpu_count"
)
# Experiments and timings run torch as a user does; the command line sets its threads.
OUTSIDE = {"_runtime", "paper", "bench", "_commands.py"}


@pytest.mark.parametrize(
    "path", sorted(SOURCE.rglob("*.py")), ids=lambda p: str(p.relative_to(SOURCE))
)
def test_only_the_runtime_asks_for_the_state_of_torch(path: Path) -> None:
    if path.relative_to(SOURCE).parts[0] not in OUTSIDE:
        assert PROBES.findall(path.read_text(encoding="utf-8")) == []
