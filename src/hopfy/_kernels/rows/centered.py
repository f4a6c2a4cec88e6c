# mypy: ignore-errors
"""The derivative of projections onto a box and a hyperplane, for compiled rows."""

from __future__ import annotations

import numpy as np

from hopfy._kernels.rows.scan import fill, support
from hopfy._runtime.compilation import jit

__all__ = ["centered"]


@jit
def centered(start, stop, weights, cotangent, upper, gradient):
    """Rows [start, stop): the cotangent, centered over the free entries, 0 < weight < upper bound.

    ``upper`` is (1 or rows, 1 or N).
    """
    index = np.empty(weights.shape[1], np.int64)
    for r in range(start, stop):
        y, v, out = weights[r], cotangent[r], gradient[r]
        fill(out, np.nan if y[0] != y[0] else 0.0)
        bounds = upper[r if upper.shape[0] > 1 else 0]
        found = support(y, index)
        total, count = 0.0, np.int64(0)
        for j in range(found):
            i = index[j]
            index[count] = i
            free = y[i] < bounds[i if bounds.shape[0] > 1 else 0]
            total += np.float64(v[i]) if free else 0.0
            count += free
        for j in range(count):
            out[index[j]] = v[index[j]] - total / count
