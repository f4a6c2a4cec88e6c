"""One row of total-variation denoising, in plain Python that numba can compile.

Both backends run this code: the reference as it is, the CPU kernels compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["denoise", "smooth_row", "smooth_row_with"]


def denoise(values: Any, strength: float, answer: Any) -> None:
    r"""Write :math:`\arg\min_y \tfrac12 \|y - \theta\|^2 + \lambda \sum_i |y_{i+1} - y_i|`, in O(N).

    A dynamic program from left to right (Johnson, 2013). Let :math:`f_i(y_i)` be the best cost of
    the first i entries. Its derivative is a rising broken line; a neighbor can pull with no more
    than :math:`\lambda`, so the next one sees it cut off at :math:`\pm\lambda`. The two cuts are the
    bounds between which entry i follows entry i + 1, and become the outer knots of the line.

    A knot at ``place[j]`` changes the line from :math:`a y + b` to
    :math:`(a + \Delta a_j) y + b + \Delta b_j`. Each entry adds two knots and removes those beyond
    them, so the work is linear.
    """
    size = len(values)
    place, bend, lift = np.empty(2 * size), np.empty(2 * size), np.empty(2 * size)
    low, high = np.empty(size), np.empty(size)
    left, right = size, size - 1  # the knots are left .. right; none at first
    pull = 0.0  # of the neighbor on the left: the first entry has none
    for i in range(size):
        last = i == size - 1
        level = 0.0 if last else strength  # the last entry rests where the derivative is 0
        slope, start = 1.0, -pull - values[i]
        while left <= right and slope * place[left] + start < -level:
            slope, start = slope + bend[left], start + lift[left]
            left += 1
        low[i] = (-level - start) / slope
        if last:
            break
        left -= 1
        cut_slope, cut_start = slope, start + strength
        slope, start = 1.0, pull - values[i]
        while left < right and slope * place[right] + start > strength:
            slope, start = slope - bend[right], start - lift[right]
            right -= 1
        high[i] = (strength - start) / slope
        right += 1
        place[left], bend[left], lift[left] = low[i], cut_slope, cut_start
        place[right], bend[right], lift[right] = high[i], -slope, strength - start
        pull = strength
    answer[size - 1] = low[size - 1]
    for i in range(size - 2, -1, -1):
        answer[i] = min(max(answer[i + 1], low[i]), high[i])


def smooth_row_with(denoise: Callable[..., None]) -> Callable[..., None]:
    """`smooth_row` with ``denoise`` as it is, or compiled."""

    def smooth_row(values: Any, strength: float, answer: Any) -> None:
        """Denoise each run of a row that entries at -inf leave; NaN or +inf affect the whole row."""
        size = len(values)
        for i in range(size):
            if not values[i] < math.inf:
                answer[:] = math.nan
                return
        begin = 0
        while begin < size:
            end = begin
            while end < size and values[end] > -math.inf:
                end += 1
            if end > begin:
                denoise(values[begin:end], strength, answer[begin:end])
            if end < size:
                answer[end] = -math.inf
            begin = end + 1

    return smooth_row


smooth_row = smooth_row_with(denoise)
