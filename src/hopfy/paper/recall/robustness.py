"""How much noise on an image a network forgives, for every pair of regularizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch

from hopfy.paper._base import Figure, Row
from hopfy.paper.recall._figure import draw_panels
from hopfy.paper.recall._setting import CurvesOfPairs, ImagesConfig, Pair, draw, name_of, recalled

__all__ = ["Robustness", "RobustnessConfig", "experiment"]

_HALF = 0.5


@dataclass(frozen=True)
class RobustnessConfig(ImagesConfig):
    """How many images are stored, and how strong the noise is."""

    stored: int = 100
    noises: tuple[float, ...] = (0.0, 0.5, 1.0, 2.0, 3.0, 5.0, 7.5, 10.0, 15.0)


class Robustness(CurvesOfPairs[RobustnessConfig]):
    """Noisy images among a hundred others."""

    name: ClassVar[str] = "robustness"
    title: ClassVar[str] = "Robustness: recall from noisy images, for every pair of regularizers"
    profiles: ClassVar[Mapping[str, RobustnessConfig]] = {
        "demo": RobustnessConfig(
            source="digits", draws=2, stored=40, noises=(0.0, 2.0), betas=(1.0,)
        ),
        "quick": RobustnessConfig(source="digits", draws=3, noises=(0.0, 1.0, 2.0, 5.0, 15.0)),
        "laptop": RobustnessConfig(),
        "paper": RobustnessConfig(noises=tuple(map(float, range(16)))),
    }

    def places(self, config: RobustnessConfig) -> Sequence[float]:
        return config.noises

    def shares(self, pair: Pair, config: RobustnessConfig) -> list[list[float]]:
        rows = []
        for number in range(config.draws):
            images = draw(config.source, config.stored, config.seed + 1000 * number)
            generator = torch.Generator().manual_seed(config.seed + 1000 * number + 1)
            noise = torch.randn(images.shape, generator=generator)
            noisy = [(images + each * noise).clamp(-1, 1) for each in config.noises]
            rows.append([recalled(pair, images, queries, config) for queries in noisy])
        return rows

    def compare(self, results: Mapping[str, Any]) -> Sequence[Row]:
        return [
            Row(f"{name_of(each)}: mean share recalled over all noises", _mean(each))
            for each in results["curves"]
        ]

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        draw_panels(
            results["curves"], folder, "robustness", ("deviation of the noise", "share recalled")
        )
        return [
            Figure(
                "robustness",
                "Share of a hundred stored images that five updates recall (cosine above 0.9) from "
                "a copy with Gaussian noise, clamped to [-1, 1]; lines are medians, bands quartiles "
                f"over {results['draws']} draws.",
            )
        ]

    def explain(self, results: Mapping[str, Any]) -> str:
        best, worst = max(results["curves"], key=_mean), min(results["curves"], key=_mean)
        plain = [each for each in results["curves"] if each["state"] == "euclidean"]
        spread = 100 * (max(map(_mean, plain)) - min(map(_mean, plain)))
        names = {each["omega"] for each in plain}
        others = [each for each in results["curves"] if each["omega"] not in names]
        lost = sum(each["median"][0] < _HALF for each in others)
        return (
            f"Averaged over all noises, {name_of(best)} recalls {100 * _mean(best):.0f}% of the "
            f"images and {name_of(worst)} {100 * _mean(worst):.0f}%. The maps on the simplex differ by "
            f"at most {spread:.0f} points (Euclidean states), as noise that points to another image "
            f"defeats them alike, whereas {lost} of the {len(others)} networks with weights without a "
            "bound recall less than half of the images without any noise."
        )


experiment = Robustness()


def _mean(each: Mapping[str, Any]) -> float:
    return float(sum(each["median"]) / len(each["median"]))
