"""How many images a network can recall from their upper half, for every pair of regularizers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hopfy.paper._base import Figure, Row
from hopfy.paper.recall._figure import draw_panels
from hopfy.paper.recall._setting import CurvesOfPairs, ImagesConfig, Pair, draw, name_of, recalled

__all__ = ["Capacity", "CapacityConfig", "experiment"]

_HALF = 0.5


@dataclass(frozen=True)
class CapacityConfig(ImagesConfig):
    """How many images are stored, from few to many."""

    sizes: tuple[int, ...] = (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class Capacity(CurvesOfPairs[CapacityConfig]):
    """Half images among more and more others."""

    name: ClassVar[str] = "capacity"
    title: ClassVar[str] = "Capacity: recall from half of an image, for every pair of regularizers"
    profiles: ClassVar[Mapping[str, CapacityConfig]] = {
        "demo": CapacityConfig(source="digits", draws=2, queries=16, sizes=(4, 64), betas=(1.0,)),
        "quick": CapacityConfig(source="digits", draws=3, queries=64, sizes=(4, 16, 64, 256, 1024)),
        "laptop": CapacityConfig(queries=64, sizes=(4, 16, 64, 256, 1024)),
        "paper": CapacityConfig(queries=4096),
    }

    def places(self, config: CapacityConfig) -> Sequence[float]:
        return config.sizes

    def shares(self, pair: Pair, config: CapacityConfig) -> list[list[float]]:
        return [
            [_share(pair, config, size, config.seed + 1000 * number) for size in config.sizes]
            for number in range(config.draws)
        ]

    def compare(self, results: Mapping[str, Any]) -> Sequence[Row]:
        return [
            Row(f"{name_of(each)}: images stored at which half are still recalled", _reach(each))
            for each in results["curves"]
        ]

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        labels = ("stored images", "share recalled")
        draw_panels(results["curves"], folder, "capacity", labels, logarithmic=True)
        return [
            Figure(
                "capacity",
                "Share of the images that five updates recall from their upper half (cosine above "
                "0.9), over the number of stored images; lines are medians, bands quartiles over "
                f"{results['draws']} draws. Weights without a bound need a bounded state.",
            )
        ]

    def explain(self, results: Mapping[str, Any]) -> str:
        best = max(results["curves"], key=lambda each: (_reach(each), each["median"][-1]))
        classic = [each for each in results["curves"] if each["omega"] == "identity"]
        most = max(_reach(each) for each in classic)
        ends = {(each["omega"], each["state"], each["beta"]): each for each in results["curves"]}
        coldest = min(each["beta"] for each in results["curves"])
        soft, sparse = (
            100 * ends[omega, "euclidean", coldest]["median"][-1]
            for omega in ("softmax", "sparsemax")
        )
        return (
            f"With {best['x'][-1]} images stored, {name_of(best)} still recalls "
            f"{100 * best['median'][-1]:.0f}% of them from their upper half, while the identity "
            f"(the network of 1982) never recalls half of its images beyond {most:g} of them. "
            f"Sparse maps need no large beta: at beta {coldest:g} sparsemax recalls {sparse:.0f}% "
            f"of the most images, softmax {soft:.0f}%."
        )


experiment = Capacity()


def _share(pair: Pair, config: CapacityConfig, size: int, seed: int) -> float:
    images = draw(config.source, size, seed)
    queries = images[: config.queries].clone()
    queries[:, queries.shape[1] // 2 :] = 0.0
    return recalled(pair, images, queries, config)


def _reach(each: Mapping[str, Any]) -> float:
    """The largest number of stored images of which half are recalled; 0 if there is none."""
    good = [x for x, share in zip(each["x"], each["median"], strict=True) if share >= _HALF]
    return float(max(good, default=0))
