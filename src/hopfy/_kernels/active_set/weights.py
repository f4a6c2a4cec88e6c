# mypy: ignore-errors
"""The weights of one active set, compiled: a Cholesky factor that grows and shrinks by vertices.

A vertex lives in a slot. ``order`` lists the active slots first, in the order of the factor; ``gram``,
``linear`` and ``weights`` go by slot.
"""

from __future__ import annotations

import numpy as np

from hopfy._runtime.compilation import part

__all__ = ["NOISE", "ZERO", "append", "descend", "exchange", "lower_solve", "upper_solve"]

# Squared distance to the affine hull, relative to the Gram entry, below which a vertex counts as in it.
_DEPENDENT = 1e-10
# Weights below this are zero: the vertex leaves.
ZERO = 1e-13
_SMALL = 1e-9
# Rounding in sums of scores, relative to the sum of their sizes.
NOISE = 1e-14


@part
def lower_solve(factor, size, x):
    for i in range(size):
        total = x[i]
        for j in range(i):
            total -= factor[i, j] * x[j]
        x[i] = total / factor[i, i]


@part
def upper_solve(factor, size, x):
    for i in range(size - 1, -1, -1):
        x[i] /= factor[i, i]
        for j in range(i):
            x[j] -= factor[i, j] * x[i]


@part
def append(factor, gram, order, size, slot):
    """Extend the Cholesky factor by one vertex; False (and nothing done) if it is dependent."""
    row = factor[size]
    for i in range(size):
        row[i] = gram[order[i], slot]
    lower_solve(factor, size, row)
    pivot = gram[slot, slot]
    for i in range(size):
        pivot -= row[i] * row[i]
    if pivot <= _DEPENDENT * gram[slot, slot]:
        return False
    row[size] = np.sqrt(pivot)
    return True


@part
def _remove(factor, order, size, position):
    """Take one vertex out of the Cholesky factor by Givens rotations; its slot becomes free."""
    slot = order[position]
    for i in range(position, size - 1):
        order[i] = order[i + 1]
        for j in range(i + 2):
            factor[i, j] = factor[i + 1, j]
    order[size - 1] = slot
    for k in range(position, size - 1):
        a, b = factor[k, k], factor[k, k + 1]
        r = np.hypot(a, b)
        c, s = a / r, b / r
        factor[k, k], factor[k, k + 1] = r, 0.0
        for i in range(k + 1, size - 1):
            a, b = factor[i, k], factor[i, k + 1]
            factor[i, k] = c * a + s * b
            factor[i, k + 1] = c * b - s * a


@part
def _affine_optimum(factor, gram, order, size, linear, answer, ones, rest):
    """The best weights that sum to one, negative ones allowed, refined once with the exact Gram."""
    for i in range(size):
        ones[i] = 1.0
        answer[i] = linear[order[i]]
    lower_solve(factor, size, ones)
    upper_solve(factor, size, ones)
    lower_solve(factor, size, answer)
    upper_solve(factor, size, answer)
    mass = ones[:size].sum()
    shift = (1.0 - answer[:size].sum()) / mass
    for i in range(size):
        answer[i] += shift * ones[i]
    for i in range(size):
        rest[i] = linear[order[i]] + shift
        for j in range(size):
            rest[i] -= gram[order[i], order[j]] * answer[j]
    lower_solve(factor, size, rest)
    upper_solve(factor, size, rest)
    shift = (1.0 - answer[:size].sum() - rest[:size].sum()) / mass
    for i in range(size):
        answer[i] += rest[i] + shift * ones[i]


@part
def descend(factor, gram, order, size, linear, weights, buffers):
    """Move to the optimum over the hull of the active vertices; those that reach zero leave."""
    answer, ones, rest = buffers[0], buffers[1], buffers[2]
    while size > 1:
        _affine_optimum(factor, gram, order, size, linear, answer, ones, rest)
        step, first = 1.0, -1
        for i in range(size):
            if answer[i] <= ZERO:
                weight = weights[order[i]]
                ratio = weight / (weight - answer[i]) if weight > answer[i] else 0.0
                if first < 0 or ratio < step:
                    step, first = ratio, i
        for i in range(size):
            slot = order[i]
            weights[slot] += step * (answer[i] - weights[slot])
        if first < 0:
            return size
        weights[order[first]] = 0.0
        _remove(factor, order, size, first)
        size -= 1
    weights[order[0]] = 1.0
    return size


@part
def exchange(factor, order, size, slot, weights, gains):
    """A vertex inside the affine hull of the others: the objective is linear along its direction.

    Walk until a weight reaches zero and let that vertex go. ``gains`` holds, by position, the
    affine coefficients of the new vertex.
    """
    step, first = np.inf, -1
    for i in range(size):
        if gains[i] > _SMALL:
            ratio = weights[order[i]] / gains[i]
            if ratio < step:
                step, first = ratio, i
    for i in range(size):
        weights[order[i]] -= step * gains[i]
    weights[slot] = step
    weights[order[first]] = 0.0
    _remove(factor, order, size, first)
    return size - 1
