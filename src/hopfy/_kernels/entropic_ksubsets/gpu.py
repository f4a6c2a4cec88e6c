# mypy: ignore-errors
r"""Entropic k-subsets in Triton, forward and backward.

With the k-th largest score as origin the threshold :math:`\tau` lies between
:math:`-(\text{gap} + \log(k + 1) - \log(1 - \text{part}) + 1)`, gap being the distance to the next
score, and :math:`\log(N / \text{part})`; Newton's method finds it inside this bracket. A weight above
one half is counted as 1, and what it lacks is subtracted, so that k keeps its digits whatever its size.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hopfy._kernels.ksubsets.gpu import parts_of, pivot_of
from hopfy._kernels.rows.gpu import Parameters, solve_rows_of, through_rows_of
from hopfy._kernels.threshold.gpu import INFINITY, falling_root, log2_of

__all__ = ["solve", "vjp"]

_LN2 = tl.constexpr(0.6931471805599453)


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N), float32 or half; see `hopfy._kernels.ksubsets.gpu`."""
    return solve_rows_of((_find, _weigh), scores, parts_of(k, scores), crowded=True)


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    return through_rows_of(_steepness, weights, cotangent, Parameters())


@triton.jit
def _find(tile: tl.constexpr, source, tiles, ready, top, own, PLAN: tl.constexpr):
    """The k-th largest score, and the threshold from there.

    The threshold is +inf where k is 0, and -inf where all scores are taken.
    """
    whole, part, there, pivot, ready = pivot_of(tile, source, tiles, ready, top, own, PLAN)
    gap = _next(tile, source, tiles, pivot, whole + (part > 0.0).to(tl.float32))
    takes_all = (whole >= there) & (part == 0.0)
    active = (ready & ~takes_all).to(tl.int32)
    low = -(gap + (log2_of(tl.maximum(whole, 1.0) + 1.0) - log2_of(1.0 - part)) * _LN2 + 1.0)
    rest = tl.where(part > 0.0, part, 1.0)
    high = (log2_of(tl.maximum(there, 1.0)) - log2_of(rest)) * _LN2 + 1.0
    at = tl.minimum(tl.maximum(tl.zeros_like(top), low), high)
    extra = (pivot, whole, part)
    tau = falling_root(tile, source, tiles, active, at, low, high, _excess, extra, PLAN)
    tau = tl.where(takes_all, -INFINITY, tau)
    return pivot, tl.where(ready, tau, INFINITY)


@triton.jit
def _weigh(scores, top, state, own, PLAN: tl.constexpr):
    pivot, tau = state
    ones, rests = _sigmoid(scores, pivot, tau)
    return tl.where(scores > -INFINITY, ones + rests, 0.0)


@triton.jit
def _next(tile: tl.constexpr, source, tiles, pivot, rank):
    """How far the score after the k-th largest lies below it."""
    below = tl.zeros_like(pivot) - INFINITY
    reached = tl.zeros_like(pivot)
    for j in range(tiles):
        scores = tile(source, j)
        lower = scores < pivot[:, None]
        below = tl.maximum(below, tl.max(tl.where(lower, scores, -INFINITY), 1))
        reached += tl.sum((scores >= pivot[:, None]).to(tl.float32), 1)
    return tl.where((reached > rank) | (below == -INFINITY), 0.0, pivot - below)


@triton.jit
def _sigmoid(scores, pivot, tau):
    """The sigmoid of score - pivot - tau as 0 or 1, and what is missing."""
    x = (scores - pivot[:, None]) - tau[:, None]
    e = tl.exp2(-tl.abs(x) * 1.4426950408889634)
    rest = e / (1.0 + e)
    above = x > 0.0
    return above.to(tl.float32), tl.where(above, -rest, rest)


@triton.jit
def _excess(tile: tl.constexpr, source, tiles, tau, extra, PLAN: tl.constexpr):
    """By how much the weights exceed k with this threshold, and how fast that falls."""
    pivot, whole, part = extra
    count = tl.zeros_like(pivot)
    inner = tl.zeros_like(pivot)
    slope = tl.zeros_like(pivot)
    for j in range(tiles):
        ones, rests = _sigmoid(tile(source, j), pivot, tau)
        count += tl.sum(ones, 1)
        inner += tl.sum(rests, 1)
        size = tl.abs(rests)
        slope += tl.sum(size * (1.0 - size), 1)
    return ((count - whole) + inner) - part, slope


@triton.jit
def _steepness(y, own, PLAN: tl.constexpr):
    return tl.where(y > 0.0, y * (1.0 - y), 0.0)
