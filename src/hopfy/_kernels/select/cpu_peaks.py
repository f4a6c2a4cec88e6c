# mypy: ignore-errors
"""Compiled loops of a search in two passes: the best scores first, then what is within reach of them.

The first pass sees every upper bound, scores only what may be among the ``rank`` best, and notes the
highest bound of each chunk of memories. Once the floor is known, from all shards perhaps, the second
pass goes back to the few chunks whose highest bound exceeds it.
"""

from __future__ import annotations

import numpy as np

from hopfy._kernels.select.cpu import _floor, _raise_floor, _score, _second_bound, _seed, _set_below
from hopfy._runtime.compilation import jit, part

__all__ = ["look", "revisit"]

_CHUNK = 16
_SEEDS = 64
_EXACT = 8
_TIES = 1e-12
_COMPLETE = 0
_FULL = 1
_GAVE_UP = 2


@part(fastmath=True)
def _peaks(line, bias, out):
    """The largest bound of each chunk; bounds are finite, and fixed lengths compile to vector code."""
    whole = line.shape[0] // _CHUNK
    for number in range(whole):
        part = line[number * _CHUNK : (number + 1) * _CHUNK]
        top = part[0]
        if bias.shape[0] == 0:
            for c in range(_CHUNK):
                top = part[c] if part[c] > top else top
        else:
            own = bias[number * _CHUNK : (number + 1) * _CHUNK]
            top = part[0] + own[0]
            for c in range(_CHUNK):
                bound = part[c] + own[c]
                top = bound if bound > top else top
        out[number] = top
    for c in range(whole * _CHUNK, line.shape[0]):
        bound = line[c] + bias[c] if bias.shape[0] else line[c]
        if c == whole * _CHUNK or bound > out[whole]:
            out[whole] = bound


@jit
def look(start, stop, block, fine, search, found, peaks):
    """Raise ``found.best`` to the best scores so far; ``peaks[row, chunk]`` is its highest bound."""
    chunk, chunks = block.first // _CHUNK, -(-block.upper.shape[1] // _CHUNK)
    box = np.empty(1, block.upper.dtype)
    heap = np.empty(found.best.shape[1], np.float64)
    for row in range(start, stop):
        if found.status[row] != _COMPLETE:
            continue
        line = block.upper[row]
        if block.first == 0 and heap.shape[0] <= _SEEDS:
            lowest = _floor(_seed(row, line, search, heap), 0.0, _TIES)
            found.floor[row] = max(found.floor[row], lowest)
        _set_below(box, 0, found.floor[row] - block.slack[row])
        tops = peaks[row, chunk : chunk + chunks]
        _peaks(line, search.bias, tops)
        for number in range(chunks):
            if tops[number] > box[0]:
                begin = number * _CHUNK
                end = min(begin + _CHUNK, line.shape[0])
                _improve(row, begin, end, box, block, fine, search, found)
        if found.work[row] > search.budget:
            found.status[row] = _GAVE_UP


@part
def _improve(row, begin, end, box, block, fine, search, found):
    """Score what may be among the best, and raise the floor where it is."""
    line, best = block.upper[row], found.best[row]
    floor, work = found.floor[row], found.work[row]
    for c in range(begin, end):
        bound = line[c] + search.bias[c] if search.bias.shape[0] else line[c]
        if not bound > box[0] or (search.alive.shape[0] > 0 and not search.alive[c]):
            continue
        if fine.fine_memories.shape[1] > 0:
            work += 1
            bound = _second_bound(bound, fine.fine_queries[row], fine.fine_memories[c])
            if not bound > box[0]:
                continue
        work += _EXACT
        score = _score(search.rows, c, search.queries, row, search.known, search.measure)
        if score > best[0]:
            _raise_floor(best, score)
            floor = max(floor, best[0])
            _set_below(box, 0, floor - block.slack[row])
    found.floor[row], found.work[row] = floor, work


@jit
def revisit(start, stop, vectors, right, first, slack, fine, search, peaks, found):
    """Keep all scores above ``found.floor`` in the chunks of one block that can have any."""
    width = right.shape[0]
    chunk = first // _CHUNK
    box = np.empty(1, vectors.dtype)
    for row in range(start, stop):
        _set_below(box, 0, found.floor[row] - slack[row])
        begin, number = 0, chunk
        while begin < width and found.status[row] == _COMPLETE:
            end = min(begin + _CHUNK, width)
            if peaks[row, number] > box[0]:
                _keep(row, begin, end, first, box[0], vectors, right, fine, search, found)
            begin = end
            number += 1
        if found.work[row] > search.budget:
            found.status[row] = _GAVE_UP


@part
def _keep(row, begin, end, first, limit, vectors, right, fine, search, found):
    query = vectors[row]
    floor, count, work = found.floor[row], found.counts[row], found.work[row]
    for c in range(begin, end):
        if search.alive.shape[0] > 0 and not search.alive[c]:
            continue
        bound = _second_bound(
            search.bias[c] if search.bias.shape[0] else query.dtype.type(0), query, right[c]
        )
        if not bound > limit:
            continue
        if fine.fine_memories.shape[1] > 0:
            work += 1
            bound = _second_bound(bound, fine.fine_queries[row], fine.fine_memories[c])
            if not bound > limit:
                continue
        work += _EXACT
        score = _score(search.rows, c, search.queries, row, search.known, search.measure)
        if not score > floor:
            continue
        if count == found.indices.shape[1]:
            found.status[row] = _FULL
            break
        found.indices[row, count] = first + c
        found.scores[row, count] = score
        count += 1
    found.counts[row], found.work[row] = count, work
