# mypy: ignore-errors
r"""Compiled rows of capped sparsemax, forward and backward.

With distances :math:`d_i = \max\theta - \theta_i` the weights are :math:`\min(u_i, (S - d_i)_+)` for the
root S of an increasing, piecewise linear function. It is found twice: roughly, and then with distances
from an entry close to it, which keeps all digits where S is large.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from hopfy._kernels.capped.reference import poor_row, tolerance
from hopfy._kernels.rows.calls import run_backward, run_forward
from hopfy._kernels.rows.scan import (
    LANES,
    PADDING,
    collect,
    fill,
    pad,
    short_top,
    support,
    wide_tops,
)
from hopfy._runtime.compilation import inlined, jit, part

__all__ = ["solve", "vjp"]

SHORT = 128  # in rows up to this size every entry is a candidate
_STEPS = 200  # the root search needs about five


def solve(scores, upper):
    """Weights (..., N) of scores (..., N); ``upper`` broadcasts to the scores."""
    kernel = _short_rows if scores.shape[-1] <= SHORT else _long_rows
    slack = tolerance(scores.dtype, scores.shape[-1])
    weights, poor_rows = run_forward(kernel, scores, (_table(upper, scores), slack))
    if max(poor_rows) >= 0:
        raise poor_row(max(poor_rows))
    return weights


def vjp(weights, upper, cotangent):
    """Gradient with respect to the scores."""
    return run_backward(_backward, weights, _table(upper, weights), cotangent)


def _table(upper, rows):
    """The upper bounds as an array (1 or rows, 1 or N) in the dtype of the rows."""
    upper = upper.detach().to(rows.dtype)
    size = rows.shape[-1]
    columns = size if upper.ndim and upper.shape[-1] == size else 1
    if upper.ndim == 0 or all(side == 1 for side in upper.shape[:-1]):
        return upper.reshape(1, columns).contiguous().numpy()
    full = torch.broadcast_to(upper, (*rows.shape[:-1], columns))
    return full.reshape(-1, columns).contiguous().numpy()


@jit
def _short_rows(start, stop, scores, bits, options, weights):
    """Rows of up to SHORT entries: all of them are candidates.

    ``options`` are the upper bounds and the tolerance of their sum. A row whose bounds add up to less
    than one takes all of them; the last such row is returned, or -1.
    """
    upper, slack = options
    size = scores.shape[1]
    d, caps = np.empty(size + PADDING, scores.dtype), np.empty(size + PADDING, scores.dtype)
    poor = np.int64(-1)
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        top, spoiled = short_top(bits[r])
        if spoiled or top == -np.inf:
            fill(out, np.nan if spoiled else 0.0)
            continue
        for i in range(size):
            d[i] = top - row[i]
        _copy_caps(upper, r, size, caps)
        padded = _close(d, caps, size)
        if _room(d, caps, padded) <= 1.0:
            for i in range(size):
                out[i] = caps[i] if row[i] > -np.inf else 0.0
            poor = r if _room(d, caps, padded) < 1.0 - slack else poor
            continue
        s = _root(d, caps, padded, 0.0, _farthest(d, size) + 1.0)
        if s > 1.0:  # distances from a place near S keep the digits
            base = row[_last_below(d, size, s)]
            for i in range(size):
                d[i] = base - row[i]
            s = _root(d, caps, padded, *_around(d, s))
        s = _exact_root(d, caps, padded, s)
        for i in range(size):
            out[i] = _clip(s - np.float64(d[i]), np.float64(caps[i]))
    return poor


@jit
def _long_rows(start, stop, scores, bits, options, weights):
    """The same for longer rows: most entries are ruled out first."""
    upper, slack = options
    size = scores.shape[1]
    d, caps = np.empty(size + PADDING), np.empty(size + PADDING)
    lanes, index = np.empty(LANES), np.empty(size + PADDING, np.int64)
    poor = np.int64(-1)
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        top, spoiled = wide_tops(bits[r], lanes)
        fill(out, np.nan if spoiled else 0.0)
        if spoiled or top == -np.inf:
            continue
        bounds = upper[r if upper.shape[0] > 1 else 0]
        reach = _guess(np.float64(top), lanes, bounds)
        count = np.int64(0)
        for _ in range(_STEPS):
            count = collect(row, np.float64(top), reach, d, index)
            for j in range(count):
                caps[j] = _cap(bounds, index[j])
            if reach == np.inf or _total(d, caps, _close(d, caps, count), reach) >= 1.0:
                break
            reach = 2.0 * reach if reach < 64.0 else np.inf
        padded = _close(d, caps, count)
        room = _room(d, caps, padded)
        if room <= 1.0:
            for j in range(count):
                out[index[j]] = caps[j]
            poor = r if room < 1.0 - slack else poor
            continue
        s = _root(d, caps, padded, 0.0, reach if reach < np.inf else _farthest(d, count) + 1.0)
        if s > 1.0:
            base = np.float64(row[index[_last_below(d, count, s)]])
            for j in range(count):
                d[j] = base - np.float64(row[index[j]])
            s = _root(d, caps, padded, *_around(d, s))
        s = _exact_root(d, caps, padded, s)
        for j in range(count):
            out[index[j]] = _clip(s - d[j], caps[j])
    return poor


@inlined
def _cap(bounds, i):
    cap = np.float64(bounds[i if bounds.shape[0] > 1 else 0])
    return cap if cap < 1.0 else 1.0


@part
def _copy_caps(upper, r, size, caps):
    bounds = upper[r if upper.shape[0] > 1 else 0]
    one = caps.dtype.type(1.0)
    if bounds.shape[0] > 1:
        for i in range(size):
            caps[i] = bounds[i] if bounds[i] < one else one
    else:
        cap = bounds[0] if bounds[0] < one else one
        for i in range(size):
            caps[i] = cap


@inlined
def _close(d, caps, count):
    """Fill up with entries that get no weight; return the padded count."""
    for j in range(PADDING):
        caps[count + j] = 0.0
    return pad(d, count)


@part
def _guess(top, lanes, bounds):
    """How far below the top an entry may have weight, going by the first bounds: to be verified."""
    typical, largest = 0.0, 0.0
    sampled = min(bounds.shape[0], 64)
    for i in range(sampled):
        typical += _cap(bounds, np.int64(i)) / sampled
        largest = max(largest, _cap(bounds, np.int64(i)))
    if typical >= 1.0:
        return 1.0
    parts = math.ceil(1.0 / max(typical, 0.5 / LANES))
    for j in range(LANES):
        lanes[j] = top - lanes[j]
    nearest = 0.0
    for _ in range(min(parts, LANES // 2)):  # one after the other, the next distance
        following, place = np.inf, np.int64(0)
        for j in range(LANES):
            if lanes[j] < following:
                following, place = lanes[j], np.int64(j)
        lanes[place] = np.inf
        nearest = following
    return nearest + largest


@part
def _room(d, caps, padded):
    """The sum of the upper bounds of the entries that are there."""
    total = 0.0
    for j in range(padded):
        total += np.float64(caps[j]) if d[j] < np.inf else 0.0
    return total


@part
def _farthest(d, count):
    """The largest finite distance."""
    farthest = 0.0
    for j in range(count):
        farthest = max(farthest, np.float64(d[j]) if d[j] < np.inf else 0.0)
    return farthest


@part
def _last_below(d, count, s):
    """The place of the largest distance that is not above s, as far as rounding can tell."""
    limit = s * (1.0 + 8.0 * _epsilon(d))
    place, last = np.int64(0), -1.0
    for j in range(count):
        if last < np.float64(d[j]) <= limit:
            place, last = j, np.float64(d[j])
    return place


@inlined
def _around(d, s):
    """Bounds of the root S once distances count from the entry that `_last_below` found for s."""
    error = 16.0 * s * _epsilon(d)
    return -1.0 - error, 2.0 + error


@inlined
def _epsilon(d):
    return 1.2e-7 if d.itemsize == 4 else 2.3e-16


@inlined
def _clip(room, cap):
    room = room if room > 0.0 else 0.0
    return room if room < cap else cap


@part
def _total(d, caps, padded, s):
    total = 0.0
    for j in range(padded):
        total += _clip(s - d[j], caps[j])
    return total


@part
def _root(d, caps, padded, low, high):
    """Root in [low, high] of ``sum clip(s - d, 0, caps) = 1``, in the dtype of ``d``."""
    s = low + 1.0 if low + 1.0 < high else high
    resolution = 2.0 * _epsilon(d)
    for _ in range(_STEPS):
        total, slope = _step(d, caps, padded, d.dtype.type(s))
        excess = total - 1.0
        if excess == 0.0:
            return s
        if excess > 0.0:
            high = s
        else:
            low = s
        following = s - excess / slope if slope > 0.0 else low - 1.0
        near = resolution * (1.0 + math.fabs(s))
        if slope > 0.0 and math.fabs(following - s) <= near:
            return following
        if following <= low or following >= high:
            following = 0.5 * (low + high)
        if high - low <= near:
            break
        s = following
    return s


@part
def _step(d, caps, padded, s):
    """The sum of the weights at s, and how many entries are free."""
    zero, one = d.dtype.type(0.0), d.dtype.type(1.0)
    total, slope = zero, zero
    for j in range(padded):
        room = s - d[j]
        positive = one if room > zero else zero
        room = room if room > zero else zero
        slope += positive if room < caps[j] else zero
        total += room if room < caps[j] else caps[j]
    return np.float64(total), np.float64(slope)


@part
def _exact_root(d, caps, padded, s):
    """The root of the linear piece that s lies on, in float64; s itself where it is flat."""
    total, count = 0.0, 0.0
    edge, zero = d.dtype.type(s), d.dtype.type(0.0)
    for j in range(padded):
        room = edge - d[j]
        full = np.float64(caps[j]) if room > zero else 0.0
        own = np.float64(d[j]) if room > zero else 0.0
        count += (1.0 if room > zero else 0.0) if room < caps[j] else 0.0
        total += own if room < caps[j] else -full
    return (1.0 + total) / count if count > 0.0 else s


@jit
def _backward(start, stop, weights, cotangent, upper, gradient):
    """Rows [start, stop): the cotangent, centered over the free entries."""
    index = np.empty(weights.shape[1], np.int64)
    for r in range(start, stop):
        y, v, out = weights[r], cotangent[r], gradient[r]
        fill(out, np.nan if y[0] != y[0] else 0.0)
        bounds = upper[r if upper.shape[0] > 1 else 0]
        found = support(y, index)
        total, count = 0.0, np.int64(0)
        for j in range(found):
            i = index[j]
            index[count] = i
            free = y[i] < bounds[i if bounds.shape[0] > 1 else 0]
            total += np.float64(v[i]) if free else 0.0
            count += free
        for j in range(count):
            out[index[j]] = v[index[j]] - total / count
