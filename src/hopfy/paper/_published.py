"""The paper's printed numbers, read from the JSON files in ``hopfy/paper/published``.

Source: Santos, Niculae, McNamee, Martins: Sparse and Structured Hopfield Networks, ICML 2024
(arXiv 2402.13725).
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any, NamedTuple

__all__ = [
    "METASTABLE_STATES",
    "MIL",
    "MIL_TASKS",
    "RATIONALES",
    "SIZES",
    "MILRow",
    "MetastableColumn",
    "PublishedRationale",
    "Spread",
]


class MetastableColumn(NamedTuple):
    """A column of Table 1: the share of queries, in percent, for each of `SIZES`."""

    omega: str
    beta: float
    percent: tuple[float, ...]


class MILRow(NamedTuple):
    """A row of Table 2: mean and deviation over five runs, in percent, for each of `MIL_TASKS`."""

    omega: str
    cells: tuple[tuple[float, float], ...]


class Spread(NamedTuple):
    """Mean, least and greatest of five seeds, as printed: the mean may lie outside."""

    mean: float
    least: float
    greatest: float


class PublishedRationale(NamedTuple):
    """A row of Table 3: F1 on three data sets; squared error and human overlap on Beer."""

    sst: Spread
    ag_news: Spread
    imdb: Spread
    beer: Spread
    beer_overlap: Spread


def _table(name: str) -> Any:
    folder = resources.files("hopfy.paper") / "published"
    return json.loads((folder / name).read_text("utf-8"))


_TABLE1, _TABLE2, _TABLE3 = (_table(f"table{number}.json") for number in (1, 2, 3))

SIZES: tuple[str, ...] = tuple(_TABLE1["sizes"])
"""The rows of Table 1. The last one is whatever the others leave of 100%."""

METASTABLE_STATES = tuple(
    MetastableColumn(column["omega"], column["beta"], tuple(column["percent"]))
    for column in _TABLE1["columns"]
)
"""The columns of Table 1."""

MIL_TASKS: tuple[str, ...] = tuple(_TABLE2["tasks"])
"""The columns of Table 2: accuracy on MNIST bags, then area under the ROC curve."""

MIL = tuple(
    MILRow(row["omega"], tuple((mean, deviation) for mean, deviation in row["cells"]))
    for row in _TABLE2["rows"]
)
"""The rows of Table 2."""

RATIONALES = {
    method: PublishedRationale(**{data: Spread(*numbers) for data, numbers in row.items()})
    for method, row in _TABLE3["methods"].items()
}
"""Table 3 by method. The published softmax attention and the network without a rationale do not exist."""
