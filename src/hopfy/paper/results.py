"""The pages of results: every cell of Tables 1 to 3 with its interval and a mark.

``python -m hopfy.paper.results docs/results docs`` writes ``results.md`` and one page for each table from
the recorded results and the published numbers. ✓: the published number lies in our 95% interval; ✗: it
does not.
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

from hopfy.paper._intervals import Interval, of_mean, of_share
from hopfy.paper._published import METASTABLE_STATES, MIL, MIL_TASKS, RATIONALES, SIZES
from hopfy.paper.claims import Recorded
from hopfy.paper.mil._recorded import Runs, runs_of
from hopfy.paper.rationale._task import METHODS

__all__ = ["Cell", "pages"]

_NOT_RUN = "not run"
_TEXTS = {
    "sst": "SST, F1",
    "ag_news": "AgNews, F1",
    "imdb": "IMDB, F1",
    "beer": "Beer, error",
    "eraser_movies": "ERASER movies, F1",
}
_TEST_BAGS = 500
"""Test bags of digits in a run."""
_TEST_TEXTS = {"sst": 1821, "ag_news": 7600, "imdb": 25_000, "eraser_movies": 199}
"""Test texts behind a score where the record does not say: the interval of a single run is that of a
share of so many."""


class Cell(NamedTuple):
    """A number of ours, its interval where one is known, and the published one where there is one.

    ``none`` stands where there is no number.

    >>> Cell(62.5, Interval(59.6, 65.4), 66.4).shown(1)
    '62.5 ± 2.9 (66.4) ✗'
    """

    ours: float | None
    interval: Interval | None = None
    paper: float | None = None
    none: str = _NOT_RUN

    def inside(self, digits: int) -> bool | None:
        """Whether the published number is in the interval; None where that cannot be judged."""
        if self.interval is None or self.paper is None:
            return None
        return self.interval.holds(self.paper, 10.0**-digits)

    def shown(self, digits: int) -> str:
        """With so many digits after the point."""
        if self.ours is None:
            return self.none
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
        every = [cell for cells in self.rows.values() for cell in cells]
        missing = sum(cell.shown(self.digits) == _NOT_RUN for cell in every)
        text = f"{sum(known)} of {len(known)} published numbers lie inside our interval"
        if not known:
            text = "No published numbers to compare with"
        return text + (f"; {missing} cells are not run." if missing else ".")


class _Section(NamedTuple):
    """One table of a page: where its numbers are recorded, what is said about it, how it is built."""

    title: str
    source: str
    about: str
    build: Callable[[Mapping[str, Any]], _Table]


def pages(recorded: Recorded) -> dict[str, str]:
    """All pages by the names of their files; what is not recorded is said to be missing."""
    found, overview = {}, []
    for number, (title, sections) in _TABLES.items():
        name = f"results-table-{number}.md"
        parts = [f"# Table {number}: {title}", _MARKS]
        for section in sections:
            parts += [f"## {section.title}", section.about]
            results = recorded.read(section.source)
            if results is None:
                verdict = f"Not recorded with this version: {_NOT_RUN}."
                parts.append(verdict)
            else:
                table = section.build(results)
                verdict = table.verdict()
                parts += [*map(_filled, results.get("notes", [])), verdict, table.markdown()]
            overview.append(f"| [Table {number}]({name}): {section.title} | {verdict} |")
        found[name] = "\n\n".join(parts) + "\n"
    head = "\n".join([_HEAD, _MARKS, "", "| table | verdict |", "|---|---|"])
    return {"results.md": "\n".join([head, *overview]) + "\n", **found}


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


def _bags(recorded: Mapping[str, Any]) -> _Table:
    """The paper's methods, and baselines that were run, on the tasks of which something is recorded."""
    found = {(cell["task"], cell["method"]): runs_of(cell) for cell in recorded["cells"]}
    published = {row.omega: row.cells for row in MIL}
    tasks = [task for task in MIL_TASKS if any(known == task for known, _ in found)]
    rows = {}
    for method in dict.fromkeys([*published, *(method for _, method in found)]):
        own = []
        for task in tasks:
            known = published.get(method)
            paper = None if known is None else known[MIL_TASKS.index(task)][0]
            own.append(_of_bags(task, found.get((task, method)), paper))
        rows[method] = own
    return _Table([task.capitalize() for task in tasks], rows, 1)


