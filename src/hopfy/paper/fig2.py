"""Figure 2 and App. F.1: the maps' answers as the temperature rises."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy.omega import Omega, omega_from
from hopfy.paper._base import Config, Experiment, Figure, Progress, Row, Store
from hopfy.paper._drawing import canvas, save
from hopfy.plot import regularization_path

__all__ = ["Fig2", "Fig2Config", "experiment"]

THETA = (1.0716, -1.1221, -0.3288, 0.3368, 0.0425)
# What neighbors gain by being selected together in the sequential maps.
TRANSITION = 1.5

MAIN = (
    ("1-entmax", "1.5-entmax", "2-entmax"),
    ("2-normmax", "5-normmax", "inf-normmax"),
    ("2-subsets", "3-subsets", "sequential-2-subsets"),
)
APPENDIX = (
    ("1.25-entmax", "3-entmax", "4-entmax", "inf-entmax"),
    ("1.1-normmax", "1.5-normmax", "10-normmax", "inf-normmax"),
    ("1-subsets", "4-subsets", "sequential-2-subsets", "sequential-3-subsets"),
)
# The largest temperature at which the answer is exactly one-hot (k-hot): the gap of the scores
# divided by the margin, which is 1/(alpha - 1) for entmax and 1 for the others.
_FIRST_GAP = 1.0716 - 0.3368
EXACT_UP_TO = {
    "1.5-entmax": 0.5 * _FIRST_GAP,
    "2-entmax": _FIRST_GAP,
    "4-entmax": 3 * _FIRST_GAP,
    "2-normmax": _FIRST_GAP,
    "5-normmax": _FIRST_GAP,
    "inf-normmax": _FIRST_GAP,
    "2-subsets": 0.3368 - 0.0425,
    "3-subsets": 0.0425 + 0.3288,
}


@dataclass(frozen=True)
class Fig2Config(Config):
    """How finely, and how far, the temperature is followed."""

    points: int = 200
    hottest: float = 3.0


class Fig2(Experiment[Fig2Config]):
    """Regularization paths of entmax, normmax and the SparseMAP maps."""

    name = "fig2"
    title = "Figure 2: how the maps depend on the temperature"
    profiles = {"quick": Fig2Config(), "paper": Fig2Config(points=1000)}  # noqa: RUF012

    def run(self, config: Fig2Config, store: Store, progress: Progress) -> dict[str, Any]:
        names = sorted({name for rows in (MAIN, APPENDIX) for row in rows for name in row})
        progress.begin("regularization paths", len(names) + 1)
        temperatures = torch.linspace(config.hottest / config.points, config.hottest, config.points)
        paths = {}
        for name in names:
            paths[name] = store.part(name, partial(_path, name, temperatures.double()))
            progress.advance()
        checks = store.part("checks", lambda: _checks(temperatures.double()))
        progress.advance()
        return {
            "theta": list(THETA),
            "transition": TRANSITION,
            "temperatures": temperatures.tolist(),
            "paths": paths,
            "checks": checks,
        }

    def compare(self, results: Mapping[str, Any]) -> Sequence[Row]:
        rows = [
            Row(
                f"{name}: exactly one-hot (k-hot) up to temperature",
                ours=results["checks"]["exact_up_to"][name],
                paper=predicted,
                tol=1e-6,
            )
            for name, predicted in EXACT_UP_TO.items()
        ]
        for claim, deviation in results["checks"]["deviations"].items():
            rows.append(Row(f"{claim}: largest deviation", deviation, paper=0.0, tol=1e-6))
        return rows

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        temperatures = torch.tensor(results["temperatures"], dtype=torch.float64)
        save(_panels(MAIN, temperatures), folder, "fig2")
        save(_panels(APPENDIX, temperatures), folder, "fig2-appendix")
        return [
            Figure(
                "fig2",
                "Weights of five scores as the temperature rises. Softmax is never exactly zero; "
                "entmax drops scores one by one; normmax keeps the selected ones closer to equal; "
                "the k-subset maps start from exactly k ones. In the sequential one neighbors attract "
                "each other: scores 4 and 5 win together, although score 1 is the largest.",
            ),
            Figure(
                "fig2-appendix",
                "The limits. Entmax with a large alpha becomes argmax; normmax becomes argmax as "
                "alpha falls to 1 and a uniform choice as it grows; 1-subsets is sparsemax.",
            ),
        ]

    def explain(self, results: Mapping[str, Any]) -> str:
        switch = results["checks"]["exact_up_to"]["2-entmax"]
        return (
            "The margin predicts when an answer becomes exact: for 2-entmax the first score takes "
            f"everything below temperature {switch:.4f}, the gap between the two largest scores. "
            "Every map here meets its prediction, and the limits that the appendix names hold. "
            "(The paper shows these curves as a picture; the numbers beside ours follow from its "
            "margins.)"
        )


experiment = Fig2()


def _omega(name: str) -> Omega:
    return omega_from(f"{name}, transition {TRANSITION:g}" if "sequential" in name else name)


def _theta() -> Tensor:
    return torch.tensor(THETA, dtype=torch.float64)


def _path(name: str, temperatures: Tensor) -> list[list[float]]:
    colder = 1 / temperatures.unsqueeze(-1)
    weights = _omega(name).scale_factors(colder)(_theta() * colder)
    return [[round(weight, 9) for weight in row] for row in weights.tolist()]


def _checks(temperatures: Tensor) -> dict[str, Any]:
    return {
        "exact_up_to": {name: _last_exact(omega_from(name)) for name in EXACT_UP_TO},
        "deviations": _deviations(temperatures),
    }


def _last_exact(omega: Omega) -> float:
    """By bisection: the largest temperature at which all weights are exactly 0 or 1."""
    low, high = 1e-3, 10.0
    for _ in range(60):
        middle = (low + high) / 2
        weights = omega(_theta() / middle)
        exact = bool(((weights == 0) | (weights == 1)).all())
        low, high = (middle, high) if exact else (low, middle)
    return low


def _deviations(temperatures: Tensor) -> dict[str, float]:
    """How far the limits that the paper names are from holding, over all temperatures."""
    scores = _theta() / temperatures.unsqueeze(-1)
    flat = F.normmax(scores, torch.inf)
    uneven = torch.where(flat > 0, flat - flat.amax(-1, keepdim=True), 0.0)
    argmax = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])
    sequential = F.sequential_ksubsets(scores, 2, 0.0)
    gaps = {
        "inf-normmax is uniform on its support": uneven,
        "inf-entmax is argmax": F.entmax(scores, torch.inf) - argmax,
        "1-subsets is sparsemax": F.ksubsets(scores, 1) - F.sparsemax(scores),
        "sequential 2-subsets without transitions are 2-subsets at twice the temperature": (
            sequential - F.ksubsets(scores / 2, 2)
        ),
    }
    return {claim: float(gap.abs().max()) for claim, gap in gaps.items()}


def _panels(names: Sequence[Sequence[str]], temperatures: Tensor) -> Any:
    columns = len(names[0])
    figure = canvas(2.5 * columns + 1.4, 2.1 * len(names) + 0.3)
    axes = figure.subplots(len(names), columns, sharex=True, sharey=True, squeeze=False)
    for row, line in zip(names, axes, strict=True):
        for name, ax in zip(row, line, strict=True):
            regularization_path(_omega(name), _theta(), temperatures, legend=False, ax=ax)
            ax.label_outer()
        line[0].set_ylabel("weight")
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False, fontsize=9)
    return figure
