# mypy: ignore-errors
"""Alpha-entmax in Triton, forward and backward; the mathematics is that of the package's docstring.

With a = alpha - 1: softmax (a = 0), a convex root search (a <= 1), a search for the smallest weight
(a > 1) and shared maxima (a = inf). There are kernels for alpha = 1.5, for sparsemax, for other numbers
between 1 and 2, and one for tensors of alphas and all other numbers.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hopfy._kernels.rows.gpu import (
    Regimes,
    alpha_of,
    solve_by_alpha,
    through_rows_of,
)
from hopfy._kernels.threshold.gpu import (
    INFINITY,
    STEEPEST,
    TINY,
    advance,
    convex_root,
    distance,
    log2_of,
    power,
    power_of_rest,
    smallest_passing,
)
from hopfy._kernels.threshold.gpu_double import exp2_double, log2_double

__all__ = ["REGIMES", "root_of", "slopes_of", "solve", "vjp", "weights_of"]

# What a kernel is compiled for.
SQUARE, SPARSEMAX, CONVEX, ANY = (tl.constexpr(n) for n in range(4))
REGIMES = Regimes(("1.5", "sparsemax", "1 to 2", "any alpha"), {0.5: "1.5", 1.0: "sparsemax"})


def solve(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N), float32 or half; ``alpha`` is 0-d or (..., 1)."""
    return solve_by_alpha((root_of, weights_of), scores, alpha, REGIMES)


