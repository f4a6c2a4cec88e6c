# mypy: ignore-errors
"""Compiled loops of `hopfy._kernels.select`: which memories can reach a query's best score.

One row is one query. A block of upper bounds comes in; entries that can still matter are scored
exactly, and the best of those raise the floor for all that follow.

An exact score is a float64 sum of float64 products in the order that the compiler has chosen once,
when it compiled `dot`: every function here calls the same code, so it gets the same bits for the same
memory and query.
"""

from __future__ import annotations

import numpy as np

from hopfy._kernels.rows.scan import fill
from hopfy._runtime.compilation import inlined, jit, part

__all__ = [
    "collect",
    "collect_by_memory",
    "dot",
    "gather",
    "gather_row",
    "mix",
    "mix_row",
    "score_block",
    "score_row",
]

_CHUNK = 64
_TILE = 32  # memories that stay in the cache while all queries are compared with them
_SEEDS = 64  # above this rank, looking for seeds costs more than it saves
_SEED_FROM = 1024  # memories among which seeds are looked for
_EXACT = 8  # an exact score costs about as much as so many second bounds
_TIES = 1e-12  # widens a floor so that ties survive rounding
_COMPLETE = 0
_FULL = 1
_GAVE_UP = 2
_EUCLIDEAN = 1
_PARTIAL = 2


@part
def dot(rows, c, queries, row):
    total = 0.0
    for d in range(queries.shape[1]):
        total += rows[c, d] * queries[row, d]
    return total


@part
def _closeness(rows, c, queries, row):
    """Minus half of the squared distance."""
    total = 0.0
    for d in range(queries.shape[1]):
        gap = queries[row, d] - rows[c, d]
        total += gap * gap
    return -0.5 * total


@part
def _partial(rows, c, queries, row, known):
    """The product over known coordinates and half of the squares of the others."""
    total = 0.0
    mask = row if known.shape[0] > 1 else 0
    for d in range(queries.shape[1]):
        value = np.float64(rows[c, d])
        total += value * (queries[row, d] if known[mask, d] else 0.5 * value)
    return total


@part
def _score(rows, c, queries, row, known, measure):
    if measure == _EUCLIDEAN:
        return _closeness(rows, c, queries, row)
    if measure == _PARTIAL:
        return _partial(rows, c, queries, row, known)
    return dot(rows, c, queries, row)


@part
def _raise_floor(best, score):
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


@part(fastmath=False)
def _floor(best, reach, nudge):
    """Scores at or below this have no part in the answer."""
    if best == -np.inf or reach == np.inf:
        return -np.inf
    floor = best - reach - nudge * (abs(best) + reach)
    return floor - 1e-300 if nudge > 0 else floor  # a tie at zero must survive too


@part(fastmath=False)
def _edge(best, reach, nudge):
    """The floor in the end: without a nudge a tie with it stays, as the first ones count."""
    floor = _floor(best, reach, nudge)
    return floor if nudge > 0 else np.nextafter(floor, -np.inf)


@part
def _keep_above(floor, indices, scores, count):
    kept = 0
    for c in range(count):
        if scores[c] > floor:
            indices[kept] = indices[c]
            scores[kept] = scores[c]
            kept += 1
    return kept


@part
def _set_below(limits, slot, value):
    """Store a threshold in the bounds' own dtype, never rounded up."""
    limits[slot] = value - 1.2e-7 * abs(value) - 1e-37


@inlined
def _bound(line, bias, c):
    return line[c] + bias[c] if bias.shape[0] else line[c]


@part
def _seed(row, line, search, heap):
    """The lowest exact score among the memories with the highest bounds in the first block.

    As many of them as the rank asks for: the rank-th best score of all cannot be lower.
    """
    rank, width = heap.shape[0], min(line.shape[0], _SEED_FROM)
    fill(heap, -np.inf)
    alive, bias = search.alive, search.bias
    for c in range(width):
        if (alive.shape[0] == 0 or alive[c]) and _bound(line, bias, c) > heap[0]:
            _raise_floor(heap, np.float64(_bound(line, bias, c)))
    lowest, edge, taken = np.inf, heap[0], 0
    for c in range(width):
        if (alive.shape[0] == 0 or alive[c]) and _bound(line, bias, c) >= edge and taken < rank:
            score = _score(search.rows, c, search.queries, row, search.known, search.measure)
            lowest = min(lowest, score)
            taken += 1
    return lowest if taken == rank else -np.inf


