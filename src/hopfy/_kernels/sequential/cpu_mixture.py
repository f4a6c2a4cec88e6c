# mypy: ignore-errors
"""Sequential k-subsets, compiled: whether a relaxed solution is a mixture of subsets of size k."""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import part

__all__ = ["is_mixture"]

# Mass that the mixture may misplace; rounding errors are far below it.
_SLACK = 1e-10


@part
def is_mixture(y, edge, unit, sign, k):
    """Whether the relaxed solution is a mixture of subsets of size k (false means: not found).

    The longest runs go first, each opposed to the sizes so far: its large sizes meet small totals.
    Only the distribution of the total matters, so a histogram carries it. Positions on their own
    fill the rest: they can if, for every share of the time, the most demanding times ask for no
    more than all of them together can be there (Hall's condition).
    """
    n = y.shape[0]
    first = np.empty(n, np.int64)
    length = np.empty(n, np.int64)
    alone = np.empty(n)
    runs, singles, fractional, budget = _runs(y, edge, unit, first, length, alone, k)
    total = np.zeros(fractional + 1)
    total[0] = 1.0
    ends = np.zeros(2, np.int64)
    order = np.empty(runs, np.int64)
    _ascending(length[:runs], order)
    scratch = np.zeros(fractional + 1)
    sizes = np.zeros(fractional + 1)
    for run in order[::-1]:
        stop = first[run] + length[run]
        _sizes(y[first[run] : stop], sign[first[run] : stop], sizes)
        _oppose(total, ends, sizes[: length[run] + 1], scratch)
    return _can_fill(total, ends, alone[:singles], budget)


@part
def _runs(y, edge, unit, first, length, alone, k):
    """List the runs of two or more dependent fractional positions, and the others."""
    n = y.shape[0]
    runs, singles, fractional, budget = 0, 0, 0, k
    i = 0
    while i < n:
        if unit[i] < 0:
            budget -= y[i] >= 1.0
            i += 1
            continue
        start = i
        i += 1
        while i < n and unit[i] >= 0 and edge[i] != 0.0:
            i += 1
        fractional += i - start
        if i - start == 1:
            alone[singles] = y[start]
            singles += 1
        else:
            first[runs] = start
            length[runs] = i - start
            runs += 1
    return runs, singles, fractional, budget


@part
def _ascending(keys, order):
    """Fill ``order`` with the positions of the keys from small to large (Shell's sort)."""
    n = keys.shape[0]
    for i in range(n):
        order[i] = i
    gap = 1
    while gap < n:
        gap = 3 * gap + 1
    while gap > 0:
        for i in range(gap, n):
            moved = order[i]
            j = i
            while j >= gap and keys[order[j - gap]] > keys[moved]:
                order[j] = order[j - gap]
                j -= gap
            order[j] = moved
        gap //= 3


@part
def _sizes(y, sign, sizes):
    """The distribution of a run's size when one uniform variable decides all of its members."""
    n = y.shape[0]
    for size in range(n + 1):
        sizes[size] = 0.0
    level = np.empty(n)
    size = 0
    for i in range(n):
        level[i] = y[i] if sign[i] > 0 else 1.0 - y[i]
        size += sign[i] > 0
    order = np.empty(n, np.int64)
    _ascending(level, order)
    before = 0.0
    for i in order:
        sizes[size] += level[i] - before
        before = level[i]
        size -= sign[i]
    sizes[size] += 1.0 - before


@part
def _oppose(total, ends, sizes, scratch):
    """Replace the distribution of the total by that of total + size, coupled in opposite order."""
    low, high = ends[0], ends[1]
    size = sizes.shape[0] - 1
    left = sizes[size]
    smallest, largest = total.shape[0], 0
    for t in range(low, high + 1):
        mass = total[t]
        total[t] = 0.0
        while mass > 0.0:
            while left <= 0.0 and size > 0:
                size -= 1
                left = sizes[size]
            # Rounding may leave a crumb when the sizes are used up: it goes with the smallest.
            share = min(mass, left) if size > 0 else mass
            scratch[t + size] += share
            smallest, largest = min(smallest, t + size), max(largest, t + size)
            mass -= share
            left -= share
    for t in range(smallest, largest + 1):
        total[t] = scratch[t]
        scratch[t] = 0.0
    ends[0], ends[1] = smallest, largest


@part
def _can_fill(total, ends, alone, budget):
    time, demand = 0.0, 0.0
    for t in range(ends[0], ends[1] + 1):
        if t > budget and total[t] > _SLACK:
            return False
        time += total[t]
        demand += total[t] * (budget - t)
        supply = 0.0
        for share in alone:
            supply += min(share, time)
        if demand > supply + _SLACK * (1.0 + budget):
            return False
    return True
