# mypy: ignore-errors
"""Compiled loops from rows of scores to the few selected entries and their weights."""

from __future__ import annotations

import numpy as np

from hopfy._kernels.attention.cpu_concave import concave_row, subsets_cut, subsets_row
from hopfy._kernels.rows.powers import rest_powers
from hopfy._kernels.rows.powers_float32 import rest_powers32
from hopfy._kernels.rows.scan import PADDING, keep_below, pad
from hopfy._kernels.threshold.cpu import bounding_power, bounding_step, root, settled_at
from hopfy._runtime.compilation import jit, part

__all__ = ["fold", "row_maximum", "scratch", "select", "select_row", "weigh_powers"]

_FOLD = 8
_MAX_STEPS = 60
_QUICK = 12.0  # up to this exponent powers in float32 serve float32 scores


@part
def fold(row, n, lanes):
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


@part
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


@part
def weigh_powers(x, d, count, s, exponent, powers):
    pad(d, count)
    rest_powers(d, count, s, exponent, powers)
    total = 0.0
    for i in range(count):
        total += powers[i]
    for i in range(count):
        x[i] = powers[i] / total


@part
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


@part
def row_maximum(row, n, lanes, upper):
    used = fold(row, n, lanes)
    top = lanes[0]
    for i in range(fold(lanes, used, upper)):
        top = max(top, upper[i])
    return top, used


@part
def _root32(x, count, s, gamma, settled, powers):
    """`hopfy._kernels.threshold.cpu.root` with powers in float32, for float32 scores."""
    pad(x, count)
    zero = x.dtype.type(0)
    for _ in range(_MAX_STEPS):
        rest_powers32(x, count, s, gamma - 1.0, powers)
        first, total = zero, zero
        for i in range(count):
            rest = s - x[i]
            first += powers[i]
            total += powers[i] * (rest if rest > zero else zero)
        lower = min(s, s - (total - total ** x.dtype.type(1.0 - 1.0 / gamma)) / first)
        step = s - lower
        s = lower
        if not step > settled:
            break
    return s


@part
def _weigh_powers32(x, count, s, exponent, powers, zero, one):
    pad(x, count)
    rest_powers32(x, count, s, exponent, powers)
    total = zero
    for i in range(count):
        total += powers[i]
    scale = one / total
    for i in range(count):
        x[i] = powers[i] * scale


@part
def _root(x, d, column, count, s, gamma, powers, quick):
    """The root for the candidates' distances x, from an upper bound s of it, and the count left."""
    if gamma == 1.0 or gamma == 2.0:
        return root(x, column, count, s, gamma, 1.0, settled_at(x, gamma), None)
    if x.itemsize == 4 and gamma <= _QUICK:
        return np.float64(_root32(x, count, x.dtype.type(s), gamma, 1e-6, quick)), count
    for i in range(count):
        d[i] = x[i]
    settled = 1e-6 if x.itemsize == 4 else 1e-13
    found, count = root(d, column, count, np.float64(s), gamma, 1.0, settled, powers)
    for i in range(count):
        x[i] = d[i]
    return found, count


@part
def select_row(row, n, top, used, alpha, kind, column, work, steep):
    """Columns of the row's selected entries; their weights are left in the scratch ``work[0]``.

    ``top`` and ``used`` come from `row_maximum`, which leaves the maxima of lanes in ``work[1]``.
    ``kind`` is 0 for entmax, 1 for normmax, 2 for k-subsets (``alpha`` is k then). ``steep`` is None
    where every exponent is 1 or 2: then nothing else is compiled.
    """
    x, lanes, d, powers = work[0], work[1], work[4], work[5]
    real = x.dtype.type
    zero, one = real(0), real(1)
    slack = real(1.0 + 1e-5) if x.itemsize == 4 else real(1.0 + 1e-12)
    if steep is not None and kind == 2:
        if not alpha > 0.0:
            return 0
        cut = subsets_cut(lanes, used, top, alpha, work)
        count = _candidates(row, n, lanes, cut, column)
        return subsets_row(row, column, count, top, alpha, work)
    exponent = 1.0 / (alpha - 1.0)
    gamma = exponent + 1.0 if kind == 1 else exponent
    margin = one if kind == 1 else real(exponent)
    s, scale = 1.0, one / margin
    power = bounding_power(gamma)
    if power:
        for i in range(used):
            x[i] = (top - lanes[i]) * scale
        for _ in range(4):
            s = bounding_step(x, used, s, power)
        s = min(1.0, s * slack)
    count = _candidates(row, n, lanes, top - real(s) * margin, column)
    for i in range(count):
        x[i] = (top - row[column[i]]) * scale
    if steep is None:
        s, count = root(x, column, count, s, gamma, 1.0, settled_at(x, gamma), None)
    elif gamma < 1.0:  # the support lies inside that of sparsemax
        s, count = root(x, column, count, s, 1.0, 1.0, settled_at(x, 1.0), None)
        count = keep_below(x, column, count, real(s) * slack)
        return concave_row(row, column, count, top, alpha, work)
    else:
        s, count = _root(x, d, column, count, s, gamma, powers, work[3])
    edge = real(s)
    kept = keep_below(x, column, count, edge)
    if steep is None or exponent == 1.0 or exponent == 2.0:
        _weigh(x, kept, edge, exponent, zero, one)
    elif x.itemsize == 4 and gamma <= _QUICK:
        _weigh_powers32(x, kept, edge, exponent, work[3], zero, one)
    else:
        for i in range(kept):
            d[i] = x[i]
        weigh_powers(x, d, kept, np.float64(edge), exponent, powers)
    return kept


@part
def scratch(scores, width):
    """Scratch for rows of this width: see `select_row`."""
    room = width + PADDING
    x, lanes = np.empty(room, scores.dtype), np.empty(width, scores.dtype)
    upper, quick = np.empty(width, scores.dtype), np.empty(room, np.float32)
    return x, lanes, upper, quick, np.empty(room), np.empty(room), np.empty(room)


@jit
def select(start, stop, scores, first, offset, low, high, columns, counts, alpha, kind, steep):
    """Weights of every row, in place: the first ``counts[r]`` entries, with their keys beside.

    The weights are proportional to ``(s - x) ** exponent`` where x is the distance to the maximum
    in margins and s solves ``sum((s - x)_+ ** gamma) = 1``: for entmax margin, gamma and exponent
    are ``1 / (alpha - 1)``; for normmax they are 1, ``alpha / (alpha - 1)`` and ``1 / (alpha - 1)``.
    Those of k-subsets are ``min(1, (s - x)_+)``, with the sum k. ``alpha`` has one entry, or one for
    each row; ``kind`` and ``steep`` are as in `select_row`.

    Part of a row has a lower threshold than all of it, and so has a larger gamma; the maxima of
    the row's lanes hold most of the large entries: they give a bound that leaves few candidates.
    """
    work = scratch(scores, scores.shape[1])
    x = work[0]
    for r in range(start, stop):
        a, b = low[first + r] - offset, high[first + r] - offset
        n = b - a
        if n <= 0:
            counts[r] = 0
            continue
        row, column = scores[r, a:b], columns[r]
        top, used = row_maximum(row, n, work[1], work[2])
        if not (top > -np.inf and top < np.inf):
            counts[r] = 0
            continue
        own = alpha[first + r if alpha.size > 1 else 0]
        kept = select_row(row, n, top, used, own, kind, column, work, steep)
        whole = scores[r]
        for i in range(kept):
            whole[i] = x[i]
            column[i] += a + offset
        counts[r] = kept
