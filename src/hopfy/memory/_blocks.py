from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

__all__ = ["blocks"]


def blocks(rows: Tensor, size: int) -> Iterator[Tensor]:
    """The rows, ``size`` at a time, as views."""
    for start in range(0, rows.shape[0], size):
        yield rows[start : start + size]
