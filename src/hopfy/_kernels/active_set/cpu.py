# mypy: ignore-errors
"""One active-set step for many rows, compiled: see `hopfy._kernels.active_set` for the method."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hopfy._kernels.active_set.weights import (
    NOISE,
    ZERO,
    append,
    descend,
    exchange,
    lower_solve,
    upper_solve,
)
from hopfy._runtime.compilation import jit, part

__all__ = ["State", "fresh", "grown", "start", "step"]

_EPS = 4e-16

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bits = NDArray[np.int8]


class State(NamedTuple):
    """Everything the method remembers; the first axis is the row, ``slot`` an allocated vertex."""

    vertices: Bits  # (B, slots, n)
    factors: Bits  # (B, slots, f)
    order: Ints  # (B, slots): active slots first, in the order of the Cholesky factor
    size: Ints  # (B,): how many are active
    gram: Floats  # (B, slots, slots), by slot: 1 + <vertex_i, vertex_j>
    factor: Floats  # (B, slots, slots), by position: lower Cholesky factor of the Gram matrix
    linear: Floats  # (B, slots), by slot: score of the vertex minus score of the base
    noise: Floats  # (B, slots), by slot: sum of the sizes added up in `linear`
    weights: Floats  # (B, slots), by slot
    base: Bits  # (B, n): the first vertex; scores are relative to it, which keeps digits
    factor_base: Bits  # (B, f)
    marginals: Floats  # (B, n)
    gap: Floats  # (B,)
    done: NDArray[np.bool_]  # (B,)


def fresh(rows: int, n: int, f: int, slots: int) -> State:
    """A state with no vertices."""
    return State(
        vertices=np.zeros((rows, slots, n), np.int8),
        factors=np.zeros((rows, slots, f), np.int8),
        order=np.tile(np.arange(slots), (rows, 1)),
        size=np.zeros(rows, np.int64),
        gram=np.zeros((rows, slots, slots)),
        factor=np.zeros((rows, slots, slots)),
        linear=np.zeros((rows, slots)),
        noise=np.zeros((rows, slots)),
        weights=np.zeros((rows, slots)),
        base=np.zeros((rows, n), np.int8),
        factor_base=np.zeros((rows, f), np.int8),
        marginals=np.zeros((rows, n)),
        gap=np.full(rows, np.inf),
        done=np.zeros(rows, np.bool_),
    )


def grown(old: State, slots: int) -> State:
    """The same state with room for ``slots`` vertices."""
    rows, have, n = old.vertices.shape
    new = fresh(rows, n, old.factors.shape[2], slots)
    new.gram[:, :have, :have] = old.gram
    new.factor[:, :have, :have] = old.factor
    for name in ("vertices", "factors", "order", "linear", "noise", "weights"):
        getattr(new, name)[:, :have] = getattr(old, name)
    kept = ("size", "base", "factor_base", "marginals", "gap", "done")
    return new._replace(**{name: getattr(old, name) for name in kept})


@part
def _score(bits, factor_bits, base, factor_base, scores, factor_scores):
    """The score of a vertex minus that of the base, over the bits in which they differ."""
    total, size = 0.0, 0.0
    for i in range(bits.shape[0]):
        if bits[i] != base[i]:
            total += scores[i] * (bits[i] - base[i])
            size += abs(scores[i])
    for i in range(factor_bits.shape[0]):
        if factor_bits[i] != factor_base[i]:
            total += factor_scores[i] * (factor_bits[i] - factor_base[i])
            size += abs(factor_scores[i])
    return total, size


@part
def _measure(state, row, slot, size):
    """Fill the Gram entries of a new vertex."""
    vertices, gram, order = state.vertices[row], state.gram[row], state.order[row]
    new = vertices[slot]
    for i in range(size + 1):
        other = order[i] if i < size else slot
        bits = vertices[other]
        common = 0
        for j in range(new.shape[0]):
            common += new[j] & bits[j]
        gram[slot, other] = common + 1.0
        gram[other, slot] = common + 1.0


@part
def _average(state, row):
    """Marginals from the weights, which are made to sum to one."""
    marginals, order, weights = state.marginals[row], state.order[row], state.weights[row]
    size = state.size[row]
    total = 0.0
    for i in range(size):
        total += weights[order[i]]
    marginals[:] = 0.0
    for i in range(size):
        weights[order[i]] /= total
        bits = state.vertices[row, order[i]]
        weight = weights[order[i]]
        for j in range(marginals.shape[0]):
            marginals[j] += weight * bits[j]
    # An entry that every vertex selects is one, not a sum of weights near it.
    for j in range(marginals.shape[0]):
        if marginals[j] > 1.0 - _EPS * size:
            marginals[j] = 1.0


@part
def _enter(state, row, slot, buffers):
    """Let the vertex in ``slot`` join; False if rounding leaves no way to improve with it."""
    factor, gram, order = state.factor[row], state.gram[row], state.order[row]
    weights, linear = state.weights[row], state.linear[row]
    size = state.size[row]
    _measure(state, row, slot, size)
    weights[slot] = 0.0
    if not append(factor, gram, order, size, slot):
        gains = buffers[0]
        for i in range(size):
            gains[i] = gram[order[i], slot]
        lower_solve(factor, size, gains)
        upper_solve(factor, size, gains)
        slope, noise = linear[slot], state.noise[row, slot]
        for i in range(size):
            slope -= gains[i] * linear[order[i]]
            noise += abs(gains[i]) * state.noise[row, order[i]]
        if slope <= NOISE * noise:
            return False
        size = exchange(factor, order, size, slot, weights, gains)
        if not append(factor, gram, order, size, slot):
            state.size[row] = size
            return False
    # The new slot takes the first free position.
    for i in range(size, order.shape[0]):
        if order[i] == slot:
            order[i] = order[size]
    order[size] = slot
    before = size + 1
    size = descend(factor, gram, order, before, linear, weights, buffers)
    state.size[row] = size
    return True


@jit
def start(begin, stop, rows, vertices, factors, weights, scores, factor_scores, state):
    """Take the given vertices (R, S, n) and weights (R, S) as the first active sets."""
    slots = state.order.shape[1]
    buffers = np.empty((3, slots))
    for r in range(begin, stop):
        row = rows[r]
        state.base[row] = vertices[r, 0]
        state.factor_base[row] = factors[r, 0]
        size = 0
        for s in range(vertices.shape[1]):
            if s > 0 and not weights[r, s] > 0.0:
                continue
            slot = state.order[row, size]
            state.vertices[row, slot] = vertices[r, s]
            state.factors[row, slot] = factors[r, s]
            total, noise = _score(
                vertices[r, s],
                factors[r, s],
                vertices[r, 0],
                factors[r, 0],
                scores[row],
                factor_scores[row],
            )
            state.linear[row, slot], state.noise[row, slot] = total, noise
            _measure(state, row, slot, size)
            if append(state.factor[row], state.gram[row], state.order[row], size, slot):
                state.weights[row, slot] = max(weights[r, s], ZERO)
                size += 1
        state.size[row] = descend(
            state.factor[row],
            state.gram[row],
            state.order[row],
            size,
            state.linear[row],
            state.weights[row],
            buffers,
        )
        _average(state, row)


@jit
def step(begin, stop, rows, vertices, factors, scores, factor_scores, tol, state):
    """Measure the gap against the oracle's vertices (R, n) and take one step where it is open."""
    buffers = np.empty((3, state.order.shape[1]))
    for r in range(begin, stop):
        row = rows[r]
        order, size = state.order[row], state.size[row]
        total, noise = _score(
            vertices[r],
            factors[r],
            state.base[row],
            state.factor_base[row],
            scores[row],
            factor_scores[row],
        )
        gap, rounding = total, noise
        for i in range(size):
            gap -= state.weights[row, order[i]] * state.linear[row, order[i]]
            rounding += state.weights[row, order[i]] * state.noise[row, order[i]]
        marginals = state.marginals[row]
        for j in range(marginals.shape[0]):
            part = marginals[j] * (vertices[r, j] - marginals[j])
            gap -= part
            rounding += abs(part)
        state.gap[row] = gap
        if gap <= tol + NOISE * rounding:
            state.done[row] = True
            continue
        slot = order[size]
        state.vertices[row, slot] = vertices[r]
        state.factors[row, slot] = factors[r]
        state.linear[row, slot], state.noise[row, slot] = total, noise
        if not _enter(state, row, slot, buffers):
            state.done[row] = True
        _average(state, row)
