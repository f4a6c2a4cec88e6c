"""What free and sequential recall share: memories of images, and bars with quartiles."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import hopfy
from hopfy.memory import Fatigue
from hopfy.paper._base import Config
from hopfy.paper._drawing import canvas, save
from hopfy.paper.recall._setting import draw
from hopfy.plot.style import color_of

__all__ = ["FATIGUE", "OrderConfig", "best_and_worst", "draw_bars", "filled", "quartiles"]

_SCALE = {"mnist": 1.0, "digits": 784 / 64}
FATIGUE = Fatigue(strength=1e9, rate=1e-3)  # as published


@dataclass(frozen=True)
class OrderConfig(Config):
    """How many images are stored, from how many of them a recall begins, at which beta."""

    source: str = "mnist"
    stored: int = 128
    cues: int = 8
    draws: int = 5
    betas: tuple[float, ...] = (1.0, 0.1)
    omegas: tuple[str, ...] = ("softmax", "1.5-entmax", "sparsemax", "2-normmax", "5-normmax")


def filled(
    config: OrderConfig, omega: str, beta: float, number: int
) -> tuple[hopfy.AssociativeMemory, Tensor]:
    """A memory of the images of one draw, and the cues: the first of them."""
    images = draw(config.source, config.stored, config.seed + 1000 * number)
    memory = hopfy.AssociativeMemory(omega, beta * _SCALE[config.source], compare="dot").fit(images)
    return memory, images[: config.cues]


def quartiles(values: Sequence[float]) -> dict[str, float]:
    """Median, lower and upper quartile."""
    table = torch.tensor(values, dtype=torch.float64)
    low, median, high = torch.quantile(table, torch.tensor([0.25, 0.5, 0.75]).double()).tolist()
    return {"median": round(median, 6), "low": round(low, 6), "high": round(high, 6)}


def draw_bars(
    entries: Sequence[Mapping[str, Any]],
    measures: Sequence[tuple[str, str]],
    folder: Path,
    name: str,
) -> None:
    """One panel for each measure (its key and its label), one group of bars for each way to recall."""
    ways = list(dict.fromkeys(entry["way"] for entry in entries))
    betas = list(dict.fromkeys(entry["beta"] for entry in entries))
    figure = canvas(0.8 * len(ways) + 2.2, 2.4 * len(measures) + 0.5)
    axes = figure.subplots(len(measures), 1, sharex=True, squeeze=False)[:, 0]
    for (key, label), ax in zip(measures, axes, strict=True):
        for entry in entries:
            found, b = entry[key], betas.index(entry["beta"])
            at = ways.index(entry["way"]) + (b - (len(betas) - 1) / 2) * 0.8 / len(betas)
            errors = [[found["median"] - found["low"]], [found["high"] - found["median"]]]
            ax.bar(
                at, found["median"], 0.72 / len(betas), color=color_of(b), yerr=errors, capsize=2,
                label=f"beta {entry['beta']:g}" if entry["way"] == ways[0] else None,
            )  # fmt: skip
        ax.set_ylim(0, 1.05)
        ax.set_ylabel(label)
    axes[-1].set_xticks(range(len(ways)), ways, rotation=25, ha="right")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside upper center", ncols=len(betas),
                  frameon=False, fontsize=9)  # fmt: skip
    save(figure, folder, name)


def best_and_worst(entries: Sequence[Mapping[str, Any]], measure: str) -> str:
    """The largest and the smallest median of a measure, and where they were found.

    >>> one = {"way": "softmax", "beta": 1.0, "order": {"median": 0.5}}
    >>> best_and_worst([one, {**one, "beta": 0.1, "order": {"median": 0.25}}], "order")
    '50% (softmax at beta 1) to 25% (softmax at beta 0.1)'
    >>> best_and_worst([one, one], "order")
    '50% for all'
    """
    shares = [100 * entry[measure]["median"] for entry in entries]
    if max(shares) == min(shares):
        return f"{max(shares):.0f}% for all"
    best, worst = (entries[shares.index(end)] for end in (max(shares), min(shares)))
    return (
        f"{max(shares):.0f}% ({best['way']} at beta {best['beta']:g}) to "
        f"{min(shares):.0f}% ({worst['way']} at beta {worst['beta']:g})"
    )
