"""The picture of Table 1: two tables, colored by their numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hopfy.paper._published import SIZES

__all__ = ["draw"]


def draw(results: Mapping[str, Any], folder: Path) -> None:
    """Write ``sizes.png`` and ``sizes.svg``: one panel for each beta, one column for each map."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    betas = sorted({column["beta"] for column in results["columns"]})
    canvas = Canvas(figsize=(5.2 * len(betas), 4.6), layout="constrained")
    FigureCanvasAgg(canvas)
    for axes, beta in zip(canvas.subplots(1, len(betas), squeeze=False)[0], betas, strict=True):
        _panel(axes, [column for column in results["columns"] if column["beta"] == beta])
    source = {"mnist": "MNIST", "digits": "8 x 8 digits (beta scaled by 784/64)"}
    canvas.suptitle(
        f"Queries (%) by size of their final state: {results['queries']:,} queries, "
        f"{source[results['source']]}",
        fontsize=10,
    )
    for kind in ("png", "svg"):
        canvas.savefig(folder / f"sizes.{kind}", dpi=150)


def _panel(axes: Any, columns: Sequence[Mapping[str, Any]]) -> None:
    table = [[column["percent"][size] for column in columns] for size in SIZES]
    axes.imshow(table, cmap="cividis", vmin=0, vmax=100, aspect="auto")
    for row, shares in enumerate(table):
        for place, share in enumerate(shares):
            color = "black" if share > 55 else "white"
            axes.text(place, row, f"{share:.1f}", ha="center", va="center", color=color, size=8)
    axes.set_xticks(range(len(columns)), [column["omega"] for column in columns], rotation=40)
    axes.set_xticks(axes.get_xticks(), axes.get_xticklabels(), ha="right", size=8)
    axes.set_yticks(range(len(SIZES)), SIZES)
    axes.set_ylabel("patterns in the final state")
    axes.set_title(f"beta = {columns[0]['beta']:g}", fontsize=10)
