"""One row of total-variation denoising, in plain Python that numba can compile."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["denoise"]


def denoise(values: Any, strength: float, answer: Any) -> None:
    r"""Write :math:`\arg\min_y \tfrac12 \|y - \theta\|^2 + \lambda \sum_i |y_{i+1} - y_i|`, in O(N).

    A dynamic programme from left to right (Johnson, 2013). Let :math:`f_i(y_i)` be the best cost of
    the first i entries. Its derivative is a rising broken line; a neighbour can pull with no more
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
    pull = 0.0  # of the neighbour on the left: the first entry has none
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
