# mypy: ignore-errors
"""Sequential k-subsets, compiled: rows in, rows out.

Rows with large numbers are reduced to what these leave undecided. Then a row is relaxed (O(N));
where the relaxed solution is certified as a mixture of subsets it is
the answer. Otherwise the active set solves the positions that the relaxation leaves open, the
others fixed at 0 or 1, and the dynamic program over the whole row confirms it or opens more.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hopfy._kernels.sequential.cpu_active import (
    WEIGHT,
    best_subset,
    maximize,
    new_active_set,
)
from hopfy._kernels.sequential.cpu_reduce import ROUGH, largest, reduce
from hopfy._kernels.sequential.cpu_relaxed import (
    CERTAIN,
    MASKED,
    is_mixture,
    pull_of_pairs,
    relax,
    relaxed_vjp,
)
from hopfy._runtime.compilation import jit, part

__all__ = ["Answers", "active_rows", "jvp_rows", "pairs_rows", "relax_rows", "vjp_rows"]

# `Answers.size` of a row that the relaxation leaves to the active set.
OPEN = -1

# How far outside [0, 1] the relaxed value must lie for a position to be fixed at first.
_MARGIN = 0.25

# Scores above this size are left to the active set alone: the relaxation would lose half of the digits.
_TOO_ROUGH = 1e7


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
    sign: np.ndarray  # (n)


@jit
def relax_rows(start, stop, scores, edges, k, answers):
    """Relax rows ``start`` to ``stop``; those that need an active set get OPEN for their size."""
    whole = _new_row(scores.shape[1])
    for r in range(start, stop):
        n = _gather(scores[r], edges[r % edges.shape[0]], whole)
        answers.missing[r] = max(k[r] - n, 0) if n > 0 else 0
        for i in range(scores.shape[1]):
            answers.y[r, i] = 0.0 if n >= 0 else np.nan
            answers.unit[r, i] = MASKED
        n, budget = _reduced(whole, n, k[r], answers.y[r], answers.unit[r])
        if n <= 0:
            continue
        row = _first(whole, n)
        if _is_rough(row):
            answers.size[r, 0] = OPEN
            continue
        relax(row.theta, row.edge, budget, row.value, row.unit, row.sign)
        if is_mixture(row.value, row.edge, row.unit, row.sign, budget):
            for i in range(n):
                answers.y[r, row.where[i]] = min(max(row.value[i], 0.0), 1.0)
                answers.unit[r, row.where[i]] = row.unit[i]
        else:
            answers.size[r, 0] = OPEN


@jit
def active_rows(start, stop, which, scores, edges, k, answers):
    """Solve rows ``which[start:stop]`` by active sets, and return these, one after the other.

    They come as indicator vectors (for each row subsets x open positions) and as numbers (for each
    row the inverse of the overlaps, then the weights).
    """
    indicators, numbers = np.empty(0, np.uint8), np.empty(0)
    ends = (0, 0)
    whole = _new_row(scores.shape[1])
    for index in range(start, stop):
        r = which[index]
        n = _gather(scores[r], edges[r % edges.shape[0]], whole)
        n, budget = _reduced(whole, n, k[r], answers.y[r], answers.unit[r])
        if n <= 0:
            continue
        row = _first(whole, n)
        threshold = 0.0
        if not _is_rough(row):
            threshold = relax(row.theta, row.edge, budget, row.value, row.unit, row.sign)
        work, opened, m, answers.iterations[r], answers.gap[r] = _solve_active(
            row, budget, threshold
        )
        count = _write_active(row, work, opened, m, answers.y[r], answers.unit[r])
        answers.size[r, 0], answers.size[r, 1] = m, count
        begins = ends
        ends = (begins[0] + m * count, begins[1] + m * (m + 1))
        indicators = _grown(indicators, ends[0])
        numbers = _grown(numbers, ends[1])
        _save(row, work, opened, m, indicators[begins[0] :], numbers[begins[1] :])
    return indicators[: ends[0]], numbers[: ends[1]]


@part
def _new_row(n):
    return Row(
        np.empty(n, np.int64),
        np.empty(n),
        np.empty(n),
        np.empty(n),
        np.empty(n, np.int32),
        np.empty(n, np.int8),
    )


@part
def _first(row, n):
    return Row(
        row.where[:n], row.theta[:n], row.edge[:n], row.value[:n], row.unit[:n], row.sign[:n]
    )


@part
def _gather(scores, edges, row):
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


@part
def _reduced(whole, n, k, y, unit):
    """The positions that large scores leave open, and the budget for them."""
    if n <= 0:
        return n, 0
    budget = min(k, n)
    if largest(whole.theta[:n], whole.edge[:n]) <= ROUGH:
        return n, budget
    return reduce(whole.where[:n], whole.theta[:n], whole.edge[:n], budget, y, unit, CERTAIN)


@part
def _is_rough(row):
    """Whether numbers are left that would cost the relaxation too many digits."""
    return largest(row.theta, row.edge) > _TOO_ROUGH


@part
def _solve_active(row, k, threshold):
    """Open positions until the whole row agrees; ``row.value`` becomes the solution.

    Returns the memory, the open positions, the number of subsets, the iterations and the gap.
    """
    n = row.where.shape[0]
    is_open = np.zeros(n, np.bool_)
    gradient = np.empty(n)
    for i in range(n):
        row.theta[i] -= 2.0 * threshold  # every subset has size k: a shift changes nothing
    table, members = np.empty((2, n + 1, k + 2)), np.empty(k, np.int64)
    margin, iterations = _MARGIN, 0
    if _is_rough(row):
        is_open[:] = True
    while True:
        opened = _open_near(row, margin, is_open, k)
        work, budget = _open_part(row, is_open, opened, k)
        m, more, gap = maximize(work, budget, 500 + 10 * n, _tolerance(work.theta, budget))
        iterations += more
        if opened.shape[0] == n:
            break
        _gradient(row, is_open, opened, work.y, gradient)
        gap = best_subset(gradient, row.edge, k, table, members)
        gap -= _score_of_first(row, gradient, work, opened, is_open)
        if gap <= _tolerance(row.theta, k):
            break
        margin *= 4.0
        _open_differences(row, members, is_open)
    for i in range(n):
        row.value[i] = 1.0 if row.value[i] >= 1.0 else 0.0
    for s in range(opened.shape[0]):
        row.value[opened[s]] = work.y[s]
    return work, opened, m, iterations, gap


@part
def _open_near(row, margin, is_open, k):
    """Open what lies within the margin of [0, 1]; list all that is open.

    If what stays fixed leaves no room for the budget, everything is opened.
    """
    n = is_open.shape[0]
    count, fixed = 0, 0
    for i in range(n):
        is_open[i] |= -margin < row.value[i] < 1.0 + margin
        count += is_open[i]
        fixed += not is_open[i] and row.value[i] >= 1.0
    if not 0 <= k - fixed <= count:
        is_open[:] = True
        count = n
    opened, at = np.empty(count, np.int64), 0
    for i in range(n):
        if is_open[i]:
            opened[at] = i
            at += 1
    return opened


@part
def _gradient(row, is_open, opened, y, gradient):
    for i in range(is_open.shape[0]):
        gradient[i] = row.theta[i] - (2.0 if row.value[i] >= 1.0 else 0.0)
    for s in range(opened.shape[0]):
        gradient[opened[s]] = row.theta[opened[s]] - 2.0 * y[s]


@part
def _tolerance(theta, k):
    """Gaps below this are rounding errors."""
    largest = 0.0
    for score in theta:
        largest = max(largest, abs(score))
    return 1e-11 + 4e-16 * k * largest


@part
def _open_part(row, is_open, opened, k):
    """The problem of the open positions, and its budget."""
    n, size = row.where.shape[0], opened.shape[0]
    budget = k
    for i in range(n):
        budget -= not is_open[i] and row.value[i] >= 1.0
    work = new_active_set(size, budget)
    for s in range(size):
        i = opened[s]
        work.theta[s] = row.theta[i]
        work.edge[s] = 0.0
        if i > 0 and is_open[i - 1]:
            work.edge[s] = row.edge[i]
        elif i > 0 and row.value[i - 1] >= 1.0:
            work.theta[s] += row.edge[i]
        if i + 1 < n and not is_open[i + 1] and row.value[i + 1] >= 1.0:
            work.theta[s] += row.edge[i + 1]
    return work, budget


@part
def _score_of_first(row, gradient, work, opened, is_open):
    """Score of the first active subset under the gradient of the whole row."""
    n = is_open.shape[0]
    selected = np.zeros(n, np.bool_)
    for i in range(n):
        selected[i] = not is_open[i] and row.value[i] >= 1.0
    for s in range(opened.shape[0]):
        selected[opened[s]] = work.subsets[s, 0] > 0.0
    total = 0.0
    for i in range(n):
        if selected[i]:
            total += gradient[i]
            if i > 0 and selected[i - 1]:
                total += row.edge[i]
    return total


@part
def _open_differences(row, members, is_open):
    """Open every fixed position at which the best subset of the whole row differs."""
    selected = np.zeros(is_open.shape[0], np.bool_)
    for i in members:
        selected[i] = True
    for i in range(is_open.shape[0]):
        is_open[i] |= selected[i] != (row.value[i] >= 1.0)


@part
def _write_active(row, work, opened, m, y, unit):
    """Write the solution, exact where all subsets agree; return the number of other positions."""
    for i in range(row.where.shape[0]):
        row.unit[i] = CERTAIN
    count = 0
    for s in range(opened.shape[0]):
        selected = 0
        for v in range(m):
            selected += work.subsets[s, v] > 0.0
        if 0 < selected < m:
            row.unit[opened[s]] = count
            count += 1
        else:
            row.value[opened[s]] = 1.0 if selected else 0.0
    for i in range(row.where.shape[0]):
        y[row.where[i]] = row.value[i]
        unit[row.where[i]] = row.unit[i]
    return count


@part
def _grown(buffer, needed):
    if needed <= buffer.shape[0]:
        return buffer
    larger = np.empty(2 * needed, buffer.dtype)
    for i in range(buffer.shape[0]):
        larger[i] = buffer[i]
    return larger


@part
def _save(row, work, opened, m, indicators, numbers):
    at = 0
    for v in range(m):
        for s in range(opened.shape[0]):
            if row.unit[opened[s]] >= 0:
                indicators[at] = work.subsets[s, v] > 0.0
                at += 1
    for v in range(m):
        for u in range(m):
            numbers[v * m + u] = work.inverse[v, u]
        numbers[m * m + v] = work.vectors[WEIGHT, v]


@jit
def vjp_rows(start, stop, edges, answers, saved, cotangent, scores_grad, edges_grad):
    """Fill both gradients for rows ``start`` to ``stop``; ``edges_grad`` may have no columns.

    ``saved`` is what `active_rows` returned.
    """
    n = cotangent.shape[1]
    whole, grads, where = _new_row(n), (np.empty(n), np.empty(n)), np.empty(n, np.int64)
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
            relaxed_vjp(answers.y[r], answers.unit[r], own, asked[0], where, asked[1], asked[2])
        elif count > 0:
            row = _first(whole, _regather(answers, r, own, whole))
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
    whole, pulls, where = _new_row(n), np.empty(n), np.empty(n, np.int64)
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
            pull_of_pairs(answers.y[r], answers.unit[r], own, edge_tangent[r], pulls)
            relaxed_vjp(answers.y[r], answers.unit[r], own, pulls, where, out[r], nothing)
        elif count > 0:
            row = _first(whole, _regather(answers, r, own, whole))
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
