# mypy: ignore-errors
"""Compiled attention of one query, or a few, over many keys: one pass over the keys for each."""

from __future__ import annotations

import numpy as np

from hopfy._kernels.attention.cpu_select import row_maximum, scratch, select_row
from hopfy._kernels.attention.cpu_support import combine
from hopfy._runtime.compilation import jit, part

__all__ = ["few_queries", "products"]


@part
def _products_of(query, keys, first, last, scale, out):
    """``out[i] = scale <query, keys[first + i]>`` up to ``last``, four keys at a time; their sum."""
    size = query.shape[0]
    zero = query[0] - query[0]
    total = zero
    i = first
    while i + 4 <= last:
        a, b, c, d = keys[i], keys[i + 1], keys[i + 2], keys[i + 3]
        p, q, r, s = zero, zero, zero, zero
        for f in range(size):
            x = query[f]
            p += a[f] * x
            q += b[f] * x
            r += c[f] * x
            s += d[f] * x
        p, q, r, s = p * scale, q * scale, r * scale, s * scale
        place = i - first
        out[place], out[place + 1], out[place + 2], out[place + 3] = p, q, r, s
        total += (p + q) + (r + s)
        i += 4
    while i < last:
        a, p = keys[i], zero
        for f in range(size):
            p += a[f] * query[f]
        out[i - first] = p * scale
        total += p * scale
        i += 1
    return total


@jit
def products(start, stop, queries, keys, first, last, scale, scores):
    """Scores (rows, last - first) of rows [start, stop), one query each: ``queries`` (rows, D)."""
    for r in range(start, stop):
        _products_of(queries[r], keys[r], first, last, scale, scores[r])


@jit
def few_queries(
    start, stop, inputs, scale, low, high, alpha, kind, steep, weights, columns, counts, output
):
    """Attention of the rows [start, stop), each over its keys ``low .. high``.

    What a row selects stands at the front of its weights and columns. Returns False if some score is
    not finite: then nothing of it is to be used.
    """
    queries, keys, values = inputs
    rows, n, size = queries.shape[1], keys.shape[1], values.shape[2]
    scores = np.empty(n, queries.dtype)
    work = scratch(scores, n)
    x = work[0]
    for r in range(start, stop):
        group, a, b = r // rows, low[r], high[r]
        row, column = scores[: b - a], columns[r]
        kept = np.int64(0)
        if b > a:
            total = _products_of(queries[group, r % rows], keys[group], a, b, scale, row)
            if not abs(total) < np.inf:
                return False
            top, used = row_maximum(row, b - a, work[1], work[2])
            own = alpha[r if alpha.size > 1 else 0]
            kept = select_row(row, b - a, top, used, own, kind, column, work, steep)
        for i in range(kept):
            weights[r, i] = x[i]
            column[i] += a
        counts[r] = kept
        combine(weights[r], column, kept, values[group], output[group, r % rows], size)
    return True
