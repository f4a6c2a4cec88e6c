# mypy: ignore-errors
r"""Sequential k-subsets, compiled: the relaxation that is nearly always exact, and its certificate.

Replace the hull of the subsets by a simpler, larger set: neighbors agree pair by pair, and
:math:`1^\top y = k`. Then a pair's score is :math:`t \min(y, y')` for a reward :math:`t \ge 0` and
:math:`t \max(0, y + y' - 1)` for a penalty :math:`t < 0`. Count a position on the far side of a
penalty by :math:`1 - y` (its *sign* is -1) and both become
:math:`t (y + y') / 2 - |t| |\tilde y - \tilde y'| / 2`: the relaxed problem is total-variation
denoising, clipped to [0, 1], with one threshold for the budget. It costs O(N) for each threshold
tried, and one is enough where no reward is negative.

The relaxed solution solves the real problem if and only if it is a mixture of subsets of size k
whose neighbors are as dependent as the pair scores assume. They are if all positions of a run of
fractional ones follow one uniform variable; the run then has a known distribution of sizes.
Different runs are free, and `is_mixture` looks for a joint law under which the total is always k.
"""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import part

__all__ = ["CERTAIN", "MASKED", "is_mixture", "pull_of_pairs", "relax", "relaxed_vjp"]

MASKED, CERTAIN = -2, -1  # units of the entries that are left out, and of those at 0 or 1

# Mass that the mixture may misplace; rounding errors are far below it.
_SLACK = 1e-10


@part
def relax(theta, edge, k, value, unit, sign):
    """Solve the relaxed row: ``clip(value, 0, 1)`` is the solution; return the threshold.

    ``edge[i]`` rewards the pair (i - 1, i). Fractional positions that move as one share a number in
    ``unit``; all others have -1. ``sign`` tells which positions count by 1 - y.
    """
    n = theta.shape[0]
    center = np.empty(n)
    fused = np.empty(n)
    _find_center(theta, edge, center)
    penalties = _signs(edge, sign)
    if penalties == 0:
        _denoise(center, edge, fused)
        threshold = _threshold(fused, k)
        for i in range(n):
            fused[i] -= threshold
    else:
        threshold = _search(center, edge, sign, k, fused)
    count = -1
    for i in range(n):
        unit[i] = -1
        if 0.0 < fused[i] < 1.0:
            if i == 0 or unit[i - 1] < 0 or edge[i] == 0.0 or fused[i] != fused[i - 1]:
                count += 1
            unit[i] = count
        value[i] = fused[i] if sign[i] > 0 else 1.0 - fused[i]
    return threshold


@part
def _signs(edge, sign):
    """Flip the sign across every penalty; return their number."""
    penalties = 0
    sign[0] = 1
    for i in range(1, edge.shape[0]):
        penalties += edge[i] < 0.0
        sign[i] = -sign[i - 1] if edge[i] < 0.0 else sign[i - 1]
    return penalties


@part
def _find_center(theta, edge, center):
    """What each position would be without its neighbors' pull."""
    n = theta.shape[0]
    for i in range(n):
        pull = theta[i]
        if i > 0:
            pull += 0.5 * edge[i]
        if i + 1 < n:
            pull += 0.5 * edge[i + 1]
        center[i] = 0.5 * pull


@part
def _denoise(center, edge, out):
    r"""Minimize :math:`\frac12\|x - c\|^2 + \sum_i \frac14 |t_i| |x_i - x_{i-1}|` in O(N).

    Going right, the derivative of the best value of a prefix, as a function of its last entry, is
    increasing and piecewise linear: a list of knots. The next pair cuts it off at plus and minus
    its weight; where it does are the bounds that the walk back clips to.
    """
    n = center.shape[0]
    knot, slope, level = np.empty(2 * n + 2), np.empty(2 * n + 2), np.empty(2 * n + 2)
    low, high = np.empty(n), np.empty(n)
    left, right = n + 1, n
    cut = 0.0
    for i in range(n):
        a, b = 1.0, -cut - center[i]
        c, d = 1.0, cut - center[i]
        cut = 0.25 * abs(edge[i + 1]) if i + 1 < n else 0.0
        while left <= right and a * knot[left] + b <= -cut:
            a += slope[left]
            b += level[left]
            left += 1
        while left <= right and c * knot[right] + d >= cut:
            c -= slope[right]
            d -= level[right]
            right -= 1
        low[i] = (-cut - b) / a
        high[i] = (cut - d) / c
        left -= 1
        knot[left], slope[left], level[left] = low[i], a, b + cut
        right += 1
        knot[right], slope[right], level[right] = high[i], -c, cut - d
    out[n - 1] = low[n - 1]
    for i in range(n - 2, -1, -1):
        out[i] = min(max(out[i + 1], low[i]), high[i])


@part
def _threshold(values, k):
    """The root of sum(clip(values - threshold, 0, 1)) = k: Newton, kept inside a bracket."""
    low, high = values[0], values[0]
    for value in values:
        low, high = min(low, value), max(high, value)
    low -= 1.0
    at = 0.5 * (low + high)
    for _ in range(200):
        surplus = -float(k)
        between = 0
        for value in values:
            share = min(max(value - at, 0.0), 1.0)
            surplus += share
            between += 0.0 < share < 1.0
        if surplus >= 0.0:
            low = at
        else:
            high = at
        step = at + surplus / between if between > 0 else np.inf
        if step == at:
            break
        at = step if low < step < high else 0.5 * (low + high)
        if at <= low or at >= high:
            break
    return at


