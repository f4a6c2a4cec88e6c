# mypy: ignore-errors
r"""The optimum over one face of the chains' polytope, compiled.

A face is given by the transitions that may be used: for every edge pairs (a, b) of states, which form
a forest in the graph between the two positions. On the face the problem has equality constraints
only. With multipliers p of the outflow and q of the inflow of an edge,

.. math:: T(a, b) + p(a) + q(b) = 0 \text{ for the pairs}, \qquad
    y_i(a) = \theta_i(a) - p_i(a) - q_{i-1}(a) - \lambda_i,

and along a tree all p and q follow from one of them: one unknown for each component of the forest
but one per edge. That the components' inflow is their outflow is a block tridiagonal, positive
definite system with tiny blocks, so the optimum costs O(N). The same system with other right-hand
sides is the Jacobian.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hopfy._runtime.compilation import part

__all__ = ["Face", "Work", "new_face", "new_work", "solve_face"]


class Face(NamedTuple):
    """Pairs of each of E edges with their flow (the marginal of the transition)."""

    first: np.ndarray  # (E, cap) int32: state before
    second: np.ndarray  # (E, cap) int32: state after
    flow: np.ndarray  # (E, cap)
    target: np.ndarray  # (E, cap): the flow at the optimum of the face
    count: np.ndarray  # (E) int64: pairs in use
    changed: np.ndarray  # (E) bool: whether the pairs are others than in the last solve


class Work(NamedTuple):
    """Scratch for E edges and S states."""

    left: np.ndarray  # (E, S) int32: component of the state before the edge; -1: not on the face
    right: np.ndarray  # (E, S) int32: component of the state after the edge
    before: np.ndarray  # (E, S): p of the state before, up to its component's unknown
    after: np.ndarray  # (E, S): q of the state after
    order: np.ndarray  # (E, cap) int32: pairs from the roots to the leaves
    inward: np.ndarray  # (E, cap) bool: whether the pair's child is the state after the edge
    parts: np.ndarray  # (E) int64: components
    there: np.ndarray  # (E + 1, S) int32: states of each position that are on the face
    many: np.ndarray  # (E + 1) int64: how many
    y: np.ndarray  # (E + 1, S)
    used: np.ndarray  # (cap) bool
    sides: np.ndarray  # (2, S + 1): sizes of the components around a position
    both: np.ndarray  # (S + 1, S + 1): states that two of them share


@part
def new_face(edges, states):
    cap = 2 * states + 1
    return Face(
        np.empty((edges, cap), np.int32),
        np.empty((edges, cap), np.int32),
        np.empty((edges, cap)),
        np.empty((edges, cap)),
        np.zeros(edges, np.int64),
        np.ones(edges, np.bool_),
    )


@part
def new_work(edges, states):
    cap = 2 * states + 1
    return Work(
        np.empty((edges, states), np.int32),
        np.empty((edges, states), np.int32),
        np.empty((edges, states)),
        np.empty((edges, states)),
        np.empty((edges, cap), np.int32),
        np.empty((edges, cap), np.bool_),
        np.empty(edges, np.int64),
        np.empty((edges + 1, states), np.int32),
        np.empty(edges + 1, np.int64),
        np.empty((edges + 1, states)),
        np.empty(cap, np.bool_),
        np.empty((2, states + 1)),
        np.empty((states + 1, states + 1)),
    )


@part
def _grow_forest(face, work, table, e):
    """Number the components of an edge's pairs, from roots to leaves, and find their multipliers."""
    first, second, count = face.first[e], face.second[e], face.count[e]
    left, right = work.left[e], work.right[e]
    for a in range(left.shape[0]):
        left[a] = right[a] = -1
    order, placed, parts = work.order[e], 0, 0
    used, there, many = work.used, work.there[e], 0
    for p in range(count):
        used[p] = False
    for root in range(count):
        if used[root]:
            continue
        left[first[root]] = parts
        there[many] = first[root]
        many += 1
        work.before[e, first[root]] = 0.0
        grown = True
        while grown:
            grown = False
            for p in range(count):
                a, b = first[p], second[p]
                if used[p] or (left[a] != parts and right[b] != parts):
                    continue
                score = 0.0 if table.shape[0] == 0 else table[a, b]
                work.inward[e, placed] = left[a] == parts
                if left[a] == parts:
                    right[b] = parts
                    work.after[e, b] = -score - work.before[e, a]
                else:
                    left[a] = parts
                    there[many] = a
                    many += 1
                    work.before[e, a] = -score - work.after[e, b]
                used[p] = True
                order[placed] = p
                placed += 1
                grown = True
        parts += 1
    work.parts[e], work.many[e] = parts, many


