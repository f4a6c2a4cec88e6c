"""Figures without a window or global state, the same bytes every time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["canvas", "save"]


def canvas(width: float, height: float) -> Canvas:
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height), layout="constrained")


def save(figure: Canvas, folder: Path, name: str) -> None:
    """Write ``NAME.png`` and ``NAME.svg``."""
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=144)
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
