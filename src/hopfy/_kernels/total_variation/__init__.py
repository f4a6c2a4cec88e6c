r"""Total-variation denoising: :math:`\arg\min_y \tfrac12\|y-\theta\|^2+\lambda\sum_i|y_{i+1}-y_i|`.

The answer is constant on segments; an entry at -inf is not there, so it parts the row in two, and
stays at -inf.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels.row_calls import run_forward
from hopfy._kernels.total_variation.row import denoise
from hopfy._runtime.compilation import compiled, runs_compiled

__all__ = ["reference", "slope", "solve", "vjp"]


def solve(scores: Tensor, strength: Tensor) -> Tensor:
    """Smoothed scores (..., N); ``strength`` is 0-d or (..., 1)."""
    loops = compiled("total_variation.cpu") if runs_compiled(scores) else None
    if loops is None:
        return reference(scores, strength)
    return run_forward(loops.total_variation_forward, scores, strength)[0]


def reference(scores: Tensor, strength: Tensor) -> Tensor:
    """The same, row after row and segment after segment, in plain Python."""
    size = scores.shape[-1]
    rows = scores.detach().to("cpu", torch.float64).reshape(-1, size).numpy()
    strengths = strength.detach().cpu().double().expand(*scores.shape[:-1], 1).reshape(-1).tolist()
    answer = np.full_like(rows, -math.inf)
    for row, own, smooth in zip(rows, strengths, answer, strict=True):
        if np.isnan(row).any() or (row == math.inf).any():
            smooth[:] = math.nan
            continue
        there = np.flatnonzero(row > -math.inf)
        for run in np.split(there, np.flatnonzero(np.diff(there) > 1) + 1):
            if len(run):
                denoise(row[run[0] : run[-1] + 1], own, smooth[run[0] : run[-1] + 1])
    return torch.from_numpy(answer).reshape(scores.shape).to(scores)


def vjp(smooth: Tensor, strength: Tensor, cotangent: Tensor) -> Tensor:
    """Gradient with respect to the scores: a segment moves as one, by the mean of its entries."""
    places, counts = _segments(smooth)
    sums = torch.zeros_like(cotangent).scatter_add(-1, places, cotangent)
    mean = sums.gather(-1, places) / counts
    gone = torch.where(smooth == -torch.inf, 0.0, mean)
    return torch.where(smooth.isnan(), torch.nan, gone)


def slope(smooth: Tensor, strength: Tensor) -> Tensor:
    r""":math:`\partial y / \partial \lambda`: each end of a segment moves towards its neighbour."""
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
