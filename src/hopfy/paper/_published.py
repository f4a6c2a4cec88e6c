"""Published numbers.

Source: Santos, Niculae, McNamee, Martins: Sparse and Structured Hopfield Networks, ICML 2024
(arXiv 2402.13725).
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["METASTABLE_STATES", "MIL", "MIL_TASKS", "SIZES", "MILRow", "MetastableColumn"]

SIZES = ("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "10+")
"""The rows of Table 1. The last one is whatever the others leave of 100%."""


class MetastableColumn(NamedTuple):
    """A column of Table 1: the share of queries, in percent, for each of `SIZES`."""

    omega: str
    beta: float
    percent: tuple[float, ...]


METASTABLE_STATES = (
    MetastableColumn("1-entmax", 0.1, (3.5, 2.1, 1.6, 1.2, 1.2, 0.9, 1.1, 0.8, 1.0, 1.1, 85.5)),
    MetastableColumn("1.5-entmax", 0.1, (69.2, 8.6, 3.9, 2.3, 1.6, 0.9, 0.6, 0.6, 0.3, 0.1, 11.9)),
    MetastableColumn("2-entmax", 0.1, (88.1, 5.2, 2.6, 1.6, 1.1, 0.8, 0.4, 0.1, 0.0, 0.0, 0.1)),
    MetastableColumn("2-normmax", 0.1, (81.4, 6.7, 1.9, 1.0, 0.9, 0.5, 0.4, 0.8, 0.5, 0.5, 5.4)),
    MetastableColumn("5-normmax", 0.1, (51.4, 31.4, 7.0, 2.1, 1.5, 1.5, 1.3, 1.0, 0.8, 0.6, 1.4)),
    MetastableColumn("2-subsets", 0.1, (0.0, 87.3, 6.1, 2.5, 2.0, 1.1, 0.6, 0.2, 0.1, 0.0, 0.1)),
    MetastableColumn("4-subsets", 0.1, (0.0, 0.0, 0.0, 80.0, 11.9, 4.4, 2.1, 1.0, 0.4, 0.1, 0.0)),
    MetastableColumn("8-subsets", 0.1, (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 60.0, 26.0, 9.2, 4.8)),
    MetastableColumn("1-entmax", 1.0, (97.8, 0.9, 0.4, 0.3, 0.2, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1)),
    MetastableColumn("1.5-entmax", 1.0, (99.9, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    MetastableColumn("2-entmax", 1.0, (100.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    MetastableColumn("2-normmax", 1.0, (100.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    MetastableColumn("5-normmax", 1.0, (99.8, 0.2, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    MetastableColumn("2-subsets", 1.0, (0.0, 99.9, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)),
    MetastableColumn("4-subsets", 1.0, (0.0, 0.0, 0.0, 99.3, 0.7, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0)),
    MetastableColumn("8-subsets", 1.0, (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 95.0, 4.7, 0.2, 0.1)),
)

MIL_TASKS = ("K=1", "K=2", "K=3", "K=5", "fox", "tiger", "elephant")
"""The columns of Table 2: accuracy on MNIST bags, then area under the ROC curve."""


class MILRow(NamedTuple):
    """A row of Table 2: mean and deviation over five runs, in percent, for each of `MIL_TASKS`."""

    omega: str
    cells: tuple[tuple[float, float], ...]


MIL = (
    MILRow(
        "softmax",
        ((98.4, 0.2), (94.6, 0.5), (91.1, 0.5), (89.0, 0.3), (66.4, 2.0), (87.1, 1.6), (92.6, 0.6)),
    ),
    MILRow(
        "1.5-entmax",
        ((97.6, 0.8), (96.0, 0.9), (90.4, 1.1), (92.4, 1.4), (66.3, 2.0), (87.3, 1.5), (92.4, 1.0)),
    ),
    MILRow(
        "sparsemax",
        ((97.9, 0.2), (96.7, 0.5), (92.9, 0.9), (91.6, 1.0), (66.1, 0.6), (87.7, 1.4), (91.8, 0.6)),
    ),
    MILRow(
        "2-normmax",
        ((97.9, 0.3), (96.6, 0.6), (93.9, 0.7), (92.4, 0.7), (66.1, 2.5), (86.4, 0.8), (92.4, 0.7)),
    ),
    MILRow(
        "5-normmax",
        ((98.2, 0.5), (97.2, 0.3), (95.8, 0.4), (93.2, 0.5), (66.4, 2.3), (85.5, 0.6), (93.0, 0.7)),
    ),
    MILRow(
        "2-subsets",
        ((97.9, 0.3), (97.7, 0.3), (95.1, 0.5), (92.6, 1.1), (66.8, 2.7), (85.3, 0.5), (93.2, 0.7)),
    ),
    MILRow(
        "3-subsets",
        ((98.0, 0.6), (96.1, 1.0), (96.5, 0.5), (92.2, 1.2), (67.4, 2.0), (86.1, 0.8), (92.6, 1.7)),
    ),
    MILRow(
        "5-subsets",
        ((98.2, 0.4), (96.2, 1.4), (95.1, 1.1), (95.1, 1.5), (67.0, 2.0), (86.3, 0.8), (91.2, 1.0)),
    ),
)
