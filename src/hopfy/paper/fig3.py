"""Figure 3 and App. F.2: energies, trajectories and basins of attraction in the plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hopfy.network import HopfieldNetwork
from hopfy.paper._base import Config, Experiment, Figure, Progress, Row, Store
from hopfy.paper._drawing import canvas, save
from hopfy.plot import basins, energy_landscape, plane_grid, plane_of, trajectory

__all__ = ["Fig3", "Fig3Config", "experiment"]

MAPS = ("1-entmax", "1.5-entmax", "2-entmax", "2-normmax", "5-normmax")
BETAS = (1.0, 4.0, 10.0)
_BORDER = 0.1
# A weight below this is rounding left by the iteration, not a pattern that takes part.
_PRESENT = 1e-9
# The published panels: four of the sets that are drawn one after the other from this seed.
_PUBLISHED_SEED = 42
_PUBLISHED_SETS = (0, 3, 8, 9)
_CORNERS = ((-1.0, -1.0), (-1.0, 1.0), (1.0, -1.0))


@dataclass(frozen=True)
class Fig3Config(Config):
    """How many sets of patterns to measure, how many of them to draw, and how finely."""

    sets: int = 5
    drawn: int = 4
    points: int = 24
    max_steps: int = 50
    queries: int = 8
    drawn_energies: tuple[float, ...] = (1.0,)
    drawn_basins: tuple[float, ...] = (10.0,)


class Fig3(Experiment[Fig3Config]):
    """What the energies look like, and where the updates lead."""

    name = "fig3"
    title = "Figure 3: energies, trajectories and basins of attraction"
    profiles = {  # noqa: RUF012
        "demo": Fig3Config(sets=2, drawn=2, points=14, queries=4),
        "quick": Fig3Config(),
        "paper": Fig3Config(sets=20, drawn=5, points=100, drawn_energies=BETAS, drawn_basins=BETAS),
    }

    def run(self, config: Fig3Config, store: Store, progress: Progress) -> dict[str, Any]:
        progress.begin("basins of attraction", len(BETAS) * len(MAPS))
        measured = []
        for beta in BETAS:
            for name in MAPS:
                part = store.part(f"{name} beta {beta:g}", partial(_measure, config, name, beta))
                measured.append(part)
                progress.advance()
        return {
            "seed": config.seed,
            "drawn": config.drawn,
            "points": config.points,
            "max_steps": config.max_steps,
            "drawn_energies": list(config.drawn_energies),
            "drawn_basins": list(config.drawn_basins),
            "measured": measured,
        }

    def compare(self, results: Mapping[str, Any]) -> Sequence[Row]:
        rows = []
        for beta in BETAS:
            single = {m: _entry(results, m, beta)["single_percent"] for m in MAPS}
            rows += [
                Row(f"beta {beta:g}, {name}: % of points that end at one pattern", single[name])
                for name in MAPS
            ]
            grows = single["1-entmax"] <= single["1.5-entmax"] <= single["2-entmax"]
            claim = f"claim, beta {beta:g}: entmax ends at one pattern more often as alpha grows"
            rows.append(_claim(claim, grows))
        for name in MAPS:
            even = [entry["evenness"] for entry in _entries(results, name)]
            mean = sum(even) / len(even)
            rows.append(Row(f"{name}: evenness of the mixtures (1 = uniform average)", mean))
        normmax = min(entry["evenness"] for entry in _entries(results, "5-normmax"))
        rows.append(_claim("claim: 5-normmax ends at uniform averages (> 0.99)", normmax > 0.99))
        rise = max(entry["largest_rise"] for entry in results["measured"])
        rows.append(Row("largest rise of the energy in one update", rise, paper=0.0, tol=1e-12))
        return rows

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        figures = []
        for beta in results["drawn_energies"]:
            save(_contours(results, beta), folder, f"fig3-energy-beta-{beta:g}")
            figures.append(Figure(f"fig3-energy-beta-{beta:g}", _energy_caption(beta)))
        for beta in results["drawn_basins"]:
            save(_basins(results, beta), folder, f"fig3-basins-beta-{beta:g}")
            figures.append(Figure(f"fig3-basins-beta-{beta:g}", _basin_caption(beta)))
        return figures

    def explain(self, results: Mapping[str, Any]) -> str:
        shares = [_entry(results, name, 10.0)["single_percent"] for name in MAPS]
        even = {m: _entry(results, m, 1.0)["evenness"] for m in MAPS}
        return (
            f"At beta 10 softmax brings {shares[0]:.0f}% of the points to one pattern (within "
            f"0.01), 1.5-entmax {shares[1]:.0f}% and 2-entmax {shares[2]:.0f}%: the larger alpha, "
            f"the more single patterns. Where normmax mixes patterns it averages them evenly: at "
            f"beta 1 the evenness of its mixtures (1 is a uniform average) is "
            f"{even['2-normmax']:.3f} for 2-normmax and {even['5-normmax']:.3f} for 5-normmax, "
            f"against {even['1.5-entmax']:.3f} for 1.5-entmax and {even['2-entmax']:.3f} for 2-entmax. "
            "The energies of 5-normmax use the 5-norm."
        )


experiment = Fig3()


def _patterns(number: int, seed: int) -> Tensor:
    """Unit vectors (N, 2): the four published sets of five, the three corners, then random sets."""
    if number < len(_PUBLISHED_SETS):
        raw = _published(_PUBLISHED_SETS[number]).double()
    elif number == len(_PUBLISHED_SETS):
        raw = torch.tensor(_CORNERS, dtype=torch.float64)
    else:
        generator = torch.Generator().manual_seed(1000 * seed + number)
        raw = torch.randn(5, 2, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(raw, dim=-1)


def _published(place: int) -> Tensor:
    """The set at this place among those that torch draws one after the other, float32."""
    generator = torch.Generator().manual_seed(_PUBLISHED_SEED)
    sets = [torch.randn(5, 2, generator=generator) for _ in range(place + 1)]
    return sets[-1]


def _queries(number: int, seed: int, count: int) -> Tensor:
    generator = torch.Generator().manual_seed(1000 * seed + number + 500)
    return torch.rand(count, 2, generator=generator, dtype=torch.float64) * 1.6 - 0.8


def _tolerance(name: str) -> float:
    """Softmax never arrives: as in the paper it only has to come within 0.01."""
    return 1e-2 if name == "1-entmax" else 1e-3


def _measure(config: Fig3Config, name: str, beta: float) -> dict[str, Any]:
    single, evenness, sizes, rise = [], [], [], 0.0
    for number in range(config.sets):
        network = HopfieldNetwork(_patterns(number, config.seed), name, beta)
        plane = plane_of(network)
        places = plane.lift(plane_grid(network, plane, config.points, _BORDER)).reshape(-1, 2)
        found = network.retrieve(places, max_steps=config.max_steps)
        nearest = torch.cdist(found.state, network.memories).amin(-1)
        arrived = nearest <= _tolerance(name)
        even, size = _evenness(network.weights(found.state[~arrived]))
        single.append(arrived.double())
        evenness.append(even)
        sizes.append(size)
        queries = _queries(number, config.seed, config.queries)
        energies = network.retrieve(queries, max_steps=config.max_steps, trace=True).energies
        if energies is not None:
            rise = max(rise, float(energies.diff(dim=0).clamp_min(0).max()))
    mixtures = torch.cat(evenness)
    return {
        "map": name,
        "beta": beta,
        "single_percent": 100 * float(torch.cat(single).mean()),
        "evenness": float(mixtures.mean()) if mixtures.numel() else 1.0,
        "mean_mixture_size": float(torch.cat(sizes).mean()) if mixtures.numel() else 0.0,
        "largest_rise": rise,
    }


def _evenness(weights: Tensor) -> tuple[Tensor, Tensor]:
    """exp(entropy) / (number of patterns that take part): 1 for a uniform average; and that number."""
    present = weights > _PRESENT
    size = present.sum(-1)
    entropy = -torch.where(present, weights * weights.clamp_min(_PRESENT).log(), 0.0).sum(-1)
    return entropy.exp() / size, size.double()


def _entry(results: Mapping[str, Any], name: str, beta: float) -> Mapping[str, Any]:
    return next(entry for entry in _entries(results, name) if entry["beta"] == beta)


def _entries(results: Mapping[str, Any], name: str) -> list[Mapping[str, Any]]:
    return [entry for entry in results["measured"] if entry["map"] == name]


def _claim(name: str, holds: bool) -> Row:
    return Row.of_claim(name, holds)


def _panels(results: Mapping[str, Any], beta: float) -> tuple[Any, list[tuple[Any, Any, int]]]:
    """A figure with one column for each map and one row for each drawn set of patterns."""
    rows = results["drawn"]
    figure = canvas(2.3 * len(MAPS), 2.05 * rows + 0.3)
    axes = figure.subplots(rows, len(MAPS), sharex="row", sharey="row", squeeze=False)
    cells = []
    for number in range(rows):
        for name, ax in zip(MAPS, axes[number], strict=True):
            network = HopfieldNetwork(_patterns(number, results["seed"]), name, beta)
            cells.append((network, ax, number))
    for name, ax in zip(MAPS, axes[0], strict=True):
        ax.set_title(name, fontsize=10)
    return figure, cells


def _contours(results: Mapping[str, Any], beta: float) -> Any:
    figure, cells = _panels(results, beta)
    points = max(60, results["points"])
    for network, ax, number in cells:
        energy_landscape(network, points=points, border=_BORDER, colorbar=False, ax=ax)
        queries = _queries(number, results["seed"], 5)
        trajectory(network, queries, max_steps=results["max_steps"], patterns=False, ax=ax)
        _bare(ax)
    return figure


def _basins(results: Mapping[str, Any], beta: float) -> Any:
    figure, cells = _panels(results, beta)
    for place, (network, ax, _) in enumerate(cells):
        basins(
            network,
            points=max(60, results["points"]),
            border=_BORDER,
            max_steps=results["max_steps"],
            tol=_tolerance(MAPS[place % len(MAPS)]),
            ax=ax,
        )
        _bare(ax)
    return figure


def _bare(ax: Any) -> None:
    """Coordinates say little here; the panels are easier to compare without them."""
    ax.set(xticks=[], yticks=[], xlabel="", ylabel="")


def _energy_caption(beta: float) -> str:
    return (
        f"Energies at beta = {beta:g} (dark is low) with the paths of five queries from ring to "
        "dot; stars are the stored patterns, those of the paper's figure. "
        + (
            "At this high temperature the maps settle in mixtures, between the patterns."
            if beta == 1
            else "The larger beta, the more paths end at a star."
        )
    )


def _basin_caption(beta: float) -> str:
    return (
        f"Basins of attraction at beta = {beta:g}: each point has the color of the pattern it ends "
        "at, white points end at a mixture. Larger alpha colors more of the plane for entmax, "
        "less for normmax."
    )
