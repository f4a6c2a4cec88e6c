# mypy: ignore-errors
"""The k-th smallest of some numbers, compiled."""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import part

__all__ = ["kth_smallest"]


@part
def kth_smallest(d, count, k, values):
    """The k-th smallest of ``d[:count]``, by quickselect in ``values``."""
    for j in range(count):
        values[j] = d[j]
    low, high = np.int64(0), count - 1
    while low < high:
        middle = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < middle:
                i += 1
            while values[j] > middle:
                j -= 1
            if i <= j:
                swapped = values[i]
                values[i] = values[j]
                values[j] = swapped
                i += 1
                j -= 1
        if k - 1 <= j:
            high = j
        elif k - 1 >= i:
            low = i
        else:
            break
    return values[k - 1]
