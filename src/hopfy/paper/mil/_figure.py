"""The picture of Table 2: a table, colored column by column, with the paper's numbers below."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from hopfy.paper._drawing import canvas, save
from hopfy.paper.mil._claims import deviation, published

__all__ = ["draw"]

_NAMES = {"gated": "gated attention", "softmax": "softmax (1-entmax)"}


def draw(results: Mapping[str, Any], folder: Path) -> None:
    """Write ``mil.png`` and ``mil.svg``."""
    tasks, methods = sorted(results["tasks"], key=_order), results["methods"]
    cells = {(cell["task"], cell["method"]): cell for cell in results["cells"]}
    figure = canvas(1.15 * len(tasks) + 1.8, 0.46 * len(methods) + 0.7)
    axes = figure.subplots()
    axes.set_xlim(-0.5, len(tasks) - 0.5)
    axes.set_ylim(len(methods) - 0.5, -0.5)
    for place, task in enumerate(tasks):
        column = {
            row: cells[task, name] for row, name in enumerate(methods) if (task, name) in cells
        }
        means = {row: fmean(cell["test"]) for row, cell in column.items()}
        low, high = min(means.values()), max(means.values())
        for row, cell in column.items():
            share = (means[row] - low) / max(high - low, 1e-9)
            _cell(axes, (place, row), share, cell["test"], _paper(results, task, methods[row]))
        _frame(axes, place, max(means, key=lambda row: means[row]))
    axes.set_xticks(range(len(tasks)), [task.capitalize() for task in tasks])
    axes.set_yticks(range(len(methods)), [_NAMES.get(name, name) for name in methods])
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    save(figure, folder, "mil")


def _order(task: str) -> tuple[bool, str]:
    return not task.startswith("K="), task


def _paper(results: Mapping[str, Any], task: str, method: str) -> tuple[float, float] | None:
    elsewhere = task.startswith("K=") and results["source"] != "mnist"
    return None if elsewhere else published(task, method)


def _cell(
    axes: Any,
    place: tuple[int, int],
    share: float,
    scores: list[float],
    paper: tuple[float, float] | None,
) -> None:
    from matplotlib import colormaps
    from matplotlib.patches import Rectangle

    x, y = place
    # The pale half of the scale, so that dark letters can be read on every cell.
    color = colormaps["YlGn"](0.55 * share)
    axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=color, linewidth=0))
    ours = f"{fmean(scores):.1f}" + (f" ± {deviation(scores):.1f}" if len(scores) > 1 else "")
    shift = 0.0 if paper is None else 0.17
    axes.text(x, y - shift, ours, ha="center", va="center", size=8.5, color="black")
    if paper is not None:
        text = f"{paper[0]:.1f} ± {paper[1]:.1f}"
        axes.text(x, y + 0.24, text, ha="center", va="center", size=6.5, color="#444444")


def _frame(axes: Any, column: int, row: int) -> None:
    from matplotlib.patches import Rectangle

    axes.add_patch(
        Rectangle((column - 0.48, row - 0.46), 0.96, 0.92, fill=False, color="black", linewidth=1.4)
    )
