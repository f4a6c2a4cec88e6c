"""How far floating-point sums can be off."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["norm_bounds", "rounding_bound"]


def rounding_bound(dimension: int, size: int, dtype: torch.dtype) -> float:
    r"""How far a computed :math:`(\sum_s x_s)^\top x` can be off, relative to
    :math:`\sum_s \|x_s\| \|x\|`.

    ``size`` patterns are summed and multiplied with another in ``dtype``, in any order.
    """
    return _gamma(dimension + size + 2, dtype)


def norm_bounds(memories: Tensor) -> Tensor:
    """Upper bounds on the norms (N,) of the memories, in float64 and in blocks."""
    wide = torch.float64 if memories.device.type != "mps" else torch.float32
    norms = torch.empty(memories.shape[0], dtype=wide, device=memories.device)
    for start in range(0, memories.shape[0], 1 << 12):
        block = memories[start : start + (1 << 12)]
        norms[start : start + (1 << 12)] = torch.linalg.vector_norm(block, dim=-1, dtype=wide)
    return norms * (1 + _gamma(memories.shape[1] + 4, wide))


def _gamma(terms: int, dtype: torch.dtype) -> float:
    unit = torch.finfo(dtype).eps / 2
    return terms * unit / (1 - terms * unit) if terms * unit < 1 else torch.inf
