# mypy: ignore-errors
"""Compiled loops of sparse attention: rows of scores in, the few selected entries out."""

from __future__ import annotations

import math

import numpy as np

from hopfy._runtime.compilation import jit

__all__ = ["backward", "compact", "gather", "select"]

_FOLD = 8
_MAX_STEPS = 60


@jit
def _fold(row, n, lanes):
    """Maxima of lanes of 8 entries, far apart, and the few entries left over; returns how many.

    Lane i holds the entries i, i + h, ..., i + 7h of the row, h = n // 8.
    """
    h = n // _FOLD
    for i in range(h):
        a, b, c, d = row[i], row[i + h], row[i + 2 * h], row[i + 3 * h]
        e, f, g, k = row[i + 4 * h], row[i + 5 * h], row[i + 6 * h], row[i + 7 * h]
        a = a if a > b else b
        c = c if c > d else d
        e = e if e > f else f
        g = g if g > k else k
        a = a if a > c else c
        e = e if e > g else g
        lanes[i] = a if a > e else e
    for i in range(_FOLD * h, n):
        lanes[i - (_FOLD - 1) * h] = row[i]
    return n - (_FOLD - 1) * h


@jit
def _newton(x, count, s, gamma, zero, one):
    """One step for sum((s - x)_+ ** gamma) = 1 from the right: convex, so it never crosses."""
    total, slope = zero, zero
    if gamma == 1.0:
        for i in range(count):
            rest = s - x[i]
            total += rest if rest > zero else zero
            slope += one if rest > zero else zero
        return min(s, s - (total - one) / slope)
    if gamma == 2.0:
        for i in range(count):
            rest = s - x[i]
            rest = rest if rest > zero else zero
            total += rest * rest
            slope += rest
        return min(s, s - (total - math.sqrt(total)) / slope)
    below = gamma - one
    for i in range(count):
        rest = s - x[i]
        if rest > zero:
            power = rest**below
            slope += power
            total += power * rest
    return min(s, s - (total - total ** (below / gamma)) / slope)


@jit
def _weigh(x, count, s, exponent, zero, one):
    """Turn distances into weights that sum to one."""
    total = zero
    if exponent == 1.0:
        for i in range(count):
            x[i] = s - x[i]
            total += x[i]
    elif exponent == 2.0:
        for i in range(count):
            rest = s - x[i]
            x[i] = rest * rest
            total += x[i]
    else:
        for i in range(count):
            x[i] = (s - x[i]) ** exponent
            total += x[i]
    scale = one / total
    for i in range(count):
        x[i] *= scale


@jit
def _candidates(row, n, lanes, cut, column):
    """Columns of the entries that reach ``cut``; a lane below it is skipped as a whole."""
    h = n // _FOLD
    count = 0
    for i in range(h):
        if lanes[i] >= cut:
            for j in range(i, i + _FOLD * h, h):
                column[count] = j
                count += row[j] >= cut
    for i in range(_FOLD * h, n):
        column[count] = i
        count += row[i] >= cut
    return count


@jit
def select(start, stop, scores, columns, counts, margin, gamma, exponent):
    """Weights of every row, in place: the first ``counts[r]`` entries, with their columns beside.

    The weights are proportional to ``(s - x) ** exponent`` where x is the distance to the maximum
    in margins and s solves ``sum((s - x)_+ ** gamma) = 1``. The three numbers have the type of the
    scores, which keeps the arithmetic in it.

    Part of a row has a lower threshold than all of it, and the maxima of its lanes hold most of the
    large entries: they give a bound that leaves few candidates.
    """
    n = scores.shape[1]
    zero, one = margin - margin, margin / margin
    scale = one / margin
    lanes, upper = np.empty(n, scores.dtype), np.empty(n, scores.dtype)
    x = np.empty(n, scores.dtype)
    for r in range(start, stop):
        row, column = scores[r], columns[r]
        used = _fold(row, n, lanes)
        top = lanes[0]
        for i in range(_fold(lanes, used, upper)):
            top = max(top, upper[i])
        if not (top > -np.inf and top < np.inf):
            counts[r] = 0
            continue
        for i in range(used):
            x[i] = (top - lanes[i]) * scale
        s = one
        for _ in range(4):
            s = _newton(x, used, s, gamma, zero, one)
        count = _candidates(row, n, lanes, top - s * margin, column)
        for i in range(count):
            x[i] = (top - row[column[i]]) * scale
        for _ in range(_MAX_STEPS):
            lower = _newton(x, count, s, gamma, zero, one)
            arrived = not lower < s
            s = lower
            if arrived:
                break
        kept = 0
        for i in range(count):
            distance = x[i]
            x[kept] = distance
            column[kept] = column[i]
            kept += distance < s
        _weigh(x, kept, s, exponent, zero, one)
        row[:kept] = x[:kept]
        counts[r] = kept


