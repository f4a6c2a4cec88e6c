# mypy: ignore-errors
"""Compiled loops of sparse attention: rows of scores in, the few selected entries out."""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.rows.powers import log_of, powers_of, rest_powers
from hopfy._kernels.rows.scan import PADDING, pad
from hopfy._runtime.compilation import jit

__all__ = [
    "backward",
    "blank",
    "compact",
    "gather",
    "outside",
    "pick",
    "row_ranges",
    "select",
    "spread",
]

_FOLD = 8
_MAX_STEPS = 60


# --- which keys a row sees ------------------------------------------------------------------------


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


# --- from scores to the selected entries ----------------------------------------------------------


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
def _newton(x, count, s, power, zero, one):
    """One step for ``sum((s - x)_+ ** power) = 1`` from the right: convex, so it never crosses.

    ``power`` is 1, 2, 4 or 16.
    """
    total, slope = zero, zero
    if power == 1:
        for i in range(count):
            rest = s - x[i]
            total += rest if rest > zero else zero
            slope += one if rest > zero else zero
        return min(s, s - (total - one) / slope)
    if power == 2:
        for i in range(count):
            rest = s - x[i]
            rest = rest if rest > zero else zero
            total += rest * rest
            slope += rest
        return min(s, s - (total - math.sqrt(total)) / slope)
    if power == 4:
        for i in range(count):
            rest = s - x[i]
            rest = rest if rest > zero else zero
            square = rest * rest
            slope += square * rest
            total += square * square
        root = math.sqrt(total)
        return min(s, s - (total - root * math.sqrt(root)) / slope)
    for i in range(count):
        rest = s - x[i]
        rest = rest if rest > zero else zero
        second = rest * rest
        fourth = second * second
        eighth = fourth * fourth
        slope += rest * second * fourth * eighth
        total += eighth * eighth
    return min(s, s - (total - total ** (one - one / 16)) / slope)


@jit
def _newton_of_powers(d, count, s, gamma, powers):
    """The same for any gamma >= 1, in float64; d is padded."""
    rest_powers(d, count, s, gamma - 1.0, powers)
    first, total = 0.0, 0.0
    for i in range(count):
        first += powers[i]
        total += powers[i] * max(0.0, 1.0 - d[i] / s)
    return min(s, s * (1.0 - total / first) + total ** (1.0 - 1.0 / gamma) / first)


@jit
def _weigh(x, count, s, exponent, zero, one):
    """Turn distances into weights that sum to one; the exponent is 1 or 2."""
    total = zero
    for i in range(count):
        rest = s - x[i]
        x[i] = rest if exponent == 1.0 else rest * rest
        total += x[i]
    scale = one / total
    for i in range(count):
        x[i] *= scale


@jit
def _weigh_powers(x, d, count, s, exponent, powers):
    pad(d, count)
    rest_powers(d, count, s, exponent, powers)
    total = 0.0
    for i in range(count):
        total += powers[i]
    for i in range(count):
        x[i] = powers[i] / total


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
def _row_maximum(row, n, lanes, upper):
    used = _fold(row, n, lanes)
    top = lanes[0]
    for i in range(_fold(lanes, used, upper)):
        top = max(top, upper[i])
    return top, used


@jit
def _kept(x, column, count, s):
    kept = 0
    for i in range(count):
        distance = x[i]
        x[kept] = distance
        column[kept] = column[i]
        kept += distance < s
    return kept


@jit
def _bounding_power(gamma):
    """An exponent of at least gamma whose powers are cheap; 0 if there is none."""
    if gamma <= 1.0:
        return 1
    if gamma <= 2.0:
        return 2
    if gamma <= 4.0:
        return 4
    return 16 if gamma <= 16.0 else 0


@jit
def _exact(x, d, count, s, gamma, settled, powers):
    """The root for the candidates' distances x, from an upper bound s of it."""
    one = x.dtype.type(1)
    if gamma == 1.0 or gamma == 2.0:
        for _ in range(_MAX_STEPS):
            lower = _newton(x, count, s, 1 if gamma == 1.0 else 2, one - one, one)
            arrived = not lower < s
            s = lower
            if arrived:
                break
        return s
    for i in range(count):
        d[i] = x[i]
    pad(d, count)
    root = np.float64(s)
    for _ in range(_MAX_STEPS):
        lower = _newton_of_powers(d, count, root, gamma, powers)
        step = root - lower
        root = lower
        if not step > settled:
            break
    return x.dtype.type(root)


