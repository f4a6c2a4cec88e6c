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

    @property
    def is_sparse(self) -> bool:
        return math.isfinite(self.omega.margin)

    @property
    def is_flat(self) -> bool:
        """Piecewise constant: the gradient is zero wherever it exists."""
        return self.name.startswith("inf-")

    def __call__(self, scores: Tensor, **options: Any) -> Tensor:
        return self.call(scores, **options)


def _entmax(alpha: float) -> Map:
    return Map(f"{alpha}-entmax", lambda s, **o: F.entmax(s, alpha, **o), hopfy.Tsallis(alpha))


def _normmax(alpha: float) -> Map:
    return Map(f"{alpha}-normmax", lambda s, **o: F.normmax(s, alpha, **o), hopfy.Norm(alpha))


def _ksubsets(k: float) -> Map:
    return Map(
        f"{k}-subsets",
        lambda s, **o: F.ksubsets(s, k, **o),
        hopfy.SparseMAP(KSubsets(k)),
        total=k,
    )


MAPS = [
    Map("softmax", F.softmax, hopfy.Shannon()),
    Map("sparsemax", F.sparsemax, hopfy.Tsallis(2.0)),
    *(_entmax(a) for a in (1.0, 1.01, 1.25, 1.5, 1.75, 2.0, 3.0, 10.0, math.inf)),
    *(_normmax(a) for a in (1.1, 2.0, 5.0, 20.0, math.inf)),
    *(_ksubsets(k) for k in (1, 2, 2.5)),
]

every_map = pytest.mark.parametrize("map", MAPS, ids=lambda m: m.name)
every_sparse_map = pytest.mark.parametrize(
    "map", [m for m in MAPS if m.is_sparse], ids=lambda m: m.name
)
every_smooth_map = pytest.mark.parametrize(
    "map", [m for m in MAPS if not m.is_flat], ids=lambda m: m.name
)
