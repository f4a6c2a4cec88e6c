"""The page of results: every cell of Tables 1 to 3 with its interval and a mark.

``python -m hopfy.paper.results docs/results docs/results.md`` writes it from the recorded results
and the published numbers. ✓: the published number lies in our 95% interval; ✗: it does not.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from hopfy.paper._intervals import Interval, of_mean, of_share
from hopfy.paper._published import METASTABLE_STATES, MIL, MIL_TASKS, RATIONALES, SIZES
from hopfy.paper.claims import Recorded
from hopfy.paper.rationale._task import METHODS

__all__ = ["Cell", "page"]

_NOT_RUN = "not run"
_TEXTS = {"SST": "sst", "IMDB": "imdb", "AgNews": "ag_news", "Beer": "beer"}
_TEST_TEXTS = {"SST": 1821, "IMDB": 25_000, "ERASER movies": 199, "AgNews": 7600}
"""Test texts behind a score: the interval of a single run is that of a share of so many."""


class Cell(NamedTuple):
    """A number of ours, its interval where one is known, and the published one where there is one.

    >>> Cell(62.5, Interval(59.6, 65.4), 66.4).shown(1)
    '62.5 ± 2.9 (66.4) ✗'
    """

    ours: float | None
    interval: Interval | None = None
    paper: float | None = None

    def inside(self, digits: int) -> bool | None:
        """Whether the published number is in the interval; None where that cannot be judged."""
        if self.interval is None or self.paper is None:
            return None
        return self.interval.holds(self.paper, 10.0**-digits)

    def shown(self, digits: int) -> str:
        """With so many digits after the point."""
        if self.ours is None:
            return _NOT_RUN
        text = f"{self.ours:.{digits}f}"
        text += "" if self.interval is None else f" ± {self.interval.half:.{digits}f}"
        text += "" if self.paper is None else f" ({self.paper:g})"
        return text + {True: " ✓", False: " ✗", None: ""}[self.inside(digits)]


class _Table(NamedTuple):
    headings: Sequence[str]
    rows: Mapping[str, Sequence[Cell]]
    digits: int

    def markdown(self) -> str:
        lines = ["| " + " | ".join(["", *self.headings]) + " |"]
        lines.append("|" + "---|" * (len(self.headings) + 1))
        for name, cells in self.rows.items():
            shown = (cell.shown(self.digits) for cell in cells)
            lines.append("| " + " | ".join([name, *shown]) + " |")
        return "\n".join(lines)

    def verdict(self) -> str:
        """How many of the published numbers are inside."""
        judged = [cell.inside(self.digits) for cells in self.rows.values() for cell in cells]
        known = [each for each in judged if each is not None]
        missing = sum(cell.ours is None for cells in self.rows.values() for cell in cells)
        text = f"{sum(known)} of {len(known)} published numbers lie inside our interval"
        return text + (f"; {missing} cells are not run." if missing else ".")


def page(recorded: Recorded) -> str:
    """The whole page; what is not recorded is said to be missing."""
    sections = (
        ("## Table 1: metastable states on MNIST", "table1", _TABLE_1, _table_1),
        ("## Table 2: multiple instance learning", "mil-laptop", _TABLE_2, _table_2),
        ("### The paper's search on the animals", "mil-animals", _ANIMALS, _animals),
        ("## Table 3: rationales", "rationale-laptop", _TABLE_3, _table_3),
    )
    parts = [_HEAD]
    for title, source, about, build in sections:
        found = recorded.read(source)
        parts += [title, about]
        if found is None:
            parts.append(f"Not recorded with this version: {_NOT_RUN}.")
        else:
            table = build(found)
            parts += [table.verdict(), table.markdown()]
    return "\n\n".join(parts) + "\n"


def _table_1(recorded: Mapping[str, Any]) -> _Table:
    rows, queries = {}, recorded["queries"]
    for column, published in zip(recorded["columns"], METASTABLE_STATES, strict=True):
        cells = []
        for size, paper in zip(SIZES, published.percent, strict=True):
            share = column["percent"][size]
            low, high = of_share(share / 100, queries)
            cells.append(Cell(share, Interval(100 * low, 100 * high), paper))
        rows[f"{column['omega']}, beta {column['beta']:g} ({queries:,} queries)"] = cells
    return _Table([f"size {size}" for size in SIZES], rows, 1)


def _table_2(recorded: Mapping[str, Any]) -> _Table:
    published = {row.omega: row.cells for row in MIL}
    rows = {}
    for method, cells in recorded["methods"].items():
        own = []
        for place, (mean, deviation) in enumerate(cells):
            runs = 3 if recorded["tasks"][place].startswith("K=") else 5
            paper = published[method][place][0] if method in published else None
            own.append(Cell(mean, of_mean(mean, deviation, runs), paper))
        rows[method] = own
    return _Table(recorded["tasks"], rows, 1)


def _animals(recorded: Mapping[str, Any]) -> _Table:
    found = {(cell["task"], cell["method"]): cell["test"] for cell in recorded["cells"]}
    tasks = [task for task in MIL_TASKS if not task.startswith("K=")]
    rows = {}
    for row in MIL:
        papers = (row.cells[MIL_TASKS.index(task)][0] for task in tasks)
        rows[row.omega] = [
            _of_runs(found.get((task.lower(), row.omega)), paper)
            for task, paper in zip(tasks, papers, strict=True)
        ]
    return _Table(tasks, rows, 1)


def _table_3(recorded: Mapping[str, Any]) -> _Table:
    scores = recorded["scores"]
    rows = {}
    for method in METHODS:
        cells = scores["methods"].get(method, [None] * len(scores["columns"]))
        own = []
        for column, ours in zip(scores["columns"], cells, strict=True):
            data = column.split(",")[0]
            theirs = getattr(RATIONALES.get(method), _TEXTS.get(data, ""), None)
            paper = theirs.mean if theirs else None
            runs = recorded.get("runs", {}).get(data, {}).get(method)
            if runs and len(runs) > 1:
                own.append(_of_runs(runs, paper))
            else:
                own.append(Cell(ours, _of_texts(ours, data), paper))
        rows[method] = own
    return _Table(scores["columns"], rows, 3)


def _of_runs(runs: Sequence[float] | None, paper: float | None) -> Cell:
    if not runs:
        return Cell(None)
    mean = fmean(runs)
    return Cell(mean, of_mean(mean, stdev(runs), len(runs)) if len(runs) > 1 else None, paper)


def _of_texts(score: float | None, data: str) -> Interval | None:
    if score is None or data not in _TEST_TEXTS:
        return None
    return of_share(score, _TEST_TEXTS[data])


def _wrapped(*lines: str) -> str:
    return "\n".join(lines)


_HEAD = _wrapped(
    "# Results beside the paper",
    "",
    "Generated by `python -m hopfy.paper.results docs/results docs/results.md` from the recorded",
    "results and the published numbers in `hopfy/paper/published`.",
    "[The experiments](reproduce.md) has the settings, what differs from the paper, and how to run them.",
    "",
    "A cell is our number ± half of its 95% interval, the published number in parentheses, and a mark:",
    "✓ the published number lies inside the interval, ✗ it does not. The published numbers have errors",
    "of their own, which the marks leave out.",
)
_TABLE_1 = _wrapped(
    "The share of queries, in percent, that end in a state of a given size. The interval is that of a",
    "share of so many queries; the paper has 10,000.",
)
_TABLE_2 = _wrapped(
    "Laptop profile, percent: accuracy on MNIST bags (three seeds), area under the ROC curve on the",
    "animals (five seeds of ten folds). The interval is Student's over the seeds; the seeds of an animal",
    "share its 200 bags, so that it is rather too narrow.",
)
_ANIMALS = _wrapped(
    "96 settings for each method, chosen by the validation area on the first seed; then five seeds of",
    "ten folds (`--profile animals`).",
)
_TABLE_3 = _wrapped(
    "Laptop profile: F1, and the squared error for Beer. The interval of several runs is Student's, that",
    "of a single run is that of a share of so many test texts, which leaves the training's luck out; Beer",
    "has none then. The word vectors and some of the data are not the paper's, see the experiments.",
)


def _lines(arguments: Iterable[str]) -> None:
    folder, target = arguments
    Path(target).write_text(page(Recorded(Path(folder))), encoding="utf-8")


if __name__ == "__main__":
    _lines(sys.argv[1:])