@jit
def select(start, stop, scores, first, offset, low, high, columns, counts, alpha, norm):
    """Weights of every row, in place: the first ``counts[r]`` entries, with their keys beside.

    The weights are proportional to ``(s - x) ** exponent`` where x is the distance to the maximum
    in margins and s solves ``sum((s - x)_+ ** gamma) = 1``: for entmax, 1 < alpha <= 2, margin,
    gamma and exponent are ``1 / (alpha - 1)``; for normmax they are 1, ``alpha / (alpha - 1)`` and
    ``1 / (alpha - 1)``. ``alpha`` has one entry, or one for each row.

    Part of a row has a lower threshold than all of it, and so has a larger gamma; the maxima of
    the row's lanes hold most of the large entries: they give a bound that leaves few candidates.
    """
    width = scores.shape[1]
    real = scores.dtype.type
    zero, one = real(0), real(1)
    slack = real(1.0 + 1e-5) if scores.itemsize == 4 else real(1.0 + 1e-12)
    settled = 1e-6 if scores.itemsize == 4 else 1e-13
    lanes, upper = np.empty(width, scores.dtype), np.empty(width, scores.dtype)
    x = np.empty(width + PADDING, scores.dtype)
    d, powers = np.empty(width + PADDING), np.empty(width + PADDING)
    for r in range(start, stop):
        a, b = low[first + r] - offset, high[first + r] - offset
        n = b - a
        if n <= 0:
            counts[r] = 0
            continue
        exponent = 1.0 / (alpha[first + r if alpha.size > 1 else 0] - 1.0)
        gamma = exponent + 1.0 if norm else exponent
        margin = one if norm else real(exponent)
        row, column = scores[r, a:b], columns[r]
        top, used = _row_maximum(row, n, lanes, upper)
        if not (top > -np.inf and top < np.inf):
            counts[r] = 0
            continue
        s, scale = one, one / margin
        power = _bounding_power(gamma)
        if power:
            for i in range(used):
                x[i] = (top - lanes[i]) * scale
            for _ in range(4):
                s = _newton(x, used, s, power, zero, one)
            s = min(one, s * slack)
        count = _candidates(row, n, lanes, top - s * margin, column)
        for i in range(count):
            x[i] = (top - row[column[i]]) * scale
        s = _exact(x, d, count, s, gamma, settled, powers)
        kept = _kept(x, column, count, s)
        if exponent == 1.0 or exponent == 2.0:
            _weigh(x, kept, s, exponent, zero, one)
        else:
            for i in range(kept):
                d[i] = x[i]
            _weigh_powers(x, d, kept, np.float64(s), exponent, powers)
        whole = scores[r]
        for i in range(kept):
            whole[i] = x[i]
            column[i] += a + offset
        counts[r] = kept


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


# --- products on the support ----------------------------------------------------------------------


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


# --- backward -------------------------------------------------------------------------------------


@jit
def _through_map(p, v, count, alpha, kind, g, powers):
    """Apply the map's (symmetric) Jacobian at weights p to v, in place.

    ``kind`` is 0 for entmax, 1 for normmax, 2 for k-subsets; g and powers are float64 scratch.
    """
    if kind == 1:
        _through_normmax(p, v, count, alpha, g, powers)
        return
    if kind == 2:
        _through_subsets(p, v, count)
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
            slope = math.sqrt(p[i])
            total += slope
            mean += slope * v[i]
        mean /= total
        for i in range(count):
            v[i] = math.sqrt(p[i]) * (v[i] - mean)
    elif alpha == np.inf:
        v[:count] = 0
    else:
        _through_powers(p, v, count, alpha, g, powers)


@jit
def _through_powers(p, v, count, alpha, g, powers):
    """g (v - mean_g(v)) with g = p^(2 - alpha), centered at the steepest entry."""
    for i in range(count):
        g[i] = p[i]
    pad(g, count)
    powers_of(g, count, 2.0 - alpha, powers)
    steepest, total, mean = 0, 0.0, 0.0
    for i in range(count):
        powers[i] = min(powers[i], 1e150)
        steepest = i if powers[i] > powers[steepest] else steepest
        total += powers[i]
    origin = np.float64(v[steepest])
    for i in range(count):
        mean += powers[i] * (v[i] - origin)
    mean /= total
    for i in range(count):
        v[i] = powers[i] * ((v[i] - origin) - mean)


