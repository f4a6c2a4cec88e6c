# mypy: ignore-errors
"""Compiled rows of maps whose equation is not convex: entmax with alpha > 2, and k-subsets.

As in `hopfy._kernels.attention.cpu_select`, the maxima of a row's lanes leave few candidates; these
are weighed in float64 by the code of the maps themselves.
"""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.entmax.cpu import newton_concave
from hopfy._kernels.ksubsets.cpu import threshold_of, weigh
from hopfy._kernels.rows.quickselect import kth_smallest
from hopfy._runtime.compilation import part

__all__ = ["concave_row", "subsets_cut", "subsets_row"]


@part
def concave_row(row, column, count, top, alpha, work):
    """Weights of the candidates in ``work[0]``, those without weight left out; how many are left."""
    d, weights = work[4], work[5]
    for i in range(count):
        d[i] = np.float64(top) - np.float64(row[column[i]])
        weights[column[i]] = 0.0
    newton_concave(d, column, count, alpha - 1.0, weights)
    return _positive(column, count, weights, work[0])


@part
def subsets_row(row, column, count, top, k, work):
    """The same for k-subsets; a row of fewer than k visible candidates takes all of them."""
    d, weights = work[4], work[5]
    visible = 0
    for i in range(count):
        d[visible] = np.float64(top) - np.float64(row[column[i]])
        column[visible] = column[i]
        visible += d[visible] < np.inf
    weigh(d, column, visible, k, work[6], weights)
    return _positive(column, visible, weights, work[0])


@part
def _positive(column, count, weights, x):
    """Move the positive weights, by column, to the front of x, with their columns."""
    kept = 0
    for i in range(count):
        weight = weights[column[i]]
        x[kept] = weight
        column[kept] = column[i]
        kept += x[kept] > 0
    return kept


@part
def subsets_cut(lanes, used, top, k, work):
    """A score that every selected entry of k-subsets reaches, from the maxima of lanes alone.

    Leaving entries out of ``sum clip(t - d, 0, 1) = k`` raises its root t.
    """
    d, order = work[4], work[6]
    if not k < used:
        return -np.inf
    for i in range(used):
        d[i] = np.float64(top) - np.float64(lanes[i])
    high = kth_smallest(d, np.int64(used), np.int64(math.ceil(k)), order) + 1.0
    if not high < np.inf:
        return -np.inf
    reach = threshold_of(d, used, k, 0.0, high)
    return np.float64(top) - reach * (1.0 + 1e-9)
