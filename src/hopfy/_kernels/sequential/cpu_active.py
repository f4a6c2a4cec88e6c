# mypy: ignore-errors
r"""Sequential k-subsets, compiled: a dynamic program for the best subset, and an active set.

One row is ``theta`` (n), ``edge`` (n; ``edge[i]`` rewards the pair i - 1, i; ``edge[0]`` is unused)
and k. The solver maximizes :math:`\theta^\top y + t^\top z - \|y\|^2` over the hull of the subsets
of size k, where z counts the selected pairs. It keeps a few subsets ``V`` whose indicator vectors
are linearly independent, with positive weights that are optimal for these subsets alone:

.. math:: 2 G \lambda + \tau 1 = a, \quad 1^\top\lambda = 1, \qquad
          G = V V^\top \text{ (overlaps)}, \quad a = \text{scores of the subsets}.

As long as the best subset under the gradient :math:`\theta - 2y` scores above :math:`\tau` it
joins. The inverse of G is kept up to date: a subset that joins or leaves costs one rank-one update,
and every step starts from the present slopes, so that errors of the inverse do not accumulate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hopfy._kernels.sequential.cpu_rows import integers, numbers
from hopfy._runtime.compilation import leaf, part

__all__ = ["WEIGHT", "ActiveSet", "best_subset", "maximize", "new_active_set"]


class ActiveSet(NamedTuple):
    """The working memory of one row: n positions, at most ``capacity`` subsets (the slots)."""

    theta: np.ndarray  # (n) scores
    edge: np.ndarray  # (n) reward of the pair (i - 1, i)
    gradient: np.ndarray  # (n)
    y: np.ndarray  # (n) the mixture of subsets
    table: np.ndarray  # (2, n + 1, k + 2) the dynamic program
    members: np.ndarray  # (k) the best subset, descending
    subsets: np.ndarray  # (n, capacity) indicator vectors, one per column
    inverse: np.ndarray  # (capacity, capacity) of the overlaps
    vectors: np.ndarray  # (7, capacity): see the rows' names below


SCORE, WEIGHT, ONES, SLOPE, TARGET, OVERLAP, COLUMN = range(7)
LASTING = 3  # the first three belong to the slots, the others are for one step

# A subset whose squared distance to the span of the others is below this share of k is in it.
DEPENDENT = 1e-8

# Below this share of k that distance is computed twice, for the digits that were lost.
NEARLY_DEPENDENT = 1e-3

# Steps without a move after which only rounding errors can be left.
PATIENCE = 3

# Gaps up to this many tolerances are rounding errors if as many iterations as the next brought no
# smaller one.
NOISE = 1e4
CIRCLE = 20


@part
def new_active_set(n, k):
    capacity = n + 1
    return ActiveSet(
        numbers(n),
        numbers(n),
        numbers(n),
        numbers(n),
        np.empty((2, n + 1, k + 2)),
        integers(k),
        np.empty((n, capacity), np.float32),
        np.empty((capacity, capacity)),
        np.empty((7, capacity)),
    )


@leaf
def best_subset(scores, edge, k, table, members):
    """Fill ``members`` with the best subset of size k; return its score.

    ``table[s, i, j]`` is the best score of the first i positions with j members among them, the
    last of the i being one (s = 1) or not (s = 0).
    """
    n = scores.shape[0]
    off, on = table[0], table[1]
    for j in range(k + 2):
        off[0, j] = on[0, j] = -np.inf
    off[0, 0] = 0.0
    for i in range(n):
        # A prefix has at most k members, and as many as the rest cannot supply.
        low = max(k - (n - i - 1), 0)
        high = min(i + 1, k)
        _extend(off[i], on[i], off[i + 1], on[i + 1], scores[i], edge[i], low, high)
    return _trace(off, on, edge, k, members)


@leaf
def _extend(off, on, next_off, next_on, score, edge, low, high):
    if low == 0:
        next_off[0] = max(off[0], on[0])
        next_on[0] = -np.inf
        low = 1
    for j in range(low, high + 1):
        a = off[j]
        b = on[j]
        next_off[j] = a if a > b else b
        c = off[j - 1]
        d = on[j - 1] + edge
        next_on[j] = score + (c if c > d else d)
    next_off[high + 1] = -np.inf
    next_on[high + 1] = -np.inf


@leaf
def _trace(off, on, edge, k, members):
    n = off.shape[0] - 1
    j = k
    selected = k == n or on[n, k] > off[n, k]
    found = 0
    for i in range(n, 0, -1):
        if selected:
            members[found] = i - 1
            found += 1
            j -= 1
            selected = j > 0 and on[i - 1, j] + edge[i - 1] > off[i - 1, j]
        else:
            selected = on[i - 1, j] > off[i - 1, j]
        selected |= 0 < j == i - 1  # however the scores compare, the rest must fill the budget
    return max(on[n, k], off[n, k])


@leaf
def _subset_score(work, k):
    """Score of ``work.members`` under the row's own scores."""
    total = 0.0
    for j in range(k):
        i = work.members[j]
        total += work.theta[i]
        if j + 1 < k and work.members[j + 1] == i - 1:
            total += work.edge[i]
    return total


