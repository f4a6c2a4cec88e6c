# mypy: ignore-errors
"""Sequential k-subsets, compiled: what the kernels of this folder share."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hopfy._runtime.compilation import leaf, part

__all__ = [
    "CERTAIN",
    "LARGE",
    "MASKED",
    "OPEN",
    "Answers",
    "Row",
    "gather",
    "integers",
    "leading",
    "new_row",
    "numbers",
    "zeros",
]

MASKED, CERTAIN = -2, -1  # units of the entries that are left out, and of those at 0 or 1

# `Answers.size` of rows that the relaxation leaves to the active set, or to `reduce_rows` first.
OPEN, LARGE = -1, -2


class Answers(NamedTuple):
    """What a solved batch of rows looks like; the first dimension is the row."""

    y: np.ndarray  # (R, N) marginals
    unit: np.ndarray  # (R, N) number of the unit or of the open position, else MASKED or CERTAIN
    size: np.ndarray  # (R, 2) active subsets and open positions; (0, 0) without an active set
    iterations: np.ndarray  # (R)
    gap: np.ndarray  # (R)
    missing: np.ndarray  # (R) how much k exceeds what may be selected


class Row(NamedTuple):
    """One row without its masked positions."""

    where: np.ndarray  # (n) its positions in the full row
    theta: np.ndarray  # (n) scores
    edge: np.ndarray  # (n) reward of the pair (i - 1, i)
    value: np.ndarray  # (n) relaxed solution, before it is clipped to [0, 1]
    unit: np.ndarray  # (n)


# numba compiles an allocation for each dtype and for each way to write it: three ways are enough.


@part
def numbers(n):
    """An array of n floats that are not set."""
    return np.empty(n)


@part
def integers(n):
    """An array of n integers that are not set."""
    return np.empty(n, np.int64)


@part
def zeros(n):
    """An array of n zeros, integers that also serve as booleans."""
    made = integers(n)
    for i in range(n):
        made[i] = 0
    return made


@part
def new_row(n):
    """Memory for n positions."""
    return Row(integers(n), numbers(n), numbers(n), numbers(n), integers(n))


@part
def leading(row, n):
    """The first n positions."""
    return Row(row.where[:n], row.theta[:n], row.edge[:n], row.value[:n], row.unit[:n])


@leaf
def gather(scores, edges, row):
    """Copy what is not masked; return the count, -1 if a number is NaN or infinite."""
    n = 0
    for i in range(scores.shape[0]):
        if scores[i] == -np.inf:
            continue
        joined = n > 0 and row.where[n - 1] == i - 1
        row.where[n] = i
        row.theta[n] = scores[i]
        row.edge[n] = edges[i - 1] if joined else 0.0
        if not (np.isfinite(scores[i]) and np.isfinite(row.edge[n])):
            return -1
        n += 1
    return n
