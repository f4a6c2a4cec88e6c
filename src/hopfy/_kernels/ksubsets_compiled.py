# mypy: ignore-errors
"""Compiled rows of k-subsets, forward and backward."""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels._compile import jit
from hopfy._kernels._rows_compiled import collect, row_top, type_of

__all__ = ["ksubsets_backward", "ksubsets_forward"]

_STEPS = 200  # the root search needs about five
_SEGMENT = 32  # a long row is cut into segments of this size,
_LANES = 32  # a short one into this many interleaved parts


@jit
def ksubsets_forward(start, stop, scores, bits, k, weights):
    """Rows [start, stop); ``k`` has one entry, or one per row.

    A row with fewer than k finite scores takes all of them; the last such row is returned, or -1.
    """
    size = scores.shape[1]
    d = np.empty(size + 1)
    index = np.empty(size + 1, np.int64)
    order = np.empty(size)
    short = -1
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        wanted = k[r if k.shape[0] > 1 else 0]
        top, spoiled = row_top(bits[r])
        out[:] = np.nan if spoiled else 0.0
        if spoiled or top == -np.inf or wanted == 0.0:
            continue
        reach = np.float64(top) - _kth_bound(row, bits[r], math.ceil(wanted), order) + 1.0
        count = collect(row, top, reach, d, index)
        if count <= wanted:
            for j in range(count):
                out[index[j]] = 1.0
            if count < wanted:
                short = r
            continue
        pivot = _kth_smallest(d, count, math.ceil(wanted), order)
        for j in range(count):
            d[j] -= pivot  # now the k-th best is at 0 and the threshold between 0 and 1 below it
        tau = _threshold(d, count, wanted)
        for j in range(count):
            out[index[j]] = min(max(tau - d[j], 0.0), 1.0)
    return short


@jit
def _kth_bound(row, bits, k, tops):
    """A lower bound of the k-th largest score: the k-th largest among maxima of parts of the row."""
    segments = row.shape[0] // _SEGMENT
    if segments >= 4 * k:
        for s in range(segments):
            tops[s] = -np.float64(row_top(bits[s * _SEGMENT : (s + 1) * _SEGMENT])[0])
        return -_select(tops, segments, k)
    if row.shape[0] < _LANES or 2 * k > _LANES:
        return -np.inf
    for j in range(_LANES):
        tops[j] = -np.float64(row[j])
    for start in range(_LANES, row.shape[0] - _LANES + 1, _LANES):
        for j in range(_LANES):
            v = -np.float64(row[start + j])
            tops[j] = v if v < tops[j] else tops[j]
    return -_select(tops, _LANES, k)


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
def _threshold(d, count, k):
    """Root tau in [0, 1] of ``sum clip(tau - d, 0, 1) = k``, piecewise linear and increasing."""
    low, high = 0.0, 1.0
    tau = 1.0
    for _ in range(_STEPS):
        between, full, total = 0, 0, 0.0
        for j in range(count):
            room = tau - d[j]
            inside = 0.0 < room < 1.0
            between += inside
            full += room >= 1.0
            total += d[j] if inside else 0.0
        value = between * tau - total + full - k
        if value == 0.0:
            return tau
        if value > 0.0:
            high = tau
        else:
            low = tau
        candidate = (k - full + total) / between if between else -1.0
        if candidate == tau:
            return tau
        previous = tau
        tau = candidate if low < candidate < high else 0.5 * (low + high)
        if tau == previous:
            return tau
    return tau


@jit
def ksubsets_backward(start, stop, weights, cotangent, k, gradient):
    """Rows [start, stop): the cotangent, centred over the entries strictly between 0 and 1."""
    zero, one = type_of(weights, 0.0), type_of(weights, 1.0)
    for r in range(start, stop):
        y, v, out = weights[r], cotangent[r], gradient[r]
        total, count = 0.0, 0
        for i in range(y.shape[0]):
            between = zero < y[i] < one
            total += v[i] if between else zero
            count += between
        mean = type_of(weights, total / count if count else 0.0)
        for i in range(y.shape[0]):
            out[i] = v[i] - mean if zero < y[i] < one else y[i] * zero
