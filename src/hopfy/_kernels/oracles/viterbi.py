# mypy: ignore-errors
"""Best paths, compiled: chains of states, and chains of bits with or without a budget."""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import jit, part

__all__ = ["best_bits", "best_path"]


@jit
def best_path(begin, stop, scores, transition, path):
    """States (R, N) of scores (R, N, S) and transitions (R, N - 1, S, S); -1 where all are -inf.

    A position without a state is not there, and neither are the edges that touch it.
    """
    length, states = scores.shape[1], scores.shape[2]
    value, ahead = np.empty(states), np.empty(states)
    back = np.empty((length, states), np.int64)
    for r in range(begin, stop):
        last = -1  # the previous position, if present
        for i in range(length):
            present = False
            for b in range(states):
                present = present or scores[r, i, b] > -np.inf
            if not present:
                if last >= 0:
                    _trace(value, back, last, path[r])
                path[r, i] = -1
                last = -1
                continue
            for b in range(states):
                best, arg = 0.0, -1
                if last >= 0:
                    best, arg = value[0] + transition[r, i - 1, 0, b], 0
                    for a in range(1, states):
                        candidate = value[a] + transition[r, i - 1, a, b]
                        if candidate > best:
                            best, arg = candidate, a
                ahead[b] = best + scores[r, i, b]
                back[i, b] = arg
            value[:] = ahead
            last = i
        if last >= 0:
            _trace(value, back, last, path[r])


@part
def _trace(value, back, last, path):
    state = np.argmax(value)
    while state >= 0:
        path[last] = state
        state = back[last, state]
        last -= 1


@part
def _edge(scores, i):
    """Whether both ends of the edge before bit i are present."""
    return i > 0 and scores[i] > -np.inf and scores[i - 1] > -np.inf


@part
def _fill(value, came, scores, tables, budget):
    """``value[j, b]``: the best score so far with j bits on, the last of them in state b.

    Without a budget (``budget < 0``) j stays 0.
    """
    most = value.shape[0] - 1
    value[:] = -np.inf
    value[0, 0] = 0.0
    for i in range(scores.shape[0]):
        joined = _edge(scores, i)
        present = scores[i] > -np.inf
        for j in range(most, -1, -1):
            before = j - 1 if budget >= 0 else j
            stay0, stay1 = value[j, 0], value[j, 1]
            from0, from1 = -np.inf, -np.inf
            if before >= 0:
                from0, from1 = value[before, 0], value[before, 1]
            if joined:
                stay0, stay1 = stay0 + tables[i - 1, 0, 0], stay1 + tables[i - 1, 1, 0]
                from0, from1 = from0 + tables[i - 1, 0, 1], from1 + tables[i - 1, 1, 1]
            came[i, j, 0] = stay1 > stay0
            value[j, 0] = max(stay0, stay1)
            came[i, j, 1] = from1 > from0
            if present:
                value[j, 1] = max(from0, from1) + scores[i]
            else:
                value[j, 1] = -np.inf


@jit
def best_bits(begin, stop, scores, tables, budget, bits):
    """Bits (R, N) of scores (R, N), edge tables (R, N - 1, 2, 2) and budgets (R,), -1 for none.

    A bit with score -inf is off, and the edges that touch it are not there. A row that cannot meet
    its budget gets -1 everywhere.
    """
    length = scores.shape[1]
    for r in range(begin, stop):
        most = max(budget[r], 0)
        value = np.empty((most + 1, 2))
        came = np.empty((length, most + 1, 2), np.bool_)
        _fill(value, came, scores[r], tables[r], budget[r])
        state = 1 if value[most, 1] > value[most, 0] else 0
        if value[most, state] == -np.inf:
            bits[r] = -1
            continue
        j = most
        for i in range(length - 1, -1, -1):
            bits[r, i] = state
            previous = 1 if came[i, j, state] else 0
            if state == 1 and budget[r] >= 0:
                j -= 1
            state = previous
