# mypy: ignore-errors
"""Sequential k-subsets, compiled: rows that the relaxation does not solve.

The active set solves the positions that the relaxation leaves open, the others fixed at 0 or 1, and
the dynamic program over the whole row confirms it or opens more.
"""

from __future__ import annotations

import numpy as np

from hopfy._kernels.sequential.cpu_active import (
    WEIGHT,
    best_subset,
    maximize,
    new_active_set,
)
from hopfy._kernels.sequential.cpu_relaxation import TOO_LARGE, largest
from hopfy._kernels.sequential.cpu_rows import (
    CERTAIN,
    gather,
    integers,
    leading,
    new_row,
    numbers,
    zeros,
)
from hopfy._runtime.compilation import jit, leaf, part

__all__ = ["active_rows"]

# How far outside [0, 1] the relaxed value must lie for a position to be fixed at first.
_MARGIN = 0.25


@jit
def active_rows(start, stop, which, scores, edges, k, answers, indicators, values):
    """Solve rows ``which[start:stop]`` by active sets, and return these, one after the other.

    ``answers`` holds what `relax_rows` found, ``indicators`` and ``values`` memory to begin with.
    They come as indicator vectors (for each row subsets x open positions) and as values (for each
    row the inverse of the overlaps, then the weights).
    """
    ends = (0, 0)
    whole = new_row(scores.shape[1])
    for index in range(start, stop):
        r = which[index]
        n = gather(scores[r], edges[r % edges.shape[0]], whole)
        if n <= 0:
            continue
        row, budget = leading(whole, n), min(k[r], n)
        for i in range(n):
            row.value[i] = answers.y[r, row.where[i]]
        work, opened, m, answers.iterations[r], answers.gap[r] = _solve_active(
            row, budget, answers.gap[r]
        )
        count = _write_active(row, work, opened, m, answers.y[r], answers.unit[r])
        answers.size[r, 0], answers.size[r, 1] = m, count
        begins = ends
        ends = (begins[0] + m * count, begins[1] + m * (m + 1))
        indicators = _grown(indicators, ends[0])
        values = _grown(values, ends[1])
        _save(row, work, opened, m, indicators[begins[0] :], values[begins[1] :])
    return indicators[: ends[0]], values[: ends[1]]


@part
def _solve_active(row, k, threshold):
    """Open positions until the whole row agrees; ``row.value`` becomes the solution.

    Returns the memory, the open positions, the number of subsets, the iterations and the gap.
    """
    n = row.where.shape[0]
    is_open = zeros(n)
    gradient = numbers(n)
    for i in range(n):
        row.theta[i] -= 2.0 * threshold  # every subset has size k: a shift changes nothing
    table, members = np.empty((2, n + 1, k + 2)), integers(k)
    margin, iterations = _MARGIN, 0
    if largest(row.theta, row.edge) > TOO_LARGE:
        for i in range(n):
            is_open[i] = True
    while True:
        opened = _open_near(row, margin, is_open, k)
        work, budget = _open_part(row, is_open, opened, k)
        m, more, gap = maximize(work, budget, 500 + 10 * n, _tolerance(work.theta, budget))
        iterations += more
        if opened.shape[0] == n:
            break
        _gradient(row, is_open, opened, work.y, gradient)
        gap = best_subset(gradient, row.edge, k, table, members)
        gap -= _score_of_first(row, gradient, work, opened, is_open)
        if gap <= _tolerance(row.theta, k):
            break
        margin *= 4.0
        _open_differences(row, members, is_open)
    for i in range(n):
        row.value[i] = 1.0 if row.value[i] >= 1.0 else 0.0
    for s in range(opened.shape[0]):
        row.value[opened[s]] = work.y[s]
    return work, opened, m, iterations, gap


