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

from hopfy._kernels.rows.gpu import (
    Parameters,
    centered,
    parameter_of,
    solve_rows_of,
    through_rows_of,
    write,
)
from hopfy._kernels.threshold.gpu import INFINITY, advance, row_top, smallest_passing

__all__ = ["clip_root", "clipped", "parts_of", "pivot_of", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N), float32 or half; ``k`` is 0-d or (..., 1).

    A row with fewer than k finite scores takes all of them.
    """
    return solve_rows_of(_solve, scores, parts_of(k, scores))


def parts_of(k: Tensor, rows: Tensor) -> Parameters:
    """The whole part of k and the rest, which keep their digits apart."""
    return parameter_of(k, rows, torch.floor, lambda k: k - torch.floor(k))


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    return through_rows_of(_through, weights, cotangent, Parameters())


@triton.jit
def _solve(tile: tl.constexpr, source, tiles, rows, weights, own, PLAN: tl.constexpr):
    top, spoiled = row_top(tile, source, tiles, PLAN.R)
    whole, part, pivot, ready = pivot_of(tile, source, tiles, top, spoiled, own)
    zero = tl.zeros_like(top)
    tau = clip_root(tile, source, tiles, ready.to(tl.int32), pivot, zero - 1.0, zero, whole, part)
    for j in range(tiles):
        y = clipped(tile(source, j), pivot, tau)
        y = tl.where(ready[:, None], y, 0.0)
        write(weights, rows, j, tl.where(spoiled[:, None], float("nan"), y))


@triton.jit
def pivot_of(tile: tl.constexpr, source, tiles, top, spoiled, own):
    """Whole part and rest of k where a row has fewer entries, the k-th largest score, and which rows
    have anything to select."""
    whole, part = own
    there = tl.zeros_like(top)
    for j in range(tiles):
        there += tl.sum((tile(source, j) > -INFINITY).to(tl.float32), 1)
    part = tl.where(whole >= there, 0.0, part)
    whole = tl.minimum(whole, there)
    ready = (top > -INFINITY) & ~spoiled & (whole + part > 0.0)
    rank = whole + (part > 0.0).to(tl.float32)
    lowest = tl.zeros_like(top) - INFINITY
    active = ready.to(tl.int32)
    pivot = smallest_passing(tile, source, tiles, active, lowest, top, _above, 0, rank)
    return whole, part, pivot, ready


@triton.jit
def _above(tile: tl.constexpr, scores, c, _, j):
    return (scores > c[:, None]).to(tl.float32)


@triton.jit
def clipped(scores, pivot, tau):
    """score - pivot - tau, between 0 and 1."""
    return tl.minimum(tl.maximum((scores - pivot[:, None]) - tau[:, None], 0.0), 1.0)


@triton.jit
def clip_root(tile: tl.constexpr, source, tiles, active, pivot, low, high, whole, part):
    """The root tau in [low, high] of ``sum clip(score - pivot - tau, 0, 1) = whole + part``."""
    tau = low
    step = tl.zeros_like(pivot) + INFINITY
    while tl.max(active, 0) > 0:
        excess, between = excess_of(tile, source, tiles, pivot, tau, whole, part)
        low = tl.where(excess >= 0.0, tl.maximum(low, tau), low)
        high = tl.where(excess <= 0.0, tl.minimum(high, tau), high)
        middle = 0.5 * (low + high)
        target = tl.where(between > 0.0, tau + excess / tl.maximum(between, 1.0), middle)
        active, tau, step = advance(active, low, high, tau, target, step, 6e-8)
    return tau


@triton.jit
def excess_of(tile: tl.constexpr, source, tiles, pivot, tau, whole, part):
    """By how much the weights exceed k with this threshold, and how many are between 0 and 1."""
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
def _through(tile: tl.constexpr, y, v, tiles, rows, gradient, own, PLAN: tl.constexpr):
    centered(_is_between, tile, y, v, tiles, rows, gradient, own, PLAN)


@triton.jit
def _is_between(tile: tl.constexpr, y, own, j, PLAN: tl.constexpr):
    return ((y > 0.0) & (y < 1.0)).to(tl.float32)
