# mypy: ignore-errors
r"""Entropic k-subsets in Triton, forward and backward.

With the k-th largest score as origin the threshold :math:`\tau` lies between
:math:`-(\text{gap} + \log k + 1)`, gap being the distance to the next score, and
:math:`\log(N / \text{part})`; Newton's method finds it inside this bracket. A weight above one half is
counted as 1, and what it lacks is subtracted, so that k keeps its digits whatever its size.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from hopfy._kernels.ksubsets.gpu import parts_of, pivot_of
from hopfy._kernels.rows.gpu import (
    Parameters,
    centered,
    solve_rows_of,
    through_rows_of,
    write,
)
from hopfy._kernels.threshold.gpu import INFINITY, advance, log2_of, row_top

__all__ = ["solve", "vjp"]

_LN2 = tl.constexpr(0.6931471805599453)


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N), float32 or half; ``k`` is 0-d or (..., 1).

    A row with fewer than k finite scores takes all of them.
    """
    return solve_rows_of(_solve, scores, parts_of(k, scores))


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    return through_rows_of(_through, weights, cotangent, Parameters())


@triton.jit
def _solve(tile: tl.constexpr, source, tiles, rows, weights, own, PLAN: tl.constexpr):
    top, spoiled = row_top(tile, source, tiles, PLAN.R)
    whole, part, pivot, ready = pivot_of(tile, source, tiles, top, spoiled, own)
    pivot = tl.where(ready, pivot, 0.0)
    gap, there = _next(tile, source, tiles, pivot, whole + (part > 0.0).to(tl.float32))
    takes_all = (whole >= there) & (part == 0.0)
    active = (ready & ~takes_all).to(tl.int32)
    low = -(gap + log2_of(tl.maximum(whole, 1.0) + 1.0) * _LN2 + 1.0)
    rest = tl.where(part > 0.0, part, 1.0)
    high = (log2_of(tl.maximum(there, 1.0)) - log2_of(rest)) * _LN2 + 1.0
    tau = _threshold(tile, source, tiles, active, pivot, low, high, whole, part)
    for j in range(tiles):
        scores = tile(source, j)
        ones, rests = _sigmoid(scores, pivot, tau)
        y = tl.where(takes_all[:, None], 1.0, ones + rests)
        y = tl.where(ready[:, None] & (scores > -INFINITY), y, 0.0)
        write(weights, rows, j, tl.where(spoiled[:, None], float("nan"), y))


@triton.jit
def _next(tile: tl.constexpr, source, tiles, pivot, rank):
    """How far the score after the k-th largest lies below it, and how many scores there are."""
    below = tl.zeros_like(pivot) - INFINITY
    reached = tl.zeros_like(pivot)
    there = tl.zeros_like(pivot)
    for j in range(tiles):
        scores = tile(source, j)
        lower = scores < pivot[:, None]
        below = tl.maximum(below, tl.max(tl.where(lower, scores, -INFINITY), 1))
        reached += tl.sum((scores >= pivot[:, None]).to(tl.float32), 1)
        there += tl.sum((scores > -INFINITY).to(tl.float32), 1)
    gap = tl.where((reached > rank) | (below == -INFINITY), 0.0, pivot - below)
    return gap, there


@triton.jit
def _sigmoid(scores, pivot, tau):
    """The sigmoid of score - pivot - tau as 0 or 1, and what is missing."""
    x = (scores - pivot[:, None]) - tau[:, None]
    e = tl.exp2(-tl.abs(x) * 1.4426950408889634)
    rest = e / (1.0 + e)
    above = x > 0.0
    return above.to(tl.float32), tl.where(above, -rest, rest)


@triton.jit
def _threshold(tile: tl.constexpr, source, tiles, active, pivot, low, high, whole, part):
    """The root tau in [low, high] of ``sum sigmoid(score - pivot - tau) = whole + part``."""
    tau = tl.minimum(tl.maximum(tl.zeros_like(pivot), low), high)
    step = tl.zeros_like(pivot) + INFINITY
    while tl.max(active, 0) > 0:
        count = tl.zeros_like(pivot)
        inner = tl.zeros_like(pivot)
        slope = tl.zeros_like(pivot)
        for j in range(tiles):
            ones, rests = _sigmoid(tile(source, j), pivot, tau)
            count += tl.sum(ones, 1)
            inner += tl.sum(rests, 1)
            size = tl.abs(rests)
            slope += tl.sum(size * (1.0 - size), 1)
        excess = ((count - whole) + inner) - part
        low = tl.where(excess >= 0.0, tl.maximum(low, tau), low)
        high = tl.where(excess <= 0.0, tl.minimum(high, tau), high)
        middle = 0.5 * (low + high)
        target = tl.where(slope > 1e-30, tau + excess / tl.maximum(slope, 1e-30), middle)
        settled = 6e-8 * tl.maximum(tl.abs(tau), 1.0)
        active, tau, step = advance(active, low, high, tau, target, step, settled)
    return tau


@triton.jit
def _through(tile: tl.constexpr, y, v, tiles, rows, gradient, own, PLAN: tl.constexpr):
    centered(_steepness, tile, y, v, tiles, rows, gradient, own, PLAN)


@triton.jit
def _steepness(tile: tl.constexpr, y, own, j, PLAN: tl.constexpr):
    return tl.where(y > 0.0, y * (1.0 - y), 0.0)