@leaf
def _overlaps(work, m, k):
    overlap = work.vectors[OVERLAP]
    for s in range(m):
        overlap[s] = 0.0
    for j in range(k):
        column = work.subsets[work.members[j]]
        for s in range(m):
            overlap[s] += column[s]


@leaf
def _times_inverse(work, m, vector, out):
    for s in range(m):
        row = work.inverse[s]
        dot = 0.0
        for r in range(m):
            dot += row[r] * vector[r]
        out[s] = dot


@leaf
def _distance(work, m, k):
    """Project ``work.members`` on the span of the others; return its squared distance to it.

    COLUMN becomes the coordinates of the projection, OVERLAP is used up.
    """
    overlap, column, correction = (
        work.vectors[OVERLAP],
        work.vectors[COLUMN],
        work.vectors[TARGET],
    )
    _overlaps(work, m, k)
    _times_inverse(work, m, overlap, column)
    rest = _residual(work, m, k)
    if rest < NEARLY_DEPENDENT * k:
        for s in range(m):
            overlap[s] = 0.0
        for i in range(work.y.shape[0]):
            row = work.subsets[i]
            for s in range(m):
                overlap[s] += row[s] * work.gradient[i]
        _times_inverse(work, m, overlap, correction)
        for s in range(m):
            column[s] += correction[s]
        rest = _residual(work, m, k)
    return rest


@leaf
def _residual(work, m, k):
    """``work.gradient`` = the members' indicator less the mixture by COLUMN; its squared length."""
    column, rest = work.vectors[COLUMN], work.gradient
    for i in range(rest.shape[0]):
        row = work.subsets[i]
        total = 0.0
        for s in range(m):
            total += row[s] * column[s]
        rest[i] = -total
    for j in range(k):
        rest[work.members[j]] += 1.0
    length = 0.0
    for i in range(rest.shape[0]):
        length += rest[i] * rest[i]
    return length


@leaf
def _border(work, m, rest):
    """Give the inverse slot m: COLUMN is its projection on the others, ``rest`` its distance."""
    column, inverse, ones = work.vectors[COLUMN], work.inverse, work.vectors[ONES]
    missing = 1.0
    for s in range(m):
        missing -= column[s]
    missing /= rest
    for s in range(m):
        row = inverse[s]
        factor = column[s] / rest
        for r in range(m):
            row[r] += factor * column[r]
        row[m] = -factor
        inverse[m, s] = -factor
        ones[s] -= missing * column[s]
    inverse[m, m] = 1.0 / rest
    ones[m] = missing


@leaf
def _join(work, m, k, weight, rest):
    """Append ``work.members`` as slot m; return the new count."""
    work.vectors[SCORE, m] = _subset_score(work, k)
    work.vectors[WEIGHT, m] = weight
    for i in range(work.y.shape[0]):
        work.subsets[i, m] = 0.0
    for j in range(k):
        work.subsets[work.members[j], m] = 1.0
    _border(work, m, rest)
    return m + 1


