"""Compiled loops of sparse attention: rows of scores in, the few selected entries out."""

from __future__ import annotations

from hopfy._kernels.attention.cpu_few_queries import few_queries, products
from hopfy._kernels.attention.cpu_rows import blank, compact, outside, pick, row_ranges, spread
from hopfy._kernels.attention.cpu_select import select
from hopfy._kernels.attention.cpu_short import norm_through, short_through, short_weights
from hopfy._kernels.attention.cpu_short_nonconvex import (
    short_steep,
    short_subsets,
    steep_through,
    subsets_through,
)
from hopfy._kernels.attention.cpu_support import backward, gather

__all__ = [
    "backward",
    "blank",
    "compact",
    "few_queries",
    "gather",
    "norm_through",
    "outside",
    "pick",
    "products",
    "row_ranges",
    "select",
    "short_steep",
    "short_subsets",
    "short_through",
    "short_weights",
    "spread",
    "steep_through",
    "subsets_through",
]
