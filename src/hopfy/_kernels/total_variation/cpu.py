# mypy: ignore-errors
"""Total-variation denoising, compiled."""

from __future__ import annotations

import numpy as np

from hopfy._kernels.rows.calls import per_row, run_forward
from hopfy._kernels.total_variation import row as plain
from hopfy._runtime.compilation import jit, part

__all__ = ["denoise", "solve"]

denoise = part(plain.denoise)
_smooth_row = part(plain.smooth_row_with(denoise))


def solve(scores, strength):
    """Smoothed scores (..., N); ``strength`` is 0-d or (..., 1)."""
    return run_forward(_forward, scores, per_row(strength, scores))[0]


@jit
def _forward(start, stop, scores, bits, strength, smooth):
    size = scores.shape[1]
    values, answer = np.empty(size), np.empty(size)
    for row in range(start, stop):
        values[:] = scores[row]
        _smooth_row(values, strength[row] if len(strength) > 1 else strength[0], answer)
        smooth[row] = answer
    return 0
