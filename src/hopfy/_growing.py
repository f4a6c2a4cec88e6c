"""Rows that grow at the end without moving, shared by all who hold an earlier length."""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock

import torch
from torch import Tensor

__all__ = ["Growing"]


class Growing:
    """A buffer of rows with room at the end.

    A tensor ``rows(n)`` keeps the same n rows: later rows go behind them, or, when
    there is no room or another holder took it, into a copy of twice the size. So n rows added one by
    one cost O(n) copied rows in total.

    >>> store = Growing(torch.zeros(2, 1))
    >>> longer = store.plus(2, 1, [torch.ones(1, 1)])
    >>> longer.rows(3).flatten()
    tensor([0., 0., 1.])
    >>> longer.plus(3, 1, [torch.ones(1, 1)]) is longer
    True
    """

    def __init__(self, rows: Tensor) -> None:
        self._buffer = rows
        self._used = rows.shape[0]
        self._lock = Lock()

    def rows(self, count: int) -> Tensor:
        """The first ``count`` rows, a view."""
        return self._buffer[:count]

    def plus(self, used: int, count: int, blocks: Iterable[Tensor]) -> Growing:
        """A store whose first rows are ``rows(used)`` and the ``count`` new ones, given in blocks.

        If it fails, every holder keeps what it had.
        """
        total = used + count
        with self._lock:
            mine = self._used == used and total <= self._buffer.shape[0]
            if mine:
                self._used = total
        grown = self if mine else self._larger(used, total)
        try:
            for block in blocks:
                grown._buffer[used : used + block.shape[0]] = block
                used += block.shape[0]
        except BaseException:
            with self._lock:
                if mine and self._used == total:
                    self._used = total - count
            raise
        return grown

    def _larger(self, used: int, total: int) -> Growing:
        shape = (max(total, 2 * used), *self._buffer.shape[1:])
        buffer = torch.empty(shape, dtype=self._buffer.dtype, device=self._buffer.device)
        buffer[:used] = self._buffer[:used]
        grown = Growing(buffer)
        grown._used = total
        return grown

    def __getstate__(self) -> dict[str, Tensor]:
        return {"_buffer": self._buffer[: self._used].clone()}

    def __setstate__(self, state: dict[str, Tensor]) -> None:
        self.__init__(state["_buffer"])  # type: ignore[misc]
