"""Published numbers.

Source: Santos, Niculae, McNamee, Martins: Sparse and Structured Hopfield Networks, ICML 2024
(arXiv 2402.13725).
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["METASTABLE_STATES", "SIZES", "MetastableColumn"]

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
