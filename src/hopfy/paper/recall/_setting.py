"""What the recall experiments share: images, pairs of regularizers, curves and their quartiles."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from hopfy.network import HopfieldNetwork
from hopfy.omega import Exponential, Omega, Polynomial, Quadratic, omega_from
from hopfy.paper import data
from hopfy.paper._base import Config, Experiment, Progress, Store
from hopfy.states import State, state_from

__all__ = [
    "OMEGAS",
    "STATES",
    "CurvesOfPairs",
    "ImagesConfig",
    "Pair",
    "checksum",
    "draw",
    "name_of",
    "pairs",
    "recalled",
]

_PIXELS = {"mnist": 784, "digits": 64}
_COSINE = 0.9  # a state this close to its image counts as recalled
OMEGAS = (
    "identity",
    "5-polynomial",
    "10-polynomial",
    "exponential",
    "softmax",
    "1.5-entmax",
    "sparsemax",
    "2-normmax",
    "5-normmax",
)
STATES = ("euclidean", "ball", "layer-norm", "tanh")
_BALL_BETA = 20.0


@dataclass(frozen=True)
class ImagesConfig(Config):
    """Which images are stored.

    Attributes:
        source: ``"mnist"``, or ``"digits"``, which scikit-learn bundles.
        draws: how often other images are drawn.
        queries: at most so many of the stored images are recalled.
        updates: of each query.
        betas: inverse temperatures on MNIST (the ball has its own); those of other images are larger
            in proportion, so that beta times the squared length of an image is the same.
    """

    source: str = "mnist"
    draws: int = 5
    queries: int = 256
    updates: int = 5
    betas: tuple[float, ...] = (1.0, 0.1)


C = TypeVar("C", bound="ImagesConfig")


class Pair(NamedTuple):
    """Two regularizers and an inverse temperature (as on MNIST)."""

    omega: str
    state: str
    beta: float

    @property
    def name(self) -> str:
        return f"{self.omega}, {self.state}, beta {self.beta:g}"


def pairs(betas: Sequence[float]) -> list[Pair]:
    """Every pair that makes sense: weights without a bound need states with one."""
    return list(_pairs(betas))


def _pairs(betas: Sequence[float]) -> Iterator[Pair]:
    for state in STATES:
        for beta in (_BALL_BETA,) if state == "ball" else betas:
            for omega in OMEGAS:
                if _omega(omega, "mnist").is_bounded or state_from(state).is_bounded:
                    yield Pair(omega, state, beta)


def _omega(name: str, source: str) -> Omega:
    if name == "exponential":
        return Exponential(0.05 * _PIXELS["mnist"] / _PIXELS[source])
    named: dict[str, Omega] = {
        "identity": Quadratic(),
        "5-polynomial": Polynomial(5),
        "10-polynomial": Polynomial(10),
    }
    return named[name] if name in named else omega_from(name)


def network(pair: Pair, patterns: Tensor, source: str) -> HopfieldNetwork:
    """The network of these patterns, which are states already."""
    scale = 1.0 if pair.state == "ball" else _PIXELS["mnist"] / _PIXELS[source]
    state: State = state_from(pair.state)
    omega = _omega(pair.omega, source if pair.state != "ball" else "mnist")
    # The exponent's own factor follows the images too: beta must not do it twice.
    beta = pair.beta if pair.omega == "exponential" else pair.beta * scale
    return HopfieldNetwork(patterns, omega, beta, state=state)


def recalled(
    pair: Pair, images: Tensor, queries: Tensor, config: ImagesConfig, *, steps: int | None = None
) -> float:
    """The share of queries (M, D) that end close to the first M images (N, D)."""
    state = state_from(pair.state)
    patterns = state.of_patterns(images)
    net = network(pair, patterns, config.source)
    found = state.of_patterns(queries)
    with torch.no_grad():
        for _ in range(config.updates if steps is None else steps):
            found = net.update(found)
    likeness = torch.cosine_similarity(found, patterns[: len(queries)], dim=-1)
    return float((likeness > _COSINE).double().mean())


def checksum(source: str) -> str:
    """Identifies the images."""
    if source == "mnist":
        return data.dataset("mnist").checksum
    return hashlib.sha256(data.digits().images.numpy().tobytes()).hexdigest()


@lru_cache(maxsize=2)
def _images(source: str) -> Tensor:
    """All images (N, D) in [-1, 1], float32."""
    found, white = (
        (data.mnist("train").images, 255) if source == "mnist" else (data.digits().images, 16)
    )
    return found.flatten(1).float().div_(white).mul_(2).sub_(1)


def draw(source: str, count: int, seed: int) -> Tensor:
    """So many different images, another choice for every seed."""
    images = _images(source)
    generator = torch.Generator().manual_seed(seed)
    return images[torch.randperm(len(images), generator=generator)[:count]]


class CurvesOfPairs(Experiment[C]):
    """What every pair of regularizers recalls, over a quantity that makes it harder."""

    @abstractmethod
    def places(self, config: C) -> Sequence[float]:
        """The values of the quantity."""

    @abstractmethod
    def shares(self, pair: Pair, config: C) -> list[list[float]]:
        """The shares recalled: one row for each draw, one column for each place."""

    def data_checksum(self, config: C) -> str:
        return checksum(config.source)

    def run(self, config: C, store: Store, progress: Progress) -> dict[str, Any]:
        progress.begin(self.title, len(pairs(config.betas)))
        curves = []
        for pair in pairs(config.betas):
            found = store.part(pair.name, partial(self.shares, pair, config))
            curves.append(curve(pair, self.places(config), found))
            progress.advance()
        return {"source": config.source, "draws": config.draws, "curves": curves}


def name_of(each: Mapping[str, Any]) -> str:
    """The pair of a curve, in words."""
    return f"{each['omega']} with {each['state']}, beta {each['beta']:g}"


def curve(pair: Any, places: Sequence[float], shares: Sequence[Sequence[float]]) -> dict[str, Any]:
    """Quartiles over the draws at every place, as JSON; ``shares`` has one row for each draw."""
    table = torch.tensor(shares, dtype=torch.float64)
    low, median, high = torch.quantile(
        table, torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64), dim=0
    )
    return {
        **pair._asdict(),
        "x": list(places),
        "median": [round(v, 6) for v in median.tolist()],
        "low": [round(v, 6) for v in low.tolist()],
        "high": [round(v, 6) for v in high.tolist()],
    }
