# mypy: ignore-errors
"""Best bipartite matchings, compiled: shortest augmenting paths (Jonker & Volgenant, 1987)."""

from __future__ import annotations

import numpy as np

from hopfy._kernels.oracles.present import present_rows
from hopfy._runtime.compilation import jit, part

__all__ = ["best_assignment"]


@part
def _start(cost, owner, column_of, u, v):
    """Potentials of the cheapest pairs of all rows, and those pairs as far as columns are free."""
    m, n = cost.shape
    for j in range(n):
        owner[j], v[j] = -1, 0.0
    for i in range(m):
        best, at = np.inf, -1
        for j in range(n):
            if cost[i, j] < best:
                best, at = cost[i, j], j
        if at < 0:
            return False
        u[i], column_of[i] = best, -1
        if owner[at] < 0:
            owner[at], column_of[i] = i, at
    return True


@part
def _assign(cost, owner):
    """Match every row of ``cost`` (m <= n) to its own column; ``owner[j]`` is the row of column j."""
    m, n = cost.shape
    u, v, shortest = np.empty(m), np.empty(n), np.empty(n)
    before, column_of = np.empty(n, np.int64), np.empty(m, np.int64)
    visited = np.empty(n, np.bool_)
    if not _start(cost, owner, column_of, u, v):
        return False
    for free in range(m):
        if column_of[free] >= 0:
            continue
        column = _search(cost, owner, u, v, free, shortest, before, visited)
        if column < 0:
            return False
        row = -1
        while row != free:  # flip the path back to the row that started it
            row = before[column]
            owner[column] = row
            column_of[row], column = column, column_of[row]
    return True


@part
def _search(cost, owner, u, v, free, shortest, before, visited):
    """The nearest free column of a row and the path to it; -1 if there is none."""
    n = cost.shape[1]
    for j in range(n):
        shortest[j], visited[j] = np.inf, False
    row, column, distance = free, -1, 0.0
    while row >= 0:
        best, at = np.inf, -1
        for j in range(n):
            if visited[j]:
                continue
            reach = distance + cost[row, j] - u[row] - v[j]
            if reach < shortest[j]:
                shortest[j] = reach
                before[j] = row
            if shortest[j] < best or (shortest[j] == best and owner[j] < 0 and best < np.inf):
                best, at = shortest[j], j
        if at < 0:
            return -1
        distance, column = best, at
        visited[column] = True
        row = owner[column]
    u[free] += distance
    for j in range(n):
        if visited[j] and j != column:
            u[owner[j]] += distance - shortest[j]
            v[j] += shortest[j] - distance
    return column


@jit
def best_assignment(begin, stop, scores, bits):
    """Matchings (R, m, n) of scores (R, m, n); the smaller side is matched in full.

    Rows and columns that are all -inf are not there. A row of the batch without such a matching
    gets -1 everywhere.
    """
    m, n = scores.shape[1], scores.shape[2]
    rows, columns, owner = np.empty(m, np.int64), np.empty(n, np.int64), np.empty(m + n, np.int64)
    for r in range(begin, stop):
        count, width = present_rows(scores[r], rows), present_rows(scores[r].T, columns)
        turned = count > width
        cost = np.empty((min(count, width), max(count, width)))
        for a in range(count):
            for b in range(width):
                if turned:
                    cost[b, a] = -scores[r, rows[a], columns[b]]
                else:
                    cost[a, b] = -scores[r, rows[a], columns[b]]
        bits[r] = 0
        if not _assign(cost, owner[: cost.shape[1]]):
            bits[r] = -1
            continue
        for j in range(cost.shape[1]):
            if owner[j] >= 0:
                if turned:
                    bits[r, rows[j], columns[owner[j]]] = 1
                else:
                    bits[r, rows[owner[j]], columns[j]] = 1
