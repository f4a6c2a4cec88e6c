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

from hopfy._kernels.sequential.cpu_mixture import is_flipped, is_mixture
from hopfy._kernels.sequential.cpu_rows import (
    LARGE,
    MASKED,
    OPEN,
    gather,
    leading,
    new_row,
    numbers,
)
from hopfy._kernels.total_variation.cpu import denoise
from hopfy._runtime.compilation import jit, leaf, part

__all__ = ["TOO_LARGE", "largest", "relax_rows"]

# Scores above this size are left to the active set alone: the relaxation would lose half of the digits.
TOO_LARGE = 1e7


@jit
def relax_rows(start, stop, scores, edges, k, limit, answers, signs):
    """Relax rows ``start`` to ``stop``; those that need an active set get OPEN for their size.

    Of these, ``y`` is the relaxed solution before it is clipped to [0, 1], and ``gap`` its
    threshold. Rows with a number above ``limit`` get LARGE and are left alone. ``signs`` (R, N) is
    memory, or None if no pair has a penalty, which compiles less.
    """
    whole = new_row(scores.shape[1])
    for r in range(start, stop):
        n = gather(scores[r], edges[r % edges.shape[0]], whole)
        answers.missing[r] = max(k[r] - n, 0) if n > 0 else 0
        answers.size[r, 0], answers.gap[r] = 0, 0.0
        for i in range(scores.shape[1]):
            answers.y[r, i] = 0.0 if n >= 0 else np.nan
            answers.unit[r, i] = MASKED
        if n <= 0:
            continue
        row, budget = leading(whole, n), min(k[r], n)
        size = largest(row.theta, row.edge)
        if size > limit or size > TOO_LARGE:
            answers.size[r, 0] = LARGE if size > limit else OPEN
            continue
        sign = None if signs is None else signs[r]
        threshold = _relax(row.theta, row.edge, budget, row.value, row.unit, sign)
        if is_mixture(row.value, row.edge, row.unit, sign, budget):
            for i in range(n):
                answers.y[r, row.where[i]] = min(max(row.value[i], 0.0), 1.0)
                answers.unit[r, row.where[i]] = row.unit[i]
        else:
            answers.size[r, 0], answers.gap[r] = OPEN, threshold
            for i in range(n):
                answers.y[r, row.where[i]] = row.value[i]


@leaf
def largest(theta, edge):
    """The largest size of a score."""
    most = 0.0
    for i in range(theta.shape[0]):
        most = max(most, max(abs(theta[i]), abs(edge[i])))
    return most


@part
def _relax(theta, edge, k, value, unit, sign):
    """Solve the relaxed row: ``clip(value, 0, 1)`` is the solution; return the threshold.

    ``edge[i]`` rewards the pair (i - 1, i). Fractional positions that move as one share a number in
    ``unit``; all others have -1. ``sign`` tells which positions count by 1 - y.
    """
    n = theta.shape[0]
    center, pulls, fused = numbers(n), numbers(n), numbers(n)
    _find_center(theta, edge, center, pulls)
    if sign is None:
        threshold = _with_rewards(center, pulls, k, fused)
    else:
        threshold = _with_penalties(center, edge, pulls, sign, k, fused)
    count = -1
    for i in range(n):
        unit[i] = -1
        if 0.0 < fused[i] < 1.0:
            if i == 0 or unit[i - 1] < 0 or edge[i] == 0.0 or fused[i] != fused[i - 1]:
                count += 1
            unit[i] = count
        value[i] = 1.0 - fused[i] if is_flipped(sign, i) else fused[i]
    return threshold


@part
def _with_rewards(center, pulls, k, fused):
    """The threshold if no pair has a penalty; ``fused`` is the solution before clipping."""
    denoise(center, pulls, fused)
    threshold = _threshold(fused, k)
    for i in range(fused.shape[0]):
        fused[i] -= threshold
    return threshold


@leaf
def _signs(edge, sign):
    """Flip the sign across every penalty; return their number."""
    penalties = 0
    sign[0] = 1
    for i in range(1, edge.shape[0]):
        penalties += edge[i] < 0.0
        sign[i] = -sign[i - 1] if edge[i] < 0.0 else sign[i - 1]
    return penalties


@leaf
def _find_center(theta, edge, center, pulls):
    """What each position would be without its neighbors' pull, and how strong the pulls are."""
    n = theta.shape[0]
    for i in range(n):
        pulls[i] = 0.25 * abs(edge[i])
        pull = theta[i]
        if i > 0:
            pull += 0.5 * edge[i]
        if i + 1 < n:
            pull += 0.5 * edge[i + 1]
        center[i] = 0.5 * pull


@leaf
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
def _with_penalties(center, edge, pulls, sign, k, fused):
    """The same for any pairs; ``sign`` becomes -1 where a position counts by 1 - y.

    The budget used falls with the threshold along straight pieces: Newton, kept inside a bracket.
    """
    if _signs(edge, sign) == 0:
        return _with_rewards(center, pulls, k, fused)
    n = center.shape[0]
    data = numbers(n)
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
        denoise(data, pulls, fused)
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


@leaf
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
