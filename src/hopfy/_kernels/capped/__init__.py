r"""Capped sparsemax: the projection of the scores onto :math:`\{y \in \triangle : y \le u\}`.

The solution is :math:`y_i = \min(u_i, (\theta_i - \tau)_+)`. An entry is free (strictly between its
bounds), full (at its upper bound) or zero; the weights and the upper bounds say which, so that they are
all that the derivatives need.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels.capped import reference
from hopfy._kernels.capped.reference import upper_jvp, upper_vjp
from hopfy._kernels.rows.operation import solve_checked, vjp_of
from hopfy._runtime.dispatch import values_can_be_read

__all__ = ["solve", "upper_jvp", "upper_vjp", "vjp"]


def solve(scores: Tensor, upper: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); ``upper`` broadcasts to the scores.

    A row whose upper bounds add up to less than one is refused where values can be read without
    waiting for a device; elsewhere it takes all of them.
    """
    return solve_checked("capped", scores, upper, reference, _refuse_poor_rows)


def _refuse_poor_rows(scores: Tensor, upper: Tensor) -> None:
    if not values_can_be_read(scores) or not values_can_be_read(upper):
        return
    kept = scores > -torch.inf
    room = torch.where(kept, upper.clamp_max(1).to(scores.dtype), 0.0).sum(-1)
    poor = kept.any(-1) & (room < 1 - reference.tolerance(scores.dtype, scores.shape[-1]))
    rows = poor.flatten().nonzero()
    if len(rows):
        raise reference.poor_row(int(rows[-1]))


def vjp(weights: Tensor, upper: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores: the cotangent, centered over the free entries."""
    return vjp_of("capped", weights, upper, cotangent)
