# mypy: ignore-errors
"""Sequential k-subsets, compiled: derivatives of the marginals, and the marginals of pairs."""

from __future__ import annotations

import numpy as np

from hopfy._kernels.sequential.cpu_rows import MASKED, leading, new_row
from hopfy._runtime.compilation import jit, part

__all__ = ["jvp_rows", "pairs_rows", "vjp_rows"]


@jit
def vjp_rows(start, stop, edges, answers, saved, cotangent, scores_grad, edges_grad):
    """Fill both gradients for rows ``start`` to ``stop``; ``edges_grad`` may have no columns.

    ``saved`` is what `active_rows` returned.
    """
    n = cotangent.shape[1]
    whole, grads, where = new_row(n), (np.empty(n), np.empty(n)), np.empty(n, np.int64)
    begins = _begins(answers.size, start)
    for r in range(start, stop):
        spoiled = n > 0 and np.isnan(answers.y[r, 0])
        scores_grad[r] = np.nan if spoiled else 0.0
        edges_grad[r] = np.nan if spoiled else 0.0
        m, count = answers.size[r, 0], answers.size[r, 1]
        active = _views(saved, begins, m, count)
        begins = (begins[0] + m * count, begins[1] + m * (m + 1))
        asked = (cotangent[r], scores_grad[r], edges_grad[r])
        own = edges[r % edges.shape[0]]
        if m == 0 and not spoiled:
            _relaxed_vjp(answers.y[r], answers.unit[r], own, asked[0], where, asked[1], asked[2])
        elif count > 0:
            row = leading(whole, _regather(answers, r, own, whole))
            _scatter_active_vjp(row, active, grads, asked)


@part
def _scatter_active_vjp(row, active, grads, asked):
    """Gradients of a row that was solved by an active set, put back among the masked entries."""
    cotangent, scores_grad, edges_grad = asked
    grad, edge_grad = grads
    n = row.theta.shape[0]
    for i in range(n):
        row.theta[i] = cotangent[row.where[i]]
        grad[i] = edge_grad[i] = 0.0
    _active_vjp(row, active[0], active[1], grad, edge_grad)
    for i in range(n):
        scores_grad[row.where[i]] = grad[i]
        if edges_grad.shape[0] > 0 and i > 0 and row.where[i - 1] == row.where[i] - 1:
            edges_grad[row.where[i - 1]] = edge_grad[i]


@part
def _begins(size, row):
    """Where the active set of a row begins in what `active_rows` returned."""
    first, second = 0, 0
    for r in range(row):
        first += size[r, 0] * size[r, 1]
        second += size[r, 0] * (size[r, 0] + 1)
    return first, second


@part
def _views(saved, begins, m, count):
    """Indicator vectors, inverse of the overlaps and weights of one row."""
    vectors = saved[0][begins[0] : begins[0] + m * count].reshape(m, count)
    inverse = saved[1][begins[1] : begins[1] + m * m].reshape(m, m)
    return vectors, inverse, saved[1][begins[1] + m * m : begins[1] + m * (m + 1)]


@part
def _regather(answers, r, edges, row):
    n = 0
    for i in range(answers.y.shape[1]):
        if np.isnan(answers.y[r, i]):
            return -1
        if answers.unit[r, i] == MASKED:
            continue
        joined = n > 0 and row.where[n - 1] == i - 1
        row.where[n] = i
        row.edge[n] = edges[i - 1] if joined else 0.0
        row.value[n] = answers.y[r, i]
        row.unit[n] = answers.unit[r, i]
        n += 1
    return n


@part
def _active_vjp(row, vectors, inverse, grad, edge_grad):
    """Both gradients from the active subsets: a change of their scores moves their weights."""
    m, count = vectors.shape
    at = _open_places(row, count)
    pull = np.zeros(m)
    for v in range(m):
        for s in range(count):
            pull[v] += vectors[v, s] * row.theta[at[s]]
    share = np.zeros(m)
    _weights_change(vectors, inverse, pull, share)
    for v in range(m):
        for s in range(count):
            if vectors[v, s]:
                i = at[s]
                grad[i] += share[v]
                if s > 0 and at[s - 1] == i - 1 and vectors[v, s - 1]:
                    edge_grad[i] += share[v]
    for i in range(1, row.where.shape[0]):
        other = _beside_certain(row, i)
        if other >= 0:
            edge_grad[i] = grad[other]


