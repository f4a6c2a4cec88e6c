# mypy: ignore-errors
r"""Building blocks of the Triton kernels: powers, bracketed root searches, tiles of scores.

Each search runs over a *source* of tiles (R, B) of scores, R rows at once, given by a function
``tile(source, j)``: a tile held in registers (`held`), tiles read from memory (`streamed`), or blocks
of an attention matrix. One solver so serves short rows, long rows and attention.

Arithmetic is float32. Powers are ``exp2(e * log2(x))`` with a logarithm of its own that is accurate
near 1, where the hardware's is not; no function of a vendor's library is called.
"""

from __future__ import annotations

import triton
import triton.language as tl

__all__ = [
    "advance",
    "convex_root",
    "falling_root",
    "held",
    "log2_of",
    "ordered",
    "power",
    "power_of_rest",
    "row_top",
    "smallest_passing",
    "streamed",
    "unordered",
]

INFINITY = tl.constexpr(float("inf"))
TINY = tl.constexpr(1.1754944e-38)  # the smallest normal float32
# Slopes are at most this, so that a row of them, times cotangents, has a sum.
STEEPEST = tl.constexpr(1e30)
# A step of the threshold, as a share of it, that no longer shows in a float32 weight.
SETTLED = tl.constexpr(3e-7)


# --- tiles ----------------------------------------------------------------------------------------


@triton.jit
def held(source, j):
    """The only tile, already in registers."""
    return source[0]


@triton.jit
def streamed(source, j):
    """Tile j of rows in memory, ``source`` = (pointer, first entries (R, 1), size, columns (1, B))."""
    pointer, first, size, columns = source
    at = j * columns.shape[1] + columns
    inside = (first >= 0) & (at < size)
    return tl.load(pointer + first + at, mask=inside, other=-INFINITY).to(tl.float32)


@triton.jit
def row_top(tile: tl.constexpr, source, tiles, R: tl.constexpr):
    """Maxima (R,), and whether a row holds NaN or +inf."""
    top = tl.full((R,), -INFINITY, tl.float32)
    spoiled = tl.zeros((R,), tl.int32)
    for j in range(tiles):
        scores = tile(source, j)
        bad = (scores != scores) | (scores == INFINITY)
        spoiled = tl.maximum(spoiled, tl.max(bad.to(tl.int32), 1))
        top = tl.maximum(top, tl.max(tl.where(bad, -INFINITY, scores), 1))
    return top, spoiled > 0


# --- powers ---------------------------------------------------------------------------------------


@triton.jit
def _log2_series(f):
    r""":math:`\log_2\frac{1+f}{1-f}` for :math:`|f| \le 0.172`."""
    q = f * f
    series = 0.11111111 + q * 0.09090909
    series = 0.14285715 + q * series
    series = 0.2 + q * series
    series = 0.33333334 + q * series
    return 2.8853900817779268 * (f + f * (q * series))


@triton.jit
def _split(x):
    """Exponent and mantissa of positive normal numbers, the mantissa within sqrt(2) of 1."""
    bits = x.to(tl.int32, bitcast=True)
    exponent = (bits - 0x3F3504F3) >> 23
    mantissa = (bits - (exponent << 23)).to(tl.float32, bitcast=True)
    return exponent, mantissa


@triton.jit
def log2_of(x):
    """log2 of x >= 0; below the smallest normal number it answers for that."""
    exponent, mantissa = _split(tl.maximum(x, TINY))
    return exponent.to(tl.float32) + _log2_series((mantissa - 1.0) / (mantissa + 1.0))


@triton.jit
def _log2_of_rest(z):
    """log2(1 - z) for 0 <= z < 1 with full relative precision as z approaches 0."""
    exponent, mantissa = _split(tl.maximum(1.0 - z, TINY))
    near = exponent == 0
    f = tl.where(near, -z, mantissa - 1.0) / tl.where(near, 2.0 - z, mantissa + 1.0)
    return exponent.to(tl.float32) + _log2_series(f)


@triton.jit
def power(x, exponent):
    """x ** exponent for x > 0, and 0 elsewhere (also for exponent 0)."""
    return tl.where(x > 0.0, tl.exp2(exponent * log2_of(x)), 0.0)


@triton.jit
def power_of_rest(z, exponent):
    """(1 - z)_+ ** exponent, 0 for z >= 1 even if the exponent is 0."""
    inside = z < 1.0
    logs = _log2_of_rest(tl.where(inside, z, 0.0))
    return tl.where(inside, tl.exp2(exponent * logs), 0.0)


# --- searches -------------------------------------------------------------------------------------


@triton.jit
def advance(active, low, high, at, target, step_before, settled):
    """One step of a bracketed search: where to look next, and which rows go on.

    ``target`` is what Newton proposes from ``at``; outside the bracket, or where steps shrink by less
    than half, the middle of the bracket takes its place.
    """
    target = tl.minimum(tl.maximum(target, low), high)
    middle = 0.5 * (low + high)
    step = tl.abs(target - at)
    arrived = (step <= settled) | (high - low <= settled) | (middle <= low) | (middle >= high)
    slow = step > 0.5 * step_before
    following = tl.where(slow & ~arrived, middle, target)
    at = tl.where(active > 0, following, at)
    step = tl.where(slow, high - low, step)
    active = tl.where(arrived, 0, active)
    return active, at, step


