"""An experiment of ours: what the propositions promise beside what happens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hopfy import theory
from hopfy.network import HopfieldNetwork
from hopfy.omega import omega_from
from hopfy.paper._base import Config, Experiment, Figure, Progress, Row, Store
from hopfy.paper._drawing import canvas, save
from hopfy.plot.style import GRAY, MARKERS, color_of

__all__ = ["Theory", "TheoryConfig", "experiment"]

# The maps whose margins differ, and 5-normmax, whose margin is that of 2-entmax.
MAPS = ("1.5-entmax", "2-entmax", "4-entmax", "5-normmax")
SOFTMAX = "1-entmax"
FAILURE = 0.1  # how often a random set of patterns may be too dense, in the capacities
LEAD = 0.3  # m / beta for the capacities: all maps at their own beta


@dataclass(frozen=True)
class TheoryConfig(Config):
    """Sizes; patterns are drawn uniformly from the unit sphere."""

    patterns: int = 120
    dimension: int = 16
    trials: int = 3
    betas: tuple[float, ...] = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)
    counts: tuple[int, ...] = (10, 20, 40, 80, 160, 320)
    noises: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
    dimensions: tuple[int, ...] = (4, 8, 12, 16, 20, 24)
    draws: int = 100


class Theory(Experiment[TheoryConfig]):
    """Fixed points, noise, certified radii and capacity: predicted and measured."""

    name = "theory"
    title = "Theory: the guarantees, predicted and measured"
    profiles = {  # noqa: RUF012
        "demo": TheoryConfig(
            patterns=80, trials=1, counts=(10, 40, 160), dimensions=(4, 8, 12, 16), draws=40
        ),
        "quick": TheoryConfig(),
        "paper": TheoryConfig(
            patterns=500,
            dimension=20,
            trials=20,
            counts=(10, 20, 40, 80, 160, 320, 640, 1280),
            dimensions=(4, 8, 12, 16, 20, 24, 28, 32),
            draws=200,
        ),
    }

    def run(self, config: TheoryConfig, store: Store, progress: Progress) -> dict[str, Any]:
        names = (*MAPS, SOFTMAX)
        progress.begin("guarantees", 3 * len(names) + len(MAPS) + 1)
        results: dict[str, Any] = {"beta": {}, "count": {}, "noise": {}, "radius": {}}
        work = {"beta": _over_beta, "count": _over_count, "noise": _over_noise}
        for kind, measure in work.items():
            for name in names:
                results[kind][name] = store.part(f"{kind} {name}", partial(measure, config, name))
                progress.advance()
        for name in MAPS:
            results["radius"][name] = store.part(f"radius {name}", partial(_radii, config, name))
            progress.advance()
        results["capacity"] = store.part("capacity", partial(_capacity, config))
        progress.advance()
        return results

    def compare(self, results: Mapping[str, Any]) -> Sequence[Row]:
        rows = []
        for kind, what in (("beta", "beta"), ("count", "number of patterns")):
            for name in MAPS:
                points = results[kind][name]
                gap = max(abs(p["measured"] - p["predicted"]) for p in points)
                text = f"{name}: fixed points as the {what} varies, largest gap to Prop. 2 in %"
                rows.append(Row(text, gap, paper=0.0, tol=0.0))
        for name in MAPS:
            short = max(p["promised"] - p["measured"] for p in results["noise"][name])
            text = f"{name}: recalled from noise, largest shortfall below the certified % "
            rows.append(Row(text.strip(), max(0.0, short), paper=0.0, tol=0.0))
            ratios = [p["measured"] / p["exact"] for p in results["radius"][name]]
            rows.append(
                Row(f"{name}: measured radius / certified radius, mean",
                    sum(ratios) / len(ratios), paper=1.0, tol=1e-6)
            )  # fmt: skip
        short = max(0.0, *(math.log(p["predicted"] / p["measured"]) for p in results["capacity"]))
        text = "capacity: log of promised / measured patterns where it is positive"
        rows.append(Row(text, short, paper=0.0, tol=0.0))
        return rows

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        figure = canvas(11.0, 6.2)
        axes = figure.subplots(2, 3)
        _draw_rates(axes[0, 0], results["beta"], r"$\beta$", "predicted", log=True)
        axes[0, 0].set(title="Patterns that are fixed points", ylabel="% of patterns")
        _draw_rates(axes[0, 1], results["count"], "stored patterns N", "predicted", log=True)
        axes[0, 1].set(title="... as more are stored", ylabel="% of patterns")
        _draw_rates(axes[0, 2], results["noise"], r"noise $\|q - x_i\|$", "promised", log=False)
        axes[0, 2].set(title="Recalled exactly from noise", ylabel="% of queries")
        _draw_radii(axes[1, 0], results["radius"])
        _draw_capacity(axes[1, 1], results["capacity"])
        _draw_key(axes[1, 2])
        save(figure, folder, "theory")
        caption = (
            "Marks are measured, lines are what the propositions say. Prop. 2 predicts to the last "
            "pattern which ones are fixed points (left and middle); its radius is a promise that "
            "recall keeps and usually exceeds (right). Below: the radius at which recall in one step "
            "first fails, found by bisection, is the certified one; the paper's bound is below it. "
            "Random patterns can be stored in numbers that grow exponentially with the dimension, "
            "as Prop. 3 promises."
        )
        return [Figure("theory", caption)]

    def explain(self, results: Mapping[str, Any]) -> str:
        last = results["capacity"][-1]
        ratio = [p["paper"] / p["exact"] for p in results["radius"]["2-entmax"] if p["exact"] > 0]
        return (
            "Prop. 2 decides exactly which patterns are fixed points, at every temperature and "
            "number of patterns, for every map with a margin; softmax has none and no pattern is "
            "ever exact. The paper's certified radius is safe but cautious: on average "
            f"{100 * sum(ratio) / len(ratio):.0f}% of the largest possible one for 2-entmax. In "
            f"{last['dimension']} dimensions Prop. 3 promises {last['predicted']:.0f} random "
            f"patterns, and {last['measured']:.0f} fit."
        )


experiment = Theory()


def _sphere(count: int, dimension: int, *key: int) -> Tensor:
    generator = torch.Generator().manual_seed(int("9".join(str(part) for part in key)) % (1 << 31))
    raw = torch.randn(count, dimension, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(raw, dim=-1)


def _fixed(memories: Tensor, name: str, beta: float) -> tuple[float, float]:
    """Percentages of patterns that are fixed points: returned bit for bit, and predicted."""
    network = HopfieldNetwork(memories, name, beta)
    measured = (network.update(memories) == memories).all(-1)
    predicted = theory.is_stationary(memories, name, beta)
    return 100 * float(measured.double().mean()), 100 * float(predicted.double().mean())


def _over(config: TheoryConfig, name: str, cases: list[tuple[float, int, float]]) -> list[Any]:
    points = []
    for x, count, beta in cases:
        pairs = [
            _fixed(_sphere(count, config.dimension, config.seed, trial, count), name, beta)
            for trial in range(config.trials)
        ]
        measured, predicted = (sum(values) / len(pairs) for values in zip(*pairs, strict=True))
        points.append({"x": x, "measured": measured, "predicted": predicted})
    return points


def _over_beta(config: TheoryConfig, name: str) -> list[Any]:
    return _over(config, name, [(beta, config.patterns, beta) for beta in config.betas])


def _over_count(config: TheoryConfig, name: str) -> list[Any]:
    return _over(config, name, [(count, count, 3.0) for count in config.counts])


def _over_noise(config: TheoryConfig, name: str) -> list[Any]:
    """Queries at a given distance in random directions; promised: those within their radius."""
    beta, points = 6.0, []
    for noise in config.noises:
        measured, promised = 0.0, 0.0
        for trial in range(config.trials):
            memories = _sphere(config.patterns, config.dimension, config.seed, trial, 1)
            away = _sphere(config.patterns, config.dimension, config.seed, trial, 2)
            found = HopfieldNetwork(memories, name, beta).retrieve(
                memories + noise * away, max_steps=50
            )
            right = found.pattern == torch.arange(config.patterns)
            radius = theory.certified_radius(memories, name, beta)
            measured += 100 * float(right.double().mean()) / config.trials
            promised += 100 * float((radius >= noise).double().mean()) / config.trials
        points.append({"x": noise, "measured": measured, "promised": promised})
    return points


def _radii(config: TheoryConfig, name: str) -> list[Any]:
    """How far a query can go in the worst direction before one update no longer recalls."""
    beta = 6.0
    memories = _sphere(config.patterns, config.dimension, config.seed, 0, 1)
    exact = theory.certified_radius(memories, name, beta)
    paper = theory.certified_radius(memories, name, beta, bound="paper")
    chosen = (exact > 0).nonzero().flatten()[:40]
    apart = memories.unsqueeze(0) - memories[chosen].unsqueeze(1)
    distance = torch.linalg.vector_norm(apart, dim=-1)
    room = -(apart * memories[chosen].unsqueeze(1)).sum(-1) - theory.lead(name, beta)
    reach = torch.where(distance == 0, torch.inf, room / distance.clamp_min(1e-300))
    rival = reach.argmin(-1, keepdim=True)
    worst = torch.nn.functional.normalize(
        apart.gather(1, rival.unsqueeze(-1).expand(-1, -1, memories.shape[1])).squeeze(1), dim=-1
    )
    network = HopfieldNetwork(memories, name, beta)
    low, high = torch.zeros(len(chosen)).double(), torch.full((len(chosen),), 2.0).double()
    for _ in range(50):
        middle = (low + high) / 2
        queries = memories[chosen] + middle.unsqueeze(-1) * worst
        weights = network.weights(queries).gather(1, chosen.unsqueeze(-1)).squeeze(-1)
        recalled = weights == 1
        low, high = torch.where(recalled, middle, low), torch.where(recalled, high, middle)
    table = zip(low.tolist(), exact[chosen].tolist(), paper[chosen].tolist(), strict=True)
    return [{"measured": m, "exact": e, "paper": p} for m, e, p in table]


def _capacity(config: TheoryConfig) -> list[Any]:
    """Patterns that come one by one until two are too close; the promise fails this often."""
    points = []
    beta = omega_from("2-entmax").margin / LEAD
    zeta = 1 / math.acos(1 - LEAD)
    for dimension in config.dimensions:
        promise = theory.random_capacity(dimension, "2-entmax", beta, zeta=zeta, failure=FAILURE)
        fits = sorted(
            _until_too_close(dimension, config.seed, draw) for draw in range(config.draws)
        )
        measured = fits[int(FAILURE * len(fits))]
        # The formula promises less than one pattern in very low dimensions; one always fits.
        predicted = max(1, promise.patterns)
        points.append({"dimension": dimension, "predicted": predicted, "measured": measured})
    return points


def _until_too_close(dimension: int, seed: int, draw: int) -> int:
    """How many random patterns all stay fixed points: until two similarities exceed 1 - m/beta."""
    block, kept, number = 256, torch.empty(0, dimension, dtype=torch.float64), 0
    while True:
        new = _sphere(block, dimension, seed, draw, dimension, number)
        together = torch.cat([kept, new])
        similar = (new @ together.T) > 1 - LEAD
        order = torch.arange(together.shape[0])
        earlier = order.unsqueeze(0) < (order[kept.shape[0] :]).unsqueeze(1)
        clash = (similar & earlier).any(-1)
        if bool(clash.any()):
            return kept.shape[0] + int(clash.int().argmax())
        kept, number = together, number + 1


def _draw_rates(ax: Any, curves: Mapping[str, Any], label: str, line: str, *, log: bool) -> None:
    for number, (name, points) in enumerate(curves.items()):
        x = [point["x"] for point in points]
        own = GRAY if name == SOFTMAX else color_of(number)
        ax.plot(x, [point[line] for point in points], color=own, linewidth=1.5)
        ax.plot(
            x, [point["measured"] for point in points], color=own, linestyle="none",
            marker=MARKERS[number], markersize=5, markerfacecolor="white", label=name,
        )  # fmt: skip
    ax.set_xlabel(label)
    ax.set_ylim(-4, 104)
    if log:
        ax.set_xscale("log")
    ax.spines[["top", "right"]].set_visible(False)


def _draw_radii(ax: Any, radii: Mapping[str, Any]) -> None:
    largest = max(point["exact"] for points in radii.values() for point in points)
    ax.plot([0, largest], [0, largest], color=GRAY, linewidth=1)
    for number, points in enumerate(radii.values()):
        x = [point["exact"] for point in points]
        ax.plot(
            x, [point["measured"] for point in points], color=color_of(number), linestyle="none",
            marker=MARKERS[number], markersize=5, markerfacecolor="white",
        )  # fmt: skip
        ax.plot(
            x, [point["paper"] for point in points], color=color_of(number), linestyle="none",
            marker=".", markersize=3,
        )  # fmt: skip
    ax.set(title="Radius of one-step recall", xlabel="certified (exact bound)")
    ax.set_ylabel("measured (dots: the paper's bound)")
    ax.spines[["top", "right"]].set_visible(False)


def _draw_capacity(ax: Any, points: Sequence[Mapping[str, Any]]) -> None:
    x = [point["dimension"] for point in points]
    ax.plot(x, [point["predicted"] for point in points], color=color_of(1), linewidth=1.5)
    ax.plot(
        x, [point["measured"] for point in points], color=color_of(1), linestyle="none",
        marker=MARKERS[1], markersize=5, markerfacecolor="white",
    )  # fmt: skip
    ax.set_yscale("log")
    ax.set(title="Capacity for random patterns", xlabel="dimension D")
    ax.set_ylabel(f"patterns (failure {100 * FAILURE:g}%)")
    ax.spines[["top", "right"]].set_visible(False)


def _draw_key(ax: Any) -> None:
    for number, name in enumerate((*MAPS, SOFTMAX)):
        own = GRAY if name == SOFTMAX else color_of(number)
        text = "softmax (no margin)" if name == SOFTMAX else name
        ax.plot([], [], color=own, marker=MARKERS[number], markerfacecolor="white", label=text)
    ax.plot([], [], color=GRAY, marker="none", label="line: predicted or promised")
    ax.plot([], [], color=GRAY, marker="o", linestyle="none", mfc="white", label="mark: measured")
    ax.legend(loc="center left", frameon=False, fontsize=10)
    ax.set_axis_off()
