"""Free recall: how many different memories come back from one cue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from hopfy.memory import Inhibition, UseUp
from hopfy.paper._base import Experiment, Figure, Progress, Row, Store
from hopfy.paper.recall._orders import (
    FATIGUE,
    OrderConfig,
    best_and_worst,
    draw_bars,
    filled,
    quartiles,
)
from hopfy.paper.recall._setting import checksum

__all__ = ["FreeRecall", "experiment"]

_CAPPED = "capped sparsemax"


class FreeRecall(Experiment[OrderConfig]):
    """All memories from one cue, in any order."""

    name: ClassVar[str] = "free-recall"
    title: ClassVar[str] = "Free recall: all memories from one cue"
    profiles: ClassVar[Mapping[str, OrderConfig]] = {
        "demo": OrderConfig(source="digits", stored=24, cues=2, draws=1, betas=(1.0,)),
        "quick": OrderConfig(source="digits", stored=64, cues=4, draws=3),
        "laptop": OrderConfig(),
        "paper": OrderConfig(cues=128),
    }

    def data_checksum(self, config: OrderConfig) -> str:
        return checksum(config.source)

    def run(self, config: OrderConfig, store: Store, progress: Progress) -> dict[str, Any]:
        ways: list[tuple[str, str, Inhibition]]
        ways = [(omega, omega, FATIGUE) for omega in config.omegas]
        ways.append((_CAPPED, "sparsemax", UseUp()))
        progress.begin(self.title, len(ways) * len(config.betas))
        entries = []
        for beta in config.betas:
            for way, omega, inhibition in ways:
                compute = partial(_distinct, config, omega, beta, inhibition)
                shares = store.part(f"{way} beta {beta:g}", compute)
                entries.append({"way": way, "beta": beta, "distinct": quartiles(shares)})
                progress.advance()
        return {"source": config.source, "stored": config.stored, "entries": entries}

    def compare(self, results: Mapping[str, Any]) -> Sequence[Row]:
        return [
            Row(f"{e['way']}, beta {e['beta']:g}: share of memories", e["distinct"]["median"])
            for e in results["entries"]
        ]

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        draw_bars(results["entries"], [("distinct", "share of memories")], folder, "free-recall")
        return [
            Figure(
                "free-recall",
                f"Share of the {results['stored']} stored images that come back from one of them as "
                "a cue, in as many steps; bars are medians over cues and draws, lines quartiles.",
            )
        ]

    def explain(self, results: Mapping[str, Any]) -> str:
        return (
            f"Share of the {results['stored']} memories that come back: "
            f"{best_and_worst(results['entries'], 'distinct')}. A memory comes back on its own only "
            "where the map gives it nearly all the weight: mixtures tire together, and their parts are lost."
        )


experiment = FreeRecall()


def _distinct(config: OrderConfig, omega: str, beta: float, inhibition: Inhibition) -> list[float]:
    shares: list[float] = []
    for number in range(config.draws):
        memory, cues = filled(config, omega, beta, number)
        shares += memory.free_recall(cues, inhibition=inhibition).distinct.tolist()
    return shares
