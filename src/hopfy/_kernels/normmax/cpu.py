"""Normmax by the compiled loops of `hopfy._kernels.threshold.cpu`."""

from __future__ import annotations

from torch import Tensor

from hopfy._kernels.row_calls import run_backward, run_forward
from hopfy._kernels.threshold import cpu as loops

__all__ = ["solve", "vjp"]


def solve(scores: Tensor, alpha: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``alpha`` is 0-d or (..., 1)."""
    return run_forward(loops.normmax_forward, scores, alpha)[0]


def vjp(weights: Tensor, alpha: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores."""
    return run_backward(loops.normmax_backward, weights, alpha, cotangent)
