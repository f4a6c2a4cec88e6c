"""Panels of curves with medians and quartiles: one panel for each state space and beta."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopfy.paper._drawing import canvas, save
from hopfy.paper.recall._setting import OMEGAS
from hopfy.plot.style import MARKERS, color_of

__all__ = ["draw_panels"]

_STYLES = ("-", "--")
_COLORS = 7


def draw_panels(
    curves: Sequence[Mapping[str, Any]],
    folder: Path,
    name: str,
    labels: tuple[str, str],
    *,
    logarithmic: bool = False,
) -> None:
    """Write ``NAME.png`` and ``NAME.svg``: the share of recalled images, one line for each omega."""
    panels = list(dict.fromkeys((curve["state"], curve["beta"]) for curve in curves))
    columns = min(4, len(panels))
    rows = -(-len(panels) // columns)
    figure = canvas(2.9 * columns + 1.5, 2.5 * rows + 0.3)
    axes = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    omegas = list(OMEGAS)
    for ax in axes.flat[len(panels) :]:
        ax.set_visible(False)
    for (state, beta), ax in zip(panels, axes.flat, strict=False):
        for curve in curves:
            if (curve["state"], curve["beta"]) == (state, beta):
                _line(ax, curve, omegas.index(curve["omega"]))
        ax.set_title(f"{state}, beta {beta:g}", fontsize=10)
        ax.set_ylim(-0.03, 1.03)
        ax.grid(visible=True, color="0.92", linewidth=0.6)
        if logarithmic:
            ax.set_xscale("log", base=2)
    for line in axes:
        line[0].set_ylabel(labels[1])
    for ax in axes[-1]:
        ax.set_xlabel(labels[0])
    handles: dict[str, Any] = {}
    for ax in axes.flat:
        for handle, label in zip(*ax.get_legend_handles_labels(), strict=True):
            handles.setdefault(label, handle)
    ordered = [omega for omega in omegas if omega in handles]
    figure.legend(
        [handles[omega] for omega in ordered], ordered, loc="outside right center", frameon=False,
        fontsize=9,
    )  # fmt: skip
    save(figure, folder, name)


def _line(ax: Any, curve: Mapping[str, Any], number: int) -> None:
    color = color_of(number)
    ax.fill_between(curve["x"], curve["low"], curve["high"], color=color, alpha=0.15, linewidth=0)
    ax.plot(
        curve["x"], curve["median"], _STYLES[number // _COLORS], color=color, linewidth=1.3,
        marker=MARKERS[number % len(MARKERS)], markersize=3.2, label=curve["omega"],
    )  # fmt: skip
