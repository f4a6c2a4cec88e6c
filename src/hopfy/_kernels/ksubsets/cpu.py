# mypy: ignore-errors
"""Compiled rows of k-subsets, forward and backward."""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.capped.cpu import centered
from hopfy._kernels.ksubsets.reference import short_row
from hopfy._kernels.rows.calls import per_row, run_backward, run_checked
from hopfy._kernels.rows.quickselect import kth_smallest
from hopfy._kernels.rows.scan import (
    LANES,
    PADDING,
    collect,
    fill,
    gather_near,
    pad,
    short_top,
    wide_tops,
)
from hopfy._runtime.compilation import inlined, jit, part

__all__ = ["solve", "threshold_of", "vjp", "weigh"]

SHORT = 2 * LANES - 1  # longer rows rule most entries out first
_STEPS = 200  # the root search needs about five
_ROUGH_STEPS = 5  # more of them cost more than the entries that they rule out


def solve(scores, k):
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1)."""
    kernel = _short_rows if scores.shape[-1] <= SHORT else _long_rows
    return run_checked(kernel, scores, per_row(k, scores), short_row)


def vjp(weights, k, cotangent):
    """Gradient with respect to the scores."""
    one = weights.new_ones(1, 1).numpy()  # the upper bound of all entries
    return run_backward(centered, weights, one, cotangent)


@jit
def _short_rows(start, stop, scores, bits, k, weights):
    """Rows of up to SHORT entries: all of them are candidates.

    ``k`` has one entry, or one per row. A row with fewer than k finite scores takes all of them; the
    last such row is returned, or -1.
    """
    size = scores.shape[1]
    d, order = np.empty(size + PADDING), np.empty(size + PADDING)
    index = np.empty(size + PADDING, np.int64)
    short = np.int64(-1)
    for r in range(start, stop):
        wanted = k[r if k.shape[0] > 1 else 0]
        top, spoiled = short_top(bits[r])
        fill(weights[r], np.nan if spoiled else 0.0)
        if spoiled or top == -np.inf or wanted == 0.0:
            continue
        count = gather_near(scores[r], np.float64(top), np.inf, d, index)
        if not weigh(d, index, count, wanted, order, weights[r]):
            short = r
    return short


@jit
def _long_rows(start, stop, scores, bits, k, weights):
    """The same for rows of more than SHORT entries: most of them are ruled out first."""
    size = scores.shape[1]
    d, order = np.empty(size + PADDING), np.empty(size + PADDING)
    index, lanes = np.empty(size + PADDING, np.int64), np.empty(LANES)
    short = np.int64(-1)
    for r in range(start, stop):
        wanted = k[r if k.shape[0] > 1 else 0]
        top, spoiled = wide_tops(bits[r], lanes)
        fill(weights[r], np.nan if spoiled else 0.0)
        if spoiled or top == -np.inf or wanted == 0.0:
            continue
        reach = _reach(np.float64(top), lanes, wanted)
        count = collect(scores[r], np.float64(top), reach, d, index)
        if not weigh(d, index, count, wanted, order, weights[r]):
            short = r
    return short


@part
def weigh(d, index, count, k, order, out):
    """Write the weights of the candidates; False if there are fewer than k."""
    if count <= k:
        for j in range(count):
            out[index[j]] = 1.0
        return count == k
    pivot = kth_smallest(d, count, np.int64(math.ceil(k)), order)
    for j in range(count):
        d[j] -= pivot  # now the k-th best is at 0 and the threshold between 0 and 1 below it
    tau = threshold_of(d, pad(d, count), k, 0.0, 1.0)
    for j in range(count):
        u = tau - d[j]
        u = u if u > 0.0 else 0.0
        out[index[j]] = u if u < 1.0 else 1.0
    return True


@part
def _reach(top, lanes, k):
    """How far below the top a score may lie and still have weight: from the parts' maxima alone.

    Leaving entries out of ``sum clip(t - d, 0, 1) = k`` raises its root t. The maxima of wider parts,
    one for each unit of k, bound the root from above: at one more than their largest distance each
    of them has weight 1.
    """
    parts = 1
    while parts < k:
        parts *= 2
    if 2 * parts > LANES:
        return np.inf
    for j in range(LANES):
        lanes[j] = top - lanes[j]
    bound = 0.0
    for first in range(parts):
        best = np.inf
        for j in range(first, LANES, parts):
            best = lanes[j] if lanes[j] < best else best
        bound = best if best > bound else bound
    if bound == np.inf:
        return bound
    low, high = 0.0, bound + 1.0
    tau = high
    for _ in range(_ROUGH_STEPS):
        total, slope = _sum_and_slope(lanes, lanes.shape[0], tau)
        if total < k:
            low = tau
        else:
            high = tau  # a bound, too
        tau = _next(tau, total - k, slope, low, high)
    return high * (1.0 + 1e-9)


@part
def threshold_of(d, padded, k, low, high):
    """Root in [low, high] of ``sum clip(tau - d, 0, 1) = k``, piecewise linear and increasing."""
    tau = high
    for _ in range(_STEPS):
        total, slope = _sum_and_slope(d, padded, tau)
        excess = total - k
        if excess == 0.0:
            return tau
        if excess > 0.0:
            high = tau
        else:
            low = tau
        candidate = _next(tau, excess, slope, low, high)
        if math.fabs(candidate - tau) <= 1e-16 or candidate <= low or candidate >= high:
            return tau
        tau = candidate
    return tau


@inlined
def _sum_and_slope(d, padded, tau):
    """``sum clip(tau - d, 0, 1)``, and how many of its terms lie between 0 and 1."""
    total, slope = 0.0, np.int64(0)
    for j in range(padded):
        room = tau - d[j]
        slope += np.int64(room > 0.0) - np.int64(room >= 1.0)
        room = room if room > 0.0 else 0.0
        total += room if room < 1.0 else 1.0
    return total, slope


@inlined
def _next(tau, excess, slope, low, high):
    """Newton's step from tau, or the middle of the bracket where the step leads out of it."""
    candidate = tau - excess / slope if slope > 0 else -1.0
    if candidate <= low or candidate >= high:
        candidate = 0.5 * (low + high)
    return candidate