@triton.jit
def distance(scores, top, scale):
    """(top - score) * scale (R, B): 0 at the top, +inf for -inf, also in a row without a finite top."""
    below = (top[:, None] - scores) * scale[:, None]
    below = tl.where(scores == top[:, None], 0.0, below)
    return tl.where(scores == -INFINITY, INFINITY, below)


@triton.jit
def _power_sums(x, s, gamma, POWER: tl.constexpr):
    """Sums of u^(gamma-1) and u^gamma over u = (1 - x / s)_+; POWER is gamma if that is 1 or 2."""
    z = x * (1.0 / s)[:, None]
    u = tl.maximum(1.0 - z, 0.0)
    if POWER == 1:
        slopes = (z < 1.0).to(tl.float32)
    elif POWER == 2:
        slopes = u
    else:
        slopes = power_of_rest(z, (gamma - 1.0)[:, None])
    return tl.sum(slopes, 1), tl.sum(slopes * u, 1)


@triton.jit
def convex_root(tile: tl.constexpr, source, tiles, active, top, scale, gamma, POWER: tl.constexpr):
    r"""The root s in (0, 1] of :math:`\sum (s - x_i)_+^\gamma = 1`, gamma >= 1, for active rows.

    :math:`s\,(\sum u^\gamma)^{1/\gamma}` is convex in s: Newton from the right never crosses the
    root, Newton from the left ends on its right. Each evaluation so moves one end of the bracket.
    """
    high = tl.zeros_like(top) + 1.0
    low = tl.zeros_like(top)
    s = high
    step = high * 4.0
    while tl.max(active, 0) > 0:
        first = tl.zeros_like(top)
        total = tl.zeros_like(top)
        for j in range(tiles):
            x = distance(tile(source, j), top, scale)
            f, t = _power_sums(x, s, gamma, POWER)
            first += f
            total += t
        first = tl.maximum(first, 1.0)  # the top itself; rows that are not active may lack it
        total = tl.maximum(total, 1.0)
        if POWER == 1:
            bound = 1.0 / first
            above = s * total >= 1.0
        elif POWER == 2:
            bound = tl.sqrt(total) / first
            above = s * s * total >= 1.0
        else:
            logs = log2_of(total)
            bound = tl.exp2((1.0 - 1.0 / gamma) * logs) / first
            above = log2_of(s) + logs / gamma >= 0.0
        target = s - s * (total / first) + bound
        low = tl.where(above, low, tl.maximum(low, s))
        high = tl.where(above, tl.minimum(high, s), high)
        active, s, step = advance(active, low, high, s, target, step, SETTLED * s)
    return s


@triton.jit
def falling_root(
    tile: tl.constexpr,
    source,
    tiles,
    active,
    at,
    low,
    high,
    measure: tl.constexpr,
    extra,
    PLAN: tl.constexpr,
):
    """The root in [low, high] of a falling function, from ``at``, for active rows.

    ``measure(tile, source, tiles, at, extra, PLAN)`` gives its value and minus its slope.
    """
    step = tl.zeros_like(at) + INFINITY
    while tl.max(active, 0) > 0:
        excess, slope = measure(tile, source, tiles, at, extra, PLAN)
        low = tl.where(excess >= 0.0, tl.maximum(low, at), low)
        high = tl.where(excess <= 0.0, tl.minimum(high, at), high)
        middle = 0.5 * (low + high)
        target = tl.where(slope > 1e-30, at + excess / tl.maximum(slope, 1e-30), middle)
        settled = 6e-8 * tl.maximum(tl.abs(at), 1.0)
        active, at, step = advance(active, low, high, at, target, step, settled)
    return at


@triton.jit
def ordered(x):
    """float32 as int32 in the same order."""
    bits = x.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def unordered(key):
    """The inverse of `ordered`."""
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def smallest_passing(
    tile: tl.constexpr,
    source,
    tiles,
    active,
    low,
    high,
    measure: tl.constexpr,
    extra,
    bound,
    PLAN: tl.constexpr,
):
    r"""The smallest score c of a row in [low, high] whose sum of measures is below the bound.

    The sum of ``measure(tile, scores, c, extra, j, PLAN)`` over a row falls as c grows; ``high`` is a
    score that passes, and no score below ``low`` does. The search halves the float32 numbers between,
    and jumps to scores, so that it ends as soon as no score is left between the ends.
    """
    low = ordered(low) - 1
    high = ordered(high)
    best = high  # the smallest score known to pass; no score lies in [high, best)
    active = tl.where(low < high, active, 0)
    while tl.max(active, 0) > 0:
        middle = (low & high) + ((low ^ high) >> 1)
        c = unordered(middle)
        total = tl.zeros_like(bound)
        above = best
        for j in range(tiles):
            scores = tile(source, j)
            total += tl.sum(measure(tile, scores, c, extra, j, PLAN), 1)
            keys = ordered(scores)
            keys = tl.where(keys >= middle[:, None], keys, 0x7FFFFFFF)
            above = tl.minimum(above, tl.min(keys, 1))
        passes = total < bound
        best = tl.where(passes & (active > 0), above, best)
        high = tl.where(passes & (active > 0), middle, high)
        low = tl.where(passes | (active == 0), low, tl.maximum(middle, above - 1))
        active = tl.where(high <= low + 1, 0, active)
    return unordered(best)