@part
def _open_places(row, count):
    """Where the open positions are in the row."""
    at = np.empty(count, np.int64)
    for i in range(row.where.shape[0]):
        if row.unit[i] >= 0:
            at[row.unit[i]] = i
    return at


@part
def _beside_certain(row, i):
    """The open end of the pair (i - 1, i) if the other is certainly selected, else -1.

    The pair is then selected when the open end is.
    """
    if row.unit[i] >= 0 and row.unit[i - 1] < 0 and row.value[i - 1] == 1.0:
        return i
    if row.unit[i] < 0 and row.unit[i - 1] >= 0 and row.value[i] == 1.0:
        return i - 1
    return -1


@jit
def jvp_rows(start, stop, edges, answers, saved, tangent, edge_tangent, out):
    """How the marginals (R, N) change with scores and pair scores: the transpose of `vjp_rows`."""
    n = tangent.shape[1]
    whole, pulls, where = new_row(n), np.empty(n), np.empty(n, np.int64)
    nothing = np.empty(0)
    begins = _begins(answers.size, start)
    for r in range(start, stop):
        spoiled = n > 0 and np.isnan(answers.y[r, 0])
        out[r] = np.nan if spoiled else 0.0
        m, count = answers.size[r, 0], answers.size[r, 1]
        active = _views(saved, begins, m, count)
        begins = (begins[0] + m * count, begins[1] + m * (m + 1))
        own = edges[r % edges.shape[0]]
        if m == 0 and not spoiled:
            for i in range(n):
                pulls[i] = tangent[r, i]
            _pull_of_pairs(answers.y[r], answers.unit[r], own, edge_tangent[r], pulls)
            _relaxed_vjp(answers.y[r], answers.unit[r], own, pulls, where, out[r], nothing)
        elif count > 0:
            row = leading(whole, _regather(answers, r, own, whole))
            _active_jvp(row, active, tangent[r], edge_tangent[r], out[r])


@part
def _active_jvp(row, active, tangent, edge_tangent, out):
    vectors, inverse, _ = active
    m, count = vectors.shape
    n = row.where.shape[0]
    at = _open_places(row, count)
    for i in range(n):
        row.theta[i] = tangent[row.where[i]]
        joined = i > 0 and row.where[i - 1] == row.where[i] - 1
        row.edge[i] = edge_tangent[row.where[i - 1]] if joined else 0.0
    for i in range(1, n):
        other = _beside_certain(row, i)
        if other >= 0:
            row.theta[other] += row.edge[i]
    pull, share = np.zeros(m), np.zeros(m)
    for v in range(m):
        for s in range(count):
            if vectors[v, s]:
                pull[v] += row.theta[at[s]]
                if s > 0 and at[s - 1] == at[s] - 1 and vectors[v, s - 1]:
                    pull[v] += row.edge[at[s]]
    _weights_change(vectors, inverse, pull, share)
    for v in range(m):
        for s in range(count):
            out[row.where[at[s]]] += share[v] * vectors[v, s]


@part
def _weights_change(vectors, inverse, pull, share):
    r"""Solve :math:`2 G p + \tau 1 = w`, :math:`1^\top p = 0`, and correct once for rounding."""
    m, count = vectors.shape
    ones, all_ones = np.zeros(m), 0.0
    for v in range(m):
        for u in range(m):
            ones[v] += inverse[v, u]
        all_ones += ones[v]
    mixture = np.empty(count)
    residual = np.empty(m)
    for v in range(m):
        residual[v] = pull[v]
    for _ in range(3):
        total, change = 0.0, np.zeros(m)
        for v in range(m):
            for u in range(m):
                change[v] += inverse[v, u] * residual[u]
            total += change[v]
        shift = total / all_ones
        for v in range(m):
            share[v] += 0.5 * (change[v] - shift * ones[v])
        for s in range(count):
            mixture[s] = 0.0
        for v in range(m):
            for s in range(count):
                mixture[s] += share[v] * vectors[v, s]
        for v in range(m):
            residual[v] = pull[v]
            for s in range(count):
                residual[v] -= 2.0 * vectors[v, s] * mixture[s]


