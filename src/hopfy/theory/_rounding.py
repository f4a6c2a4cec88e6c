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
    blocks = torch.split(memories, 65536)
    norms = torch.cat([torch.linalg.vector_norm(block, dim=-1, dtype=wide) for block in blocks])
    return norms * (1 + _gamma(memories.shape[1] + 4, wide))


def _gamma(terms: int, dtype: torch.dtype) -> float:
    unit = torch.finfo(dtype).eps / 2
    return terms * unit / (1 - terms * unit) if terms * unit < 1 else torch.inf
