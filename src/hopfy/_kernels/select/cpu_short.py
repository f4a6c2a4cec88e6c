# mypy: ignore-errors
"""Compiled loops for few memories, where calls cost more than arithmetic: each does one whole stage.

Scores come from the same code as in `hopfy._kernels.select.cpu`, so they have the same bits.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hopfy._kernels.rows.scan import fill
from hopfy._kernels.select.cpu import dot, gather_row, mix_row, score_row
from hopfy._kernels.threshold.cpu import SHORT, short_rows
from hopfy._runtime.compilation import jit, part

__all__ = ["candidates", "compress", "lone_candidates", "pad_scores", "threshold_step", "verdicts"]

_NARROWEST = 8  # the narrowest padded row, see `hopfy.search._candidates`
_EPSILON = 2.220446049250313e-16


class Scratch(NamedTuple):
    """Room for one query: its float64 coordinates, all scores, and the best of them."""

    query: np.ndarray
    known: np.ndarray
    scores: np.ndarray
    best: np.ndarray


@part
def _scratch(rows, queries, rank):
    return Scratch(
        np.empty((1, queries.shape[1]), np.float64),
        np.empty((1, 0), np.uint8),
        np.empty(rows.shape[0], np.float64),
        np.empty(rank, np.float64),
    )


@part
def _candidates_of(row, rows, alive, queries, measure, reach, nudge, own, indices, kept):
    """The candidates of one query, into ``indices`` and ``kept``; returns how many.

    ``reach`` (1,) or (rows,) is how far below the best score they may lie. A query that is not
    finite has none.
    """
    finite = True
    for d in range(queries.shape[1]):
        own.query[0, d] = queries[row, d]
        finite &= abs(queries[row, d]) < np.inf
    if not finite:
        return 0
    fill(own.best, -np.inf)
    score_row(0, rows, own.query, own.known, measure, alive, own.scores)
    far = reach[row if reach.shape[0] > 1 else 0]
    return gather_row(own.scores, far, -np.inf, nudge, own.best, indices, kept)


@jit
def candidates(rows, alive, queries, measure, rank, reach, nudge, counts, indices, kept):
    """All candidates of all queries; returns the smallest and the largest number of them."""
    own = _scratch(rows, queries, rank)
    low, high = rows.shape[0], 0
    for row in range(queries.shape[0]):
        counts[row] = _candidates_of(
            row, rows, alive, queries, measure, reach, nudge, own, indices[row], kept[row]
        )
        low, high = min(low, counts[row]), max(high, counts[row])
    return low, high


@jit
def lone_candidates(rows, alive, queries, measure, reach, nudge, out):
    """Whether every query has just one candidate; ``out`` (rows,) says which."""
    own = _scratch(rows, queries, 1)
    picked, kept = np.empty(rows.shape[0], np.int32), np.empty(rows.shape[0], np.float64)
    for row in range(queries.shape[0]):
        count = _candidates_of(row, rows, alive, queries, measure, reach, nudge, own, picked, kept)
        if count != 1:
            return False
        out[row] = picked[0]
    return True


@jit
def threshold_step(
    rows, alive, queries, reach, beta, nudge, equation, lone, offsets, indices, values, states
):
    """A whole update for a map of `hopfy._kernels.threshold.cpu.short_rows`.

    ``lone``: whether a candidate that is alone gets weight 1 without asking the map. Returns how
    many weights are positive, or -1 if a query is not finite or has too many candidates; whether all
    queries have just one; and whether one may be a fixed point whose weights were rounded.
    """
    own = _scratch(rows, queries, 1)
    picked, kept = np.empty(rows.shape[0], np.int32), np.empty(rows.shape[0], np.float64)
    padded, weights = np.empty(SHORT, np.float64), np.empty(SHORT, np.float64)
    bits, total = padded.view(np.int64), np.empty(rows.shape[1], np.float64)
    end, singles, doubtful = 0, True, False
    offsets[0] = 0
    for row in range(queries.shape[0]):
        count = _candidates_of(row, rows, alive, queries, 0, reach, nudge, own, picked, kept)
        if count == 0 or count > SHORT:
            return -1, False, False
        begin = end
        if count == 1 and lone:
            indices[end], values[end] = picked[0], 1.0
            for d in range(rows.shape[1]):
                states[row, d] = rows[picked[0], d]
            end += 1
        else:
            width = _padded_width(count)
            scores, shares = padded[:width].reshape(1, width), weights[:width].reshape(1, width)
            _pad_row(count, kept, beta[row if beta.shape[0] > 1 else 0], scores[0])
            short_rows(0, 1, scores, bits[:width].reshape(1, width), equation, shares)
            for c in range(count):
                if weights[c] > 0.0:
                    indices[end], values[end] = picked[c], weights[c]
                    end += 1
            mix_row(row, begin, end, indices, values, rows, total, states)
            singles = False
            doubtful |= _may_be_fixed(rows, queries[row], indices, values, begin, end, total)
        offsets[row + 1] = end
    return end, singles, doubtful


@part
def _padded_width(count):
    """The width of a padded row, as in `hopfy.search._candidates`."""
    width = 1 if count == 1 else _NARROWEST
    while width < count:
        width *= 2
    return width


@part
def _may_be_fixed(rows, query, indices, values, begin, end, total):
    """Whether the query is about the sum of the rows that have most of its weight."""
    some = False
    for d in range(total.shape[0]):
        total[d] = 0.0
    for e in range(begin, end):
        if values[e] > 0.5:
            some = True
            for d in range(total.shape[0]):
                total[d] += np.float64(rows[indices[e], d])
    gap, size = 0.0, 0.0
    for d in range(total.shape[0]):
        gap = max(gap, abs(total[d] - np.float64(query[d])))
        size += abs(total[d]) + abs(np.float64(query[d]))
    return some and gap <= 1e-3 * size


@jit(fastmath=False)
def pad_scores(counts, scores, beta, out):
    """``out[row]`` = beta times the row's scores, measured from the best one; -inf behind them.

    ``beta`` has one entry, or one per row.
    """
    for row in range(counts.shape[0]):
        _pad_row(counts[row], scores[row], beta[row if beta.shape[0] > 1 else 0], out[row])


@part(fastmath=False)
def _pad_row(count, scores, beta, out):
    top = -np.inf
    for c in range(count):
        top = max(top, scores[c])
    for c in range(count):
        out[c] = (scores[c] - top) * beta
    for c in range(count, out.shape[0]):
        out[c] = -np.inf


@jit(fastmath=False)
def compress(counts, columns, weights, table, offsets, indices, values, states):
    """Compressed rows of the positive weights, and their mixtures of the rows of ``table``.

    ``columns`` and ``weights`` hold ``counts[row]`` entries per row; ``indices`` and ``values`` have
    room for all of them. Returns how many were positive.
    """
    total = np.empty(table.shape[1], np.float64)
    end = 0
    offsets[0] = 0
    for row in range(counts.shape[0]):
        begin = end
        for c in range(counts[row]):
            if weights[row, c] > 0:
                indices[end] = columns[row, c]
                values[end] = weights[row, c]
                end += 1
        offsets[row + 1] = end
        mix_row(row, begin, end, indices, values, table, total, states)
    return end


@jit
def verdicts(rows, alive, members, lead, norms, largest, relative, out):
    """Whether sets of rows lead all others: 1 proven, -1 refuted, 0 too close for float64.

    The sum of the rows ``members[p]`` is the query; see `hopfy.search.ExactIndex.rivals`. A number
    that is not finite decides nothing.
    """
    anchor = np.empty((1, rows.shape[1]), np.float64)
    for p in range(members.shape[0]):
        fill(anchor[0], 0.0)
        size = 0.0
        for s in range(members.shape[1]):
            for d in range(rows.shape[1]):
                anchor[0, d] += np.float64(rows[members[p, s], d])
            size += norms[members[p, s]]
        weakest = np.inf
        for s in range(members.shape[1]):
            weakest = min(weakest, dot(rows, members[p, s], anchor, 0))
        slack = relative * size * largest + 8 * _EPSILON * lead[p] + 1e-290
        edge = weakest - lead[p]
        verdict = 1 if np.isfinite(edge) and np.isfinite(slack) else 0
        for c in range(rows.shape[0]):
            if verdict < 0 or (alive.shape[0] > 0 and not alive[c]):
                continue
            inside = False
            for s in range(members.shape[1]):
                inside = inside or members[p, s] == c
            if inside:
                continue
            score = dot(rows, c, anchor, 0)
            if not score <= edge - slack:
                verdict = min(verdict, 0)
            if verdict == 0 and score - edge > slack and np.isfinite(score - edge):
                verdict = -1
        out[p] = verdict
