"""Total-variation denoising, row after row in plain Python."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels.total_variation.row import smooth_row

__all__ = ["solve"]


def solve(scores: Tensor, strength: Tensor) -> Tensor:
    """Smoothed scores (..., N); ``strength`` is 0-d or (..., 1)."""
    size = scores.shape[-1]
    rows = scores.detach().to("cpu", torch.float64).reshape(-1, size).numpy()
    strengths = strength.detach().cpu().double().expand(*scores.shape[:-1], 1).reshape(-1).tolist()
    answer = np.empty_like(rows)
    for row, own, smooth in zip(rows, strengths, answer, strict=True):
        smooth_row(row, own, smooth)
    return torch.from_numpy(answer).reshape(scores.shape).to(scores)