def _of_bags(task: str, runs: Runs | None, paper: float | None) -> Cell:
    """A single run on digits is judged by its test bags, one on an animal has no interval."""
    if runs is None:
        return Cell(None)
    if runs.number > 1:
        return Cell(runs.mean, of_mean(runs.mean, runs.deviation, runs.number), paper)
    if not task.startswith("K="):
        return Cell(runs.mean, None, paper)
    low, high = of_share(runs.mean / 100, _TEST_BAGS)
    return Cell(runs.mean, Interval(100 * low, 100 * high), paper)


def _table_3(recorded: Mapping[str, Any]) -> _Table:
    return _scores(recorded, _TEXTS, METHODS)


def _larger(recorded: Mapping[str, Any]) -> _Table:
    cells = recorded["cells"]
    known = {method for own in cells.values() for method in own}
    texts = {data: heading for data, heading in _TEXTS.items() if data in cells}
    return _scores(recorded, texts, [method for method in METHODS if method in known])


def _scores(
    recorded: Mapping[str, Any], texts: Mapping[str, str], methods: Sequence[str]
) -> _Table:
    rows = {}
    for method in methods:
        own = []
        for data in texts:
            theirs = getattr(RATIONALES.get(method), data, None)
            paper = theirs.mean if theirs else None
            runs = recorded["cells"].get(data, {}).get(method, [])
            scores = [run["score"] for run in runs]
            if len(runs) == 1:
                own.append(Cell(scores[0], _of_texts(runs[0], data), paper))
            else:
                own.append(_of_runs(scores, paper))
        rows[method] = own
    return _Table(list(texts.values()), rows, 3)


_ABOUT_WORDS = {
    "selected": "share of words",
    "span": "words in a span",
    "sufficiency": "sufficiency",
    "comprehensiveness": "comprehensiveness",
}


def _words(recorded: Mapping[str, Any]) -> _Table:
    rows = {}
    for data, heading in _TEXTS.items():
        cells = recorded["cells"].get(data, {})
        for method in METHODS:
            runs = [run for run in cells.get(method, []) if "selected" in run]
            if not runs:
                continue
            own = [_of_runs([run[kind] for run in runs], None) for kind in _ABOUT_WORDS]
            overlap = [run["overlap"]["f1"] for run in runs if run.get("overlap")]
            own.append(_of_runs(overlap, None) if overlap else Cell(None, none="–"))
            rows[f"{heading.split(',')[0]}, {method}"] = own
    return _Table([*_ABOUT_WORDS.values(), "overlap with people, F1"], rows, 3)


def _of_runs(runs: Sequence[float] | None, paper: float | None) -> Cell:
    if not runs:
        return Cell(None)
    mean = fmean(runs)
    return Cell(mean, of_mean(mean, stdev(runs), len(runs)) if len(runs) > 1 else None, paper)


def _of_texts(run: Mapping[str, Any], data: str) -> Interval | None:
    if data not in _TEST_TEXTS:
        return None
    texts = run["texts"][2] if "texts" in run else _TEST_TEXTS[data]
    return of_share(run["score"], texts)


def _wrapped(*lines: str) -> str:
    return "\n".join(lines)


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


