# mypy: ignore-errors
"""The maps inside the attention kernels: entmax (KIND 0) and normmax (KIND 1), by tiles.

A row is known by its ``state``: top score, edge and root of the threshold search, and the sum of the
weights before they are normalized. ``alpha`` stands for alpha - 1, as in the row kernels.
"""

from __future__ import annotations

import triton
import triton.language as tl

from hopfy._kernels.entmax import gpu as entmax
from hopfy._kernels.normmax import gpu as normmax
from hopfy._kernels.threshold.gpu import INFINITY, log2_of

__all__ = ["parameter_slopes", "row_sums", "solve_rows", "through", "weights_of"]

_LN2 = tl.constexpr(0.6931471805599453)

_solve_entmax = entmax.solve_rows
_solve_normmax = normmax.solve_rows
_entmax_weights = entmax.weights_of
_normmax_weights = normmax.weights_of
_entmax_slopes = entmax.slopes_of
_add_to_mean = entmax.add_to_mean
_curvatures = normmax.curvatures


@triton.jit
def solve_rows(
    tile: tl.constexpr,
    source,
    tiles,
    ready,
    top,
    alpha,
    KIND: tl.constexpr,
    REGIME: tl.constexpr,
):
    """Edge and root of each row; the edge is the top where the map needs none."""
    if KIND == 0:
        return _solve_entmax(tile, source, tiles, ready, top, alpha, REGIME)
    else:
        return top, _solve_normmax(tile, source, tiles, ready, top, alpha, REGIME)


@triton.jit
def weights_of(scores, top, edge, root, alpha, KIND: tl.constexpr, REGIME: tl.constexpr):
    """Weights of a tile up to the sum of their row."""
    if KIND == 0:
        return _entmax_weights(scores, top, edge, root, alpha, REGIME)
    else:
        return _normmax_weights(scores, top, root, alpha, REGIME)


@triton.jit
def row_sums(partial, p, v, state, alpha, KIND: tl.constexpr, WANTED: tl.constexpr):
    """Add a tile to the sums over a row that the Jacobian needs; see `through`."""
    first, second, third, fourth = partial
    if KIND == 0:
        g = _entmax_slopes(p, alpha)
        first, second, third, fourth = _add_to_mean(g, v, first, second, third, fourth)
    else:
        kappa = _kappa(p, state, alpha)
        first += tl.sum(tl.where(p > 0.0, p * v, 0.0), 1)
        second += tl.sum(kappa, 1)
        third += tl.sum(tl.where(kappa > 0.0, kappa * v, 0.0), 1)
        if WANTED:
            logs = log2_of(p)
            share = tl.exp2((_finite(alpha) + 1.0)[:, None] * (logs - _log_norm(state, alpha)))
            fourth += tl.sum(tl.where(p > 0.0, share * (logs * _LN2), 0.0), 1)
    return first, second, third, fourth


@triton.jit
def through(p, v, center, total, state, alpha, KIND: tl.constexpr):
    """The Jacobian of the map, applied to the cotangents v of the weights p."""
    if KIND == 0:  # the origin and the mean beside it
        g = _entmax_slopes(p, alpha)
        return tl.where(g > 0.0, g * ((v - center[:, None]) - total[:, None]), 0.0)
    else:  # the mean, and the sum of kappa (v - mean)
        kappa = _kappa(p, state, alpha)
        return tl.where(kappa > 0.0, kappa * (v - center[:, None]) - p * total[:, None], 0.0)


@triton.jit
def parameter_slopes(p, state, extra, alpha, KIND: tl.constexpr):
    r""":math:`\partial_\alpha\nabla\Omega(p)` on the support; minus J times it is the slope."""
    a = _finite(alpha)[:, None]
    logs = log2_of(p)
    if KIND == 0:
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
    _, _, root, total = state
    return -(log2_of(root) / _finite(alpha) + log2_of(total))[:, None]


@triton.jit
def _kappa(p, state, alpha):
    """Curvatures of normmax; the largest weight is 1 / sum, and (norm / top)^alpha is s^-gamma."""
    _, _, root, total = state
    mass = tl.exp2(-log2_of(root) * (1.0 + 1.0 / _finite(alpha)))
    return _curvatures(p, 1.0 / total, mass, alpha)