@jit
def _through_subsets(p, v, count):
    total, between = p[0] - p[0], 0
    for i in range(count):
        if p[i] < 1:
            total += v[i]
            between += 1
    mean = total / max(between, 1)
    for i in range(count):
        v[i] = v[i] - mean if p[i] < 1 else 0


@jit
def _through_normmax(p, v, count, alpha, g, powers):
    if alpha == np.inf:
        v[:count] = 0
        return
    top, mass, mean = 0.0, 0.0, 0.0
    for i in range(count):
        top = max(top, p[i])
        mean += p[i] * v[i]
    for i in range(count):
        g[i] = p[i] / top
    pad(g, count)
    powers_of(g, count, alpha, powers)
    for i in range(count):
        mass += powers[i]
    norm = mass ** (1.0 / alpha)  # in units of the top
    powers_of(g, count, 2.0 - alpha, powers)
    factor = top * norm ** (alpha - 1.0) / (alpha - 1.0)
    total = 0.0
    for i in range(count):
        powers[i] = factor * min(powers[i], 1e150) * (v[i] - mean)
        total += powers[i]
    for i in range(count):
        v[i] = powers[i] - p[i] * total


@jit
def _phi(t):
    r""":math:`(t e^t - e^t + 1)/t^2`."""
    if abs(t) >= 0.5:
        return (t * math.exp(t) - math.expm1(t)) / (t * t)
    term, series = 1.0, 0.0
    for n in range(14):
        series += term / (n + 2)
        term *= t / (n + 1)
    return series


@jit
def _along_parameter(p, through, count, alpha, kind):
    """``-<d grad Omega / d alpha, J v>``, given J v: the parameter's part of the gradient."""
    total = 0.0
    if alpha == np.inf:
        return total
    if kind == 0:
        for i in range(count):
            log = log_of(np.float64(p[i]))
            total -= log * log * _phi((alpha - 1.0) * log) * through[i]
        return total
    mass, log_mass = 0.0, 0.0
    for i in range(count):
        log = log_of(np.float64(p[i]))
        power = math.exp(alpha * log)
        mass += power
        log_mass += power * log
    log_norm = math.log(mass) / alpha
    slope = (log_mass / mass - log_norm) / alpha
    for i in range(count):
        log_r = log_of(np.float64(p[i])) - log_norm
        total -= math.exp((alpha - 1.0) * log_r) * (log_r - (alpha - 1.0) * slope) * through[i]
    return total


@jit
def _along_k(p, v, count):
    """One more unit is shared by the entries between 0 and 1: the mean of their cotangents."""
    total, between = 0.0, 0
    for i in range(count):
        if p[i] < 1:
            total += v[i]
            between += 1
    return total / max(between, 1)


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
    in_alpha,
    kind,
    scale,
):
    """Gradients of queries, keys and values, one group at a time, on the support only.

    A group owns its keys and values: threads never share a row. ``kept`` holds what dropout
    multiplied each weight with, or nothing; ``in_alpha`` one number per row, or nothing.
    """
    queries, keys, values = inputs
    in_queries, in_keys, in_values = gradients
    rows, size, value_size = queries.shape[1], queries.shape[2], values.shape[2]
    room = keys.shape[1] + PADDING
    slope, g, powers = np.empty(room, weights.dtype), np.empty(room), np.empty(room)
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
            parameter = alpha[group * rows + m if alpha.size > 1 else 0]
            if in_alpha.size and kind == 2:
                in_alpha[group * rows + m] = _along_k(p, slope, count)
            _through_map(p, slope, count, parameter, kind, g, powers)
            if in_alpha.size and kind != 2:
                in_alpha[group * rows + m] = _along_parameter(p, slope, count, parameter, kind)
            for i in range(count):
                slope[i] *= scale
            _combine(slope, column, count, keys[group], in_queries[group, m], size)
            for i in range(count):
                in_key = in_keys[group, column[i]]
                share = slope[i]
                for d in range(size):
                    in_key[d] += share * query[d]
