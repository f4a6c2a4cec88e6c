"""Compiled loops of `hopfy._kernels.select`: which memories can reach a query's best score.

One row is one query. A block of upper bounds comes in; entries that can still matter are scored
exactly (products and sums in float64), and the best of those raise the floor for all that follow.
"""

from __future__ import annotations

import numpy as np

from hopfy._kernels._compile import jit

__all__ = ["collect", "mix"]

_CHUNK = 64
_FULL = 1
_GAVE_UP = 2


@jit(inline="always")
def _dot(x, q):  # type: ignore[no-untyped-def]
    total = 0.0
    for d in range(x.shape[0]):
        total += x[d] * q[d]
    return total


@jit
def _raise_floor(best, score):  # type: ignore[no-untyped-def]
    """Replace the smallest of the best scores (a min-heap, -inf where empty) by a larger one."""
    size = best.shape[0]
    hole = 0
    while True:
        child = 2 * hole + 1
        if child >= size:
            break
        if child + 1 < size and best[child + 1] < best[child]:
            child += 1
        if best[child] >= score:
            break
        best[hole] = best[child]
        hole = child
    best[hole] = score


@jit
def _floor(best, reach, nudge):  # type: ignore[no-untyped-def]
    """Scores at or below this have no part in the answer."""
    if best == -np.inf:
        return -np.inf
    return best - reach - nudge * abs(best)


@jit
def _keep_above(floor, indices, scores, count):  # type: ignore[no-untyped-def]
    kept = 0
    for c in range(count):
        if scores[c] >= floor:
            indices[kept] = indices[c]
            scores[kept] = scores[c]
            kept += 1
    return kept


@jit
def _set_below(box, value):  # type: ignore[no-untyped-def]
    """Store a threshold in the bounds' own dtype, never rounded up."""
    box[0] = value - 1.2e-7 * abs(value) - 1e-37


@jit
def _seed(memories, line, first, query):  # type: ignore[no-untyped-def]
    """The exact score of the memory with the highest bound in this block."""
    place = 0
    for c in range(line.shape[0]):
        if line[c] > line[place]:
            place = c
    return _dot(memories[first + place], query)


@jit
def collect(start, stop, block, fine, search, found):  # type: ignore[no-untyped-def]
    """Take a block of upper bounds into account; see `hopfy._kernels.select` for the fields."""
    upper, first = block.upper, block.first
    width = upper.shape[1]
    box = np.empty(1, upper.dtype)
    refined = fine.fine_memories.shape[1] > 0
    fine_dtype_zero = fine.fine_memories.dtype.type(0)
    rank = found.best.shape[1]
    for row in range(start, stop):
        if found.status[row] != 0:
            continue
        line, best, query = upper[row], found.best[row], search.queries[row]
        indices, scores = found.indices[row], found.scores[row]
        slack = block.slack[row]
        if first == 0 and rank == 1 and search.nudge > 0:
            exact = _seed(memories=search.memories, line=line, first=first, query=query)
            found.floor[row] = _floor(exact, search.reach, search.nudge)
        floor, count, work = found.floor[row], found.counts[row], found.work[row]
        _set_below(box, floor - slack)
        begin = 0
        while begin < width:
            end = min(begin + _CHUNK, width)
            hits = 0
            threshold = box[0]
            for c in range(begin, end):
                hits += line[c] > threshold
            if hits > 0:
                for c in range(begin, end):
                    if not line[c] > box[0]:
                        continue
                    j = first + c
                    if refined:
                        change = fine_dtype_zero
                        fine_query, fine_memory = fine.fine_queries[row], fine.fine_memories[j]
                        for d in range(fine_memory.shape[0]):
                            change += fine_query[d] * fine_memory[d]
                        if not line[c] + change > box[0]:
                            continue
                    work += 1
                    score = _dot(search.memories[j], query)
                    if not score > floor:
                        continue
                    if count == indices.shape[0]:
                        count = _keep_above(floor, indices, scores, count)
                        if 4 * count > 3 * indices.shape[0]:
                            found.status[row] = _FULL
                            break
                    indices[count] = j
                    scores[count] = score
                    count += 1
                    if score > best[0]:
                        _raise_floor(best, score)
                        floor = max(floor, _floor(best[0], search.reach, search.nudge))
                        _set_below(box, floor - slack)
                if work > search.budget:
                    found.status[row] = _GAVE_UP
                if found.status[row] != 0:
                    break
            begin = end
        if block.last:
            count = _keep_above(floor, indices, scores, count)
        found.floor[row], found.counts[row], found.work[row] = floor, count, work


@jit
def mix(start, stop, weights, table, out):  # type: ignore[no-untyped-def]
    """``out[row] = sum of values[e] * table[indices[e]]`` over the row's entries, in float64."""
    total = np.empty(table.shape[1], np.float64)
    for row in range(start, stop):
        total[:] = 0.0
        for e in range(weights.offsets[row], weights.offsets[row + 1]):
            weight, line = weights.values[e], table[weights.indices[e]]
            for d in range(total.shape[0]):
                total[d] += weight * line[d]
        for d in range(total.shape[0]):
            out[row, d] = total[d]
