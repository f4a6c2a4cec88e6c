"""Every map side by side: weights, support, margin and regularization path of the same scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hopfy.app._maps_picture import draw_maps
from hopfy.app._view import Event, Numbers, Shown, Slider, View
from hopfy.omega import (
    Capped,
    EntropicKSubsets,
    Exponential,
    Norm,
    Omega,
    Polynomial,
    Quadratic,
    Shannon,
    SparseMAP,
    Tsallis,
)
from hopfy.structures import KSubsets, SequentialKSubsets

__all__ = ["MapAnswer", "MapSettings", "MapsView", "answer", "omegas"]

LARGEST_SCORE = 3.0
HOTTEST = 5.0
_PATH_POINTS = 61


@dataclass(frozen=True)
class MapSettings:
    """Scores and everything that the maps depend on."""

    scores: tuple[float, ...] = (1.4, 0.9, 0.2, -0.5, -1.2)
    temperature: float = 1.0
    alpha: float = 1.5
    norm: float = 5.0
    k: int = 2
    transition: float = 0.5


@dataclass(frozen=True)
class MapAnswer:
    """What one map makes of the scores.

    Attributes:
        name: of the map.
        weights: at the current temperature.
        support: how many weights are not zero.
        margin: the smallest m of Def. 1, infinite if there is none.
        lead: of the selected scores over the others, at this temperature.
        exact: whether all weights are 0 or 1.
        simplex: whether the weights lie between 0 and 1.
        temperatures, path: the regularization path: one row of weights for each temperature.
    """

    name: str
    weights: tuple[float, ...]
    support: int
    margin: float
    lead: float
    exact: bool
    simplex: bool
    temperatures: tuple[float, ...]
    path: tuple[tuple[float, ...], ...]


def omegas(settings: MapSettings) -> list[Omega]:
    """Every regularizer of the library, with the parameters of the settings."""
    k, alpha = settings.k, settings.alpha
    return [
        Shannon(),
        Tsallis(alpha),
        Tsallis(2.0),
        Norm(settings.norm),
        Capped(0.5),
        SparseMAP(KSubsets(k)),
        EntropicKSubsets(k),
        SparseMAP(SequentialKSubsets(k, settings.transition)),
        Quadratic(),
        Polynomial(3),
        Exponential(),
    ]


def answer(omega: Omega, scores: Sequence[float], temperature: float) -> MapAnswer:
    """Weights, support, margin and path of one map.

    >>> found = answer(Tsallis(2.0), [1.0, 0.5, -1.0], temperature=1.0)
    >>> found.weights, found.support, found.margin
    ((0.75, 0.25, 0.0), 2, 1.0)
    """
    theta = torch.tensor(scores, dtype=torch.float64)
    hottest = 2.0 if temperature <= 1.9 else HOTTEST
    temperatures = torch.linspace(0.02, hottest, _PATH_POINTS, dtype=torch.float64)
    every = torch.cat([temperatures, torch.tensor([temperature], dtype=torch.float64)])
    weights = _at(omega, theta, every)
    now = weights[-1]
    positive = int((now != 0).sum())
    whole = bool(((now == 0) | ((now - 1).abs() < 1e-9)).all())
    exact = whole and math.isfinite(omega.margin)
    return MapAnswer(
        omega.name,
        tuple(now.tolist()),
        positive,
        float(omega.margin),
        _lead(theta / temperature, now),
        exact,
        omega.is_bounded,
        tuple(temperatures.tolist()),
        tuple(tuple(row) for row in weights[:-1].tolist()),
    )


def _at(omega: Omega, theta: Tensor, temperatures: Tensor) -> Tensor:
    """Weights (T, N): the temperature divides all scores, those of transitions too."""
    colder = 1 / temperatures.unsqueeze(-1)
    with torch.no_grad():
        return omega.scale_factors(colder)(theta * colder)


def _lead(scores: Tensor, weights: Tensor) -> float:
    """How far the smallest score with a weight of 1 (else the largest) is above the others."""
    chosen = weights > 1 - 1e-9
    if not bool(chosen.any()) or bool(chosen.all()):
        top = scores.sort(descending=True).values
        return float(top[0] - top[1])
    return float(scores[chosen].min() - scores[~chosen].max())


class MapsView(View[MapSettings]):
    """Drag scores and temperature; every map answers."""

    name = "maps"
    short = "Maps"
    controls_first = True
    title = "Maps"
    lead = (
        "Drag the scores. Each card shows the weights that a map gives them, how many are not zero, "
        "and the regularization path: the weights as the temperature T rises. The dashed line is "
        "the current temperature."
    )
    fields = (
        Slider("temperature", "Temperature T", 0.02, HOTTEST, log=True),
        Slider("alpha", "α of entmax", 1.0, 4.0, step=0.05),
        Slider("norm", "α of normmax", 1.1, 10.0, step=0.1),
        Slider("k", "k of the subsets", 1, 9, whole=True, step=1),
        Slider("transition", "Transition score", -2.0, 2.0, step=0.05),
        Numbers("scores", "Scores θ (2 to 10)", -LARGEST_SCORE, LARGEST_SCORE, 2, 10),
    )

    def defaults(self) -> MapSettings:
        return MapSettings()

    def checked(self, settings: MapSettings) -> tuple[MapSettings, list[str]]:
        most = len(settings.scores) - 1
        if settings.k <= most:
            return settings, []
        note = f"k of the subsets: with {most + 1} scores at most {most} can be selected."
        return replace(settings, k=most), [note]

    def moved(self, settings: MapSettings, event: Event) -> MapSettings:
        kind, _, place = event.handle.partition(":")
        if kind == "temperature" and event.x is not None:
            return replace(settings, temperature=min(max(event.x, 0.02), HOTTEST))
        if kind != "score" or event.y is None or not place.isdigit():
            return settings
        if int(place) >= len(settings.scores):
            return settings
        value = round(min(max(event.y, -LARGEST_SCORE), LARGEST_SCORE), 2)
        scores = list(settings.scores)
        scores[int(place)] = value
        return replace(settings, scores=tuple(scores))

    def show(self, settings: MapSettings, width: float, *, fine: bool = True) -> Shown:  # noqa: ARG002
        found = [answer(each, settings.scores, settings.temperature) for each in omegas(settings)]
        picture = draw_maps(settings.scores, settings.temperature, found, width)
        exact = [each.name for each in found if each.exact]
        lines = [f"yes:Exactly zeros and ones: {'; '.join(exact)}."] if exact else []
        numbers = {each.name: list(each.weights) for each in found}
        return Shown(picture, lines, code(settings), numbers)


def code(settings: MapSettings) -> str:
    """A program that computes the weights."""
    k = settings.k
    return f"""import torch
import hopfy
from hopfy import omega
from hopfy.structures import KSubsets, SequentialKSubsets

theta = torch.tensor({list(settings.scores)}, dtype=torch.float64)
temperature = {settings.temperature!r}
maps = [
    hopfy.Shannon(),
    hopfy.Tsallis({settings.alpha!r}),
    hopfy.Tsallis(2.0),
    hopfy.Norm({settings.norm!r}),
    omega.Capped(0.5),
    hopfy.SparseMAP(KSubsets({k})),
    omega.EntropicKSubsets({k}),
    hopfy.SparseMAP(SequentialKSubsets({k}, {settings.transition!r})),
    omega.Quadratic(),
    omega.Polynomial(3),
    omega.Exponential(),
]

result = {{}}
for each in maps:
    # The temperature divides all scores, those of transitions too.
    colder = torch.tensor([[1 / temperature]], dtype=torch.float64)
    weights = each.scale_factors(colder)(theta[None] * colder)[0]
    result[each.name] = weights.tolist()
    print(each.name, [round(w, 4) for w in weights.tolist()], "margin", each.margin)
"""
