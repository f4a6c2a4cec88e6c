"""What a selection is asked for, and what it has found."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np

__all__ = [
    "ALL_ALIVE",
    "FINE",
    "FULL",
    "GAVE_UP",
    "NOTHING_KNOWN",
    "NO_BIAS",
    "Array",
    "Block",
    "Entries",
    "Fine",
    "Found",
    "Measure",
    "Quick",
    "Search",
]

FINE = 0
"""Status of a row whose candidates are complete."""
FULL = 1
"""Status of a row with more candidates than there is room for."""
GAVE_UP = 2
"""Status of a row that was never begun, or whose bounds ruled out too little to be worth it."""

Array = np.ndarray[Any, Any]

NOTHING_KNOWN: Array = np.empty((1, 0), np.uint8)
"""The `Search.known` of measures that need none."""
ALL_ALIVE: Array = np.empty(0, np.uint8)
NO_BIAS: Array = np.empty(0, np.float32)


class Measure(IntEnum):
    r"""What an exact score is, for a query q and a memory x.

    ``INNER`` :math:`q^\top x`; ``EUCLIDEAN`` :math:`-\frac12 \|q - x\|^2` over the first
    coordinates of x, as many as q has; ``PARTIAL`` :math:`\sum_{d\ \text{known}} q_d x_d +
    \frac12 \sum_{d\ \text{unknown}} x_d^2`.
    """

    INNER = 0
    EUCLIDEAN = 1
    PARTIAL = 2


class Block(NamedTuple):
    """Bounds of the memories from ``first`` on: ``upper[row, c]``, or ``upper[c, row]``.

    ``upper[row, c] + bias[c] + slack[row]`` is never below the exact score, rounding included. Which
    of the two comes first is decided by `by_memory`.
    """

    upper: Array
    slack: Array
    first: int
    last: bool


class Fine(NamedTuple):
    """A second bound for entries that pass the first: ``fine_queries . fine_memories`` more.

    ``fine_memories`` belongs to the block; of width 0 where there is none.
    """

    fine_queries: Array
    fine_memories: Array


class Search(NamedTuple):
    """What is looked for, and where: ``rows``, ``bias`` and ``alive`` belong to the block.

    ``queries`` are float64; ``reach`` (rows,) says how far below the rank-th best score. ``nudge``
    widens it by a share of the best score and of itself, so that ties survive rounding; with 0 a tie with the
    rank-th best loses to the entry that came first. A row gives up after ``budget`` second bounds,
    or an eighth as many exact scores. ``bias`` and ``alive`` are empty where there are none.
    """

    rows: Array
    bias: Array
    alive: Array
    queries: Array
    known: Array
    measure: int
    reach: Array
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


class Entries(NamedTuple):
    """Compressed rows: those of row r lie at ``offsets[r]:offsets[r + 1]``."""

    offsets: Array
    indices: Array
    values: Array


class Quick(NamedTuple):
    """A whole update of M queries: the next states (M, D) and compressed rows of weights.

    ``singles``: every query has one weight, which is 1. ``doubtful``: a query may be a fixed point
    whose weights were rounded.
    """

    states: Array
    offsets: Array
    indices: Array
    values: Array
    singles: bool
    doubtful: bool
