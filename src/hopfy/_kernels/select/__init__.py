r"""Selection: for each query, every memory whose score can matter, found under upper bounds.

A sparse map looks only at scores above a *floor*: the rank-th best score minus the map's reach
(entmax and normmax: rank 1, reach :math:`m / \beta`; k-subsets: rank k, reach :math:`1 / \beta`).
Blocks of upper bounds come in one after the other. An entry whose bound is at or below the floor so
far is ruled out for good; the others are scored exactly, and good scores raise the floor. "Exactly"
means products and sums in float64 in a fixed order, so what is found depends neither on the blocks
nor on the kind of bounds.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels.select import reference
from hopfy._kernels.select.types import (
    ALL_ALIVE,
    FINE,
    FULL,
    GAVE_UP,
    NO_BIAS,
    NOTHING_KNOWN,
    Array,
    Block,
    Entries,
    Fine,
    Found,
    Measure,
    Quick,
    Search,
)
from hopfy._runtime.compilation import compiled
from hopfy._runtime.threads import over_rows

__all__ = [
    "ALL_ALIVE",
    "CHUNK",
    "FINE",
    "FULL",
    "GAVE_UP",
    "NOTHING_KNOWN",
    "NO_BIAS",
    "Array",
    "Block",
    "Fine",
    "Found",
    "Measure",
    "Quick",
    "Search",
    "by_memory",
    "compressed",
    "equation_of",
    "exact_candidates",
    "exact_scores",
    "keep_above_floor",
    "lone_candidates",
    "look",
    "mix",
    "padded_scores",
    "revisit",
    "solve",
    "threshold_step",
    "verdicts",
]

CHUNK = 16
"""Memories that share a peak, see `look`."""
_MANY_QUERIES = 32
_GROUP = 64  # queries that `collect_by_memory` compares together
_COMPARED_AT_ONCE = 8
_MOST_CANDIDATES = 128  # of one query of `threshold_step`


def _loops(module: str = "cpu") -> Any:
    loops = compiled(f"select.{module}")
    if loops is None:
        raise RuntimeError("expected numba for the compiled selection; check `compiled` first.")
    return loops


def by_memory(queries: int) -> bool:
    """Whether the bounds of so many queries are laid out memory by memory.

    Products with the memories on the left run faster, and on more threads; rows of a few queries
    are too short to be compared fast.
    """
    return queries >= _MANY_QUERIES


def look(block: Block, fine: Fine, search: Search, found: Found, peaks: Array) -> None:
    """The first of two passes: best scores, and ``peaks`` (rows, chunks), the highest bounds.

    The block's bounds are ``upper[row, c]``.
    """
    rows, width = block.upper.shape
    over_rows(_peak_loops().look, rows, rows * width, block, fine, search, found, peaks)


def revisit(
    vectors: Array,
    right: Array,
    first: int,
    slack: Array,
    fine: Fine,
    search: Search,
    peaks: Array,
    found: Found,
) -> None:
    """The second pass: the scores above ``found.floor`` among the memories ``first ..``.

    ``vectors`` (rows, K) and ``right`` (n, K) are the two sides of the bounds, see `Block`.
    """
    rows, chunks = vectors.shape[0], right.shape[0] // CHUNK
    over_rows(
        _peak_loops().revisit, rows, rows * chunks, vectors, right, first, slack, fine, search,
        peaks, found,
    )  # fmt: skip


def _peak_loops() -> Any:
    loops = compiled("select.cpu_peaks")
    if loops is None:
        raise RuntimeError("expected numba for the compiled selection; check `compiled` first.")
    return loops


def solve(block: Block, fine: Fine, search: Search, found: Found) -> None:
    """Add the candidates of one block to ``found``, in place."""
    rows, work = found.status.size, block.upper.size // _COMPARED_AT_ONCE
    if by_memory(rows):
        groups = -(-rows // _GROUP)
        over_rows(_loops().collect_by_memory, groups, work, block, fine, search, found)
    else:
        over_rows(_loops().collect, rows, work, block, fine, search, found)


def threshold_step(
    rows: Array,
    alive: Array,
    queries: Array,
    reach: Array,
    beta: Array,
    nudge: float,
    equation: Array,
    lone: bool,
) -> Quick | None:
    """An update over few memories, for a map with an `equation_of`; ``queries`` like the rows.

    ``reach`` and ``beta`` are (1,) or (M,). ``lone``: a candidate that is alone gets weight 1.
    None where a query is not finite or has many candidates.
    """
    count = queries.shape[0]
    room = count * min(rows.shape[0], _MOST_CANDIDATES)
    offsets, indices, values = (
        np.empty(count + 1, np.int64),
        np.empty(room, np.int64),
        np.empty(room),
    )
    states: Array = np.empty((count, rows.shape[1]), rows.dtype)
    end, singles, doubtful = _loops("cpu_short").threshold_step(
        rows, alive, queries, reach, beta, nudge, equation, lone, offsets, indices, values, states
    )
    if end < 0:
        return None
    return Quick(states, offsets, indices[:end], values[:end], singles, doubtful)


def equation_of(kind: str, parameter: float) -> Array | None:
    """The threshold equation of a closed form, if `threshold_step` can solve it."""
    if kind == "entmax" and parameter in (1.5, 2.0):
        return np.full((1, 3), 1.0 / (parameter - 1.0))
    if kind == "normmax" and parameter == 2.0:
        return np.array([[2.0, 1.0, 1.0]])
    return None


def exact_candidates(
    rows: Array,
    alive: Array,
    queries: Array,
    measure: Measure,
    rank: int,
    reach: Array,
    nudge: float,
) -> tuple[Found, int, int]:
    """The candidates of ``queries`` among few memories, all of which are scored exactly.

    ``reach`` is (1,) or (M,). Also the smallest and the largest number of candidates; there must be
    a query.
    """
    found = Found.nothing(queries.shape[0], rank, rows.shape[0])
    low, high = _loops("cpu_short").candidates(
        rows, alive, queries, int(measure), rank, reach, nudge, found.counts, found.indices,
        found.scores,
    )  # fmt: skip
    return found, low, high


def lone_candidates(
    rows: Array, alive: Array, queries: Array, measure: Measure, reach: Array, nudge: float
) -> Array | None:
    """(M,) the only candidate of each query among few memories; None unless each has just one."""
    out: Array = np.empty(queries.shape[0], np.int64)
    found = _loops("cpu_short").lone_candidates(
        rows, alive, queries, int(measure), reach, nudge, out
    )
    return out if found else None


def padded_scores(found: Found, beta: Array, width: int) -> Array:
    """Scores (rows, width) times beta (1,) or (rows,), measured from each row's best, then -inf."""
    scores: Array = np.empty((found.counts.size, width))
    _loops("cpu_short").pad_scores(found.counts, found.scores, beta, scores)
    return scores


