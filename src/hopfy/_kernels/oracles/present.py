# mypy: ignore-errors
"""Which rows of a table of scores are there: entries that are removed have the score -inf."""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import part

__all__ = ["present_rows"]


@part
def present_rows(scores, rows):
    """The rows (of a transposed table: the columns) with a finite score; returns how many."""
    count = 0
    for i in range(scores.shape[0]):
        for j in range(scores.shape[1]):
            if scores[i, j] > -np.inf:
                rows[count] = i
                count += 1
                break
    return count
