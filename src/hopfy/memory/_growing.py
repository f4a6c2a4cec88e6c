"""Rows that grow at the end while earlier views stay as they were."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

__all__ = ["Growing"]


class Growing:
    """A tensor with room behind its rows.

    Views of the first rows are handed out and never change: `append` writes behind them and doubles
    the room when it is full, so that n rows added one by one cost O(n) copied rows in total.
    """

    def __init__(self, rows: Tensor) -> None:
        self._buffer = rows

    def append(self, used: int, count: int, blocks: Iterable[Tensor]) -> Tensor:
        """Write ``count`` rows, given in blocks, behind the first ``used``; returns all rows.

        Only what lies behind ``used`` is touched, so an interrupted call leaves nothing to repair.
        """
        total = used + count
        if total > self._buffer.shape[0]:
            shape = (max(total, 2 * used), *self._buffer.shape[1:])
            larger = torch.empty(shape, dtype=self._buffer.dtype, device=self._buffer.device)
            larger[:used] = self._buffer[:used]
            self._buffer = larger
        for block in blocks:
            self._buffer[used : used + block.shape[0]] = block
            used += block.shape[0]
        return self._buffer[:total]
