"""How much chance is in a mean of Table 2: seeds, folds and initial weights taken apart.

``python -m hopfy.paper.mil._noise fox softmax 5-subsets`` trains a method's networks for all
combinations of five seeds (partitions of the bags), their ten folds and five initializations, which
are the same for all folds as in the public code, and prints the variance that each of them adds, as
JSON: a cell of ``docs/results/mil-noise.json``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.paper.mil._benchmarks import train_on_benchmark
from hopfy.paper.mil._networks import BagModel
from hopfy.paper.record import compact

__all__ = ["Noise", "decompose", "on_animal", "summary"]


class Noise(NamedTuple):
    """Variances of an area in percent, by what causes them.

    Attributes:
        seeds: the partition of the bags into folds.
        folds: the fold within a partition.
        initializations: the initial weights, beyond what depends on the fold.
        rest: what initial weights and fold do together.
    """

    seeds: float
    folds: float
    initializations: float
    rest: float

    def error(self, seeds: int, folds: int, *, initializations: int = 1) -> float:
        """The standard error of a mean over ``seeds`` partitions of ``folds`` folds.

        ``initializations`` are shared by all folds; one, as in the public code, adds its whole
        variance however many folds there are. Networks that all begin differently have
        ``seeds * folds``.

        >>> noise = Noise(seeds=1.0, folds=90.0, initializations=1.0, rest=10.0)
        >>> round(noise.error(5, 10), 2), round(noise.error(5, 10, initializations=50), 2)
        (1.79, 1.49)
        """
        parts = seeds * folds
        variance = self.seeds / seeds + (self.folds + self.rest) / parts
        return math.sqrt(variance + self.initializations / initializations)


def decompose(areas: Tensor) -> Noise:
    r"""Variance components of areas (seeds S, folds F, initializations I).

    .. math:: a_{sfi} = \mu + A_s + B_{sf} + C_i + \epsilon_{sfi}

    From the mean squares of the balanced analysis of variance; an estimate below zero is zero.
    """
    if areas.ndim != 3 or min(areas.shape) < 2:
        raise ValueError(
            "expected areas of at least 2 seeds, 2 folds and 2 initializations, got the shape "
            f"{tuple(areas.shape)}."
        )
    areas = areas.double()
    seeds, folds, begun = areas.shape
    of_seed, of_fold, of_begin = areas.mean((1, 2)), areas.mean(2), areas.mean((0, 1))
    by_seed = folds * begun * float(of_seed.var())
    within = (of_fold - of_seed.unsqueeze(1)).square().sum() / (seeds * (folds - 1))
    by_fold = begun * float(within)
    by_begin = seeds * folds * float(of_begin.var())
    residual = areas - of_fold.unsqueeze(2) - of_begin + areas.mean()
    rest = float(residual.square().sum()) / ((seeds * folds - 1) * (begun - 1))
    return Noise(
        seeds=max(0.0, (by_seed - by_fold) / (folds * begun)),
        folds=max(0.0, (by_fold - rest) / begun),
        initializations=max(0.0, (by_begin - rest) / (seeds * folds)),
        rest=rest,
    )


def on_animal(
    animal: str,
    method: str,
    *,
    seeds: Sequence[int] = range(5),
    folds: int = 10,
    initializations: Sequence[int] = range(5),
) -> Tensor:
    """Test areas in percent (seeds, folds, initializations) with the laptop profile's settings."""
    models = [
        BagModel(method, 32, heads=12, head_size=32, dropout=0.75, normalize=True, begin=begin)
        for begin in initializations
    ]
    found = train_on_benchmark(animal, seeds, folds, models, {"lr": 1e-3, "decay": 0.98})
    areas = torch.tensor([each["folds"] for each in found], dtype=torch.float64)
    return areas.permute(1, 2, 0)


def summary(areas: Tensor) -> dict[str, float]:
    """Mean and variances of areas as `decompose` takes them, and standard errors of a mean of 5 x 10
    networks, each with its own initialization and with one for all."""
    noise = decompose(areas)
    return {
        "mean": float(areas.mean()),
        **noise._asdict(),
        "error": noise.error(5, 10, initializations=50),
        "error_of_one_initialization": noise.error(5, 10),
    }


def _lines(animal: str, methods: Sequence[str]) -> Iterator[str]:
    for method in methods:
        found = {"animal": animal, "method": method, **summary(on_animal(animal, method))}
        yield compact(found).rstrip()


if __name__ == "__main__":
    for line in _lines(sys.argv[1], sys.argv[2:]):
        print(line, flush=True)
