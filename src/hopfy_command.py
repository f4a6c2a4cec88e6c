"""The console script ``hopfy``: it answers what needs no torch at once, and leaves the rest to `hopfy.cli`.

Importing `hopfy` imports torch, which takes seconds; a message about a missing package should not.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import metadata
from importlib.util import find_spec

__all__ = ["main", "missing_extra"]

_BASE = ("typer", "rich")
_NEEDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "explore": ("explore", (*_BASE, "panel", "bokeh", "sklearn", "skorch")),
    "demo": ("demo", (*_BASE, "matplotlib", "sklearn", "skorch", "jinja2", "optuna")),
    "reproduce": ("demo", (*_BASE, "matplotlib", "sklearn", "skorch", "jinja2", "optuna")),
    "bench": ("bench", (*_BASE, "sklearn", "skorch", "entmax", "faiss", "torch_struct")),
}
"""Commands, the extra that each belongs to, and the packages that it imports in any case."""


def missing_extra(arguments: Sequence[str]) -> str | None:
    """What to tell a user whose command lacks its packages; None if nothing is missing."""
    command = next((each for each in arguments if not each.startswith("-")), "")
    extra: str = "cli"
    packages: tuple[str, ...] = _BASE
    if "--help" not in arguments:
        extra, packages = _NEEDS.get(command, (extra, packages))
    missing = [package for package in packages if find_spec(package) is None]
    if not missing:
        return None
    what = f"hopfy {command}".strip() if command in _NEEDS else "the command line of hopfy"
    return f"{what} needs {', '.join(missing)}: pip install 'hopfy[{extra}]'"


def main() -> None:
    """Run the command line."""
    arguments = sys.argv[1:]
    if arguments == ["--version"]:
        print(f"hopfy {metadata.version('hopfy')}")
        return
    problem = missing_extra(arguments)
    if problem is not None:
        sys.exit(problem)
    from hopfy.cli import main

    main()
