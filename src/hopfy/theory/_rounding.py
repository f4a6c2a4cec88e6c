"""How far floating-point sums can be off, and rounding to a chosen side."""

from __future__ import annotations

import math
import sys
from fractions import Fraction

import torch
from torch import Tensor

from hopfy._runtime.rounding import gamma

__all__ = ["ceil_float", "floor_float", "norm_bounds", "rounding_bound"]

# Norms in this range are computed in float32 without overflow, and underflow is negligible.
_FAST = (1e-12, 1e15)


def rounding_bound(dimension: int, size: int, dtype: torch.dtype) -> float:
    r"""How far a computed :math:`(\sum_s x_s)^\top x` can be off, relative to
    :math:`\sum_s \|x_s\| \|x\|`.

    ``size`` patterns are summed and multiplied with another in ``dtype``, in any order.
    """
    return gamma(dimension + size + 2, dtype)


def norm_bounds(memories: Tensor) -> Tensor:
    """Upper bounds on the norms (N,) of the memories, float64; tight up to a rounding error.

    In float32 the norms are summed in float32, which is several times as fast, unless they are so
    large or so small that squares overflow or vanish.
    """
    if memories.dtype is torch.float32:
        norms: Tensor = torch.linalg.vector_norm(memories, dim=-1).double()
        vanished = math.sqrt(memories.shape[1] * torch.finfo(torch.float32).tiny)
        if norms.numel() == 0 or _FAST[0] < float(norms.max()) < _FAST[1]:
            bounds: Tensor = norms * (1 + gamma(memories.shape[1] + 4, torch.float32)) + vanished
            return bounds
    wide = torch.float64 if memories.device.type != "mps" else torch.float32
    norms = torch.empty(memories.shape[0], dtype=wide, device=memories.device)
    for start in range(0, memories.shape[0], 1 << 12):
        block = memories[start : start + (1 << 12)]
        norms[start : start + (1 << 12)] = _wide_norms(block.to(wide))
    return norms


def _wide_norms(rows: Tensor) -> Tensor:
    """Upper bounds on norms (R,), scaled by the largest entry so that no square overflows."""
    if rows.shape[1] == 0:
        return rows.new_zeros(rows.shape[0])
    largest = rows.abs().amax(-1, keepdim=True)
    scale = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    norms = torch.linalg.vector_norm(rows / scale, dim=-1) * scale.squeeze(-1)
    # Entries that vanish beside the largest one are covered by the relative bound.
    bounds = norms * (1 + gamma(rows.shape[1] + 8, rows.dtype)) + torch.finfo(rows.dtype).tiny
    return torch.where(bounds.isnan(), torch.inf, bounds)


def floor_float(value: Fraction) -> float:
    """The largest float that is not above ``value``."""
    return -ceil_float(-value)


def ceil_float(value: Fraction) -> float:
    """The smallest float that is not below ``value``."""
    try:
        near = float(value)
    except OverflowError:
        return math.inf if value > 0 else -sys.float_info.max
    return near if Fraction(near) >= value else math.nextafter(near, math.inf)
