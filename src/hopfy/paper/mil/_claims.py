"""What Table 2 says, number by number and claim by claim."""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from statistics import fmean, stdev
from typing import Any

from hopfy.paper._base import Row
from hopfy.paper._published import MIL, MIL_TASKS

__all__ = ["claims", "comparison", "mcnemar", "published"]

_TOLERANCE = {True: 2.0, False: 3.0}
_LEVEL = 0.05

Results = Mapping[str, Any]


def published(task: str, method: str) -> tuple[float, float] | None:
    """The paper's mean and deviation; None for what it lacks."""
    for row in MIL:
        if row.omega == method:
            return row.cells[MIL_TASKS.index(task)]
    return None


def comparison(results: Results) -> list[Row]:
    """Our means beside the paper's; judged on the paper's data only."""
    rows = []
    for cell in results["cells"]:
        task, method = cell["task"], cell["method"]
        digits = task.startswith("K=")
        paper = published(task, method)
        judged = paper is not None and not (digits and results["source"] != "mnist")
        seeds = len(cell["test"])
        spread = "1 seed" if seeds == 1 else f"{seeds} seeds ± {deviation(cell['test']):.1f}"
        name = f"{task}, {method} ({spread}"
        name += f"; paper ± {paper[1]:.1f})" if paper is not None and judged else ")"
        rows.append(
            Row(
                name,
                fmean(cell["test"]),
                paper[0] if judged and paper is not None else None,
                _TOLERANCE[digits] if judged else None,
            )
        )
    return rows


def claims(results: Results) -> list[Row]:
    """The paper's claims on bags of digits, and whether they hold here.

    A method is best if it has the largest mean; the p-value of McNemar's test on the test bags of
    all seeds, which are the same for both, says how far it is told apart from the best one.
    """
    rows = []
    judged = results["source"] == "mnist"
    for task in results["tasks"]:
        if not task.startswith("K="):
            continue
        least = task.removeprefix("K=")
        expected = "softmax" if least == "1" else f"{least}-subsets"
        cells = {cell["method"]: cell for cell in results["cells"] if cell["task"] == task}
        if expected not in cells:
            continue
        best = max(cells.values(), key=lambda cell: fmean(cell["test"]))
        apart = mcnemar(best, cells[expected])
        name = f"{task}: {expected} is best (best: {best['method']}, p = {apart:.2g})"
        rows.append(Row.of_claim(name, best["method"] == expected, judged=judged))
        if least in ("3", "5") and "softmax" in cells:
            behind = mcnemar(best, cells["softmax"])
            name = f"{task}: softmax falls behind the best (p = {behind:.2g})"
            rows.append(Row.of_claim(name, behind < _LEVEL, judged=judged))
    return rows


def mcnemar(one: Results, other: Results) -> float:
    """The p-value of the exact McNemar test: among the bags on which two methods differ, is one of
    them right more often than a coin would tell?

    >>> mcnemar({"right": ["1111111"]}, {"right": ["1000000"]})
    0.03125
    """
    common = zip(one["right"], other["right"], strict=False)  # seeds that both have
    pairs = [pair for ours, theirs in common for pair in zip(ours, theirs, strict=True)]
    wins, losses = pairs.count(("1", "0")), pairs.count(("0", "1"))
    differing = wins + losses
    tail = sum(math.comb(differing, count) for count in range(min(wins, losses) + 1))
    return min(1.0, 2.0 * float(Fraction(tail, 2**differing)))


def deviation(scores: list[float]) -> float:
    """Over the seeds; 0 for a single one."""
    return stdev(scores) if len(scores) > 1 else 0.0