@part
def _next_above(line, bias, begin, threshold):
    """The start of the first chunk with an entry above; the length of the line if there is none.

    Slices (no index may be negative), a fixed length and int32 let it compile to vector code.
    """
    width = line.shape[0]
    while begin + _CHUNK <= width:
        hit = np.int32(0)
        part = line[begin : begin + _CHUNK]
        if bias.shape[0] == 0:
            for c in range(_CHUNK):
                hit |= np.int32(part[c] > threshold)
        else:
            own = bias[begin : begin + _CHUNK]
            for c in range(_CHUNK):
                hit |= np.int32(part[c] + own[c] > threshold)
        if hit != 0:
            return begin
        begin += _CHUNK
    return begin


@inlined
def _second_bound(bound, query, memory):
    change = memory.dtype.type(0)
    for d in range(memory.shape[0]):
        change += query[d] * memory[d]
    return bound + change


@jit
def collect(start, stop, block, fine, search, found):
    """Take a block of upper bounds into account; see `hopfy._kernels.select` for the fields."""
    width = block.upper.shape[1]
    limit = np.empty(1, block.upper.dtype)
    heap = np.empty(found.best.shape[1], np.float64)
    for row in range(start, stop):
        if found.status[row] != _COMPLETE:
            continue
        line = block.upper[row]
        _begin(row, line, limit, 0, heap, block, search, found)
        begin = _next_above(line, search.bias, 0, limit[0])
        while begin < width and found.status[row] == _COMPLETE:
            end = min(begin + _CHUNK, width)
            for c in range(begin, end):
                bound = _bound(line, search.bias, c)
                if bound > limit[0]:
                    _examine(row, c, bound, limit, 0, block, fine, search, found)
            begin = _next_above(line, search.bias, end, limit[0])
        if block.last:
            _finish(row, search, found)


@jit
def collect_by_memory(start, stop, block, fine, search, found):
    """`collect` for transposed bounds ``block.upper[c, row]``; rows are counted in chunks of 64."""
    memories, rows = block.upper.shape
    first, last = start * _CHUNK, min(stop * _CHUNK, rows)
    limits = np.full(last - first, np.inf, block.upper.dtype)
    line = np.empty(min(memories, _SEED_FROM), block.upper.dtype)
    heap = np.empty(found.best.shape[1], np.float64)
    for row in range(first, last):
        if found.status[row] == _COMPLETE:
            for c in range(line.shape[0] if block.first == 0 else 0):
                line[c] = block.upper[c, row]
            _begin(row, line, limits, row - first, heap, block, search, found)
    entries = block.upper.reshape(-1)
    c, slot = _next_chunk(entries, rows, first, search.bias, limits, 0, 0, memories)
    while c < memories:
        end = min(slot + _CHUNK, last - first)
        for own in range(slot, end):
            bound = _bound(block.upper[:, first + own], search.bias, c)
            if bound > limits[own]:
                _examine(first + own, c, bound, limits, own, block, fine, search, found)
        c, slot = _next_chunk(entries, rows, first, search.bias, limits, c, end, memories)
    for row in range(first, last):
        if block.last:
            _finish(row, search, found)


@part
def _next_chunk(entries, rows, first, bias, limits, c, slot, memories):
    """Where the next chunk of queries begins of which one is above its limit: memory and slot."""
    width = limits.shape[0]
    while c < memories:
        shift = bias[c] if bias.shape[0] else np.float32(0.0)
        begin = c * rows + first
        while slot + _CHUNK <= width:
            own, edges = entries[begin + slot : begin + slot + _CHUNK], limits[slot : slot + _CHUNK]
            hit = np.int32(0)
            for lane in range(_CHUNK):
                hit |= np.int32(own[lane] + shift > edges[lane])
            if hit != 0:
                return c, slot
            slot += _CHUNK
        own, edges = entries[begin + slot : begin + width], limits[slot:width]
        hit = np.int32(0)
        for lane in range(own.shape[0]):
            hit |= np.int32(own[lane] + shift > edges[lane])
        if hit != 0:
            return c, slot
        c, slot = c + 1, 0
    return c, slot


@part
def _begin(row, line, limits, slot, heap, block, search, found):
    """The floor of a row at the start of a block, whose first bounds are ``line``."""
    if block.first == 0 and heap.shape[0] <= _SEEDS:
        lowest = _seed(row, line, search, heap)
        floor = _floor(lowest, search.reach[row], _TIES)
        found.floor[row] = max(found.floor[row], floor)
    _set_below(limits, slot, found.floor[row] - block.slack[row])


