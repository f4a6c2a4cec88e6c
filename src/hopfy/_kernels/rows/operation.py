"""What the row maps have in common: solving and differentiating on the backend that serves a tensor."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

from torch import Tensor

from hopfy._runtime.backends import kernels_for
from hopfy._runtime.dispatch import records_gradients

__all__ = ["solve_checked", "vjp_of"]


def solve_checked(
    operation: str,
    scores: Tensor,
    parameter: Tensor,
    reference: ModuleType,
    refuse: Callable[[Tensor, Tensor], None],
) -> Tensor:
    """``solve(scores, parameter)`` of the backend; ``refuse`` checks rows first for the reference.

    Other backends check while they solve.
    """
    kernels = kernels_for(operation, scores)
    if kernels is reference:
        refuse(scores, parameter)
    weights: Tensor = kernels.solve(scores, parameter)
    return weights


def vjp_of(operation: str, weights: Tensor, parameter: Tensor, cotangent: Tensor) -> Tensor:
    """``vjp(weights, parameter, cotangent)`` of the backend, or differentiable where it is recorded."""
    recorded = records_gradients(weights, parameter, cotangent)
    gradient: Tensor = kernels_for(operation, weights, recorded).vjp(weights, parameter, cotangent)
    return gradient