@part
def _list_last(work):
    """The states of the last position, which is before no edge."""
    edges, states = work.left.shape
    many = 0
    for b in range(states):
        if work.right[edges - 1, b] >= 0:
            work.there[edges, many] = b
            many += 1
    work.many[edges] = many


@part
def _centered(theta, work, mass):
    """``work.y`` = scores less the known multipliers, with the right sum at every position."""
    length = theta.shape[0]
    for i in range(length):
        for s in range(work.many[i]):
            a = work.there[i, s]
            value = theta[i, a]
            if i + 1 < length:
                value -= work.before[i, a]
            if i > 0:
                value -= work.after[i - 1, a]
            work.y[i, a] = value
        _restore_sum(work, i, mass)


@part
def _restore_sum(work, i, mass):
    """Shift the states of a position so that they sum to the mass."""
    total = -mass
    for s in range(work.many[i]):
        total += work.y[i, work.there[i, s]]
    for s in range(work.many[i]):
        work.y[i, work.there[i, s]] -= total / work.many[i]


@part
def _factorize(block, size):
    """Cholesky factor in place."""
    for i in range(size):
        for j in range(i + 1):
            total = block[i, j]
            for k in range(j):
                total -= block[i, k] * block[j, k]
            if i == j:
                block[i, i] = np.sqrt(max(total, 1e-300))
            else:
                block[i, j] = total / block[j, j]


@part
def _solve_block(block, size, x):
    for i in range(size):
        for j in range(i):
            x[i] -= block[i, j] * x[j]
        x[i] /= block[i, i]
    for i in range(size - 1, -1, -1):
        for j in range(i + 1, size):
            x[i] -= block[j, i] * x[j]
        x[i] /= block[i, i]


@part
def _add_position(work, i, blocks, couplings, right_side):
    """What position i contributes to the equations of the edges on its two sides."""
    edges = work.left.shape[0]
    after, before, both = work.sides[0], work.sides[1], work.both
    outer = work.parts[i] if i < edges else 0
    inner = work.parts[i - 1] if i > 0 else 0
    if outer < 2 and inner < 2:
        return
    for k in range(outer):
        after[k] = 0.0
        for m in range(inner):
            both[k, m] = 0.0
    for m in range(inner):
        before[m] = 0.0
    for s in range(work.many[i]):
        a = work.there[i, s]
        k = work.left[i, a] if outer > 0 else -1
        m = work.right[i - 1, a] if inner > 0 else -1
        if k >= 0:
            after[k] += 1.0
            if k > 0:
                right_side[i, k - 1] += work.y[i, a]
        if m >= 0:
            before[m] += 1.0
            if m > 0:
                right_side[i - 1, m - 1] -= work.y[i, a]
        if k >= 0 and m >= 0:
            both[k, m] += 1.0
    there = float(work.many[i])
    for k in range(1, outer):
        blocks[i, k - 1, k - 1] += after[k]
        for m in range(1, outer):
            blocks[i, k - 1, m - 1] -= after[k] * after[m] / there
        for m in range(1, inner):
            couplings[i, k - 1, m - 1] = both[k, m] - after[k] * before[m] / there
    for k in range(1, inner):
        blocks[i - 1, k - 1, k - 1] += before[k]
        for m in range(1, inner):
            blocks[i - 1, k - 1, m - 1] -= before[k] * before[m] / there