@jit
def pairs_rows(start, stop, edges, answers, saved, pairs):
    """The probability (R, N - 1) that both neighbors are selected."""
    begins = _begins(answers.size, start)
    for r in range(start, stop):
        m, count = answers.size[r, 0], answers.size[r, 1]
        vectors, _, weights = _views(saved, begins, m, count)
        begins = (begins[0] + m * count, begins[1] + m * (m + 1))
        for i in range(pairs.shape[1]):
            a, b = answers.y[r, i], answers.y[r, i + 1]
            first, second = answers.unit[r, i], answers.unit[r, i + 1]
            if m > 0 and first >= 0 and second >= 0:
                pairs[r, i] = 0.0
                for v in range(m):
                    if vectors[v, first] and vectors[v, second]:
                        pairs[r, i] += weights[v]
            elif edges[r % edges.shape[0], i] >= 0.0:
                pairs[r, i] = min(a, b)
            else:
                pairs[r, i] = max(0.0, a + b - 1.0)


@part
def _relaxed_vjp(y, unit, edge, cotangent, where, scores_grad, edges_grad):
    r"""Gradients of a row where the relaxation is exact; ``edges_grad`` is empty if not wanted.

    A unit moves as one: :math:`d\tilde y_u = (\sum_i s_i d\theta_i / 2 - S_u d\lambda) / |u|` with
    :math:`S_u = \sum_i s_i`, and :math:`\sum_u S_u d\tilde y_u = 0`; whatever is settled at 0 or 1
    stays. The pair's marginal is one of 0, the smaller of the two, or their sum minus one, so its
    gradient is a sum of the scores'. ``where`` is scratch; ``scores_grad`` comes as zeros.
    """
    moving = 0
    for i in range(unit.shape[0]):
        where[moving] = i
        moving += unit[i] >= 0
    pulls, weights = 0.0, 0.0
    start = 0
    while start < moving:
        stop, balance, pull = _unit(unit, edge, cotangent, where[:moving], start)
        pulls += balance * pull / (stop - start)
        weights += balance * balance / (stop - start)
        start = stop
    shift = pulls / weights if weights > 0.0 else 0.0
    start = 0
    while start < moving:
        stop, balance, pull = _unit(unit, edge, cotangent, where[:moving], start)
        share = 0.5 * (pull - shift * balance) / (stop - start)
        for j in range(start, stop):
            share = -share if j > start and edge[where[j] - 1] < 0.0 else share
            scores_grad[where[j]] = share
        start = stop
    for i in range(1, edges_grad.shape[0] + 1):
        before, here = _ends_that_move_a_pair(y, unit, edge, i)
        edges_grad[i - 1] = before * scores_grad[i - 1] + here * scores_grad[i]


@part
def _ends_that_move_a_pair(y, unit, edge, i):
    """Whether the marginal of the pair (i - 1, i) follows that of its first and of its second end."""
    if unit[i] == MASKED or unit[i - 1] == MASKED:
        return 0.0, 0.0
    if edge[i - 1] >= 0.0:
        return (0.0, 1.0) if y[i] < y[i - 1] else (1.0, 0.0)
    if y[i] + y[i - 1] > 1.0 and (unit[i] < 0 or unit[i] != unit[i - 1]):
        return 1.0, 1.0
    return 0.0, 0.0


@part
def _pull_of_pairs(y, unit, edge, edge_tangent, pulls):
    """Add to the scores' tangent what the pair scores' tangent amounts to."""
    for i in range(1, edge_tangent.shape[0] + 1):
        before, here = _ends_that_move_a_pair(y, unit, edge, i)
        pulls[i - 1] += before * edge_tangent[i - 1]
        pulls[i] += here * edge_tangent[i - 1]


@part
def _unit(unit, edge, cotangent, where, start):
    """Where the unit from ``start`` ends, the sum of its signs and its signed cotangent.

    The sign flips across every penalty; which one a unit begins with makes no difference.
    """
    stop = start
    sign, balance, pull = 1, 0, 0.0
    while stop < where.shape[0] and unit[where[stop]] == unit[where[start]]:
        sign = -sign if stop > start and edge[where[stop] - 1] < 0.0 else sign
        balance += sign
        pull += sign * cotangent[where[stop]]
        stop += 1
    return stop, balance, pull
