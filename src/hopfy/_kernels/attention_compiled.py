"""Compiled loops of sparse attention: rows of scores in, the few selected entries out."""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels._compile import jit

__all__ = ["backward", "gather", "select"]

_LANES = 64
_MAX_STEPS = 60


@jit
def _first_bound(row, n, lanes, margin, gamma):  # type: ignore[no-untyped-def]
    """The row's maximum, and a bound on its threshold from the maxima of interleaved lanes.

    Part of a row has a lower threshold than the whole row, and lane maxima hold most of its large
    entries, so that the next pass keeps few candidates.
    """
    used = min(n, _LANES)
    for lane in range(used):
        lanes[lane] = row[lane]
    start = used
    while start + _LANES <= n:
        for lane in range(_LANES):
            entry = row[start + lane]
            lanes[lane] = entry if entry > lanes[lane] else lanes[lane]
        start += _LANES
    for lane in range(n - start):
        entry = row[start + lane]
        lanes[lane] = entry if entry > lanes[lane] else lanes[lane]
    top = lanes[0]
    for lane in range(1, used):
        top = max(top, lanes[lane])
    if not (top > -np.inf and top < np.inf):
        return top, top
    scale = 1 / margin
    for lane in range(used):
        lanes[lane] = (top - lanes[lane]) * scale
    bound = lanes[0] * 0 + 1
    for _ in range(3):
        bound = _newton(lanes, used, bound, gamma)
    return top, bound


@jit
def _newton(x, count, s, gamma):  # type: ignore[no-untyped-def]
    """One step for sum((s - x)_+ ** gamma) = 1 from the right: convex, so it never crosses."""
    zero = s * 0
    total, slope = zero, zero
    if gamma == 1.0:
        for i in range(count):
            rest = s - x[i]
            inside = rest > 0
            total += rest if inside else zero
            slope += 1 if inside else zero
        return min(s, s - (total - 1) / slope)
    if gamma == 2.0:
        for i in range(count):
            rest = s - x[i]
            rest = rest if rest > 0 else zero
            total += rest * rest
            slope += rest
        return min(s, s - (total - math.sqrt(total)) / slope)
    for i in range(count):
        rest = s - x[i]
        if rest > 0:
            power = rest ** (gamma - 1)
            slope += power
            total += power * rest
    return min(s, s - (total - total ** (1 - 1 / gamma)) / slope)


@jit
def _weigh(x, count, s, exponent):  # type: ignore[no-untyped-def]
    """Turn distances into weights that sum to one."""
    total = s * 0
    for i in range(count):
        rest = s - x[i]
        if exponent == 1.0:
            weight = rest
        elif exponent == 2.0:
            weight = rest * rest
        elif exponent == 0.0:
            weight = rest * 0 + 1
        else:
            weight = rest**exponent
        x[i] = weight
        total += weight
    for i in range(count):
        x[i] /= total


@jit
def select(start, stop, scores, columns, counts, margin, gamma, exponent):  # type: ignore[no-untyped-def]
    """Weights of every row, in place: the first ``counts[r]`` entries, with their columns beside.

    The weights are proportional to ``(s - x) ** exponent`` where x is the distance to the maximum
    in margins and s solves ``sum((s - x)_+ ** gamma) = 1``.
    """
    n = scores.shape[1]
    lanes = np.empty(_LANES, scores.dtype)
    for r in range(start, stop):
        row, column = scores[r], columns[r]
        top, s = _first_bound(row, n, lanes, margin, gamma)
        if not (top > -np.inf and top < np.inf):
            counts[r] = 0
            continue
        scale = 1 / margin
        count = 0
        cut = top - s * margin
        for j in range(n):
            entry = row[j]
            row[count] = entry
            column[count] = j
            count += entry >= cut
        for i in range(count):
            row[i] = (top - row[i]) * scale
        for _ in range(_MAX_STEPS):
            lower = _newton(row, count, s, gamma)
            # A step that moves less than rounding has arrived.
            done = not (lower < s - 2e-16 * s) or lower == s
            s = lower
            kept = 0
            for i in range(count):
                x = row[i]
                row[kept] = x
                column[kept] = column[i]
                kept += x < s
            count = kept
            if done:
                break
        _weigh(row, count, s, exponent)
        counts[r] = count


@jit
def gather(start, stop, weights, columns, counts, values, output, first_row):  # type: ignore[no-untyped-def]
    """output[r] = sum of weights[r, i] * values[columns[r, i]] over the selected entries only."""
    size = values.shape[2]
    rows = output.shape[1]
    for r in range(start, stop):
        group, query = (first_row + r) // rows, (first_row + r) % rows
        _combine(weights[r], columns[r], counts[r], values[group], output[group, query], size)


@jit
def _combine(weights, columns, count, values, output, size):  # type: ignore[no-untyped-def]
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
def compact(start, stop, weights, columns, edges, packed_weights, packed_columns):  # type: ignore[no-untyped-def]
    """Copy the selected entries of each row to its place ``edges[r]:edges[r + 1]``."""
    for r in range(start, stop):
        first = edges[r]
        for i in range(edges[r + 1] - first):
            packed_weights[first + i] = weights[r, i]
            packed_columns[first + i] = columns[r, i]


@jit
def _through_map(p, v, count, alpha, norm):  # type: ignore[no-untyped-def]
    """Apply the map's (symmetric) Jacobian at weights p to v, in place."""
    if norm:
        _through_normmax(p, v, count, alpha)
        return
    total, mean = p[0] * 0, p[0] * 0
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
def _through_normmax(p, v, count, alpha):  # type: ignore[no-untyped-def]
    norm, mean = p[0] * 0, p[0] * 0
    for i in range(count):
        norm += p[i] ** alpha
        mean += p[i] * v[i]
    norm = norm ** (1 / alpha)
    total = p[0] * 0
    for i in range(count):
        v[i] = norm * (p[i] / norm) ** (2 - alpha) / (alpha - 1) * (v[i] - mean)
        total += v[i]
    for i in range(count):
        v[i] -= p[i] * total


@jit
def backward(  # type: ignore[no-untyped-def]
    start,
    stop,
    weights,
    columns,
    edges,
    inputs,
    cotangent,
    gradients,
    alpha,
    norm,
):
    """Gradients of queries, memories and values, one group at a time, on the support only.

    A group (one head of one sample) owns its memories and values: threads never share a row.
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
                along = weight * 0
                for d in range(value_size):
                    along += outside[d] * value[d]
                    in_value[d] += weight * outside[d]
                slope[i] = along
            _through_map(p, slope, count, alpha, norm)
            _combine(slope, column, count, memories[group], in_queries[group, m], size)
            for i in range(count):
                in_memory = in_memories[group, column[i]]
                share = slope[i]
                for d in range(size):
                    in_memory[d] += share * query[d]
