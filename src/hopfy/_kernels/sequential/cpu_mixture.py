# mypy: ignore-errors
"""Sequential k-subsets, compiled: whether a relaxed solution is a mixture of subsets of size k."""

from __future__ import annotations

from hopfy._kernels.sequential.cpu_rows import integers, numbers
from hopfy._runtime.compilation import leaf, part

__all__ = ["is_flipped", "is_mixture"]

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
    first, length, alone = integers(n), integers(n), numbers(n)
    runs, singles, fractional, budget = _runs(y, edge, unit, first, length, alone, k)
    total, scratch, sizes = numbers(n + 1), numbers(n + 1), numbers(n + 1)
    for size in range(fractional + 1):
        total[size] = scratch[size] = 0.0
    total[0] = 1.0
    low, high = 0, 0
    keys, order = numbers(n), integers(n)
    for run in range(runs):
        keys[run] = length[run]
    _ascending(keys, runs, order)
    for place in range(runs - 1, -1, -1):
        run = order[place]
        _sizes(y, sign, first[run], length[run], sizes)
        low, high = _oppose(total, low, high, sizes, length[run], scratch)
    return _can_fill(total, low, high, alone, singles, budget)


@leaf
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


@leaf
def _ascending(keys, n, order):
    """Fill ``order`` with the places of the first n keys from small to large (Shell's sort)."""
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
def _sizes(y, sign, first, length, sizes):
    """The distribution of a run's size when one uniform variable decides all of its members."""
    level, order = numbers(length), integers(length)
    size = 0
    for i in range(length):
        flipped = is_flipped(sign, first + i)
        level[i] = 1.0 - y[first + i] if flipped else y[first + i]
        size += not flipped
        sizes[i] = 0.0
    sizes[length] = 0.0
    _ascending(level, length, order)
    before = 0.0
    for place in range(length):
        i = order[place]
        sizes[size] += level[i] - before
        before = level[i]
        size += 1 if is_flipped(sign, first + i) else -1
    sizes[size] += 1.0 - before


@leaf
def is_flipped(sign, i):
    """Whether position i counts by 1 - y; without signs (no pair has a penalty) none does."""
    if sign is None:
        return False
    return sign[i] < 0


@leaf
def _oppose(total, low, high, sizes, size, scratch):
    """Replace the distribution of the total by that of total + size, coupled in opposite order.

    ``sizes`` has entries for 0 to ``size``. The total lies between ``low`` and ``high``; the new
    bounds are returned.
    """
    left = sizes[size]
    smallest, largest = total.shape[0], 0
    for t in range(low, high + 1):
        mass = total[t]
        total[t] = 0.0
        while mass > 0.0:
            while left <= 0.0 and size > 0:
                size -= 1
                left = sizes[size]
            # Rounding may leave some mass when the sizes are used up: it goes with the smallest.
            share = min(mass, left) if size > 0 else mass
            scratch[t + size] += share
            smallest, largest = min(smallest, t + size), max(largest, t + size)
            mass -= share
            left -= share
    for t in range(smallest, largest + 1):
        total[t] = scratch[t]
        scratch[t] = 0.0
    return smallest, largest


@leaf
def _can_fill(total, low, high, alone, singles, budget):
    time, demand = 0.0, 0.0
    for t in range(low, high + 1):
        if t > budget and total[t] > _SLACK:
            return False
        time += total[t]
        demand += total[t] * (budget - t)
        supply = 0.0
        for i in range(singles):
            supply += min(alone[i], time)
        if demand > supply + _SLACK * (1.0 + budget):
            return False
    return True
