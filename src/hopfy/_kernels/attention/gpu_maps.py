# mypy: ignore-errors
"""The maps inside the attention kernels, by tiles: entmax (KIND 0), normmax (1), k-subsets (2).

A row is known by its ``state``: top score, two numbers of the threshold search, and the sum of the
weights before they are normalized. ``own`` holds alpha - 1, or the two parts of k, as in the row
kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hopfy._kernels.entmax import gpu as entmax
from hopfy._kernels.ksubsets import gpu as ksubsets
from hopfy._kernels.normmax import gpu as normmax
from hopfy._kernels.rows.gpu import add_to_mean
from hopfy._kernels.threshold.gpu import INFINITY, log2_of

__all__ = [
    "KINDS",
    "margin_of",
    "means_of",
    "parameter_slopes",
    "row_sums",
    "solve_rows",
    "steepest",
    "subset_bracket",
    "through",
    "weights_of",
]

KINDS = {"entmax": 0, "normmax": 1, "ksubsets": 2}

_LN2 = tl.constexpr(0.6931471805599453)

_entmax_root = entmax.root_of
_normmax_root = normmax.root_of
_entmax_weights = entmax.weights_of
_normmax_weights = normmax.weights_of
_entmax_slopes = entmax.slopes_of
_curvatures = normmax.curvatures
_clip_root = ksubsets.clip_root
_clipped = ksubsets.clipped
_excess_of = ksubsets.excess_of
_subset_slopes = ksubsets.slopes_of
_parts_within = ksubsets.parts_within


# --- forward --------------------------------------------------------------------------------------


@triton.jit
def margin_of(own, KIND: tl.constexpr):
    """How far below a row's maximum a score can still get weight, for entmax and normmax."""
    if KIND == 0:
        return 1.000001 / own[0]  # rounding must not hide an entry at the edge
    else:
        return tl.zeros_like(own[0]) + 1.0


@triton.jit
def solve_rows(tile: tl.constexpr, source, tiles, ready, top, own, extra, PLAN: tl.constexpr):
    """Two numbers of each row for `weights_of`."""
    if PLAN.KIND == 0:
        return _entmax_root(tile, source, tiles, ready, top, own, PLAN)
    elif PLAN.KIND == 1:
        return _normmax_root(tile, source, tiles, ready, top, own, PLAN)
    else:
        return _subset_root(tile, source, tiles, top, extra, PLAN)


@triton.jit
def subset_bracket(tile: tl.constexpr, source, tiles, ready, top, own, PLAN: tl.constexpr):
    """For k-subsets: k where a row has fewer entries, which rows search, and a bracket below the top.

    Rows that take nothing have a threshold of +inf, those that take all -inf.
    """
    whole, part, there, ready = _parts_within(tile, source, tiles, ready, own)
    active = (ready & (whole < there)).to(tl.int32)
    trivial = tl.where(ready, -INFINITY, INFINITY)
    high = tl.zeros_like(top)
    low = high - 1.0
    looking = active
    while tl.max(looking, 0) > 0:
        excess, _ = _excess_of(tile, source, tiles, low, (top, (whole, part)), PLAN)
        looking = tl.where(excess >= 0.0, 0, looking)
        high = tl.where(looking > 0, low, high)
        low = tl.where(looking > 0, 4.0 * low, low)
    return active, low, high, (whole, part), trivial


@triton.jit
def _subset_root(tile: tl.constexpr, source, tiles, top, bracket, PLAN: tl.constexpr):
    """A score near the threshold, and the threshold from there, where it keeps its digits."""
    active, low, high, k, trivial = bracket
    tau = _clip_root(tile, source, tiles, active, top, low, high, k, PLAN)
    slack = 4e-7 * (tl.abs(top) + tl.abs(tau)) + 1e-5
    pivot = tl.where(active > 0, top + tau, 0.0)
    tau = _clip_root(tile, source, tiles, active, pivot, -slack, slack, k, PLAN)
    return tl.where(active > 0, pivot, trivial), tl.where(active > 0, tau, 0.0)


