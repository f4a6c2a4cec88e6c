from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

__all__ = ["blocks", "light_blocks"]

# Numbers in a light block: small beside the caches of what works on it, also in float64.
_LIGHT = 1 << 18


def blocks(rows: Tensor, size: int) -> Iterator[Tensor]:
    """The rows, ``size`` at a time, as views."""
    for start in range(0, rows.shape[0], size):
        yield rows[start : start + size]


def light_blocks(rows: Tensor) -> Iterator[Tensor]:
    """The rows, about a quarter of a million numbers at a time, as views."""
    width = rows[:1].numel()
    return blocks(rows, max(1, _LIGHT // max(1, width)))
