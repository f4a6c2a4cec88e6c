"""Table 1: how many stored digits take part in the state that a query ends in."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from hopfy.network import HopfieldNetwork
from hopfy.paper import data
from hopfy.paper._base import Config, Experiment, Figure, Progress, Row, Store
from hopfy.paper._metastable import metastable_sizes
from hopfy.paper._published import METASTABLE_STATES, SIZES, MetastableColumn

__all__ = ["Table1", "Table1Config", "experiment"]

_LARGEST = 10
_PIXELS = {"mnist": 784, "digits": 64}
_TOLERANCE = 0.1
_PRINTED_DIGITS = 1


@dataclass(frozen=True)
class Table1Config(Config):
    """Settings of a run.

    Attributes:
        source: ``"mnist"``, the paper's data, or ``"digits"``, which scikit-learn bundles.
        queries: how many test images are queries; the number of memories follows from the source.
        block: queries in one part of the run.
        max_steps: updates before the weights are counted.
    """

    source: str = "mnist"
    queries: int = 10_000
    block: int = 1_000
    max_steps: int = 5


class Table1(Experiment[Table1Config]):
    """The sizes of metastable states for 8 maps and 2 inverse temperatures."""

    name: ClassVar[str] = "table1"
    title: ClassVar[str] = "Table 1: metastable states on MNIST"
    profiles: ClassVar[Mapping[str, Table1Config]] = {
        "quick": Table1Config(source="digits", queries=300, block=300),
        "paper": Table1Config(),
    }

    def data_checksum(self, config: Table1Config) -> str:
        if config.source == "mnist":
            return data.dataset("mnist").checksum
        return hashlib.sha256(data.digits().images.numpy().tobytes()).hexdigest()

    def run(self, config: Table1Config, store: Store, progress: Progress) -> dict[str, Any]:
        """Count the queries of each size, some queries at a time, column by column."""
        material = _Material(config)
        blocks = range(0, config.queries, config.block)
        progress.begin(self.title, len(METASTABLE_STATES) * len(blocks))
        for start in blocks:  # all columns of a block, so that `so_far` shows the whole table early
            for published in METASTABLE_STATES:
                compute = partial(material.count, published, start)
                store.part(_part(published, start), compute)
                progress.advance()
        return _results(config, store, blocks)

    def so_far(self, config: Table1Config, store: Store) -> dict[str, Any]:
        """The table of those blocks of queries that all columns have finished."""
        blocks = [
            start
            for start in range(0, config.queries, config.block)
            if all(store.path(_part(each, start)).is_file() for each in METASTABLE_STATES)
        ]
        if not blocks:
            raise ValueError("expected at least one finished block of queries, got none yet.")
        return _results(config, store, blocks)

    def compare(self, results: Mapping[str, Any]) -> list[Row]:
        """Every cell; judged on MNIST only, because other data has other numbers.

        Ours are printed with one digit like the paper's, and may differ by one unit of it; the
        results hold the exact shares.
        """
        tol = _TOLERANCE if results["source"] == "mnist" else None
        rows = []
        for column, published in zip(results["columns"], METASTABLE_STATES, strict=True):
            name = f"{column['omega']}, beta {column['beta']:g}"
            for size, paper in zip(SIZES, published.percent, strict=True):
                ours = round(column["percent"][size], _PRINTED_DIGITS)
                rows.append(Row(f"{name}, size {size}", ours, paper, tol))
            if column["none"] > 0:
                rows.append(Row(f"{name}, of which size 0", column["none"]))
        return rows

    def draw(self, results: Mapping[str, Any], folder: Path) -> Sequence[Figure]:
        from hopfy.paper._table1_figure import draw

        draw(results, folder)
        return [
            Figure(
                "sizes",
                "Share of the queries (in percent) by the number of patterns in the state they end "
                "in. Sparse maps end in single patterns, k-subsets in k of them; softmax at the "
                "low beta mixes many.",
            )
        ]

    def explain(self, results: Mapping[str, Any]) -> str:
        none = max(column["none"] for column in results["columns"])
        text = (
            "After five updates a query has become a stored pattern (size 1) or a metastable "
            "mixture of several. "
        )
        if results["source"] != "mnist":
            text += (
                "Here 8 x 8 digits, with beta raised in proportion, stand in for MNIST: the shape "
                "of the table is the paper's, the digits are not. "
            )
        if none > 0:
            text += (
                "Softmax gives every pattern a weight, so only weights above 0.01 count; in "
                f"{none:.1f}% of the queries no weight is that large, and the paper's row 10+ "
                "includes these states of size 0."
            )
        return text.strip()


class _Material:
    """The memories and the queries, read when the first part asks for them."""

    def __init__(self, config: Table1Config) -> None:
        self._config = config
        # The parts of a column come one after the other and share its network, with its index.
        self._network = lru_cache(maxsize=1)(self._build)

    def _build(self, omega: str, beta: float) -> HopfieldNetwork:
        return HopfieldNetwork(self._images[0], omega, beta)

    @cached_property
    def _images(self) -> tuple[Tensor, Tensor]:
        count = self._config.queries
        if self._config.source == "mnist":
            memories, queries = data.mnist("train").images, data.mnist("test").images[:count]
            return _patterns(memories, 255), _patterns(queries, 255)
        images = _patterns(data.digits().images, 16)
        return images[:-count], images[-count:]

    def count(self, column: MetastableColumn, start: int) -> list[int]:
        """Queries of each size 0 .. 10, and of any larger one, among a block of them."""
        own = self._images[1][start : start + self._config.block]
        network = self._network(column.omega, _beta_used(column, self._config.source))
        sizes = metastable_sizes(network, own, self._config.max_steps)
        counts: list[int] = torch.bincount(
            sizes.clamp(max=_LARGEST + 1), minlength=_LARGEST + 2
        ).tolist()
        return counts


def _part(column: MetastableColumn, start: int) -> str:
    return f"{column.omega} beta {column.beta} from {start}"


def _beta_used(column: MetastableColumn, source: str) -> float:
    """The digits have 64 pixels instead of 784, so their beta is larger by that ratio: then beta
    times the squared norm of a pattern is what it is on MNIST."""
    return column.beta * _PIXELS["mnist"] / _PIXELS[source]


def _results(config: Table1Config, store: Store, blocks: Sequence[int]) -> dict[str, Any]:
    """The table of finished blocks."""
    columns = []
    for published in METASTABLE_STATES:
        counts = torch.zeros(_LARGEST + 2, dtype=torch.int64)
        for start in blocks:
            counts += torch.tensor(store.part(_part(published, start), _never))
        used = _beta_used(published, config.source)
        columns.append(_column(published.omega, published.beta, used, counts))
    queries = int(sum(columns[0]["counts"]))
    return {"source": config.source, "queries": queries, "columns": columns}


def _never() -> Any:
    raise RuntimeError("expected a finished part, but it is damaged: run without --so-far.")


def _patterns(images: Tensor, white: int) -> Tensor:
    """Rows of pixels in [-1, 1], float32."""
    return images.flatten(1).float().div_(white).mul_(2).sub_(1)


def _column(omega: str, beta: float, beta_used: float, counts: Tensor) -> dict[str, Any]:
    """Exact percentages; as in the paper, ``10+`` includes the states of size 0."""
    percent = (counts.double() * 100 / counts.sum()).tolist()
    sizes = {size: percent[int(size)] for size in SIZES[:-1]}
    sizes[SIZES[-1]] = percent[0] + percent[-1]
    return {
        "omega": omega,
        "beta": beta,
        "beta_used": beta_used,
        "percent": sizes,
        "none": percent[0],
        "counts": counts.tolist(),
    }


experiment = Table1()
