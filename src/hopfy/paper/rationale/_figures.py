"""Pictures of rationales: the scores of every method, and highlighted texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hopfy.paper._drawing import canvas, save
from hopfy.paper._published import RATIONALES
from hopfy.paper.rationale._task import OURS
from hopfy.plot.style import GRAY, color_of

__all__ = ["draw_highlights", "draw_scores", "window"]

_YELLOW, _RED = "#ffe066", "#c92a2a"
_LINE = 96
"""Characters in a line of a highlighted text."""
_WORDS = 110
"""Words of a text that are shown."""


def draw_scores(results: Mapping[str, Any], names: Mapping[str, str], folder: Path) -> str:
    """Write ``scores``: a panel for each data set, one for the overlap with people."""
    cells = results["cells"]
    panels = [(data, "score") for data in cells]
    panels += [(data, "overlap") for data in cells if _overlaps(cells[data])]
    panels += [(data, "span") for data in cells if _overlaps(cells[data])]
    across = min(4, len(panels))
    down = -(-len(panels) // across)
    figure = canvas(3.3 * across, 2.6 * down)
    grid = figure.subplots(down, across, squeeze=False).flatten()
    for axes, (data, kind) in zip(grid, panels, strict=False):
        _panel(axes, cells[data], data, kind)
        what = {"overlap": "overlap F1 with people", "span": "words in a span"}.get(kind)
        title = what or ("mean squared error" if data == "beer" else "F1")
        axes.set_title(f"{names[data]}: {title}", fontsize=9)
    for axes in grid[len(panels) :]:
        axes.set_axis_off()
    save(figure, folder, "scores")
    return (
        "Bars: ours (the Hopfield poolings in color); diamonds: what the paper prints, with other "
        "word vectors and, except for SST, more or other training texts. Squared errors are better "
        "when low, everything else when high."
    )


def _overlaps(cells: Mapping[str, Any]) -> list[str]:
    return [method for method, runs in cells.items() if runs[0].get("overlap")]


def _value(runs: Sequence[Mapping[str, Any]], kind: str) -> float | None:
    if kind == "overlap":
        found = [run["overlap"]["f1"] for run in runs if run.get("overlap")]
    else:
        found = [run[kind] for run in runs if kind in run]
    return float(np.mean(found)) if found else None


def _panel(axes: Any, cells: Mapping[str, Any], data: str, kind: str) -> None:
    shown = {method: _value(runs, kind) for method, runs in cells.items()}
    bars = [(method, value) for method, value in shown.items() if value is not None]
    places = range(len(bars))
    own = [color_of(OURS.index(method)) if method in OURS else GRAY for method, _ in bars]
    axes.barh(places, [value for _, value in bars], color=own, height=0.65)
    largest = max(value for _, value in bars)
    for place, (method, value) in enumerate(bars):
        text = f"{value:.3f} " if value < 1 else f"{value:.1f} "
        axes.text(value, place, text, va="center", ha="right", fontsize=7, color="white")
        paper = getattr(RATIONALES.get(method), data, None) if kind == "score" else None
        if paper is not None:
            axes.plot(paper.mean, place, "D", color="black", markersize=4, mfc="white")
            largest = max(largest, paper.mean)
    axes.set_yticks(places, [method for method, _ in bars], fontsize=8)
    axes.invert_yaxis()
    # F1 is never near 0: start where the differences can be seen.
    lowest = 0.5 if kind == "score" and data != "beer" else 0.0
    axes.set_xlim(min(lowest, *(0.9 * value for _, value in bars)), 1.06 * largest)
    axes.tick_params(axis="x", labelsize=7)
    axes.spines[["top", "right"]].set_visible(False)


def draw_highlights(
    results: Mapping[str, Any], names: Mapping[str, str], folder: Path
) -> str | None:
    """Write ``highlights``: one annotated test text as both Hopfield poolings read it."""
    for data, cells in results["cells"].items():
        runs = {method: cells[method][0].get("examples") for method in OURS if method in cells}
        if len(runs) == len(OURS) and all(runs.values()):
            examples = {method: found[0] for method, found in runs.items()}
            _draw_texts(examples, f"{names[data]}, test text {found_number(examples)}", folder)
            return (
                "Yellow: the words that the network used. Bold italics: what a person marked. Red: "
                "where the two differ. Above k-subsets, below sequential k-subsets."
            )
    return None


def found_number(examples: Mapping[str, Mapping[str, Any]]) -> int:
    """Which test text is shown."""
    return int(next(iter(examples.values()))["number"])


def window(example: Mapping[str, Any], words: int = _WORDS) -> int:
    """The first word of the stretch in which a person marked the most."""
    marked = _flags(example["human"], len(example["tokens"]))
    total = np.concatenate([[0], np.cumsum(marked)])
    starts = range(max(1, len(marked) - words + 1))
    return max(starts, key=lambda start: total[min(len(marked), start + words)] - total[start])


def _flags(spans: Sequence[Sequence[int]], size: int) -> Any:
    flags = np.zeros(size, bool)
    for start, stop in spans:
        flags[start:stop] = True
    return flags


def _draw_texts(examples: Mapping[str, Mapping[str, Any]], title: str, folder: Path) -> None:
    start = window(next(iter(examples.values())))
    layouts = {method: _layout(example, start) for method, example in examples.items()}
    lines = sum(layout[-1][1] + 3 for layout in layouts.values())
    figure = canvas(8.2, 0.22 * lines + 0.3)
    axes = figure.subplots()
    axes.set(xlim=(0, _LINE), ylim=(lines, -1))
    axes.set_axis_off()
    axes.set_title(title, fontsize=9, loc="left")
    top = 0
    for method, layout in layouts.items():
        axes.text(0, top, method, fontsize=9, weight="bold", va="center")
        for column, line, word, used, human in layout:
            _draw_word(axes, column, top + 1 + line, word, used, human)
        top += layout[-1][1] + 3
    save(figure, folder, "highlights")


def _draw_word(axes: Any, column: int, line: float, word: str, used: bool, human: bool) -> None:
    if used:
        from matplotlib.patches import Rectangle

        axes.add_patch(
            Rectangle((column - 0.3, line - 0.45), len(word) + 0.6, 0.9, color=_YELLOW, lw=0)
        )
    axes.text(
        column, line, word.replace("$", r"\$"), family="monospace", fontsize=9.6, va="center",
        color=_RED if used != human else "black",
        weight="bold" if human else "normal", style="italic" if human else "normal",
    )  # fmt: skip


def _layout(example: Mapping[str, Any], start: int) -> list[tuple[int, int, str, bool, bool]]:
    """Column, line, word, whether it was used and whether a person marked it."""
    tokens = example["tokens"]
    used = _flags(example["selected"], len(tokens))
    human = _flags(example["human"], len(tokens))
    placed, column, line = [], 0, 0
    for number in range(start, min(len(tokens), start + _WORDS)):
        word = tokens[number]
        if column + len(word) > _LINE:
            column, line = 0, line + 1
        placed.append((column, line, word, bool(used[number]), bool(human[number])))
        column += len(word) + 1
    return placed