@part
def _open_near(row, margin, is_open, k):
    """Open what lies within the margin of [0, 1]; list all that is open.

    If what stays fixed leaves no room for the budget, everything is opened.
    """
    n = is_open.shape[0]
    count, fixed = 0, 0
    for i in range(n):
        is_open[i] |= -margin < row.value[i] < 1.0 + margin
        count += is_open[i]
        fixed += not is_open[i] and row.value[i] >= 1.0
    if not 0 <= k - fixed <= count:
        for i in range(n):
            is_open[i] = True
        count = n
    opened, at = integers(count), 0
    for i in range(n):
        if is_open[i]:
            opened[at] = i
            at += 1
    return opened


@leaf
def _gradient(row, is_open, opened, y, gradient):
    for i in range(is_open.shape[0]):
        gradient[i] = row.theta[i] - (2.0 if row.value[i] >= 1.0 else 0.0)
    for s in range(opened.shape[0]):
        gradient[opened[s]] = row.theta[opened[s]] - 2.0 * y[s]


@leaf
def _tolerance(theta, k):
    """Gaps below this are rounding errors."""
    largest = 0.0
    for score in theta:
        largest = max(largest, abs(score))
    return 1e-11 + 4e-16 * k * largest


@part
def _open_part(row, is_open, opened, k):
    """The problem of the open positions, and its budget."""
    n, size = row.where.shape[0], opened.shape[0]
    budget = k
    for i in range(n):
        budget -= not is_open[i] and row.value[i] >= 1.0
    work = new_active_set(size, budget)
    for s in range(size):
        i = opened[s]
        work.theta[s] = row.theta[i]
        work.edge[s] = 0.0
        if i > 0 and is_open[i - 1]:
            work.edge[s] = row.edge[i]
        elif i > 0 and row.value[i - 1] >= 1.0:
            work.theta[s] += row.edge[i]
        if i + 1 < n and not is_open[i + 1] and row.value[i + 1] >= 1.0:
            work.theta[s] += row.edge[i + 1]
    return work, budget


@part
def _score_of_first(row, gradient, work, opened, is_open):
    """Score of the first active subset under the gradient of the whole row."""
    n = is_open.shape[0]
    selected = zeros(n)
    for i in range(n):
        selected[i] = not is_open[i] and row.value[i] >= 1.0
    for s in range(opened.shape[0]):
        selected[opened[s]] = work.subsets[s, 0] > 0.0
    total = 0.0
    for i in range(n):
        if selected[i]:
            total += gradient[i]
            if i > 0 and selected[i - 1]:
                total += row.edge[i]
    return total


@part
def _open_differences(row, members, is_open):
    """Open every fixed position at which the best subset of the whole row differs."""
    selected = zeros(is_open.shape[0])
    for i in members:
        selected[i] = True
    for i in range(is_open.shape[0]):
        is_open[i] |= selected[i] != (row.value[i] >= 1.0)


@leaf
def _write_active(row, work, opened, m, y, unit):
    """Write the solution, exact where all subsets agree; return the number of other positions."""
    for i in range(row.where.shape[0]):
        row.unit[i] = CERTAIN
    count = 0
    for s in range(opened.shape[0]):
        selected = 0
        for v in range(m):
            selected += work.subsets[s, v] > 0.0
        if 0 < selected < m:
            row.unit[opened[s]] = count
            count += 1
        else:
            row.value[opened[s]] = 1.0 if selected else 0.0
    for i in range(row.where.shape[0]):
        y[row.where[i]] = row.value[i]
        unit[row.where[i]] = row.unit[i]
    return count


@part
def _grown(buffer, needed):
    if needed <= buffer.shape[0]:
        return buffer
    larger = np.empty(2 * needed, buffer.dtype)
    for i in range(buffer.shape[0]):
        larger[i] = buffer[i]
    return larger


@leaf
def _save(row, work, opened, m, indicators, values):
    at = 0
    for v in range(m):
        for s in range(opened.shape[0]):
            if row.unit[opened[s]] >= 0:
                indicators[at] = work.subsets[s, v] > 0.0
                at += 1
    for v in range(m):
        for u in range(m):
            values[v * m + u] = work.inverse[v, u]
        values[m * m + v] = work.vectors[WEIGHT, v]
