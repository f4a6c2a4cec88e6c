"""Sequential recall: whether memories come back in the order in which they were stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

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

__all__ = ["SequentialRecall", "experiment"]


class SequentialRecall(Experiment[OrderConfig]):
    """All memories from the first one, in their order."""

    name: ClassVar[str] = "sequential-recall"
    title: ClassVar[str] = "Sequential recall: memories in their order"
    profiles: ClassVar[Mapping[str, OrderConfig]] = {
        "demo": OrderConfig(source="digits", stored=16, cues=1, draws=1, betas=(1.0,)),
        "quick": OrderConfig(source="digits", stored=48, cues=1, draws=3),
        "laptop": OrderConfig(cues=1),
        "paper": OrderConfig(cues=1),
    }

    def data_checksum(self, config: OrderConfig) -> str:
        return checksum(config.source)

    def run(self, config: OrderConfig, store: Store, progress: Progress) -> dict[str, Any]:
        progress.begin(self.title, len(config.omegas) * len(config.betas))
        entries = []
        for beta in config.betas:
            for omega in config.omegas:
                found = store.part(f"{omega} beta {beta:g}", partial(_measure, config, omega, beta))
                measures = {key: quartiles(values) for key, values in found.items()}
                entries.append({"way": omega, "beta": beta, **measures})
                progress.advance()
        return {"source": config.source, "stored": config.stored, "entries": entries}

    def compare(self, results: Mapping[str, Any]) -> Sequence[Row]:
        rows = []
        for e in results["entries"]:
            name = f"{e['way']}, beta {e['beta']:g}"
            rows.append(Row(f"{name}: share of memories", e["distinct"]["median"]))
            rows.append(Row(f"{name}: agreement of the order", e["order"]["median"]))
        return rows

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        measures = [("distinct", "share of memories"), ("order", "agreement of the order")]
        draw_bars(results["entries"], measures, folder, "sequential-recall")
        return [
            Figure(
                "sequential-recall",
                f"From the first of {results['stored']} images: the share that comes back, and "
                "1 - Levenshtein / N of the order against the order of storage; bars are medians "
                "over draws, lines quartiles.",
            )
        ]

    def explain(self, results: Mapping[str, Any]) -> str:
        return (
            "Agreement of the order in which memories come back with that of storage: "
            f"{best_and_worst(results['entries'], 'order')}. Sequential 2-subsets find the neighbor "
            "of a pure memory; the order is lost where a state is a mixture, or "
            "where a longer image takes its place, as the scores are inner products."
        )


experiment = SequentialRecall()


def _measure(config: OrderConfig, omega: str, beta: float) -> dict[str, list[float]]:
    distinct: list[float] = []
    order: list[float] = []
    for number in range(config.draws):
        memory, cues = filled(config, omega, beta, number)
        found = memory.sequential_recall(cues, inhibition=FATIGUE)
        distinct += found.distinct.tolist()
        order += found.agreement(memory.ids).tolist()
    return {"distinct": distinct, "order": order}