_HEAD = _wrapped(
    "# Results beside the paper",
    "",
    "Generated by `python -m hopfy.paper.results docs/results docs` from the recorded results and the",
    "published numbers in `hopfy/paper/published`.",
    "[The experiments](reproduce.md) lists the settings, what differs from the paper, and how to run",
    "them.",
    "",
)
_MARKS = _wrapped(
    "A cell is our number ± half of its 95% interval, the published number in parentheses, and a mark:",
    "✓ if the published number lies inside the interval, ✗ if it does not. The published numbers have",
    "errors of their own, which the marks do not take into account.",
)
_TABLES: dict[int, tuple[str, tuple[_Section, ...]]] = {
    1: (
        "metastable states on MNIST",
        (
            _Section(
                "All queries",
                "table1",
                _wrapped(
                    "The share of queries, in percent, that end in a state of a given size. The interval",
                    "is that of a proportion of this number of queries; the paper has 10,000.",
                ),
                _table_1,
            ),
        ),
    ),
    2: (
        "multiple instance learning",
        (
            _Section(
                "Laptop profile",
                "mil-laptop",
                _wrapped(
                    "Percent: accuracy on MNIST bags, area under the ROC curve on the animals (five seeds",
                    "of ten folds). The interval is Student's over the seeds; the seeds of an animal share",
                    "its 200 bags, so the interval tends to be too narrow.",
                ),
                _bags,
            ),
            _Section(
                "The paper's search on the animals",
                "mil-animals",
                _wrapped(
                    "96 settings for each method, chosen by the validation area on the first seed; then",
                    "five seeds of ten folds (`--profile animals`).",
                ),
                _bags,
            ),
            _Section(
                "A search with the laptop network",
                "mil-laptop-search",
                _wrapped(
                    "Five settings for each method on MNIST: that of the laptop profile, and those in which",
                    "beta, the heads or bag dropout is changed; chosen by the validation accuracy on the",
                    "first seed, then five seeds (`--profile laptop-search`).",
                ),
                _bags,
            ),
            _Section(
                "The settings of the public code",
                "mil-reference-code",
                _wrapped(
                    "Layer norms and small steps on MNIST, one setting without a search",
                    "(`--profile reference-code`). The interval of a single seed is that of a share of",
                    "500 test bags, which leaves the training's luck out.",
                ),
                _bags,
            ),
            _Section(
                "The rules of the public code on the animals",
                "mil-reference-animals",
                _wrapped(
                    "Steps of one bag, weights from N(0, 0.02), a ReLU before the last layer, one",
                    "initialization and one order of the bags for all folds, the last of 50 epochs. Six",
                    "settings of beta and bag dropout for each method, chosen by the mean validation area",
                    "of the first seed; then five seeds of ten folds (`--profile reference-animals`).",
                ),
                _bags,
            ),
        ),
    ),
    3: (
        "rationales",
        (
            _Section(
                "Scores, laptop profile",
                "rationale-laptop",
                _wrapped(
                    "F1, and the squared error for Beer. The interval of several runs is Student's. That",
                    "of a single run is the interval of a proportion of the test texts, which ignores how",
                    "much the training varies; a single run on Beer has none. The word vectors and some of",
                    "the data are not the paper's: see [the experiments](reproduce.md).",
                ),
                _table_3,
            ),
            _Section(
                "Scores with all training texts",
                "rationale-larger",
                _wrapped(
                    "All available training texts, one seed (`--profile larger`). Both maps read one",
                    "network, which was trained at a temperature of 0.5; on AgNews it has other word",
                    "vectors, more features and more dropout than the laptop profile's.",
                ),
                _larger,
            ),
            _Section(
                "Scores with the network of the public code",
                "rationale-reference-laptop",
                _wrapped(
                    "The public code's network and training, at least 45 epochs, on the laptop profile's",
                    "texts, one seed (`--profile reference-laptop`). Except on Beer, where the dropout",
                    "differs, both maps read one network.",
                ),
                _larger,
            ),
            _Section(
                "The selected words",
                "rationale-laptop",
                _wrapped(
                    "Sufficiency: how much the prediction loses when only the rationale is given (low is",
                    "good). Comprehensiveness: how much it loses without the rationale (high is good).",
                ),
                _words,
            ),
        ),
    ),
}


def _main(source: str, target: str) -> None:
    for name, text in pages(Recorded(Path(source))).items():
        (Path(target) / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    _main(*sys.argv[1:])
