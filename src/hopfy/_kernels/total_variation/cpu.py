# mypy: ignore-errors
"""Total-variation denoising, compiled."""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.total_variation import row as plain
from hopfy._runtime.compilation import jit

__all__ = ["total_variation_forward"]

_denoise = jit(plain.denoise)


@jit
def total_variation_forward(start, stop, scores, bits, strength, smooth):
    """Rows ``start`` to ``stop``, each in the runs that its entries at -inf leave."""
    size = scores.shape[1]
    values, answer = np.empty(size), np.empty(size)
    for row in range(start, stop):
        own = strength[row] if len(strength) > 1 else strength[0]
        spoiled = False
        for i in range(size):
            values[i] = scores[row, i]
            spoiled |= math.isnan(values[i]) or values[i] == math.inf
        begin = 0
        while begin < size and not spoiled:
            end = begin
            while end < size and values[end] > -math.inf:
                end += 1
            if end > begin:
                _denoise(values[begin:end], own, answer[begin:end])
            if end < size:
                answer[end] = -math.inf
            begin = end + 1
        for i in range(size):
            smooth[row, i] = math.nan if spoiled else answer[i]
    return 0
