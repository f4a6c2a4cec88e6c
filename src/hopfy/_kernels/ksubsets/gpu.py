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

from hopfy._kernels.row_launch import launch, load_parameter, parameter_of, source_of, write
from hopfy._kernels.threshold.gpu import (
    INFINITY,
    advance,
    held,
    row_top,
    smallest_passing,
    streamed,
)

__all__ = ["backward_kernel", "forward_kernel", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N), float32 or half; ``k`` is 0-d or (..., 1).

    A row with fewer than k finite scores takes all of them.
    """
    scores = scores.contiguous()
    weights = torch.empty_like(scores)
    whole, stride, per_row = parameter_of(k, scores, torch.floor)
    part, _, _ = parameter_of(k, scores, lambda k: k - torch.floor(k))
    launch(forward_kernel, (scores, weights), whole, part, stride, PER_ROW=per_row)
    return weights


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    weights, cotangent = weights.contiguous(), cotangent.contiguous()
    gradient = torch.empty_like(weights)
    launch(backward_kernel, (weights, cotangent, gradient))
    return gradient


@triton.jit
def forward_kernel(
    scores,
    weights,
    whole,
    part,
    stride,
    count,
    size,
    PER_ROW: tl.constexpr,
    R: tl.constexpr,
    B: tl.constexpr,
    WHOLE: tl.constexpr,
):
    rows = source_of(scores, count, size, R, B)
    whole = load_parameter(whole, stride, count, R, PER_ROW)
    part = load_parameter(part, stride, count, R, PER_ROW)
    if WHOLE:
        _solve(held, (streamed(rows, 0),), 1, rows, weights, whole, part, R)
    else:
        _solve(streamed, rows, tl.cdiv(size, B), rows, weights, whole, part, R)


@triton.jit
def _solve(tile: tl.constexpr, source, tiles, rows, weights, whole, part, R: tl.constexpr):
    top, spoiled = row_top(tile, source, tiles, R)
    there = tl.zeros((R,), tl.float32)
    for j in range(tiles):
        there += tl.sum((tile(source, j) > -INFINITY).to(tl.float32), 1)
    part = tl.where(whole >= there, 0.0, part)
    whole = tl.minimum(whole, there)
    ready = (top > -INFINITY) & ~spoiled & (whole + part > 0.0)
    active = ready.to(tl.int32)
    rank = whole + (part > 0.0).to(tl.float32)
    lowest = tl.full((R,), -INFINITY, tl.float32)
    pivot = smallest_passing(tile, source, tiles, active, lowest, top, _above, 0, rank)
    tau = _threshold(tile, source, tiles, active, pivot, whole, part)
    for j in range(tiles):
        y = _clipped(tile(source, j), pivot, tau)
        y = tl.where(ready[:, None], y, 0.0)
        write(weights, rows, j, tl.where(spoiled[:, None], float("nan"), y))


@triton.jit
def _above(scores, c, _):
    return (scores > c[:, None]).to(tl.float32)


@triton.jit
def _clipped(scores, pivot, tau):
    return tl.minimum(tl.maximum((scores - pivot[:, None]) - tau[:, None], 0.0), 1.0)


@triton.jit
def _threshold(tile: tl.constexpr, source, tiles, active, pivot, whole, part):
    """The root tau in [-1, 0] of ``sum clip(score - pivot - tau, 0, 1) = whole + part``."""
    low = tl.zeros_like(pivot) - 1.0
    high = tl.zeros_like(pivot)
    tau = low
    step = high + 4.0
    while tl.max(active, 0) > 0:
        ones = tl.zeros_like(pivot)
        between = tl.zeros_like(pivot)
        inner = tl.zeros_like(pivot)
        for j in range(tiles):
            y = _clipped(tile(source, j), pivot, tau)
            inside = (y > 0.0) & (y < 1.0)
            ones += tl.sum((y >= 1.0).to(tl.float32), 1)
            between += tl.sum(inside.to(tl.float32), 1)
            inner += tl.sum(tl.where(inside, y, 0.0), 1)
        excess = ((ones - whole) + inner) - part
        low = tl.where(excess >= 0.0, tl.maximum(low, tau), low)
        high = tl.where(excess <= 0.0, tl.minimum(high, tau), high)
        middle = 0.5 * (low + high)
        target = tl.where(between > 0.0, tau + excess / tl.maximum(between, 1.0), middle)
        active, tau, step = advance(active, low, high, tau, target, step, 6e-8)
    return tau


@triton.jit
def backward_kernel(
    weights,
    cotangent,
    gradient,
    count,
    size,
    R: tl.constexpr,
    B: tl.constexpr,
    WHOLE: tl.constexpr,
):
    y = source_of(weights, count, size, R, B)
    v = source_of(cotangent, count, size, R, B)
    if WHOLE:
        _through(held, (streamed(y, 0),), (streamed(v, 0),), 1, y, gradient, R)
    else:
        _through(streamed, y, v, tl.cdiv(size, B), y, gradient, R)


@triton.jit
def _through(tile: tl.constexpr, y, v, tiles, rows, gradient, R: tl.constexpr):
    """The cotangent, centered over the entries strictly between 0 and 1."""
    total = tl.zeros((R,), tl.float32)
    between = tl.zeros((R,), tl.float32)
    for j in range(tiles):
        here = tile(y, j)
        inside = (here > 0.0) & (here < 1.0)
        total += tl.sum(tl.where(inside, tile(v, j), 0.0), 1)
        between += tl.sum(inside.to(tl.float32), 1)
    mean = total / tl.maximum(between, 1.0)
    for j in range(tiles):
        here = tile(y, j)
        inside = (here > 0.0) & (here < 1.0)
        out = tl.where(inside, tile(v, j) - mean[:, None], 0.0)
        write(gradient, rows, j, tl.where(here != here, float("nan"), out))
