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

from hopfy._kernels.rows.gpu import ENTRY, Parameters, own_tile, solve_rows_of, through_rows_of
from hopfy._kernels.threshold.gpu import INFINITY, falling_root, smallest_passing

__all__ = ["solve", "vjp"]


def solve(scores: Tensor, upper: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N), float32 or half; ``upper`` broadcasts to the scores.

    A row whose upper bounds add up to less than one takes all of them.
    """
    return solve_rows_of((_find, _weigh), scores, _bounds(upper, scores), heavy=True)


def vjp(weights: Tensor, upper: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    return through_rows_of(_slopes, weights, cotangent, _bounds(upper, weights))


def _bounds(upper: Tensor, rows: Tensor) -> Parameters:
    upper = upper.detach()
    if upper.ndim == 0 and upper.device.type == "cpu":
        return Parameters((float(upper),))
    bounds = upper.to(rows.device, torch.float32).expand(rows.shape).contiguous()
    return Parameters((bounds,), ENTRY.value)


@triton.jit
def _find(tile: tl.constexpr, source, tiles, ready, top, own, PLAN: tl.constexpr):
    """The pivot, and the threshold from there: -inf where all bounds are taken."""
    room = tl.zeros_like(top)
    for j in range(tiles):
        room += tl.sum(_caps(tile(source, j), own_tile(tile, own, j, PLAN), PLAN), 1)
    active = (ready & (room > 1.0)).to(tl.int32)
    lowest = tl.zeros_like(top) - INFINITY
    one = tl.zeros_like(top) + 1.0
    pivot = smallest_passing(tile, source, tiles, active, lowest, top, _above, own, one, PLAN)
    pivot = tl.where(active > 0, pivot, 0.0)
    extra = (pivot, own)
    tau = falling_root(tile, source, tiles, active, -one, -one, one - 1.0, _excess, extra, PLAN)
    return pivot, tl.where(active > 0, tau, -INFINITY)


@triton.jit
def _upper(tile, own, PLAN: tl.constexpr):
    """The upper bounds beside a tile."""
    if PLAN.OWN == ENTRY:
        return own[0]
    else:
        return own[0][:, None] + tl.zeros_like(tile)


@triton.jit
def _caps(scores, own, PLAN: tl.constexpr):
    """The upper bounds of a tile, at most 1, and 0 for what may not be selected."""
    caps = _upper(scores, own, PLAN)
    return tl.where(scores > -INFINITY, tl.minimum(tl.maximum(caps, 0.0), 1.0), 0.0)


@triton.jit
def _above(tile: tl.constexpr, scores, c, own, j, PLAN: tl.constexpr):
    caps = _caps(scores, own_tile(tile, own, j, PLAN), PLAN)
    return tl.where(scores > c[:, None], caps, 0.0)


@triton.jit
def _weigh(scores, top, state, own, PLAN: tl.constexpr):
    pivot, tau = state
    caps = _caps(scores, own, PLAN)
    lead = tl.maximum((scores - pivot[:, None]) - tau[:, None], 0.0)
    return tl.where((tau > -INFINITY)[:, None], tl.minimum(lead, caps), caps)


@triton.jit
def _excess(tile: tl.constexpr, source, tiles, tau, extra, PLAN: tl.constexpr):
    """By how much ``sum min(cap, (score - pivot - tau)_+)`` exceeds 1, and how many are free."""
    pivot, own = extra
    total = tl.zeros_like(pivot)
    free = tl.zeros_like(pivot)
    for j in range(tiles):
        scores = tile(source, j)
        caps = _caps(scores, own_tile(tile, own, j, PLAN), PLAN)
        lead = (scores - pivot[:, None]) - tau[:, None]
        total += tl.sum(tl.minimum(tl.maximum(lead, 0.0), caps), 1)
        free += tl.sum(((lead > 0.0) & (lead < caps)).to(tl.float32), 1)
    return total - 1.0, free


@triton.jit
def _slopes(y, own, PLAN: tl.constexpr):
    """1 for weights between 0 and their bounds."""
    return ((y > 0.0) & (y < _upper(y, own, PLAN))).to(tl.float32)