def compressed(found: Found, weights: Array, table: Array) -> tuple[Array, Array, Array, Array]:
    """Offsets, indices and values of the positive weights of the candidates, and their mixtures."""
    rows, room = found.counts.size, weights.size
    offsets, indices = np.empty(rows + 1, np.int64), np.empty(room, np.int64)
    values, states = np.empty(room), np.empty((rows, table.shape[1]), table.dtype)
    end = _loops("cpu_short").compress(
        found.counts, found.indices, weights, table, offsets, indices, values, states
    )
    return offsets, indices[:end], values[:end], states


def verdicts(
    rows: Array,
    alive: Array,
    members: Array,
    lead: Array,
    norms: Array,
    relative: float,
) -> Array:
    """Whether sets of few rows lead all others by ``lead``: 1 yes, -1 no, 0 too close to tell."""
    found: Array = np.empty(members.shape[0], np.int8)
    largest = float(norms.max())
    _loops("cpu_short").verdicts(rows, alive, members, lead, norms, largest, relative, found)
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
        return reference.mix(offsets, indices, values, table).to(dtype)
    out = torch.empty(rows, table.shape[1], dtype=dtype, device="cpu")
    entries = Entries(offsets.numpy(), indices.numpy(), values.double().numpy())
    work = indices.numel() * table.shape[1]
    over_rows(loops.mix, rows, work, entries, table.numpy(), out.numpy())
    return out
