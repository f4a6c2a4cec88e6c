# mypy: ignore-errors
"""K-subsets in Triton, forward and backward; the mathematics is that of the package's docstring.

The k-th largest score is found by bisection over the float32 numbers, then the threshold, at most 1
below it, by a bracketed Newton search. Entries at 1 are counted, not summed, so that k keeps its
digits whatever its size.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hopfy._kernels.rows.gpu import Parameters, parameter_of, solve_rows_of, through_rows_of
from hopfy._kernels.threshold.gpu import INFINITY, falling_root, smallest_passing

__all__ = [
    "clip_root",
    "clipped",
    "excess_of",
    "parts_of",
    "parts_within",
    "pivot_of",
    "slopes_of",
    "solve",
    "vjp",
]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N), float32 or half; ``k`` is 0-d or (..., 1).

    A row with fewer than k finite scores takes all of them.
    """
    return solve_rows_of((_find, _weigh), scores, parts_of(k, scores))


def parts_of(k: Tensor, rows: Tensor) -> Parameters:
    """The whole part of k and the rest, which keep their digits apart."""
    return parameter_of(k, rows, torch.floor, lambda k: k - torch.floor(k))


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    return through_rows_of(slopes_of, weights, cotangent, Parameters())


@triton.jit
def _find(tile: tl.constexpr, source, tiles, ready, top, own, PLAN: tl.constexpr):
    """The k-th largest score, and the threshold from there; +inf where k is 0."""
    whole, part, _, pivot, ready = pivot_of(tile, source, tiles, ready, top, own, PLAN)
    zero = tl.zeros_like(top)
    active = ready.to(tl.int32)
    tau = clip_root(tile, source, tiles, active, pivot, zero - 1.0, zero, (whole, part), PLAN)
    return pivot, tl.where(ready, tau, INFINITY)


@triton.jit
def _weigh(scores, top, state, own, PLAN: tl.constexpr):
    pivot, tau = state
    return clipped(scores, pivot, tau)


@triton.jit
def parts_within(tile: tl.constexpr, source, tiles, ready, own):
    """The parts of k, at most the finite scores of a row, their number, and which rows select."""
    whole, part = own
    there = tl.zeros_like(whole)
    for j in range(tiles):
        there += tl.sum((tile(source, j) > -INFINITY).to(tl.float32), 1)
    part = tl.where(whole >= there, 0.0, part)
    whole = tl.minimum(whole, there)
    return whole, part, there, ready & (whole + part > 0.0)


@triton.jit
def pivot_of(tile: tl.constexpr, source, tiles, ready, top, own, PLAN: tl.constexpr):
    """What `parts_within` finds, and the k-th largest score, 0 in rows that select nothing."""
    whole, part, there, ready = parts_within(tile, source, tiles, ready, own)
    rank = whole + (part > 0.0).to(tl.float32)
    lowest = tl.zeros_like(top) - INFINITY
    active = ready.to(tl.int32)
    pivot = smallest_passing(tile, source, tiles, active, lowest, top, _above, 0, rank, PLAN)
    return whole, part, there, tl.where(ready, pivot, 0.0), ready


@triton.jit
def _above(tile: tl.constexpr, scores, c, _, j, PLAN: tl.constexpr):
    return (scores > c[:, None]).to(tl.float32)


@triton.jit
def clipped(scores, pivot, tau):
    """score - pivot - tau, between 0 and 1; 0 for -inf, whatever the pivot."""
    lead = tl.maximum((scores - pivot[:, None]) - tau[:, None], 0.0)
    return tl.where(scores > -INFINITY, tl.minimum(lead, 1.0), 0.0)


@triton.jit
def clip_root(tile: tl.constexpr, source, tiles, active, pivot, low, high, k, PLAN: tl.constexpr):
    """The root tau in [low, high] of ``sum clip(score - pivot - tau, 0, 1) = whole + part``."""
    extra = (pivot, k)
    return falling_root(tile, source, tiles, active, low, low, high, excess_of, extra, PLAN)


@triton.jit
def excess_of(tile: tl.constexpr, source, tiles, tau, extra, PLAN: tl.constexpr):
    """By how much the weights exceed k with this threshold, and how many are between 0 and 1."""
    pivot, k = extra
    whole, part = k
    ones = tl.zeros_like(pivot)
    between = tl.zeros_like(pivot)
    inner = tl.zeros_like(pivot)
    for j in range(tiles):
        y = clipped(tile(source, j), pivot, tau)
        inside = (y > 0.0) & (y < 1.0)
        ones += tl.sum((y >= 1.0).to(tl.float32), 1)
        between += tl.sum(inside.to(tl.float32), 1)
        inner += tl.sum(tl.where(inside, y, 0.0), 1)
    return ((ones - whole) + inner) - part, between


@triton.jit
def slopes_of(y, own, PLAN: tl.constexpr):
    """1 for weights between 0 and 1."""
    return ((y > 0.0) & (y < 1.0)).to(tl.float32)
