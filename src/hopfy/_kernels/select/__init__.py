r"""Selection: for each query, every memory whose score can matter, found under upper bounds.

A sparse map looks only at scores above a *floor*: the rank-th best score minus the map's reach
(entmax and normmax: rank 1, reach :math:`m / \beta`; k-subsets: rank k, reach :math:`1 / \beta`).
Blocks of upper bounds come in one after the other. An entry whose bound is at or below the floor so
far is ruled out for good; the others are scored exactly, and good scores raise the floor. "Exactly"
means products and sums in float64 in a fixed order, so what is found depends neither on the blocks
nor on the kind of bounds.
"""

from __future__ import annotations

from enum import IntEnum
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
    "Measure",
    "Search",
    "exact_candidates",
    "exact_scores",
    "fingerprint",
    "keep_above_floor",
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

NOTHING_KNOWN: Array = np.empty((1, 0), np.uint8)
"""The `Search.known` of measures that need none."""
ALL_ALIVE: Array = np.empty(0, np.uint8)
NO_BIAS: Array = np.empty(0, np.float32)
_SMALL = 1 << 22


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
    """Bounds of the memories ``first .. first + upper.shape[1]``, one row per query.

    ``upper[row, c] + bias[c] + slack[row]`` is never below the exact score, rounding included.
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


def _loops() -> Any:
    loops = compiled("select.cpu")
    if loops is None:
        raise RuntimeError("expected numba for the compiled selection; check `compiled` first.")
    return loops


def solve(block: Block, fine: Fine, search: Search, found: Found) -> None:
    """Add the candidates of one block to ``found``, in place."""
    rows, width = block.upper.shape
    over_rows(_loops().collect, rows, rows * width, block, fine, search, found)


def exact_candidates(
    rows: Array, queries: Array, measure: Measure, rank: int, reach: Array, nudge: float
) -> Found:
    """The candidates of float64 ``queries`` among few memories, all of which are scored exactly."""
    found = Found.nothing(queries.shape[0], rank, rows.shape[0])
    _loops().candidates(
        rows, queries, int(measure), reach, nudge, found.best, found.counts, found.indices,
        found.scores,
    )  # fmt: skip
    return found


def exact_scores(search: Search, out: Array) -> None:
    """The exact scores of all queries with the search's rows; -inf where a memory is removed."""
    count, width = out.shape
    over_rows(
        _loops().score_block, count, count * width * search.rows.shape[1], search.rows,
        search.queries, search.known, search.measure, search.alive, out,
    )  # fmt: skip


def keep_above_floor(scores: Array, rank: int, reach: Array, floors: Array, nudge: float) -> Found:
    """The candidates of whole rows of exact scores (rows, N)."""
    rows, width = scores.shape
    found = Found.nothing(rows, rank, width)
    over_rows(
        _loops().gather, rows, rows * width, scores, reach, floors, nudge, found.best,
        found.counts, found.indices, found.scores,
    )  # fmt: skip
    return found


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


def mix(
    offsets: Tensor,
    indices: Tensor,
    values: Tensor,
    table: Tensor,
    dtype: torch.dtype | None = None,
) -> Tensor:
    """Sums of rows of ``table``: row r of the result is ``values[e] * table[indices[e]]`` summed
    over its entries e in ``offsets[r]:offsets[r + 1]``, in float64, then rounded once to ``dtype``
    (the table's by default).
    """
    dtype = table.dtype if dtype is None else dtype
    rows = offsets.numel() - 1
    loops = compiled("select.cpu") if table.device.type == "cpu" else None
    if loops is None or table.dtype not in (torch.float32, torch.float64):
        return _mix_in_parts(offsets, indices, values, table).to(dtype)
    out = torch.empty(rows, table.shape[1], dtype=dtype, device="cpu")
    entries = _Rows(offsets.numpy(), indices.numpy(), values.double().numpy())
    work = indices.numel() * table.shape[1]
    over_rows(loops.mix, rows, work, entries, table.numpy(), out.numpy())
    return out


def _mix_in_parts(offsets: Tensor, indices: Tensor, values: Tensor, table: Tensor) -> Tensor:
    """The same in plain torch, some entries at a time."""
    wide = torch.float32 if table.device.type == "mps" else torch.float64
    out = torch.zeros(offsets.numel() - 1, table.shape[1], dtype=wide, device=table.device)
    where = torch.repeat_interleave(offsets.diff())
    size = max(1, _SMALL // max(1, table.shape[1]))
    for start in range(0, indices.numel(), size):
        part = slice(start, start + size)
        products = values[part].to(wide).unsqueeze(-1) * table[indices[part]].to(wide)
        out.index_add_(0, where[part], products)
    return out


def fingerprint(tensor: Tensor) -> int:
    """A hash of the bytes of a contiguous tensor on the CPU: one pass at the memory's speed."""
    raw = tensor.detach().reshape(-1).view(torch.uint8).numpy()
    loops = compiled("select.cpu")
    if loops is None:
        return hash(raw.tobytes())
    whole = raw.size - raw.size % 8
    tail = int.from_bytes(raw[whole:].tobytes(), "little")
    return int(loops.fingerprint(raw[:whole].view(np.uint64))) ^ (tail << 1)