@part
def _finish(row, search, found):
    """After the last block: what is below the final floor goes."""
    if found.status[row] == _COMPLETE:
        floor = _edge(found.best[row, 0], search.reach[row], search.nudge)
        found.counts[row] = _keep_above(
            floor, found.indices[row], found.scores[row], found.counts[row]
        )


@part
def _examine(row, c, bound, limits, slot, block, fine, search, found):
    """Score memory c, which passed the first bound, and raise the floor if its score is good."""
    if search.alive.shape[0] > 0 and not search.alive[c]:
        return
    if fine.fine_memories.shape[1] > 0:
        found.work[row] += 1
        bound = _second_bound(bound, fine.fine_queries[row], fine.fine_memories[c])
        if not bound > limits[slot]:
            _stop_if_too_long(row, limits, slot, search, found)
            return
    found.work[row] += _EXACT
    score = _score(search.rows, c, search.queries, row, search.known, search.measure)
    floor, count = found.floor[row], found.counts[row]
    if score > floor:
        indices, scores, best = found.indices[row], found.scores[row], found.best[row]
        if count == indices.shape[0]:
            lowest = floor if search.nudge > 0 else np.nextafter(floor, -np.inf)
            count = _keep_above(lowest, indices, scores, count)
            if 4 * count > 3 * indices.shape[0]:
                found.status[row] = _FULL
                limits[slot] = np.inf
                return
        indices[count] = block.first + c
        scores[count] = score
        found.counts[row] = count + 1
        if score > best[0]:
            _raise_floor(best, score)
            floor = max(floor, _floor(best[0], search.reach[row], search.nudge))
            found.floor[row] = floor
            _set_below(limits, slot, floor - block.slack[row])
    _stop_if_too_long(row, limits, slot, search, found)


@part
def _stop_if_too_long(row, limits, slot, search, found):
    if found.work[row] > search.budget:
        found.status[row] = _GAVE_UP
        limits[slot] = np.inf


@jit
def score_block(start, stop, rows, queries, known, measure, alive, out):
    """``out[row, c]`` = the exact score of query ``row`` and memory c of the block."""
    for first in range(0, rows.shape[0], _TILE):
        last = min(first + _TILE, rows.shape[0])
        tile, there = rows[first:last], alive[first:last]
        for row in range(start, stop):
            score_row(row, tile, queries, known, measure, there, out[row, first:last])


@part
def score_row(row, rows, queries, known, measure, alive, out):
    """``out[c]`` = the exact score of query ``row`` and memory c."""
    for c in range(rows.shape[0]):
        if alive.shape[0] > 0 and not alive[c]:
            out[c] = -np.inf
        else:
            out[c] = _score(rows, c, queries, row, known, measure)


@jit
def gather(start, stop, scores, reach, floors, nudge, best, counts, indices, kept):
    """Keep of each row of exact scores those above its floor; -inf is never kept."""
    for row in range(start, stop):
        counts[row] = gather_row(
            scores[row], reach[row], floors[row], nudge, best[row], indices[row], kept[row]
        )


@part
def gather_row(scores, reach, floor, nudge, best, indices, kept):
    """`gather` of one row; ``best`` is a heap of the best scores so far. Returns how many are kept."""
    for c in range(scores.shape[0]):
        if scores[c] > best[0]:
            _raise_floor(best, scores[c])
    floor = max(floor, _edge(best[0], reach, nudge))
    count = 0
    for c in range(scores.shape[0]):
        if scores[c] > floor:
            indices[count] = c
            kept[count] = scores[c]
            count += 1
    return count


@jit
def mix(start, stop, weights, table, out):
    """``out[row] = sum of values[e] * table[indices[e]]`` over the row's entries, in float64."""
    total = np.empty(table.shape[1], np.float64)
    for row in range(start, stop):
        mix_row(
            row, weights.offsets[row], weights.offsets[row + 1], weights.indices, weights.values,
            table, total, out,
        )  # fmt: skip


@part(fastmath=False)
def mix_row(row, begin, end, indices, values, table, total, out):
    fill(total, 0.0)
    for e in range(begin, end):
        weight, line = values[e], table[indices[e]]
        for d in range(total.shape[0]):
            total[d] += weight * line[d]
    for d in range(total.shape[0]):
        out[row, d] = total[d]