@leaf
def _leave(work, slot, m):
    """Remove a slot; the last one takes its place. Return the new count."""
    inverse, last = work.inverse, m - 1
    if slot != last:
        for s in range(m):
            inverse[slot, s], inverse[last, s] = inverse[last, s], inverse[slot, s]
        for s in range(m):
            inverse[s, slot], inverse[s, last] = inverse[s, last], inverse[s, slot]
        for v in range(LASTING):
            row = work.vectors[v]
            row[slot], row[last] = row[last], row[slot]
        for i in range(work.y.shape[0]):
            work.subsets[i, slot] = work.subsets[i, last]
    ones = work.vectors[ONES]
    gone = inverse[last]
    pivot = gone[last]
    for s in range(last):
        factor = gone[s] / pivot
        row = inverse[s]
        for r in range(last):
            row[r] -= factor * gone[r]
        ones[s] -= factor * ones[last]
    return last


@leaf
def _slopes(work, m):
    """SLOPE = the subsets' scores under the gradient, equal at an optimum; spread and mean."""
    slope = work.vectors[SLOPE]
    for s in range(m):
        slope[s] = work.vectors[SCORE, s]
    for i in range(work.y.shape[0]):
        twice = 2.0 * work.y[i]
        row = work.subsets[i]
        for s in range(m):
            slope[s] -= twice * row[s]
    low, high, mean = slope[0], slope[0], 0.0
    for s in range(m):
        low, high = min(low, slope[s]), max(high, slope[s])
        mean += slope[s] * work.vectors[WEIGHT, s]
    return high - low, mean


@leaf
def _aim(work, m):
    """TARGET = the best weights, of any sign, for the present subsets: a Newton step from here.

    Starting from the slopes keeps errors of the inverse in proportion to the step.
    """
    slope, target, ones = work.vectors[SLOPE], work.vectors[TARGET], work.vectors[ONES]
    _times_inverse(work, m, slope, target)
    total, total_ones = 0.0, 0.0
    for s in range(m):
        total += target[s]
        total_ones += ones[s]
    shift = total / total_ones
    for s in range(m):
        target[s] = work.vectors[WEIGHT, s] + 0.5 * (target[s] - shift * ones[s])


@leaf
def _step(work, m):
    """Move the weights toward the target until one vanishes: its slot (-1: none), and how far."""
    weight, target = work.vectors[WEIGHT], work.vectors[TARGET]
    step = 1.0
    blocking = -1
    for s in range(m):
        if target[s] <= 0.0:
            ratio = weight[s] / (weight[s] - target[s]) if weight[s] > 0.0 else 0.0
            if ratio < step or blocking < 0:
                step = ratio
                blocking = s
    for s in range(m):
        weight[s] += step * (target[s] - weight[s])
    return blocking, step


@leaf
def _mix(work, m):
    """y = the mixture of the subsets; gradient = theta - 2 y."""
    weight = work.vectors[WEIGHT]
    for i in range(work.y.shape[0]):
        row = work.subsets[i]
        total = 0.0
        for s in range(m):
            total += row[s] * weight[s]
        work.y[i] = total
        work.gradient[i] = work.theta[i] - 2.0 * total


@leaf
def _exchange(work, m):
    """The new subset is a combination of the others: shift weight to it until one of them vanishes.

    The mixture stays; the score rises. Returns that slot and the weight of the new subset.
    """
    weight, column = work.vectors[WEIGHT], work.vectors[COLUMN]
    step = np.inf
    blocking = -1
    for s in range(m):
        if column[s] > 1e-9 and weight[s] < step * column[s]:
            step = weight[s] / column[s]
            blocking = s
    if blocking >= 0:
        for s in range(m):
            weight[s] -= step * column[s]
    return blocking, step


