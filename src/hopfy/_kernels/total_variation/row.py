"""One row of total-variation denoising, in plain Python that numba can compile.

Both backends run this code: the reference as it is, the CPU kernels compiled.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["denoise", "smooth_row", "smooth_row_with"]


def denoise(values: Any, pulls: Any, answer: Any) -> None:
    r"""Write :math:`\arg\min_y \tfrac12 \|y - \theta\|^2 + \sum_i \lambda_i |y_i - y_{i-1}|`, in O(N).

    ``pulls[i]`` is :math:`\lambda_i`; ``pulls[0]`` is not used. A dynamic program from left to right
    (Johnson, 2013). Let :math:`f_i(y_i)` be the best cost of the first i entries. Its derivative is
    a rising broken line; the next entry can pull with no more than :math:`\lambda_{i+1}`, so it sees
    the line cut off at plus and minus that. The two cuts are the bounds between which entry i follows
    entry i + 1, and become the outer knots of the line.

    A knot at ``place[j]`` changes the line from :math:`a y + b` to
    :math:`(a + \Delta a_j) y + b + \Delta b_j`. Each entry adds two knots and removes those beyond
    them, so the work is linear.
    """
    size = len(values)
    place, bend, lift = np.empty(2 * size + 2), np.empty(2 * size + 2), np.empty(2 * size + 2)
    low, high = np.empty(size), np.empty(size)
    left, right = size + 1, size  # the knots are left .. right; none at first
    cut = 0.0
    for i in range(size):
        rise, start = 1.0, -cut - values[i]
        fall, end = 1.0, cut - values[i]
        cut = pulls[i + 1] if i + 1 < size else 0.0  # the last entry rests where the line is 0
        while left <= right and rise * place[left] + start <= -cut:
            rise += bend[left]
            start += lift[left]
            left += 1
        while left <= right and fall * place[right] + end >= cut:
            fall -= bend[right]
            end -= lift[right]
            right -= 1
        low[i] = (-cut - start) / rise
        high[i] = (cut - end) / fall
        left -= 1
        place[left], bend[left], lift[left] = low[i], rise, start + cut
        right += 1
        place[right], bend[right], lift[right] = high[i], -fall, cut - end
    answer[size - 1] = low[size - 1]
    for i in range(size - 2, -1, -1):
        answer[i] = min(max(answer[i + 1], low[i]), high[i])


def smooth_row_with(denoise: Callable[..., None]) -> Callable[..., None]:
    """`smooth_row` with ``denoise`` as it is, or compiled."""

    def smooth_row(values: Any, strength: float, answer: Any) -> None:
        """Denoise each run of a row that entries at -inf leave; NaN or +inf affect the whole row."""
        size = len(values)
        pulls = np.empty(size)
        for i in range(size):
            pulls[i] = strength
            if not values[i] < math.inf:
                answer[:] = math.nan
                return
        begin = 0
        while begin < size:
            end = begin
            while end < size and values[end] > -math.inf:
                end += 1
            if end > begin:
                denoise(values[begin:end], pulls[begin:end], answer[begin:end])
            if end < size:
                answer[end] = -math.inf
            begin = end + 1

    return smooth_row


smooth_row = smooth_row_with(denoise)