@triton.jit
def weights_of(scores, state, own, PLAN: tl.constexpr):
    """Weights of a tile up to the sum of their row."""
    top, first, second, _ = state
    if PLAN.KIND == 0:
        return _entmax_weights(scores, top, (first, second), own, PLAN)
    elif PLAN.KIND == 1:
        return _normmax_weights(scores, top, (first, second), own, PLAN)
    else:
        return _clipped(scores, first, second)


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def row_sums(sums, p, v, state, own, PLAN: tl.constexpr):
    """Add a tile to the sums over a row that the Jacobian needs; see `means_of`."""
    if PLAN.KIND == 0:
        return add_to_mean(_entmax_slopes(p, own, PLAN), v, sums)
    elif PLAN.KIND == 2:
        return add_to_mean(_subset_slopes(p, own, PLAN), v, sums)
    else:
        alpha = own[0]
        first, second, third, fourth = sums
        kappa = _kappa(p, state, alpha)
        first += tl.sum(tl.where(p > 0.0, p * v, 0.0), 1)
        second += tl.sum(kappa, 1)
        third += tl.sum(tl.where(kappa > 0.0, kappa * v, 0.0), 1)
        if PLAN.WANTED:
            logs = log2_of(p)
            share = tl.exp2((_finite(alpha) + 1.0)[:, None] * (logs - _log_norm(state, alpha)))
            fourth += tl.sum(tl.where(p > 0.0, share * (logs * _LN2), 0.0), 1)
        return first, second, third, fourth


@triton.jit
def means_of(sums, PLAN: tl.constexpr):
    """What `through` needs from the sums: two numbers per row, and one for the parameter."""
    first, second, third, fourth = sums
    if PLAN.KIND == 1:  # sums of y v, kappa, kappa v, and for the parameter
        return first, third - first * second, fourth
    else:  # sums of g and of g (v - origin), the steepest g, the origin
        return fourth, second / tl.where(first > 0.0, first, 1.0), first


@triton.jit
def through(p, v, center, total, state, own, PLAN: tl.constexpr):
    """The Jacobian of the map, applied to the cotangents v of the weights p."""
    if PLAN.KIND == 1:  # the mean, and the sum of kappa (v - mean)
        kappa = _kappa(p, state, own[0])
        return tl.where(kappa > 0.0, kappa * (v - center[:, None]) - p * total[:, None], 0.0)
    else:  # the origin and the mean beside it
        if PLAN.KIND == 0:
            g = _entmax_slopes(p, own, PLAN)
        else:
            g = _subset_slopes(p, own, PLAN)
        return tl.where(g > 0.0, g * ((v - center[:, None]) - total[:, None]), 0.0)


@triton.jit
def steepest(edge, p, own):
    """With one more tile, the weight of the largest slope: the smallest for alpha > 2, or the largest."""
    lowest, highest = tl.min(tl.where(p > 0.0, p, 1.0), 1), tl.max(p, 1)
    return tl.where(own[0] > 1.0, tl.minimum(edge, lowest), tl.maximum(edge, highest))


@triton.jit
def parameter_slopes(p, state, extra, own, PLAN: tl.constexpr):
    r""":math:`\partial_\alpha\nabla\Omega(p)` on the support; minus J times it is the slope."""
    alpha = own[0]
    a = _finite(alpha)[:, None]
    logs = log2_of(p)
    if PLAN.KIND == 0:
        natural = logs * _LN2
        return tl.where(p > 0.0, natural * natural * _phi(a * natural), 0.0)
    else:
        log_r = logs - _log_norm(state, alpha)
        norm = _log_norm(state, alpha) * _LN2
        slope = (extra[:, None] - norm) / (a + 1.0)
        change = tl.exp2(a * log_r) * (log_r * _LN2 - a * slope)
        return tl.where(p > 0.0, change, 0.0)


@triton.jit
def _phi(t):
    r""":math:`(t e^t - e^t + 1) / t^2` for t <= 0."""
    near = tl.where(t > -0.5, t, 0.0)
    term = tl.zeros_like(t) + 1.0
    series = tl.zeros_like(t)
    for n in tl.static_range(9):
        series += term * (1.0 / (n + 2))
        term = term * near * (1.0 / (n + 1))
    far = tl.where(t > -0.5, -1.0, t)
    e = tl.exp2(far * 1.4426950408889634)
    return tl.where(t > -0.5, series, (far * e - e + 1.0) / (far * far))


@triton.jit
def _finite(alpha):
    return tl.where(alpha < INFINITY, alpha, 1.0)


@triton.jit
def _log_norm(state, alpha):
    r"""log2 of :math:`\|y\|_\alpha = 1 / (s^{1/(\alpha-1)} \cdot \text{sum})`: the equation's own norm."""
    _, root, _, total = state
    return -(log2_of(root) / _finite(alpha) + log2_of(total))[:, None]


@triton.jit
def _kappa(p, state, alpha):
    """Curvatures of normmax; the largest weight is 1 / sum, and (norm / top)^alpha is s^-gamma."""
    _, root, _, total = state
    mass = tl.exp2(-log2_of(root) * (1.0 + 1.0 / _finite(alpha)))
    return _curvatures(p, 1.0 / total, mass, alpha)
