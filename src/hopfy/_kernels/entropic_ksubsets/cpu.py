# mypy: ignore-errors
r"""Compiled rows of entropic k-subsets, forward and backward.

With :math:`u_i = e^{\theta_i - \max\theta}` and :math:`t = e^{\tau - \max\theta}` the weights are
:math:`u_i / (u_i + t)`: one exponential per entry, then a division per entry and step. 1/f for
:math:`f(t) = \sum_i u_i / (u_i + t)` is concave in t, so that Newton's method for 1/f = 1/k walks up to
the root from below.
"""

from __future__ import annotations

import math

import numpy as np
from numba import types
from numba.extending import overload

from hopfy._kernels.ksubsets.reference import short_row
from hopfy._kernels.rows.bits import as_float
from hopfy._kernels.rows.calls import per_row, run_backward, run_checked
from hopfy._kernels.rows.powers import exp_of
from hopfy._kernels.rows.scan import LANES, fill, short_top, wide_tops
from hopfy._runtime.compilation import inlined, jit, part

__all__ = ["solve", "vjp"]

_BLOCK = 1024  # entries whose sums are taken in the row's own dtype
_EDGE = math.exp(-30.0)  # more than k entries this large: float32 holds all that counts
_LEAST = 1e-17  # below this k, the weights are k times those of softmax, up to rounding
_FEW = 16.0  # up to this sum of weights, sums in float32 keep enough digits
_STEPS = 200  # a few are needed; the limit only stops a loop that rounding keeps alive
_SHIFT = np.float32(1.5 * 2.0**23)  # adding it rounds a small float32 to an integer
_LOG2E = np.float32(1.4426950408889634)
_LN2_HIGH, _LN2_LOW = np.float32(0.693359375), np.float32(-2.12194440e-4)
_TAYLOR = tuple(np.float32(1.0 / math.factorial(n)) for n in range(7))
_ONE, _LOWEST, _ZERO = np.float32(1.0), np.float32(-87.0), np.float32(0.0)


