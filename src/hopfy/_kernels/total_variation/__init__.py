r"""Total-variation denoising: :math:`\arg\min_y \tfrac12\|y-\theta\|^2+\lambda\sum_i|y_{i+1}-y_i|`.

The answer is constant on segments; an entry at -inf is not there, so it parts the row in two, and
stays at -inf.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._runtime.backends import kernels_for

__all__ = ["slope", "solve", "vjp"]


def solve(scores: Tensor, strength: Tensor) -> Tensor:
    """Smoothed scores (..., N); ``strength`` is 0-d or (..., 1)."""
    smooth: Tensor = kernels_for("total_variation", scores).solve(scores, strength)
    return smooth


def vjp(smooth: Tensor, strength: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores: a segment moves as one, by the mean of its entries."""
    places, counts = _segments(smooth)
    sums = torch.zeros_like(cotangent).scatter_add(-1, places, cotangent)
    mean = sums.gather(-1, places) / counts
    gone = torch.where(smooth == -torch.inf, 0.0, mean)
    return torch.where(smooth.isnan(), torch.nan, gone)


def slope(smooth: Tensor, strength: Tensor) -> Tensor:
    r""":math:`\partial y / \partial \lambda`: each end of a segment moves toward its neighbor."""
    places, counts = _segments(smooth)
    there = smooth > -torch.inf
    step = torch.sign(smooth[..., 1:] - smooth[..., :-1])
    step = torch.where(there[..., 1:] & there[..., :-1], step, 0.0)
    ends = torch.nn.functional.pad(step, (0, 1)) - torch.nn.functional.pad(step, (1, 0))
    return torch.zeros_like(smooth).scatter_add(-1, places, ends).gather(-1, places) / counts


def _segments(smooth: Tensor) -> tuple[Tensor, Tensor]:
    """The number of the segment that every entry lies in, and how many lie in it."""
    changes = smooth[..., 1:] != smooth[..., :-1]
    places = torch.nn.functional.pad(changes.long().cumsum(-1), (1, 0))
    ones = torch.ones_like(smooth)
    return places, torch.zeros_like(smooth).scatter_add(-1, places, ones).gather(-1, places)
