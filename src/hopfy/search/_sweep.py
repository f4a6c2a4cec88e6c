"""One pass of many queries over all memories, block by block."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels import select
from hopfy._kernels.select import Block, Fine, Found, Search
from hopfy.search._bounds import BLOCK, Bounds, Left
from hopfy.search._goal import Goal

__all__ = ["QUERIES", "room_for", "sweep"]

QUERIES = 1024
"""Queries per pass."""
_ROOM = 4096
_NO_LIMIT = 1 << 62


def room_for(goal: Goal, memories: int) -> int:
    """Candidates kept per query; a query that needs more is solved on its whole row of scores."""
    return min(memories, max(_ROOM, 2 * goal.rank)) + 1


def sweep(
    memories: Tensor, queries: Tensor, goal: Goal, bounds: Bounds, budget: int | None = None
) -> Found:
    """Candidates of ``queries`` (M, D) in float64, M at most `QUERIES`, under ``bounds``.

    A query whose bounds rule out so little that it exceeds ``budget`` (see `Search`) gives up. Rows
    come back with a status; the candidates of those with status `select.FINE` are complete.
    """
    count, rows = memories.shape[0], queries.shape[0]
    left = bounds.left(queries)
    found = Found.nothing(rows, goal.rank, room_for(goal, count))
    found.status[~left.safe.numpy()] = select.GAVE_UP
    search = Search(
        memories.numpy(),
        queries.numpy(),
        goal.reach,
        1e-12 if goal.ties else 0.0,
        _NO_LIMIT if budget is None else budget,
    )
    _run(left, bounds, search, found)
    return found


def _run(left: Left, bounds: Bounds, search: Search, found: Found) -> None:
    rows, count = left.vectors.shape[0], bounds.right.shape[0]
    fine = Fine(left.fine.numpy(), bounds.fine.numpy())
    buffer = torch.empty(rows * min(BLOCK, count), dtype=left.vectors.dtype)
    slack = np.ascontiguousarray(left.slack.numpy())
    for number, first in enumerate(range(0, count, BLOCK)):
        right = bounds.right[first : first + BLOCK]
        upper = buffer[: rows * right.shape[0]].view(rows, -1)
        torch.mm(left.vectors, right.mT, out=upper)
        last = first + BLOCK >= count
        select.solve(Block(upper.numpy(), slack[number], first, last), fine, search, found)
