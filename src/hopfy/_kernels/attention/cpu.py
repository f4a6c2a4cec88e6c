"""Compiled loops of sparse attention: rows of scores in, the few selected entries out."""

from __future__ import annotations

from hopfy._kernels.attention.cpu_rows import blank, compact, outside, pick, row_ranges, spread
from hopfy._kernels.attention.cpu_select import select
from hopfy._kernels.attention.cpu_short import short_through, short_weights
from hopfy._kernels.attention.cpu_support import backward, gather

__all__ = [
    "backward",
    "blank",
    "compact",
    "gather",
    "outside",
    "pick",
    "row_ranges",
    "select",
    "short_through",
    "short_weights",
    "spread",
]
