"""Figures without a window or global state, the same bytes every time."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

__all__ = ["canvas", "darken", "save"]

_PAPER, _INK = "#17181b", "#ececef"


def canvas(width: float, height: float) -> Canvas:
    """An empty figure of this size in inches."""
    from matplotlib.figure import Figure as Canvas

    return Canvas(figsize=(width, height), layout="constrained")


def save(figure: Canvas, folder: Path, name: str) -> None:
    """Write ``NAME.png`` and ``NAME.svg``, and ``NAME-dark.png`` for dark pages.

    Afterward the figure itself is the dark one.
    """
    import matplotlib

    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=144)
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "path"}):
        figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    darken(figure)
    figure.savefig(folder / f"{name}-dark.png", dpi=110)


def darken(figure: Canvas) -> None:
    """Turn black ink white and white paper dark; colors, images and outlined letters stay.

    >>> figure = canvas(2, 1)
    >>> axes = figure.subplots()
    >>> title = axes.set_title("title")
    >>> darken(figure)
    >>> title.get_color()
    '#ececef'
    """
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.spines import Spine
    from matplotlib.text import Text

    for artist in figure.findobj():
        if isinstance(artist, Text):
            if _is_ink(artist.get_color()) and not artist.get_path_effects():
                artist.set_color(_INK)
        elif isinstance(artist, Line2D):
            if _is_ink(artist.get_color()) and not artist.get_path_effects():
                artist.set_color(_INK)
            if _is_ink(artist.get_markeredgecolor()):
                artist.set_markeredgecolor(_INK)
        elif isinstance(artist, Spine):
            artist.set_edgecolor(_INK)
        elif isinstance(artist, Patch):
            if _is_paper(artist.get_facecolor()):
                artist.set_facecolor(_PAPER)
            if _is_ink(artist.get_edgecolor()):
                artist.set_edgecolor(_INK)
        elif isinstance(artist, Collection):
            edges = artist.get_edgecolor()
            if len(edges) == 1 and _is_ink(edges[0]):
                artist.set_edgecolor(_INK)


def _is_ink(color: object) -> bool:
    """Whether a color is black or nearly so, and not transparent."""
    red, green, blue, alpha = _rgba(color)
    return max(red, green, blue) < 0.25 and alpha > 0


def _is_paper(color: object) -> bool:
    """Whether a color is white and not transparent."""
    red, green, blue, alpha = _rgba(color)
    return min(red, green, blue) > 0.98 and alpha > 0.5


def _rgba(color: object) -> tuple[float, float, float, float]:
    from matplotlib.colors import to_rgba

    return tuple(to_rgba(color))  # type: ignore[arg-type, return-value]