def vjp(weights: Tensor, alpha: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    return through_rows_of(slopes_of, weights, cotangent, alpha_of(alpha, weights))


# --- forward --------------------------------------------------------------------------------------


@triton.jit
def root_of(tile: tl.constexpr, source, tiles, ready, top, own, PLAN: tl.constexpr):
    """Two numbers per row for `weights_of`: the smallest selected score (a > 1), and the root."""
    (a,) = own
    edge, root = top, tl.zeros_like(top) + 1.0
    active = ready.to(tl.int32)
    if PLAN.REGIME == SPARSEMAX:
        root = convex_root(tile, source, tiles, active, top, a, a, 1)
    elif PLAN.REGIME == SQUARE:
        root = convex_root(tile, source, tiles, active, top, a, 1.0 / a, 2)
    elif PLAN.REGIME == CONVEX:
        root = convex_root(tile, source, tiles, active, top, a, 1.0 / a, 0)
    else:
        convex = (a > 0.0) & (a <= 1.0)
        concave = (a > 1.0) & (a < INFINITY)
        b = tl.where(convex, a, 0.5)
        here = tl.where(convex, active, 0)
        s = convex_root(tile, source, tiles, here, top, b, 1.0 / b, 0)
        here = tl.where(concave, active, 0)
        edge, root = _concave_root(tile, source, tiles, here, top, tl.where(concave, a, 2.0), PLAN)
        root = tl.where(convex, s, root)
    return edge, root


@triton.jit
def weights_of(scores, top, state, own, PLAN: tl.constexpr):
    """Weights of a tile up to the sum of their row."""
    edge, root = state
    (a,) = own
    if PLAN.REGIME == ANY:
        p = _convex(scores, top, root, tl.where((a > 0.0) & (a <= 1.0), a, 0.5), PLAN)
        p = tl.where((a == 0.0)[:, None], _softmax(scores, top), p)
        b = tl.where((a > 1.0) & (a < INFINITY), a, 2.0)
        p = tl.where((a > 1.0)[:, None], _concave(scores, edge, root, b), p)
        return tl.where((a == INFINITY)[:, None], (scores == top[:, None]).to(tl.float32), p)
    else:
        return _convex(scores, top, root, a, PLAN)


@triton.jit
def _softmax(scores, top):
    return tl.exp2((scores - top[:, None]) * 1.4426950408889634)


@triton.jit
def _convex(scores, top, root, a, PLAN: tl.constexpr):
    z = distance(scores, top, a) * (1.0 / root)[:, None]
    u = tl.maximum(1.0 - z, 0.0)
    if PLAN.REGIME == SPARSEMAX:
        return u
    elif PLAN.REGIME == SQUARE:
        return u * u
    else:
        return power_of_rest(z, (1.0 / a)[:, None])


@triton.jit
def _lead_power(tile: tl.constexpr, scores, c, a, j, PLAN: tl.constexpr):
    """((a (score - c))_+) ** (1 / a): what a threshold c gives to each entry."""
    lead = (scores - c[:, None]) * a[:, None]
    return tl.where(lead > 0.0, tl.exp2(_log2_of_lead(lead) * (1.0 / a)[:, None]), 0.0)


@triton.jit
def _log2_of_lead(lead):
    """log2, below the smallest normal number too: a large alpha makes much of such leads."""
    small = lead < TINY
    return log2_of(tl.where(small, lead * 16777216.0, lead)) - tl.where(small, 24.0, 0.0)


@triton.jit
def _concave(scores, edge, w, a):
    weights, _ = _weights_and_slopes(scores, edge, w, a)
    return weights


@triton.jit
def _weights_and_slopes(scores, edge, w, a):
    """p = (w^a + a (score - edge))^(1/a) and dp/dw = (w / p)^(a-1) from the smallest score up."""
    inside = scores >= edge[:, None]
    lead = tl.where(inside, (scores - edge[:, None]) * a[:, None], 0.0)
    log_w = log2_of(w)
    first = (a * log_w)[:, None]
    second = tl.where(lead > 0.0, _log2_of_lead(lead), -INFINITY)
    large, small = tl.maximum(first, second), tl.minimum(first, second)
    logs = (large + log2_of(1.0 + tl.exp2(small - large))) * (1.0 / a)[:, None]
    weights = tl.where(inside, tl.exp2(logs), 0.0)
    slopes = tl.where(inside, tl.exp2((a - 1.0)[:, None] * (log_w[:, None] - logs)), 0.0)
    return weights, slopes


@triton.jit
def _concave_root(tile: tl.constexpr, source, tiles, active, top, a, PLAN: tl.constexpr):
    """The smallest selected score and its weight w, by the convex equation ``sum p(w) = 1``."""
    wanted = active
    one = tl.zeros_like(top) + 1.0
    low = top - 1.000001 / a
    edge = smallest_passing(tile, source, tiles, active, low, top, _lead_power, a, one, PLAN)
    selected = tl.zeros_like(top)
    for j in range(tiles * tl.max(active, 0)):
        selected += tl.sum((tile(source, j) >= edge[:, None]).to(tl.float32), 1)
    w = 1.0 / tl.maximum(selected, 1.0)
    high = w
    low = tl.zeros_like(top)
    step = 4.0 * one
    while tl.max(active, 0) > 0:
        total = tl.zeros_like(top)
        slope = tl.zeros_like(top)
        for j in range(tiles):
            p, dp = _weights_and_slopes(tile(source, j), edge, w, a)
            total += tl.sum(p, 1)
            slope += tl.sum(dp, 1)
        above = total >= 1.0
        low = tl.where(above, low, tl.maximum(low, w))
        high = tl.where(above, tl.minimum(high, w), high)
        target = w - (total - 1.0) / tl.maximum(slope, 1.0)
        active, w, step = advance(active, low, high, w, target, step, 3e-8 + 1e-7 * w)
    return edge, _polish(tile, source, tiles, wanted, edge, w, a)


@triton.jit
def _polish(tile: tl.constexpr, source, tiles, active, edge, w, a):
    """Newton in float64 for the smallest weight w, from a weight that float32 knows up to 1e-7.

    The slopes of the backward pass are powers of weights: small ones need their relative digits, which
    a sum of float32 weights does not have. The steps shrink until rounding ends that.
    """
    w = tl.maximum(w, TINY).to(tl.float64)
    a = a.to(tl.float64)
    before = tl.zeros_like(w) + INFINITY
    while tl.max(active, 0) > 0:
        total = tl.zeros_like(w)
        slope = tl.zeros_like(w)
        log_w = log2_double(w)
        for j in range(tiles):
            p, dp = _precise_weights(tile(source, j), edge, log_w, a)
            total += tl.sum(p, 1)
            slope += tl.sum(dp, 1)
        step = (total - 1.0) / tl.where(slope > 0.0, slope, 1.0)
        size = tl.abs(step)
        useful = (active > 0) & (size < 0.5 * before)
        w = tl.where(useful, tl.maximum(w - step, 0.01 * w), w)
        before = size
        active = (useful & (size > 1e-9 * w)).to(tl.int32)
    return w.to(tl.float32)


@triton.jit
def _precise_weights(scores, edge, log_w, a):
    """`_weights_and_slopes` in float64."""
    inside = scores >= edge[:, None]
    lead = (scores.to(tl.float64) - edge.to(tl.float64)[:, None]) * a[:, None]
    above = inside & (lead > 0.0)
    first = (a * log_w)[:, None]
    second = tl.where(above, log2_double(tl.where(above, lead, 1.0)), -INFINITY)
    large, small = tl.maximum(first, second), tl.minimum(first, second)
    logs = (large + log2_double(1.0 + exp2_double(small - large))) / a[:, None]
    weights = tl.where(inside, exp2_double(logs), 0.0)
    slopes = exp2_double((a - 1.0)[:, None] * (log_w[:, None] - logs))
    return weights, tl.where(inside, slopes, 0.0)


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def slopes_of(p, own, PLAN: tl.constexpr):
    """g = p^(2 - alpha) on the support, 0 elsewhere and for alpha = inf; tiny weights are steep."""
    (a,) = own
    exponent = tl.where(a < INFINITY, 1.0 - a, 0.0)[:, None]
    g = tl.minimum(power(p, exponent), STEEPEST)
    return tl.where((a < INFINITY)[:, None], g, 0.0)