@jit
def gather(start, stop, weights, columns, edges, values, output, first_row):
    """Each row of the output is the sum of its selected values, by their weights."""
    size = values.shape[2]
    rows = output.shape[1]
    for r in range(start, stop):
        group, query = (first_row + r) // rows, (first_row + r) % rows
        first, last = edges[r], edges[r + 1]
        row, column = weights[first:last], columns[first:last]
        _combine(row, column, last - first, values[group], output[group, query], size)


@jit
def _combine(weights, columns, count, values, output, size):
    for d in range(size):
        output[d] = 0
    i = 0
    while i + 4 <= count:
        a, b = values[columns[i]], values[columns[i + 1]]
        c, e = values[columns[i + 2]], values[columns[i + 3]]
        u, v, w, z = weights[i], weights[i + 1], weights[i + 2], weights[i + 3]
        for d in range(size):
            output[d] += u * a[d] + v * b[d] + w * c[d] + z * e[d]
        i += 4
    while i < count:
        a, u = values[columns[i]], weights[i]
        for d in range(size):
            output[d] += u * a[d]
        i += 1


@jit
def compact(start, stop, weights, columns, edges, packed_weights, packed_columns):
    """Copy the selected entries of each row to its place ``edges[r]:edges[r + 1]``."""
    for r in range(start, stop):
        first = edges[r]
        for i in range(edges[r + 1] - first):
            packed_weights[first + i] = weights[r, i]
            packed_columns[first + i] = columns[r, i]


@jit
def _through_map(p, v, count, alpha, norm):
    """Apply the map's (symmetric) Jacobian at weights p to v, in place."""
    if norm:
        _through_normmax(p, v, count, alpha)
        return
    total = p[0] - p[0]
    mean = total
    if alpha == 2.0:
        for i in range(count):
            mean += v[i]
        mean /= count
        for i in range(count):
            v[i] -= mean
    elif alpha == 1.5:
        for i in range(count):
            g = math.sqrt(p[i])
            total += g
            mean += g * v[i]
        mean /= total
        for i in range(count):
            v[i] = math.sqrt(p[i]) * (v[i] - mean)
    else:
        for i in range(count):
            g = p[i] ** (2 - alpha)
            total += g
            mean += g * v[i]
        mean /= total
        for i in range(count):
            v[i] = p[i] ** (2 - alpha) * (v[i] - mean)


@jit
def _through_normmax(p, v, count, alpha):
    norm = p[0] - p[0]
    mean = norm
    for i in range(count):
        norm += p[i] ** alpha
        mean += p[i] * v[i]
    norm = norm ** (1 / alpha)
    total = p[0] - p[0]
    for i in range(count):
        v[i] = norm * (p[i] / norm) ** (2 - alpha) / (alpha - 1) * (v[i] - mean)
        total += v[i]
    for i in range(count):
        v[i] -= p[i] * total


@jit
def backward(
    start,
    stop,
    weights,
    columns,
    edges,
    kept,
    inputs,
    cotangent,
    gradients,
    alpha,
    norm,
):
    """Gradients of queries, memories and values, one group at a time, on the support only.

    A group (one head of one sample) owns its memories and values: threads never share a row.
    ``kept`` holds what dropout multiplied each weight with, or nothing.
    """
    queries, memories, values = inputs
    in_queries, in_memories, in_values = gradients
    rows, size, value_size = queries.shape[1], queries.shape[2], values.shape[2]
    slope = np.empty(memories.shape[1], weights.dtype)
    for group in range(start, stop):
        for m in range(rows):
            first = edges[group * rows + m]
            count = edges[group * rows + m + 1] - first
            if count == 0:
                continue
            p, column = weights[first : first + count], columns[first : first + count]
            outside, query = cotangent[group, m], queries[group, m]
            for i in range(count):
                value, in_value = values[group, column[i]], in_values[group, column[i]]
                weight = p[i]
                along = weight - weight
                for d in range(value_size):
                    along += outside[d] * value[d]
                if kept.size:
                    along *= kept[first + i]
                    weight *= kept[first + i]
                slope[i] = along
                for d in range(value_size):
                    in_value[d] += weight * outside[d]
            _through_map(p, slope, count, alpha, norm)
            _combine(slope, column, count, memories[group], in_queries[group, m], size)
            for i in range(count):
                in_memory = in_memories[group, column[i]]
                share = slope[i]
                for d in range(size):
                    in_memory[d] += share * query[d]
