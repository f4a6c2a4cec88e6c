# mypy: ignore-errors
"""Compiled loops over rows of scores: which keys a row sees, and lists of what it selected."""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import jit

__all__ = ["blank", "compact", "outside", "pick", "row_ranges", "spread"]


@jit
def row_ranges(start, stop, mask, low, high, solid):
    """The first and one past the last True of rows [start, stop), and whether all between are."""
    n = mask.shape[1]
    for r in range(start, stop):
        row = mask[r]
        first = 0
        while first < n and not row[first]:
            first += 1
        last = n
        while last > first and not row[last - 1]:
            last -= 1
        total = 0
        for i in range(first, last):
            total += np.int64(row[i])
        low[r], high[r], solid[r] = first, last, total == last - first


@jit
def blank(start, stop, scores, first, offset, low, high, period, mask, mask_of, bias, bias_of):
    """Add the bias and set masked scores to -inf, inside each row's range of keys.

    Row r of the block is row ``first + r`` of all; the block's columns begin at key ``offset``.
    A mask or bias of size 0 is none.
    """
    for r in range(start, stop):
        row = first + r
        segment, place = row // period, row % period
        a, b = low[row], high[row]
        if bias.size:
            added = bias[bias_of[segment], place if bias.shape[1] > 1 else 0]
            for c in range(a, b):
                scores[r, c - offset] += added[c]
        if mask.size:
            allowed = mask[mask_of[segment], place if mask.shape[1] > 1 else 0]
            for c in range(a, b):
                if not allowed[c]:
                    scores[r, c - offset] = -np.inf


@jit
def outside(start, stop, scores, first, offset, low, high):
    """Set the scores outside each row's range to -inf."""
    width = scores.shape[1]
    for r in range(start, stop):
        row = first + r
        scores[r, : max(0, low[row] - offset)] = -np.inf
        scores[r, max(0, min(width, high[row] - offset)) :] = -np.inf


@jit
def pick(start, stop, dense, offset, weights, columns, counts):
    """The positive entries of dense rows, in place of the rows' first entries (may be the same)."""
    for r in range(start, stop):
        count = 0
        for c in range(dense.shape[1]):
            weight = dense[r, c]
            weights[r, count] = weight
            columns[r, count] = c + offset
            count += weight > 0
        counts[r] = count


@jit
def spread(start, stop, weights, columns, counts, offset, dense):
    """The inverse of `pick`."""
    for r in range(start, stop):
        dense[r] = 0
        for i in range(counts[r]):
            dense[r, columns[r, i] - offset] = weights[r, i]


@jit
def compact(start, stop, weights, columns, edges, packed_weights, packed_columns):
    """Copy the selected entries of each row to its place ``edges[r]:edges[r + 1]``."""
    for r in range(start, stop):
        first = edges[r]
        for i in range(edges[r + 1] - first):
            packed_weights[first + i] = weights[r, i]
            packed_columns[first + i] = columns[r, i]
