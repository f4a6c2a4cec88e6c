"""One style for all pictures of the site, and every picture twice: for light and for dark pages."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.collections import QuadMesh
from matplotlib.colors import to_hex, to_rgba
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure

from hopfy.plot.style import INK, color_of

# What is drawn in ink on a light page, and with what on a dark one.
DARK = {INK: "#e8e6e3", "#000000": "#e8e6e3", "#ffffff": "#131416", "#8a8a8a": "#9a9a9a"}
DARK |= {"#e5e5e5": "#33363b", "#444444": "#c9c7c3", "#cccccc": "#55585d", "#d0d0d0": "#44474c"}
# Blue and green are too dim on a dark page.
DARK |= {"#0072b2": "#4aa3df", "#009e73": "#22b98f"}
PAGE = {"light": "#ffffff", "dark": "#131416"}


def use_style() -> None:
    """Matplotlib's settings for the site."""
    mpl.use("agg")
    mpl.rcdefaults()
    cycle = mpl.cycler(color=[color_of(number) for number in range(7)])
    mpl.rcParams.update(
        {
            "figure.figsize": (7.2, 3.6),
            "figure.dpi": 110,
            "savefig.dpi": 160,
            "figure.constrained_layout.use": True,
            "font.size": 10,
            "axes.prop_cycle": cycle,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.edgecolor": INK,
            "axes.labelcolor": INK,
            "axes.titlecolor": INK,
            "axes.titlesize": 10.5,
            "axes.titlelocation": "left",
            "axes.grid": False,
            "grid.color": "#e5e5e5",
            "text.color": INK,
            "xtick.color": INK,
            "ytick.color": INK,
            "legend.frameon": False,
            "image.cmap": "cividis",
            "lines.linewidth": 1.8,
        }
    )


def darken(figure: Figure) -> None:
    """Exchange ink and paper in place; pictures and what is drawn over them stay as they are."""
    figure.set_facecolor(PAGE["dark"])
    outside = [artist for artist in figure.get_children() if not isinstance(artist, Axes)]
    for axes in figure.axes:
        axes.tick_params(axis="both", which="both", color=DARK[INK], labelcolor=DARK[INK])
        around = [
            axes.title,
            axes._left_title,
            axes._right_title,
            axes.xaxis.label,
            axes.yaxis.label,
        ]
        around += list(axes.spines.values())
        outside += around if _has_picture(axes) else [*around, *axes.get_children()]
        legend = axes.get_legend()
        outside += [legend] if legend and _has_picture(axes) else []
    for artist in outside:
        for each in artist.findobj():
            for ask, tell in _COLORS:
                if hasattr(each, ask) and hasattr(each, tell):
                    _exchange(each, ask, tell)


def _has_picture(axes: Axes) -> bool:
    """Whether the axes hold an image or filled contours, which have their own paper."""
    filled = (QuadMesh, ContourSet)
    return bool(axes.images) or any(isinstance(each, filled) for each in axes.collections)


_COLORS = (
    ("get_color", "set_color"),
    ("get_facecolor", "set_facecolor"),
    ("get_edgecolor", "set_edgecolor"),
    ("get_markerfacecolor", "set_markerfacecolor"),
    ("get_markeredgecolor", "set_markeredgecolor"),
)


def _exchange(artist: Any, ask: str, tell: str) -> None:
    try:
        color = to_rgba(getattr(artist, ask)())
    except (TypeError, ValueError):
        return _exchange_many(artist, ask, tell)
    replaced = DARK.get(to_hex(color))
    if replaced and color[3] > 0:
        getattr(artist, tell)((*to_rgba(replaced)[:3], color[3]))
    return None


def _exchange_many(artist: Any, ask: str, tell: str) -> None:
    try:
        colors = [to_rgba(color) for color in getattr(artist, ask)()]
    except (TypeError, ValueError):
        return
    new = [(*to_rgba(DARK.get(to_hex(c), c))[:3], c[3]) for c in colors]
    if new != colors:
        getattr(artist, tell)(new)


def save_pair(figure: Figure, path: Path) -> tuple[Path, Path]:
    """Write ``NAME.png`` and ``NAME-dark.png``; the figure is dark afterward."""
    dark = path.with_name(f"{path.stem}-dark{path.suffix}")
    figure.savefig(path, facecolor=PAGE["light"], bbox_inches="tight", pad_inches=0.08)
    if all(axes.axison for axes in figure.axes):
        darken(figure)
        figure.savefig(dark, facecolor=PAGE["dark"], bbox_inches="tight", pad_inches=0.08)
    else:  # pictures that fade into white paper keep it
        shutil.copy(path, dark)
    return path, dark


class PairScraper:
    """Collects the figures of an example for sphinx-gallery, light and dark."""

    def __repr__(self) -> str:
        return "PairScraper()"

    def __call__(self, _block: Any, block_vars: Any, _settings: Any) -> str:
        import matplotlib.pyplot as plt

        written = []
        for number in plt.get_fignums():
            path = Path(next(block_vars["image_path_iterator"]))
            figure = plt.figure(number)
            label = figure.get_label() or "The picture that the code above draws"
            light, dark = save_pair(figure, path)
            for file, kind in ((light, "only-light"), (dark, "only-dark")):
                written.append(
                    f".. image:: images/{file.name}\n   :alt: {label}\n   :class: {kind}\n"
                )
        plt.close("all")
        return "\n".join(written)