@part
def _unknowns(work):
    """Solve the block tridiagonal system: (E, widest) unknowns of the components but the first."""
    edges = work.left.shape[0]
    width = 0
    for e in range(edges):
        width = max(width, work.parts[e] - 1)
    if width == 0:
        return np.empty((0, 0))
    right_side = np.zeros((edges, width))
    blocks, couplings = np.zeros((edges, width, width)), np.zeros((edges, width, width))
    for i in range(edges + 1):
        _add_position(work, i, blocks, couplings, right_side)
    column = np.empty(width)
    for e in range(edges):
        size = work.parts[e] - 1
        if e > 0:
            last = work.parts[e - 1] - 1
            for k in range(size):
                # Row k of coupling times inverse of the previous block.
                for m in range(last):
                    column[m] = couplings[e, k, m]
                _solve_block(blocks[e - 1], last, column)
                for m in range(last):
                    right_side[e, k] += column[m] * right_side[e - 1, m]
                for j in range(size):
                    for m in range(last):
                        blocks[e, k, j] -= column[m] * couplings[e, j, m]
        _factorize(blocks[e], size)
    for e in range(edges - 1, -1, -1):
        size = work.parts[e] - 1
        if e + 1 < edges:
            for m in range(size):
                for k in range(work.parts[e + 1] - 1):
                    right_side[e, m] += couplings[e + 1, k, m] * right_side[e + 1, k]
        _solve_block(blocks[e], size, right_side[e])
    return right_side


@part
def _shift_positions(work, unknowns, mass):
    """Apply the unknowns to ``work.y`` and restore the sums."""
    edges = work.left.shape[0]
    if unknowns.shape[1] == 0:
        return
    for i in range(edges + 1):
        for s in range(work.many[i]):
            a = work.there[i, s]
            if i < edges and work.left[i, a] > 0:
                work.y[i, a] -= unknowns[i, work.left[i, a] - 1]
            if i > 0 and work.right[i - 1, a] > 0:
                work.y[i, a] += unknowns[i - 1, work.right[i - 1, a] - 1]
        _restore_sum(work, i, mass)


@part
def _flows(face, work, e, out, into):
    """``face.target`` of an edge from the marginals at both ends: leaves first."""
    for s in range(work.many[e]):
        out[work.there[e, s]] = work.y[e, work.there[e, s]]
    for s in range(work.many[e + 1]):
        into[work.there[e + 1, s]] = work.y[e + 1, work.there[e + 1, s]]
    for place in range(face.count[e] - 1, -1, -1):
        p = work.order[e, place]
        a, b = face.first[e, p], face.second[e, p]
        amount = into[b] if work.inward[e, place] else out[a]
        face.target[e, p] = amount
        out[a] -= amount
        into[b] -= amount


@part
def solve_face(face, work, theta, transition, begin, mass):
    """``work.y`` and ``face.target``: the optimum on the face for scores (L, S), flows of any sign.

    ``transition`` (tables, S, S) has one table per edge of the row, or one for all, or none;
    ``begin`` is the number of the first edge here. ``mass`` is the sum at every position: 1, or 0
    for the Jacobian.
    """
    edges, states = work.left.shape
    tables = transition.shape[0]
    for e in range(edges):
        if face.changed[e]:
            at = (begin + e) % tables if tables > 0 else 0
            table = transition[at] if tables > 0 else transition[0:0].reshape(0, states)
            _grow_forest(face, work, table, e)
            face.changed[e] = False
    _list_last(work)
    _centered(theta, work, mass)
    _shift_positions(work, _unknowns(work), mass)
    out, into = np.empty(states), np.empty(states)
    for e in range(edges):
        _flows(face, work, e, out, into)