@part
def _search(center, edge, sign, k, fused):
    """Find the threshold when some edges are penalties; ``fused`` is the solution before clipping.

    The budget used falls with the threshold along straight pieces: Newton, kept inside a bracket.
    """
    n = center.shape[0]
    data = np.empty(n)
    low, high, reach = center[0], center[0], 0.0
    for i in range(n):
        low, high = min(low, center[i]), max(high, center[i])
        reach = max(reach, abs(edge[i]))
    low -= 1.0 + reach
    high += 1.0 + reach
    at = 0.5 * (low + high)
    for _ in range(200):
        for i in range(n):
            data[i] = center[i] - at if sign[i] > 0 else 1.0 - (center[i] - at)
        _denoise(data, edge, fused)
        surplus, slope = _surplus(fused, edge, sign, k)
        if surplus >= 0.0:
            low = at
        else:
            high = at
        step = at + surplus / slope if slope > 0.0 else np.inf
        if abs(surplus) <= 1e-14 * k or step == at:
            break
        at = step if low < step < high else 0.5 * (low + high)
        if at <= low or at >= high:
            break
    return at


@part
def _surplus(fused, edge, sign, k):
    """Budget used above k, and how fast a higher threshold lowers it."""
    n = fused.shape[0]
    total, slope = -float(k), 0.0
    start = 0
    while start < n:
        stop = start + 1
        while stop < n and edge[stop] != 0.0 and fused[stop] == fused[start]:
            stop += 1
        value = min(max(fused[start], 0.0), 1.0)
        balance = 0
        for i in range(start, stop):
            balance += sign[i]
            total += value if sign[i] > 0 else 1.0 - value
        if 0.0 < value < 1.0:
            slope += balance * balance / (stop - start)
        start = stop
    return total, slope


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
    ascending(length[:runs], order)
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
def ascending(keys, order):
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
    ascending(level, order)
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


@part
def relaxed_vjp(y, unit, edge, cotangent, where, scores_grad, edges_grad):
    r"""Gradients of a row where the relaxation is exact; ``edges_grad`` is empty if not wanted.

    A unit moves as one: :math:`d\tilde y_u = (\sum_i s_i d\theta_i / 2 - S_u d\lambda) / |u|` with
    :math:`S_u = \sum_i s_i`, and :math:`\sum_u S_u d\tilde y_u = 0`; whatever is settled at 0 or 1
    stays. The pair's marginal is one of 0, the smaller of the two, or their sum minus one, so its
    gradient is a sum of the scores'. ``where`` is scratch; ``scores_grad`` comes as zeros.
    """
    moving = 0
    for i in range(unit.shape[0]):
        where[moving] = i
        moving += unit[i] >= 0
    pulls, weights = 0.0, 0.0
    start = 0
    while start < moving:
        stop, balance, pull = _unit(unit, edge, cotangent, where[:moving], start)
        pulls += balance * pull / (stop - start)
        weights += balance * balance / (stop - start)
        start = stop
    shift = pulls / weights if weights > 0.0 else 0.0
    start = 0
    while start < moving:
        stop, balance, pull = _unit(unit, edge, cotangent, where[:moving], start)
        share = 0.5 * (pull - shift * balance) / (stop - start)
        for j in range(start, stop):
            share = -share if j > start and edge[where[j] - 1] < 0.0 else share
            scores_grad[where[j]] = share
        start = stop
    for i in range(1, edges_grad.shape[0] + 1):
        before, here = _ends_that_move_a_pair(y, unit, edge, i)
        edges_grad[i - 1] = before * scores_grad[i - 1] + here * scores_grad[i]


@part
def _ends_that_move_a_pair(y, unit, edge, i):
    """Whether the marginal of the pair (i - 1, i) follows that of its first and of its second end."""
    if unit[i] == MASKED or unit[i - 1] == MASKED:
        return 0.0, 0.0
    if edge[i - 1] >= 0.0:
        return (0.0, 1.0) if y[i] < y[i - 1] else (1.0, 0.0)
    if y[i] + y[i - 1] > 1.0 and (unit[i] < 0 or unit[i] != unit[i - 1]):
        return 1.0, 1.0
    return 0.0, 0.0


@part
def pull_of_pairs(y, unit, edge, edge_tangent, pulls):
    """Add to the scores' tangent what the pair scores' tangent amounts to."""
    for i in range(1, edge_tangent.shape[0] + 1):
        before, here = _ends_that_move_a_pair(y, unit, edge, i)
        pulls[i - 1] += before * edge_tangent[i - 1]
        pulls[i] += here * edge_tangent[i - 1]


@part
def _unit(unit, edge, cotangent, where, start):
    """Where the unit from ``start`` ends, the sum of its signs and its signed cotangent.

    The sign flips across every penalty; which one a unit begins with makes no difference.
    """
    stop = start
    sign, balance, pull = 1, 0, 0.0
    while stop < where.shape[0] and unit[where[stop]] == unit[where[start]]:
        sign = -sign if stop > start and edge[where[stop] - 1] < 0.0 else sign
        balance += sign
        pull += sign * cotangent[where[stop]]
        stop += 1
    return stop, balance, pull
