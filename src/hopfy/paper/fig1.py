"""Figure 1: what each kind of network retrieves, drawn from real retrievals; and its state spaces."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hopfy.network import HopfieldNetwork
from hopfy.omega import omega_from
from hopfy.paper import data
from hopfy.paper._base import Config, Experiment, Figure, Progress, Row, Store
from hopfy.paper._drawing import canvas, save
from hopfy.plot import basins, energy_landscape, trajectory
from hopfy.plot.style import color_of
from hopfy.states import Ball, Euclidean, LayerNorm, Sign, State, Tanh

__all__ = ["Fig1", "Fig1Config", "experiment"]

# A map, the patterns that its state is made of, and what the paper says about it.
MAPS = {
    "softmax": "never exact",
    "1.5-entmax": "one pattern",
    "5-normmax": "one pattern",
    "3-subsets": "top 3",
    "sequential-3-subsets": "3 neighbors",
}
# What neighbors gain by being selected together, in units of the squared length of an image.
_TRANSITION = 0.5
_EXPECTED = {"1.5-entmax": 1, "5-normmax": 1, "3-subsets": 3, "sequential-3-subsets": 3}
_PRESENT = 1e-6
# Softmax is shown where it mixes, the structured maps where they are whole.
_BETA_FACTORS = {"softmax": 0.05, "3-subsets": 40.0, "sequential-3-subsets": 40.0}
_ANGLES = (10.0, 80.0, 150.0, 225.0, 300.0)
STATES: tuple[State, ...] = (Euclidean(), Ball(1.0), LayerNorm(), Sign(), Tanh(2.0))


@dataclass(frozen=True)
class Fig1Config(Config):
    """Which images are stored, and how strong the noise on the query is."""

    source: str = "digits"
    noise: float = 0.3
    beta: float = 0.5


class Fig1(Experiment[Fig1Config]):
    """One noisy digit, recalled by every kind of network."""

    name: ClassVar[str] = "fig1"
    title: ClassVar[str] = "Figure 1: an overview of what is retrieved"
    profiles: ClassVar[Mapping[str, Fig1Config]] = {
        "quick": Fig1Config(),
        "paper": Fig1Config(source="mnist", beta=0.05),
    }

    def data_checksum(self, config: Fig1Config) -> str:
        if config.source == "mnist":
            return data.dataset("mnist").checksum
        return hashlib.sha256(data.digits().images.numpy().tobytes()).hexdigest()

    def run(self, config: Fig1Config, store: Store, progress: Progress) -> dict[str, Any]:
        progress.begin("retrievals", len(MAPS))
        images, side = _images(config.source)
        query = _query(images, config)
        found = {}
        for name in MAPS:
            found[name] = store.part(name, partial(_retrieve, name, config.beta, images, query))
            progress.advance()
        return {
            "side": side,
            "images": _rounded(images),
            "query": _rounded(query),
            "found": found,
            "seed": config.seed,
        }

    def compare(self, results: Mapping[str, Any]) -> Sequence[Row]:
        rows = [
            Row(f"{name}: patterns in the state", _size(results, name), float(expected), 0.0)
            for name, expected in _EXPECTED.items()
        ]
        places = _places(results, "sequential-3-subsets")
        neighbors = float(places[-1] - places[0] == len(places) - 1)
        rows.append(Row("sequential 3-subsets: neighbors (1 = yes)", neighbors, 1.0, 0.0))
        rows.append(Row("softmax: patterns in the state", _size(results, "softmax")))
        return rows

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        save(_overview(results), folder, "fig1")
        save(_state_spaces(results["seed"]), folder, "fig1-states")
        return [
            Figure(
                "fig1",
                "A noisy digit (left) among the ten stored ones (above). Each row is one network: the "
                "weights of the ten patterns where it settles, and the state they make. Softmax "
                "mixes, entmax and normmax return one pattern exactly, k-subsets the three best, "
                "sequential k-subsets three neighbors. Softmax has 0.05 times the beta of entmax and "
                "normmax, the structured maps, which take one step, 40 times.",
            ),
            Figure(
                "fig1-states",
                "Five unit vectors in the plane under every space of states (1.5-entmax, beta 4): "
                "energies with the paths of queries above, basins of attraction below. An energy "
                "is infinite outside its space; layer-normalized vectors of two coordinates form a "
                "line, so there the concave part is drawn. Patterns are no states under tanh: there a point "
                "belongs to the pattern that it ends within 0.35 of.",
            ),
        ]

    def explain(self, results: Mapping[str, Any]) -> str:
        return (
            f"From one noisy digit, softmax settles in a mixture of {_size(results, 'softmax'):g} "
            "patterns, whereas entmax and normmax return the stored digit bit for bit. Structured "
            "maps return associations: the three most similar digits, or three neighbors in the "
            "order of storage."
        )


experiment = Fig1()


def _images(source: str) -> tuple[Tensor, int]:
    """The first image of each digit 0 .. 9, (10, D) in [-1, 1], and its side."""
    found, white = (data.mnist("train"), 255) if source == "mnist" else (data.digits(), 16)
    first = [int((found.labels == digit).nonzero()[0]) for digit in range(10)]
    images = found.images[first].flatten(1).double() / white * 2 - 1
    return images, found.images.shape[-1]


def _query(images: Tensor, config: Fig1Config) -> Tensor:
    generator = torch.Generator().manual_seed(config.seed)
    noise = torch.randn(images.shape[1], generator=generator, dtype=torch.float64)
    return (images[3] + 2 * config.noise * noise).clamp(-1, 1)


def _retrieve(name: str, beta: float, images: Tensor, query: Tensor) -> dict[str, Any]:
    beta = beta * _BETA_FACTORS.get(name, 1.0)
    transition = _TRANSITION * beta * float(images.square().sum(-1).mean())
    omega = omega_from(f"{name}, transition {transition:g}" if "sequential" in name else name)
    # One step for structures: a sum of patterns is another query. The others run to their end.
    several = omega.structures is not None
    net = HopfieldNetwork(images, omega, beta)
    state = query if several else net.retrieve(query).state
    weights = net.weights(state)
    made = weights @ images / weights.sum()
    return {"weights": _rounded(weights), "state": _rounded(made)}


def _rounded(values: Tensor) -> Any:
    return torch.round(values, decimals=6).tolist()


def _places(results: Mapping[str, Any], name: str) -> list[int]:
    weights = results["found"][name]["weights"]
    return [place for place, weight in enumerate(weights) if weight > _PRESENT]


def _size(results: Mapping[str, Any], name: str) -> float:
    return float(len(_places(results, name)))


def _overview(results: Mapping[str, Any]) -> Any:
    side, count = results["side"], len(results["images"])
    figure = canvas(9.0, 6.4)
    grid = figure.add_gridspec(len(MAPS) + 1, count + 4)
    _picture(figure.add_subplot(grid[0, 0:2]), results["query"], side, "query")
    for place, image in enumerate(results["images"]):
        _picture(figure.add_subplot(grid[0, place + 2]), image, side, str(place))
    for row, (name, says) in enumerate(MAPS.items(), 1):
        found = results["found"][name]
        label = figure.add_subplot(grid[row, 0:2])
        label.axis("off")
        label.text(1.0, 0.5, f"{name}\n({says})", ha="right", va="center", fontsize=9)
        bars = figure.add_subplot(grid[row, 2 : count + 2])
        bars.bar(range(count), found["weights"], color=[color_of(p) for p in range(count)])
        bars.set(xlim=(-0.5, count - 0.5), ylim=(0, 1.08), xticks=[], yticks=[0, 1])
        bars.tick_params(labelsize=7)
        bars.spines[["top", "right"]].set_visible(False)
        _picture(figure.add_subplot(grid[row, count + 2 : count + 4]), found["state"], side)
    return figure


def _picture(ax: Any, pixels: Sequence[float], side: int, title: str = "") -> None:
    ax.imshow(torch.tensor(pixels).reshape(side, side).numpy(), cmap="gray_r", vmin=-1, vmax=1)
    ax.set(xticks=[], yticks=[])
    ax.set_title(title, fontsize=8)


def _state_spaces(seed: int) -> Any:
    angles = torch.deg2rad(torch.tensor(_ANGLES, dtype=torch.float64))
    raw = torch.stack([angles.cos(), angles.sin()], -1)
    generator = torch.Generator().manual_seed(seed + 4)
    queries = torch.rand(6, 2, generator=generator, dtype=torch.float64) * 1.6 - 0.8
    figure = canvas(2.5 * len(STATES), 5.2)
    axes = figure.subplots(2, len(STATES), squeeze=False)
    for state, above, below in zip(STATES, *axes, strict=True):
        patterns = state.of_patterns(raw).unique(dim=0)
        network = HopfieldNetwork(patterns, "1.5-entmax", 4.0, state=state)
        energy_landscape(network, points=80, border=0.3, colorbar=False, ax=above)
        trajectory(network, queries, patterns=False, ax=above)
        near = 1e-3 if bool(state.keeps(patterns).all()) else 0.35
        basins(network, points=80, border=0.3, tol=near, ax=below)
        above.set_title(state.name, fontsize=10)
        for ax in (above, below):
            ax.set(xticks=[], yticks=[], xlabel="", ylabel="")
    return figure
