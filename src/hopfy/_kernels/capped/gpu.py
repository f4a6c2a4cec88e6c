# mypy: ignore-errors
r"""Capped sparsemax in Triton, forward and backward.

The pivot is the best score down to which the upper bounds add up to one; the threshold lies between
it and one below it, and a bracketed Newton search finds it there.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from hopfy._kernels.rows.gpu import (
    ENTRY,
    NUMBER,
    Parameters,
    centered,
    solve_rows_of,
    through_rows_of,
    write,
)
from hopfy._kernels.threshold.gpu import INFINITY, advance, row_top, smallest_passing

__all__ = ["solve", "vjp"]


def solve(scores: Tensor, upper: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N), float32 or half; ``upper`` broadcasts to the scores.

    A row whose upper bounds add up to less than one takes all of them.
    """
    return solve_rows_of(_solve, scores, _bounds(upper, scores), heavy=True)


def vjp(weights: Tensor, upper: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    return through_rows_of(_through, weights, cotangent, _bounds(upper, weights))


def _bounds(upper: Tensor, rows: Tensor) -> Parameters:
    upper = upper.detach()
    if upper.ndim == 0 and upper.device.type == "cpu":
        return Parameters((float(upper),))
    bounds = upper.to(rows.device, torch.float32).expand(rows.shape).contiguous()
    return Parameters((bounds,), 1, ENTRY.value)


@triton.jit
def _caps(tile: tl.constexpr, scores, own, j, OWN: tl.constexpr):
    """The upper bounds of tile j, at most 1, and 0 for what may not be selected."""
    if OWN == ENTRY:
        caps = tile(own[0], j)
    else:
        caps = own[0][:, None] + tl.zeros_like(scores)
    return tl.where(scores > -INFINITY, tl.minimum(tl.maximum(caps, 0.0), 1.0), 0.0)


@triton.jit
def _solve(tile: tl.constexpr, source, tiles, rows, weights, own, PLAN: tl.constexpr):
    top, spoiled = row_top(tile, source, tiles, PLAN.R)
    room = tl.zeros_like(top)
    for j in range(tiles):
        room += tl.sum(_caps(tile, tile(source, j), own, j, PLAN.OWN), 1)
    poor = room <= 1.0
    ready = (top > -INFINITY) & ~spoiled
    active = (ready & ~poor).to(tl.int32)
    lowest = tl.zeros_like(top) - INFINITY
    one = tl.zeros_like(top) + 1.0
    if PLAN.OWN == ENTRY:
        pivot = smallest_passing(tile, source, tiles, active, lowest, top, _entries_above, own, one)
    else:
        pivot = smallest_passing(tile, source, tiles, active, lowest, top, _numbers_above, own, one)
    pivot = tl.where(active > 0, pivot, 0.0)
    tau = _threshold(tile, source, tiles, active, pivot, own, PLAN)
    for j in range(tiles):
        scores = tile(source, j)
        caps = _caps(tile, scores, own, j, PLAN.OWN)
        y = tl.minimum(tl.maximum((scores - pivot[:, None]) - tau[:, None], 0.0), caps)
        y = tl.where(poor[:, None], caps, y)
        y = tl.where(ready[:, None], y, 0.0)
        write(weights, rows, j, tl.where(spoiled[:, None], float("nan"), y))


@triton.jit
def _entries_above(tile: tl.constexpr, scores, c, own, j):
    return tl.where(scores > c[:, None], _caps(tile, scores, own, j, ENTRY), 0.0)


@triton.jit
def _numbers_above(tile: tl.constexpr, scores, c, own, j):
    return tl.where(scores > c[:, None], _caps(tile, scores, own, j, NUMBER), 0.0)


@triton.jit
def _threshold(tile: tl.constexpr, source, tiles, active, pivot, own, PLAN: tl.constexpr):
    """The root tau in [-1, 0] of ``sum min(cap, (score - pivot - tau)_+) = 1``."""
    low = tl.zeros_like(pivot) - 1.0
    high = tl.zeros_like(pivot)
    tau = low
    step = high + INFINITY
    while tl.max(active, 0) > 0:
        total = tl.zeros_like(pivot)
        free = tl.zeros_like(pivot)
        for j in range(tiles):
            scores = tile(source, j)
            caps = _caps(tile, scores, own, j, PLAN.OWN)
            lead = (scores - pivot[:, None]) - tau[:, None]
            total += tl.sum(tl.minimum(tl.maximum(lead, 0.0), caps), 1)
            free += tl.sum(((lead > 0.0) & (lead < caps)).to(tl.float32), 1)
        excess = total - 1.0
        low = tl.where(excess >= 0.0, tl.maximum(low, tau), low)
        high = tl.where(excess <= 0.0, tl.minimum(high, tau), high)
        middle = 0.5 * (low + high)
        target = tl.where(free > 0.0, tau + excess / tl.maximum(free, 1.0), middle)
        active, tau, step = advance(active, low, high, tau, target, step, 6e-8)
    return tau


@triton.jit
def _through(tile: tl.constexpr, y, v, tiles, rows, gradient, own, PLAN: tl.constexpr):
    centered(_is_free, tile, y, v, tiles, rows, gradient, own, PLAN)


@triton.jit
def _is_free(tile: tl.constexpr, y, own, j, PLAN: tl.constexpr):
    if PLAN.OWN == ENTRY:
        caps = tile(own[0], j)
    else:
        caps = own[0][:, None] + tl.zeros_like(y)
    return ((y > 0.0) & (y < caps)).to(tl.float32)
