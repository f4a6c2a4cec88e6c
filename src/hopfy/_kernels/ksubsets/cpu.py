# mypy: ignore-errors
"""Compiled rows of k-subsets, forward and backward."""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.ksubsets.reference import short_row
from hopfy._kernels.row_calls import run_backward, run_forward
from hopfy._kernels.row_tools import LANES, PADDING, collect, pad, row_tops, support
from hopfy._runtime.compilation import jit

__all__ = ["solve", "vjp"]

_STEPS = 200  # the root search needs about five


def solve(scores, k):
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1)."""
    weights, short_rows = run_forward(_forward, scores, k)
    if max(short_rows) >= 0:
        raise short_row(max(short_rows))
    return weights


def vjp(weights, k, cotangent):
    """Gradient with respect to the scores."""
    return run_backward(_backward, weights, k, cotangent)


@jit
def _forward(start, stop, scores, bits, k, weights):
    """Rows [start, stop); ``k`` has one entry, or one per row.

    A row with fewer than k finite scores takes all of them; the last such row is returned, or -1.
    """
    size = scores.shape[1]
    d, order = np.empty(size + PADDING), np.empty(size + PADDING)
    index = np.empty(size + PADDING, np.int64)
    lanes = np.empty(LANES)
    short = -1
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        wanted = k[r if k.shape[0] > 1 else 0]
        top, spoiled = row_tops(row, bits[r], lanes)
        out[:] = np.nan if spoiled else 0.0
        if spoiled or top == -np.inf or wanted == 0.0:
            continue
        count = collect(row, top, _reach(np.float64(top), lanes, wanted), d, index)
        if count <= wanted:
            for j in range(count):
                out[index[j]] = 1.0
            if count < wanted:
                short = r
            continue
        pivot = _kth_smallest(d, count, math.ceil(wanted), order)
        for j in range(count):
            d[j] -= pivot  # now the k-th best is at 0 and the threshold between 0 and 1 below it
        tau = _threshold(d, pad(d, count), wanted, 0.0, 1.0)
        for j in range(count):
            out[index[j]] = min(max(tau - d[j], 0.0), 1.0)
    return short


@jit
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
    for part in range(parts):
        best = np.inf
        for j in range(part, LANES, parts):
            best = lanes[j] if lanes[j] < best else best
        bound = best if best > bound else bound
    if bound == np.inf:
        return bound
    return _threshold(lanes, LANES, k, 0.0, bound + 1.0) * (1.0 + 1e-9)


@jit
def _kth_smallest(d, count, k, scratch):
    scratch[:count] = d[:count]
    return _select(scratch, count, k)


@jit
def _select(values, count, k):
    """The k-th smallest of ``values[:count]``, which are reordered (quickselect)."""
    low, high = 0, count - 1
    while low < high:
        middle = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < middle:
                i += 1
            while values[j] > middle:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return values[k - 1]


@jit
def _threshold(d, padded, k, low, high):
    """Root in [low, high] of ``sum clip(tau - d, 0, 1) = k``, piecewise linear and increasing."""
    tau = high
    for _ in range(_STEPS):
        total, slope = 0.0, 0
        for j in range(padded):
            room = tau - d[j]
            slope += np.int64(room > 0.0) - np.int64(room >= 1.0)
            room = room if room > 0.0 else 0.0
            total += room if room < 1.0 else 1.0
        excess = total - k
        if excess == 0.0:
            return tau
        if excess > 0.0:
            high = tau
        else:
            low = tau
        candidate = tau - excess / slope if slope > 0 else -1.0
        if not low < candidate < high:
            candidate = 0.5 * (low + high)
        if abs(candidate - tau) <= 1e-16 or not low < candidate < high:
            return tau
        tau = candidate
    return tau


@jit
def _backward(start, stop, weights, cotangent, k, gradient):
    """Rows [start, stop): the cotangent, centred over the entries strictly between 0 and 1."""
    index = np.empty(weights.shape[1], np.int64)
    for r in range(start, stop):
        y, v, out = weights[r], cotangent[r], gradient[r]
        out[:] = np.nan if y[0] != y[0] else 0.0
        found = support(y, index)
        total, count = 0.0, 0
        for j in range(found):
            i = index[j]
            index[count] = i
            between = y[i] < 1.0
            total += v[i] if between else 0.0
            count += between
        for j in range(count):
            out[index[j]] = v[index[j]] - total / count