def solve(scores, k):
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1)."""
    return run_checked(_rows, scores, per_row(k, scores), short_row)


def vjp(weights, k, cotangent):
    """Gradient with respect to the scores."""
    return run_backward(_backward, weights, per_row(k, weights), cotangent)


@jit
def _rows(start, stop, scores, bits, k, weights):
    """``k`` has one entry, or one per row. Returns the last row with fewer than k entries, or -1."""
    size = scores.shape[1]
    lanes, order = np.empty(LANES), np.empty(size)
    settled = 1e-4 if scores.itemsize == 4 else 1e-8
    short = np.int64(-1)
    for r in range(start, stop):
        wanted = k[r if k.shape[0] > 1 else 0]
        row, out = scores[r], weights[r]
        if size >= LANES:
            top, spoiled = wide_tops(bits[r], lanes)
        else:
            top, spoiled = short_top(bits[r])
        if spoiled or top == -np.inf or wanted == 0.0:
            fill(out, np.nan if spoiled else 0.0)
            continue
        near, first, second = _relative(row, top, out)
        if wanted < _LEAST:
            _scale(out, first, wanted)
        elif near > math.ceil(wanted):
            _divide(out, _root(out, first, second, wanted, settled))
        elif not _spread_out(row, wanted, order, out):
            short = r
    return short


# --- rows of which more than k entries are near the top -------------------------------------------


@part
def _relative(row, top, out):
    """Write ``e^(row - top)``; return how many are near the top, their sum and sum of squares."""
    near, first, second = 0.0, 0.0, 0.0
    for begin in range(0, row.shape[0], _BLOCK):
        end = min(begin + _BLOCK, row.shape[0])
        block = out[begin:end]  # loops from 0 need no check for negative places, and use vectors
        _exponentials(row[begin:end], top, block)
        inside, total, squares = _moments(block)
        near += inside
        first += total
        second += squares
    return near, first, second


@part
def _moments(u):
    edge, one, zero = u.dtype.type(_EDGE), u.dtype.type(1.0), u.dtype.type(0.0)
    inside, total, squares = zero, zero, zero
    for i in range(u.shape[0]):
        inside += one if u[i] >= edge else zero
        total += u[i]
        squares += u[i] * u[i]
    return np.float64(inside), np.float64(total), np.float64(squares)


def _exponential(x):
    """``e^x`` for x <= 0, in the dtype of x; zero where float32 has no normal number for it."""


@overload(_exponential)
def _(x):
    if x != types.float32:
        return lambda x: exp_of(x)

    def single(x):
        bounded = x if x > _LOWEST else _LOWEST
        n = (bounded * _LOG2E + _SHIFT) - _SHIFT
        z = (bounded - n * _LN2_HIGH) - n * _LN2_LOW
        series = _TAYLOR[6]
        series = series * z + _TAYLOR[5]
        series = series * z + _TAYLOR[4]
        series = series * z + _TAYLOR[3]
        series = series * z + _TAYLOR[2]
        series = series * z + _ONE
        series = series * z + _ONE
        power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23))  # the bits of 2^n
        scaled = series * as_float(power)
        return scaled if x > _LOWEST else _ZERO

    return single


@part(fastmath={"contract"})  # rounding by adding and subtracting must not be undone
def _exponentials(row, top, out):
    for i in range(row.shape[0]):
        out[i] = _exponential(row[i] - top)


@part
def _root(u, first, second, k, settled):
    """Root t of ``sum u / (u + t) = k``; ``first`` and ``second`` are the sums of u and u^2."""
    high = first / k  # u / (u + t) < u / t
    low = 0.0
    t = high - second / first  # the mean of the convex 1 / (u + t) is at least that of the mean
    if t < high / 64.0:
        t = high / 4.0
    for _ in range(_STEPS):
        total, squares = _sums(u, t) if k <= _FEW else _precise_sums(u, t)
        if total < k:
            high = t if t < high else high
        else:
            low = t if t > low else low
        following = t * (1.0 + total * (total - k) / (k * (total - squares)))
        if math.fabs(following - t) <= settled * t:
            return following
        if following <= low or following >= high:
            following = math.sqrt(low * high) if low > 0.0 else high / 64.0
        if high - low <= 4e-16 * high:
            break
        t = following
    return t


@part
def _sums(u, t):
    """Sums of the weights ``u / (u + t)`` and of their squares."""
    total, squares = 0.0, 0.0
    edge = u.dtype.type(t)
    for begin in range(0, u.shape[0], _BLOCK):
        block = u[begin : min(begin + _BLOCK, u.shape[0])]
        part_total, part_squares = _block_sums(block, edge)
        total += part_total
        squares += part_squares
    return total, squares


@part
def _block_sums(u, edge):
    total, squares = u.dtype.type(0.0), u.dtype.type(0.0)
    for i in range(u.shape[0]):
        y = u[i] / (u[i] + edge)
        total += y
        squares += y * y
    return np.float64(total), np.float64(squares)


@part
def _precise_sums(u, t):
    """`_sums` in float64."""
    total, squares = 0.0, 0.0
    edge = u.dtype.type(t)
    for i in range(u.shape[0]):
        y = np.float64(u[i] / (u[i] + edge))
        total += y
        squares += y * y
    return total, squares


@part
def _divide(u, t):
    edge = u.dtype.type(t)
    for i in range(u.shape[0]):
        u[i] = u[i] / (u[i] + edge)


@part
def _scale(u, total, k):
    """k u / total: what ``u / (u + t)`` is where t exceeds all u by far, and maybe their dtype."""
    for i in range(u.shape[0]):
        u[i] = np.float64(u[i]) / total * k


# --- rows of which the entries around the k-th are far below the top ------------------------------


@part
def _spread_out(row, k, order, out):
    """The weights by a search for tau beside the k-th score; False if there are fewer than k."""
    count = np.int64(0)
    for i in range(row.shape[0]):
        order[count] = row[i]
        count += row[i] > -np.inf
    if count <= k:
        for i in range(row.shape[0]):
            out[i] = 1.0 if row[i] > -np.inf else 0.0
        return count == k
    pivot = _pivot(order, count, k)
    share = k - math.floor(k)
    slack = 1.0 + math.log(np.float64(count))
    if share > 0.0:
        slack -= math.log(0.5 * min(share, 1.0 - share))
    low, high = -slack - math.log(max(k, 1.0)), slack
    tau = 0.0
    for _ in range(_STEPS):
        total, squares = 0.0, 0.0
        for j in range(count):
            y = _sigmoid((order[j] - pivot) - tau)
            total += y
            squares += y * y
        if total >= k:
            low = tau
        if total <= k:
            high = tau
        following = tau + (total - k) / (total - squares) if total > squares else low
        if not low < following < high:
            following = 0.5 * (low + high)
        if math.fabs(following - tau) <= 1e-15 * (1.0 + math.fabs(tau)):
            break
        tau = following
    for i in range(row.shape[0]):
        out[i] = _sigmoid((np.float64(row[i]) - pivot) - tau)
    return True


@inlined
def _pivot(order, count, k):
    """See `hopfy._kernels.entropic_ksubsets.reference`; sorts ``order[:count]``."""
    ordered = np.sort(order[:count])
    best = ordered[count - np.int64(math.ceil(k))]
    if math.ceil(k) != k:
        return best
    return best - 0.5 * (best - ordered[count - np.int64(k) - 1])


@inlined
def _sigmoid(x):
    return 1.0 / (1.0 + math.exp(-x)) if x > -700.0 else 0.0


# --- backward -------------------------------------------------------------------------------------


@jit
def _backward(start, stop, weights, cotangent, k, gradient):
    r"""Rows of :math:`g (v - g^\top v / 1^\top g)` with :math:`g = y (1 - y)`."""
    size = weights.shape[1]
    one = weights.dtype.type(1.0)
    for r in range(start, stop):
        y, v, out = weights[r], cotangent[r], gradient[r]
        total, along = 0.0, 0.0
        for begin in range(0, size, _BLOCK):
            end = min(begin + _BLOCK, size)
            part_total, part_along = _steepness_sums(y[begin:end], v[begin:end])
            total += part_total
            along += part_along
        mean = weights.dtype.type(along / total if total > 0.0 else 0.0)
        spoiled = y[0] != y[0]
        for i in range(size):
            out[i] = y[i] * (one - y[i]) * (v[i] - mean)
        if spoiled:
            fill(out, np.nan)


@part
def _steepness_sums(y, v):
    one, zero = y.dtype.type(1.0), y.dtype.type(0.0)
    total, along = zero, zero
    for i in range(y.shape[0]):
        g = y[i] * (one - y[i])
        total += g
        along += g * v[i]
    return np.float64(total), np.float64(along)