@leaf
def _normalize(weight, m):
    total = 0.0
    for s in range(m):
        total += weight[s]
    for s in range(m):
        weight[s] /= total


@leaf
def _rebuild(work, m, k):
    """Invert the overlaps afresh (updates gather rounding errors); return the count of subsets."""
    weight, slot = work.vectors[WEIGHT], 0
    while slot < m:
        found = k
        for i in range(work.y.shape[0]):
            if work.subsets[i, slot] > 0.0:
                found -= 1
                work.members[found] = i
        rest = _distance(work, slot, k)
        if rest > DEPENDENT * k:
            _border(work, slot, rest)
            slot += 1
        else:
            m -= 1
            for i in range(work.y.shape[0]):
                work.subsets[i, slot] = work.subsets[i, m]
            weight[slot] = weight[m]
            work.vectors[SCORE, slot] = work.vectors[SCORE, m]
    _normalize(weight, m)
    return m


@leaf
def _settle(work, m, k, tolerance):
    """Walk to the optimal weights; subsets whose weight vanishes leave on the way.

    Returns the count, the common slope and whether the weights moved at all.
    """
    moved, rebuilt = False, False
    before = np.inf  # the spread after the last full step
    full = False
    _normalize(work.vectors[WEIGHT], m)
    while True:
        _mix(work, m)
        spread, tau = _slopes(work, m)
        if m == 1 or (full and spread <= tolerance):
            return m, tau, moved
        if full and spread > 0.25 * before:  # more corrections with this inverse do not help
            if rebuilt or spread < 1e3 * tolerance:
                return m, tau, moved
            m, rebuilt = _rebuild(work, m, k), True
        before = spread if full else np.inf
        _aim(work, m)
        blocking, step = _step(work, m)
        moved |= step > 0.0
        full = blocking < 0
        if not full:
            m = _leave(work, blocking, m)


@leaf
def _enter(work, m, k):
    """Take ``work.members`` among the subsets; return the new count, 0 if it is there already."""
    rest = _distance(work, m, k)
    if rest > DEPENDENT * k:
        return _join(work, m, k, 0.0, rest)
    size = 0.0
    for s in range(m):
        size += abs(work.vectors[COLUMN, s])
    if size < 1.0 + 1e-6:  # no mixture of other subsets is one
        return 0
    blocking, weight = _exchange(work, m)
    m = _leave(work, blocking, m)
    return _join(work, m, k, weight, max(_distance(work, m, k), DEPENDENT * k))


@leaf
def maximize(work, k, limit, tolerance):
    """Solve the row in ``work``; return the number of subsets, the iterations and the gap."""
    if k == 0 or k == work.theta.shape[0]:  # one subset is all there is
        for i in range(work.theta.shape[0]):
            work.y[i] = work.subsets[i, 0] = 0.0 if k == 0 else 1.0
        work.inverse[0, 0] = work.vectors[WEIGHT, 0] = 1.0
        return 1, 0, 0.0
    best_subset(work.theta, work.edge, k, work.table, work.members)
    m, tau, _ = _settle(work, _join(work, 0, k, 1.0, float(k)), k, tolerance)
    iterations, patience = 0, PATIENCE
    smallest, since = np.inf, 0
    while True:
        gap = best_subset(work.gradient, work.edge, k, work.table, work.members) - tau
        since += 1
        if gap < smallest:
            smallest, since = gap, 0
        circling = since > CIRCLE and gap < NOISE * tolerance
        if gap <= tolerance or circling or iterations >= limit or patience == 0:
            return m, iterations, gap
        iterations += 1
        entered = _enter(work, m, k)
        if entered > 0:
            m, tau, moved = _settle(work, entered, k, max(0.25 * tolerance, 1e-4 * gap))
            if moved:
                patience = PATIENCE
                continue
        # The best subset is an active one, or did not help: sharpen the weights and look again.
        patience -= 1
        m, tau, _ = _settle(work, _rebuild(work, m, k), k, 0.25 * tolerance)
