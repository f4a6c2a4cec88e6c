"""Rows that grow at the end without moving, shared by all who hold an earlier length."""

from __future__ import annotations

from threading import Lock

import torch
from torch import Tensor

__all__ = ["Growing"]


class Growing:
    """A buffer of rows with room at the end.

    Whoever holds ``rows(n)`` keeps seeing the same n rows: later rows go behind them, or, when
    there is no room or another holder took it, into a copy of twice the size.

    >>> store = Growing(torch.zeros(2, 1))
    >>> longer = store.plus(2, torch.ones(1, 1))
    >>> longer.rows(3).flatten()
    tensor([0., 0., 1.])
    >>> longer.plus(3, torch.ones(1, 1)) is longer
    True
    """

    def __init__(self, rows: Tensor) -> None:
        self._buffer = rows
        self._used = rows.shape[0]
        self._lock = Lock()

    def rows(self, count: int) -> Tensor:
        """The first ``count`` rows, a view."""
        return self._buffer[:count]

    def plus(self, count: int, rows: Tensor) -> Growing:
        """A store whose first rows are ``rows(count)`` and the new ones."""
        total = count + rows.shape[0]
        with self._lock:
            if self._used == count and total <= self._buffer.shape[0]:
                self._buffer[count:total] = rows
                self._used = total
                return self
        buffer = torch.empty(2 * total, *rows.shape[1:], dtype=rows.dtype)
        buffer[:count] = self._buffer[:count]
        buffer[count:total] = rows
        grown = Growing(buffer)
        grown._used = total
        return grown
