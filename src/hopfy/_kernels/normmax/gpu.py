# mypy: ignore-errors
r"""Alpha-normmax in Triton, forward and backward; the mathematics is that of the package's docstring.

The weights are powers e = 1/(alpha - 1) of the lead over the threshold. For alpha > 2 such a power has
an infinite slope at the threshold, which therefore needs more digits than float32 has: a few Newton
steps in float64 follow there. They use additions, products and quotients only.
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
    write,
)
from hopfy._kernels.threshold.gpu import (
    INFINITY,
    STEEPEST,
    convex_root,
    distance,
    log2_of,
    power,
    power_of_rest,
)
from hopfy._kernels.threshold.gpu_double import exp2_double, log2_double

__all__ = ["REGIMES", "curvatures", "root_of", "solve", "vjp", "weights_of"]

# What a kernel is compiled for: alpha = 2, or any alpha.
PLAIN, ANY = tl.constexpr(0), tl.constexpr(1)
REGIMES = Regimes(("2", "any alpha"), {1.0: "2"})


def solve(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N), float32 or half; ``alpha`` is 0-d or (..., 1)."""
    return solve_by_alpha((root_of, weights_of), scores, alpha, REGIMES)


def vjp(weights: Tensor, alpha: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    return through_rows_of(curvatures, weights, cotangent, alpha_of(alpha, weights), _through)


# --- forward --------------------------------------------------------------------------------------


@triton.jit
def root_of(tile: tl.constexpr, source, tiles, ready, top, own, PLAN: tl.constexpr):
    """The root of the threshold equation with gamma = 1 + 1 / a, as a sum of two float32 numbers."""
    (a,) = own
    active = ready.to(tl.int32)
    one = tl.zeros_like(top) + 1.0
    gamma = 1.0 + 1.0 / a
    rest = tl.zeros_like(top)
    if PLAN.REGIME == PLAIN:
        root = convex_root(tile, source, tiles, active, top, one, gamma, 2)
    else:
        root = convex_root(tile, source, tiles, active, top, one, gamma, 0)
        precise = _polish(tile, source, tiles, ready & (a > 1.0), top, root, a)
        root = precise.to(tl.float32)
        rest = (precise - root.to(tl.float64)).to(tl.float32)
    return root, rest


@triton.jit
def weights_of(scores, top, state, own, PLAN: tl.constexpr):
    """Weights of a tile up to the sum of their row; the top has weight 1."""
    root, rest = state
    (a,) = own
    if PLAN.REGIME == PLAIN:
        z = distance(scores, top, tl.zeros_like(top) + 1.0) * (1.0 / root)[:, None]
        return tl.maximum(1.0 - z, 0.0)
    else:
        p = power(_lead(scores, top, root, rest) * (1.0 / root)[:, None], (1.0 / a)[:, None])
        return tl.where((a > 1.0)[:, None], p, _steep(scores, top, root, a))


@triton.jit
def _steep(scores, top, root, a):
    z = distance(scores, top, tl.zeros_like(top) + 1.0) * (1.0 / root)[:, None]
    return power_of_rest(z, (1.0 / a)[:, None])


@triton.jit
def _lead(scores, top, root, rest):
    """root + rest - (top - score), with the rounding error of the difference taken back."""
    top = top[:, None] + tl.zeros_like(scores)
    below = top - scores
    part = top - below
    error = (top - (below + part)) + (part - scores)
    lead = (root[:, None] - below) + (rest[:, None] - error)
    return tl.where(scores > -INFINITY, lead, -1.0)


@triton.jit
def _lead_double(scores, top, root):
    """root - (top - score) in float64."""
    return root[:, None] - (top.to(tl.float64)[:, None] - scores.to(tl.float64))


@triton.jit
def _polish(tile: tl.constexpr, source, tiles, ready, top, root, a):
    """Newton in float64 for ``sum lead^(1 + 1 / a) = 1`` from a root that float32 knows.

    The steps shrink until rounding ends that.
    """
    root = root.to(tl.float64)
    exponent = 1.0 / a.to(tl.float64)  # float32 would show in small weights
    active = ready.to(tl.int32)
    before = tl.zeros_like(root) + 1.0
    while tl.max(active, 0) > 0:
        first = tl.zeros_like(root)
        total = tl.zeros_like(root)
        for j in range(tiles):
            lead = _lead_double(tile(source, j), top, root)
            inside = lead > 0.0
            lead = tl.where(inside, lead, 1.0)
            logs = exponent[:, None] * log2_double(lead)
            powers = tl.where(inside, exp2_double(logs), 0.0)
            first += tl.sum(powers, 1)
            total += tl.sum(powers * lead, 1)
        step = (total - 1.0) / ((exponent + 1.0) * tl.where(first > 0.0, first, 1.0))
        size = tl.abs(step)
        useful = (active > 0) & (size < 0.5 * before)
        root = tl.where(useful, tl.minimum(root - step, 1.0), root)
        before = size
        active = (useful & (size > 1e-13)).to(tl.int32)
    return root


# --- backward -------------------------------------------------------------------------------------


@triton.jit
def _through(
    slopes: tl.constexpr, tile: tl.constexpr, y, v, tiles, rows, gradient, own, PLAN: tl.constexpr
):
    """t - y sum(t) with t = kappa (v - sum(y v))."""
    (a,) = own
    top = tl.zeros((PLAN.R,), tl.float32)
    for j in range(tiles):
        top = tl.maximum(top, tl.max(tile(y, j), 1))
    mass = tl.zeros((PLAN.R,), tl.float32)
    mean = tl.zeros((PLAN.R,), tl.float32)
    for j in range(tiles):
        here = tile(y, j)
        mass += tl.sum(share_of_norm(here, top, a), 1)
        mean += tl.sum(tl.where(here > 0.0, here * tile(v, j), 0.0), 1)
    total = tl.zeros((PLAN.R,), tl.float32)
    for j in range(tiles):
        kappa = slopes(tile(y, j), top, mass, a)
        total += tl.sum(tl.where(kappa > 0.0, kappa * (tile(v, j) - mean[:, None]), 0.0), 1)
    for j in range(tiles):
        here = tile(y, j)
        kappa = slopes(here, top, mass, a)
        out = kappa * (tile(v, j) - mean[:, None]) - here * total[:, None]
        out = tl.where(kappa > 0.0, out, 0.0)
        write(gradient, rows, j, tl.where(here != here, float("nan"), out))


@triton.jit
def share_of_norm(y, top, a):
    """(y / top)^alpha, whose sum is (norm / top)^alpha; top is a row's largest weight."""
    alpha = tl.where(a < INFINITY, a + 1.0, 2.0)[:, None]
    return power(y / tl.where(top > 0.0, top, 1.0)[:, None], alpha)


@triton.jit
def curvatures(y, top, mass, a):
    r""":math:`\kappa = \|y\|_\alpha (y / \|y\|_\alpha)^{2 - \alpha} / (\alpha - 1)`, 0 for alpha = inf."""
    b = tl.where(a < INFINITY, a, 1.0)
    top = tl.where(top > 0.0, top, 1.0)
    slopes = tl.minimum(power(y / top[:, None], (1.0 - b)[:, None]), STEEPEST)
    norm = tl.exp2(log2_of(mass) * (b / (b + 1.0)))  # (norm / top)^(alpha - 1)
    kappa = slopes * (top * norm / b)[:, None]
    return tl.where((a < INFINITY)[:, None], kappa, 0.0)
