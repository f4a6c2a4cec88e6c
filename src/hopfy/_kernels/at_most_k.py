r"""At most k: the projection of the scores onto :math:`\{y \in [0,1]^N : 1^\top y \le k\}`.

Clipping to [0, 1] is the answer where it spends no more than k; elsewhere the budget is tight and the
answer is that of `hopfy._kernels.ksubsets`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels import ksubsets

__all__ = ["reference", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1)."""
    return _either(scores, k, ksubsets.solve(scores, k))


def reference(scores: Tensor, k: Tensor) -> Tensor:
    """The same in plain torch."""
    return _either(scores, k, ksubsets.reference(scores, k))


def _either(scores: Tensor, k: Tensor, tight: Tensor) -> Tensor:
    clipped = scores.clamp(0, 1)
    slack = clipped.sum(-1, keepdim=True) <= k.to(scores.dtype)
    spoiled = tight.isnan().any(-1, keepdim=True)
    return torch.where(slack & ~spoiled, clipped, tight)


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients with respect to the scores and to k, as differentiable torch operations.

    A row that spends less than k has the Jacobian of clipping, and k does not matter to it.
    """
    kept = torch.where((weights > 0) & (weights < 1), cotangent, 0.0)
    spent = weights.sum(-1, keepdim=True)
    rounding = 8 * torch.finfo(weights.dtype).eps * weights.shape[-1]
    slack = spent < k.to(weights.dtype) - rounding
    in_scores, in_k = ksubsets.vjp(weights, k, cotangent)
    return torch.where(slack, kept, in_scores), torch.where(slack, 0.0, in_k)
