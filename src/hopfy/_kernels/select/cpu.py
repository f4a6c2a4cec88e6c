# mypy: ignore-errors
"""Compiled loops of `hopfy._kernels.select`: which memories can reach a query's best score.

One row is one query. A block of upper bounds comes in; entries that can still matter are scored
exactly (products and sums in float64), and the best of those raise the floor for all that follow.
"""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import jit

__all__ = ["collect", "mix"]

_CHUNK = 64
_SEEDS = 64  # above this rank, looking for seeds costs more than it saves
_EXACT = 8  # an exact score costs about as much as so many second bounds
_TIES = 1e-12  # widens a floor so that ties survive rounding
_COMPLETE = 0
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
    floor = best - reach - nudge * abs(best)
    return floor - 1e-300 if nudge > 0 else floor  # a tie at zero must survive too


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
def _seed(memories, line, query, heap):  # type: ignore[no-untyped-def]
    """The lowest exact score among the memories with the highest bounds in the first block.

    As many of them as the rank asks for: the rank-th best score of all cannot be lower.
    """
    rank = heap.shape[0]
    heap[:] = -np.inf
    for c in range(line.shape[0]):
        if line[c] > heap[0]:
            _raise_floor(heap, line[c])
    lowest, edge, taken = np.inf, heap[0], 0
    for c in range(line.shape[0]):
        if line[c] >= edge and taken < rank:
            lowest = min(lowest, _dot(memories[c], query))
            taken += 1
    return lowest if taken == rank else -np.inf


@jit(inline="always")
def _any_above(line, begin, end, threshold):  # type: ignore[no-untyped-def]
    """Whether one of a chunk is above; a fixed length and int32 let it compile to vector code."""
    hit = np.int32(0)
    if end - begin == _CHUNK:
        for c in range(_CHUNK):
            hit |= np.int32(line[begin + c] > threshold)
    else:
        for c in range(begin, end):
            hit |= np.int32(line[c] > threshold)
    return hit != 0


@jit(inline="always")
def _second_bound(bound, query, memory):  # type: ignore[no-untyped-def]
    change = memory.dtype.type(0)
    for d in range(memory.shape[0]):
        change += query[d] * memory[d]
    return bound + change


@jit
def collect(start, stop, block, fine, search, found):  # type: ignore[no-untyped-def]
    """Take a block of upper bounds into account; see `hopfy._kernels.select` for the fields."""
    width = block.upper.shape[1]
    box = np.empty(1, block.upper.dtype)
    heap = np.empty(found.best.shape[1], np.float64)
    for row in range(start, stop):
        if found.status[row] != _COMPLETE:
            continue
        line = block.upper[row]
        if block.first == 0 and heap.shape[0] <= _SEEDS:
            lowest = _seed(search.memories, line, search.queries[row], heap)
            found.floor[row] = _floor(lowest, search.reach, _TIES)
        _set_below(box, found.floor[row] - block.slack[row])
        begin = 0
        while begin < width and found.status[row] == _COMPLETE:
            end = min(begin + _CHUNK, width)
            if _any_above(line, begin, end, box[0]):
                _examine(row, begin, end, box, block, fine, search, found)
            begin = end
        if block.last:
            found.counts[row] = _keep_above(
                found.floor[row], found.indices[row], found.scores[row], found.counts[row]
            )


@jit
def _examine(row, begin, end, box, block, fine, search, found):  # type: ignore[no-untyped-def]
    """Score what passes the bounds in one chunk, and raise the floor where a score is good."""
    refined = fine.fine_memories.shape[1] > 0
    line, best, query = block.upper[row], found.best[row], search.queries[row]
    indices, scores = found.indices[row], found.scores[row]
    floor, count, work = found.floor[row], found.counts[row], found.work[row]
    for c in range(begin, end):
        if not line[c] > box[0]:
            continue
        j = block.first + c
        if refined:
            work += 1
            bound = _second_bound(line[c], fine.fine_queries[row], fine.fine_memories[j])
            if not bound > box[0]:
                continue
        work += _EXACT
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
            _set_below(box, floor - block.slack[row])
    if work > search.budget:
        found.status[row] = _GAVE_UP
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
