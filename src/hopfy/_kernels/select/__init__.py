r"""Selection: for each query, every memory whose score can matter, found under upper bounds.

A sparse map looks only at scores above a *floor*: the rank-th best score minus the map's reach
(entmax and normmax: rank 1, reach :math:`m / \beta`; k-subsets: rank k, reach :math:`1 / \beta`).
Blocks of upper bounds come in one after the other. An entry whose bound is at or below the floor so
far is ruled out for good; the others are scored exactly, and good scores raise the floor. "Exactly"
means products and sums in float64 in a fixed order, so what is found depends neither on the blocks
nor on the kind of bounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy._runtime.compilation import compiled
from hopfy._runtime.threads import over_rows

__all__ = [
    "FINE",
    "FULL",
    "GAVE_UP",
    "Block",
    "Fine",
    "Found",
    "Search",
    "mix",
    "reference",
    "solve",
]

FINE = 0
"""Status of a row whose candidates are complete."""
FULL = 1
"""Status of a row with more candidates than there is room for."""
GAVE_UP = 2
"""Status of a row that was never begun, or whose bounds ruled out too little to be worth it."""

Array = np.ndarray[Any, Any]


class Block(NamedTuple):
    """Bounds of the memories ``first .. first + upper.shape[1]``, one row per query.

    ``upper[row, c] + slack[row]`` is never below the exact score, rounding included.
    """

    upper: Array
    slack: Array
    first: int
    last: bool


class Fine(NamedTuple):
    """A second bound for entries that pass the first: ``upper + fine_queries . fine_memories``.

    Of width 0 where there is none.
    """

    fine_queries: Array
    fine_memories: Array


class Search(NamedTuple):
    """What is looked for: ``queries`` in float64, and how far below the rank-th best score.

    ``nudge`` widens the reach by a share of the best score, so that ties survive rounding; with 0 a
    tie with the rank-th best loses to the entry that came first. A row gives up after ``budget``
    second bounds, or an eighth as many exact scores.
    """

    memories: Array
    queries: Array
    reach: float
    nudge: float
    budget: int


class Found(NamedTuple):
    """What was found so far, one row per query: the first ``counts[row]`` candidates are valid."""

    best: Array
    floor: Array
    counts: Array
    indices: Array
    scores: Array
    work: Array
    status: Array

    @classmethod
    def nothing(cls, rows: int, rank: int, room: int) -> Found:
        """The start: no candidate yet, room for ``room`` of them per row."""
        return cls(
            best=np.full((rows, rank), -np.inf),
            floor=np.full(rows, -np.inf),
            counts=np.zeros(rows, np.int64),
            indices=np.empty((rows, room), np.int32),
            scores=np.empty((rows, room), np.float64),
            work=np.zeros(rows, np.int64),
            status=np.zeros(rows, np.uint8),
        )


def solve(block: Block, fine: Fine, search: Search, found: Found) -> None:
    """Add the candidates of one block to ``found``, in place."""
    loops = compiled("select.cpu")
    if loops is None:
        raise RuntimeError("expected numba for the compiled selection; check `compiled` first.")
    rows, width = block.upper.shape
    over_rows(loops.collect, rows, rows * width, block, fine, search, found)


def reference(scores: Tensor, rank: int, reach: float) -> Tensor:
    """The same in plain torch on a whole score matrix: True where an entry is above the floor.

    >>> reference(torch.tensor([[3.0, 2.5, 1.0]]), rank=1, reach=1.0)
    tensor([[ True,  True, False]])
    """
    best = scores.topk(rank, -1).values[..., -1:]
    return scores > best - reach


class _Rows(NamedTuple):
    offsets: Array
    indices: Array
    values: Array


def mix(offsets: Tensor, indices: Tensor, values: Tensor, table: Tensor) -> Tensor:
    """Sums of rows of ``table``: row r of the result is ``values[e] * table[indices[e]]`` summed
    over its entries e in ``offsets[r]:offsets[r + 1]``, in float64, then rounded once.
    """
    rows = offsets.numel() - 1
    loops = compiled("select.cpu")
    if loops is None or table.dtype not in (torch.float32, torch.float64):
        products = values.double().unsqueeze(-1) * table[indices].double()
        where = torch.repeat_interleave(offsets.diff())
        zeros = products.new_zeros(rows, table.shape[1])
        return zeros.index_add_(0, where, products).to(table.dtype)
    out = torch.empty(rows, table.shape[1], dtype=table.dtype)
    entries = _Rows(offsets.numpy(), indices.numpy(), values.double().numpy())
    work = indices.numel() * table.shape[1]
    over_rows(loops.mix, rows, work, entries, table.numpy(), out.numpy())
    return out
