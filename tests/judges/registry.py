"""The registry of maps: every law runs over every entry."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy.structures import KSubsets


@dataclass(frozen=True)
class Map:
    name: str
    call: Callable[..., Tensor]
    omega: hopfy.Omega
    total: float = 1.0
    least: int = 1  # entries that a row must have
    is_interior: bool = False  # no weight is exactly 0 or 1
    cap: float = 1.0  # the largest weight of an entry

    @property
    def is_sparse(self) -> bool:
        """Whether a margin gives whole answers."""
        return math.isfinite(self.omega.margin)

    @property
    def is_flat(self) -> bool:
        """Piecewise constant: the gradient is zero wherever it exists."""
        return self.name.startswith("inf-")

    def __call__(self, scores: Tensor, **options: Any) -> Tensor:
        return self.call(scores, **options)


def _entmax(alpha: float) -> Map:
    call = lambda s, **o: F.entmax(s, alpha, **o)  # noqa: E731
    return Map(f"{alpha}-entmax", call, hopfy.Tsallis(alpha), is_interior=alpha == 1)


def _normmax(alpha: float) -> Map:
    return Map(f"{alpha}-normmax", lambda s, **o: F.normmax(s, alpha, **o), hopfy.Norm(alpha))


def _ksubsets(k: float) -> Map:
    return Map(
        f"{k}-subsets",
        lambda s, **o: F.ksubsets(s, k, **o),
        hopfy.SparseMAP(KSubsets(k)),
        total=k,
        least=math.ceil(k),
    )


def _entropic(k: float) -> Map:
    return Map(
        f"entropic-{k}-subsets",
        lambda s, **o: F.entropic_ksubsets(s, k, **o),
        hopfy.omega.EntropicKSubsets(k),
        total=k,
        least=math.ceil(k),
        is_interior=True,
    )


def _capped(upper: float) -> Map:
    return Map(
        f"{upper}-capped",
        lambda s, **o: F.capped_sparsemax(s, upper, **o),
        hopfy.omega.Capped(upper),
        least=math.ceil(1 / upper),
        cap=upper,
    )


MAPS = [
    Map("softmax", F.softmax, hopfy.Shannon(), is_interior=True),
    Map("sparsemax", F.sparsemax, hopfy.Tsallis(2.0)),
    *(_entmax(a) for a in (1.0, 1.01, 1.25, 1.5, 1.75, 2.0, 3.0, 10.0, math.inf)),
    *(_normmax(a) for a in (1.1, 2.0, 5.0, 20.0, math.inf)),
    *(_ksubsets(k) for k in (1, 2, 2.5)),
    *(_entropic(k) for k in (1, 2, 2.5)),
    *(_capped(upper) for upper in (0.4, 1.0)),
]

every_map = pytest.mark.parametrize("map", MAPS, ids=lambda m: m.name)
every_sparse_map = pytest.mark.parametrize(
    "map", [m for m in MAPS if m.is_sparse], ids=lambda m: m.name
)
every_smooth_map = pytest.mark.parametrize(
    "map", [m for m in MAPS if not m.is_flat], ids=lambda m: m.name
)
