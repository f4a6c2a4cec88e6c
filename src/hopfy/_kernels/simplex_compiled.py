# mypy: ignore-errors
r"""Compiled rows of entmax and normmax, forward and backward.

Both maps solve the threshold equation of `hopfy._kernels._threshold`, here in units of the scores:
with distances :math:`d_i = \max\theta - \theta_i` and the margin m, the root :math:`S \in (0, m]` of
:math:`\sum_i (S - d_i)_+^{\gamma} = m^{\gamma}`. Only candidates, :math:`d_i < m`, take part; they and
all that follows are float64 whatever the dtype of the row.
"""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels._compile import jit
from hopfy._kernels._rows_compiled import (
    LANES,
    collect,
    distances,
    exp_of,
    keep_below,
    rest_powers,
    row_top,
    type_of,
)

__all__ = ["entmax_backward", "entmax_forward", "normmax_backward", "normmax_forward"]

_STEPS = 200  # Newton needs about five; the limit only stops a loop that rounding keeps alive
_STEEPEST = 1e150  # keeps products of slopes finite
_SHORT = 160  # in rows up to this size, and with cheap powers, all entries are taken as candidates


# --- the threshold equation -----------------------------------------------------------------------


@jit
def _candidates(row, top, margin, gamma, d, index):
    """Fill ``d`` (and ``index``) with what can be in the support; return how many, and if sparse."""
    if row.shape[0] <= _SHORT and _is_cheap(gamma):
        distances(row, top, d)
        return row.shape[0], False
    # In the row's own dtype, so that a gap equal to the rounded margin counts as the margin.
    return collect(row, top, np.float64(type_of(row, margin)), d, index), True


@jit
def _is_cheap(gamma):
    """Exponents whose powers need no logarithm: entmax 2, 1.5, 1.25 and normmax inf, 2."""
    return gamma == 1.0 or gamma == 2.0 or gamma == 4.0


@jit
def _root(d, index, count, sparse, gamma, margin, powers):
    """Root S of the threshold equation for gamma >= 1; returns S and the number of candidates left.

    Newton from the right (S = margin), see `_newton`. As S only moves down, candidates that fall
    outside can be dropped for good.
    """
    if gamma == 1.0:
        if sparse:
            return _linear_root(d, index, count, margin)
        return _short_linear_root(d, count, margin), count
    s = margin
    if sparse and not _is_cheap(gamma) and gamma < 4.0:
        # The root grows with gamma: a few cheap steps for the next larger exponent bound it.
        bound = 2.0 if gamma < 2.0 else 4.0
        for _ in range(3):
            first, total = _power_sums(d, count, s, bound, powers)
            s = min(s, _newton(s, first, total, bound, margin))
            count = keep_below(d, index, count, s)
    settled = margin * (1e-9 if gamma >= 2.0 else 1e-11)
    for trial in range(_STEPS):
        first, total = _power_sums(d, count, s, gamma, powers)
        lower = _newton(s, first, total, gamma, margin)
        if not lower < s:
            break
        step, s = s - lower, lower
        if sparse and trial < 2:
            count = keep_below(d, index, count, s)
        if step < settled:  # convergence is quadratic: the next step would not show
            break
    return s, keep_below(d, index, count, s) if sparse else count


@jit
def _newton(s, first, total, gamma, margin):
    r"""One step for :math:`\|(S - d)_+\|_\gamma = m`: the norm is convex and nearly linear in S.

    ``first`` and ``total`` are the sums of `_power_sums`.
    """
    if gamma == 2.0:
        return s - (total - margin * math.sqrt(total)) / first
    if gamma == 4.0:
        root = math.sqrt(total)
        return s - (total - margin * root * math.sqrt(root)) / first
    if gamma == 1.25:
        return s - (total - margin * total**0.2) / first
    return s * (1.0 - total / first) + margin * total ** (1.0 - 1.0 / gamma) / first


@jit
def _linear_root(d, index, count, margin):
    """gamma = 1, sparsemax: average over the candidates and drop those outside, until none is."""
    while True:
        total = margin
        for j in range(count):
            total += d[j]
        s = total / count
        kept = keep_below(d, index, count, s)
        if kept == count:
            return s, count
        count = kept


@jit
def _short_linear_root(d, count, margin):
    """The same for a short row, without moving candidates: Newton on whole vectors."""
    s = margin
    while True:
        total, inside = 0.0, 0
        for j in range(count):
            u = s - d[j]
            total += u if u > 0.0 else 0.0
            inside += np.int64(u > 0.0)
        lower = s - (total - margin) / inside
        if not lower < s - 1e-15 * margin:
            return s
        s = lower


@jit
def _power_sums(d, count, s, gamma, powers):
    """Sums of u^(gamma-1) and u^gamma over u = S - d > 0, or, if not cheap, over u = 1 - d / S."""
    first, total = 0.0, 0.0
    if gamma == 2.0:
        for j in range(count):
            u = s - d[j]
            u = u if u > 0.0 else 0.0
            first += u
            total += u * u
    elif gamma == 4.0:
        for j in range(count):
            u = s - d[j]
            u = u if u > 0.0 else 0.0
            first += u * u * u
            total += (u * u) * (u * u)
    elif gamma == 1.25:
        for j in range(count):
            u = s - d[j]
            u = u if u > 0.0 else 0.0
            w = math.sqrt(math.sqrt(u))
            first += w
            total += w * u
    else:
        rest_powers(d, count, s, gamma - 1.0, powers)
        for j in range(count):
            first += powers[j]
            total += powers[j] * (1.0 - d[j] / s)
    return first, total


@jit
def _write(powers, index, count, sparse, out):
    """Put the powers, scaled to sum to one, where they belong."""
    total = 0.0
    for j in range(count):
        total += powers[j]
    scale = 1.0 / total
    if sparse:
        for j in range(count):
            out[index[j]] = powers[j] * scale
    else:
        for j in range(count):
            out[j] = powers[j] * scale


# --- entmax ---------------------------------------------------------------------------------------


@jit
def entmax_forward(start, stop, scores, bits, alpha, weights):
    """Rows [start, stop) of entmax; ``alpha`` has one entry, or one per row."""
    size = scores.shape[1]
    d, powers = np.empty(size + LANES), np.empty(size + LANES)
    index = np.empty(size + LANES, np.int64)
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        a = alpha[r if alpha.shape[0] > 1 else 0]
        top, spoiled = row_top(bits[r])
        if spoiled or top == -np.inf:
            out[:] = np.nan if spoiled else 0.0
        elif a == 1.0:
            _softmax_row(row, top, powers, out)
        elif a <= 2.0:
            _entmax_convex(row, top, a, d, index, powers, out)
        else:
            _entmax_concave(row, top, a, d, index, out)


@jit(fastmath={"contract"})
def _softmax_row(row, top, powers, out):
    for i in range(row.shape[0]):
        powers[i] = exp_of(np.float64(row[i]) - np.float64(top))
    _write(powers, np.empty(0, np.int64), row.shape[0], False, out)


@jit
def _entmax_convex(row, top, alpha, d, index, powers, out):
    gamma = 1.0 / (alpha - 1.0)
    margin = gamma
    count, sparse = _candidates(row, top, margin, gamma, d, index)
    if sparse:
        out[:] = 0.0
    s, count = _root(d, index, count, sparse, gamma, margin, powers)
    if gamma == 1.0 and not sparse:
        for j in range(count):
            out[j] = max(s - d[j], 0.0)  # they sum to one already
        return
    if gamma == 1.0:
        for j in range(count):
            powers[j] = max(s - d[j], 0.0)
    elif gamma == 2.0:
        for j in range(count):
            powers[j] = max(s - d[j], 0.0) ** 2
    elif gamma == 4.0:
        for j in range(count):
            powers[j] = (max(s - d[j], 0.0) ** 2) ** 2
    else:
        rest_powers(d, count, s, gamma, powers)
    _write(powers, index, count, sparse, out)


@jit
def _entmax_concave(row, top, alpha, d, index, out):
    """alpha > 2: Newton for the smallest positive weight (see `entmax`); infinity shares the top."""
    a = alpha - 1.0
    margin = 1.0 / a
    count = collect(row, top, max(np.float64(type_of(row, margin)), 1e-300), d, index)
    out[:] = 0.0
    if count == 1 or alpha == np.inf:
        for j in range(count):
            out[index[j]] = 1.0 / count
        return
    # u^(1/a) >= u for u <= 1, so the support lies inside sparsemax's.
    _, count = _linear_root(d, index, count, margin)
    for j in range(count):
        d[j] /= margin
    count = _support_of_concave(d, index, count, 1.0 / a)
    edge = d[count - 1]
    for j in range(count):
        d[j] = edge - d[j] if a == 2.0 else (edge - d[j]) ** (1.0 / a)
    w = _smallest_weight(d, count, a)
    for j in range(count):
        out[index[j]] = _concave_weight(w, d[j], a)


@jit
def _smallest_weight(rest, count, a):
    w = 1.0 / count
    for _ in range(_STEPS):
        total, slope = 0.0, 0.0
        for j in range(count):
            p = _concave_weight(w, rest[j], a)
            total += p
            slope += w / p if a == 2.0 else (w / p) ** (a - 1.0)
        lower = w - (total - 1.0) / slope
        if not lower < w or lower <= 0.0:
            break
        step, w = w - lower, lower
        if step < 1e-16:
            break
    return w


@jit
def _concave_weight(w, rest, a):
    """(w^a + rest^a)^(1/a); for a = 2 ``rest`` comes squared."""
    if a == 2.0:
        return math.sqrt(w * w + rest)
    large, small = max(w, rest), min(w, rest)
    return large * (1.0 + (small / large) ** a) ** (1.0 / a)


@jit
def _support_of_concave(x, index, count, gamma):
    """Sort the candidates and return how many have ``sum_i (x_k - x_i)_+^gamma < 1``."""
    _sort(x, index, count)
    low, high = 1, count  # the first is always in
    while low < high:
        middle = (low + high + 1) // 2
        edge, total = x[middle - 1], 0.0
        for j in range(middle - 1):
            u = edge - x[j]
            total += math.sqrt(u) if gamma == 0.5 else u**gamma
        if total < 1.0:
            low = middle
        else:
            high = middle - 1
    return low


@jit
def _sort(x, index, count):
    if count <= 32:
        for j in range(1, count):
            value, position = x[j], index[j]
            i = j
            while i > 0 and x[i - 1] > value:
                x[i], index[i] = x[i - 1], index[i - 1]
                i -= 1
            x[i], index[i] = value, position
    else:
        order = np.argsort(x[:count])
        x[:count] = x[:count][order]
        index[:count] = index[:count][order]


@jit
def entmax_backward(start, stop, weights, cotangent, alpha, gradient):
    """Rows [start, stop) of g (v - mean_g(v)), g = p^(2 - alpha) on the support."""
    for r in range(start, stop):
        p, v, out = weights[r], cotangent[r], gradient[r]
        a = alpha[r if alpha.shape[0] > 1 else 0]
        if a == 2.0:
            _backward_flat(p, v, out)
        elif a == 1.5:
            _backward_root(p, v, out)
        else:
            _backward_power(p, v, a, out)


@jit
def _backward_flat(p, v, out):
    zero = type_of(p, 0.0)
    total, count = 0.0, 0.0
    for i in range(p.shape[0]):
        total += v[i] if p[i] > zero else zero
        count += 1.0 if p[i] > zero else 0.0
    mean = type_of(p, total / count if count else 0.0)
    for i in range(p.shape[0]):
        out[i] = v[i] - mean if p[i] > zero else p[i] * zero  # NaN weights stay NaN


@jit
def _backward_root(p, v, out):
    zero = type_of(p, 0.0)
    total, count = zero, zero
    for i in range(p.shape[0]):
        g = math.sqrt(p[i])
        total += g * v[i] if p[i] > zero else zero
        count += g
    mean = type_of(p, total / count if count else 0.0)
    for i in range(p.shape[0]):
        g = type_of(p, math.sqrt(p[i]))
        out[i] = g * (v[i] - mean) if p[i] > zero else p[i] * zero


@jit
def _backward_power(p, v, alpha, out):
    total, count, steepest, origin = 0.0, 0.0, 0.0, 0.0
    for i in range(p.shape[0]):
        out[i] = p[i] * 0.0
        if p[i] > 0.0:
            g = _slope(p[i], alpha)
            if g > steepest:  # one slope may dwarf the others: centred there, v keeps its digits
                steepest, origin = g, np.float64(v[i])
    for i in range(p.shape[0]):
        if p[i] > 0.0:
            g = _slope(p[i], alpha)
            total += g * (v[i] - origin)
            count += g
    mean = total / count if count > 0.0 else 0.0
    for i in range(p.shape[0]):
        if p[i] > 0.0:
            out[i] = _slope(p[i], alpha) * ((v[i] - origin) - mean)


@jit
def _slope(p, alpha):
    if alpha == 1.0:
        return np.float64(p)
    if alpha == np.inf:
        return 0.0
    return min(np.float64(p) ** (2.0 - alpha), _STEEPEST)  # tiny weights have huge slopes past 2


# --- normmax --------------------------------------------------------------------------------------


@jit
def normmax_forward(start, stop, scores, bits, alpha, weights):
    """Rows [start, stop) of normmax; ``alpha`` has one entry, or one per row."""
    size = scores.shape[1]
    d, powers = np.empty(size + LANES), np.empty(size + LANES)
    index = np.empty(size + LANES, np.int64)
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        exponent = 1.0 / (alpha[r if alpha.shape[0] > 1 else 0] - 1.0)
        top, spoiled = row_top(bits[r])
        if spoiled or top == -np.inf:
            out[:] = np.nan if spoiled else 0.0
            continue
        gamma = 1.0 + exponent
        count, sparse = _candidates(row, top, 1.0, gamma, d, index)
        if sparse:
            out[:] = 0.0
        s, count = _root(d, index, count, sparse, gamma, 1.0, powers)
        if exponent == 0.0:
            for j in range(count):
                powers[j] = 1.0 if d[j] < s else 0.0
        elif exponent == 1.0:
            for j in range(count):
                powers[j] = max(s - d[j], 0.0)
        elif exponent == 0.25:
            for j in range(count):
                powers[j] = math.sqrt(math.sqrt(max(s - d[j], 0.0)))
        else:
            rest_powers(d, count, s, exponent, powers)
        _write(powers, index, count, sparse, out)


@jit
def normmax_backward(start, stop, weights, cotangent, alpha, gradient):
    r"""Rows [start, stop) of :math:`(I - y 1^T) diag(\kappa) (I - 1 y^T) v` (see `normmax.vjp`)."""
    for r in range(start, stop):
        y, v, out = weights[r], cotangent[r], gradient[r]
        a = alpha[r if alpha.shape[0] > 1 else 0]
        top, mean = 0.0, 0.0
        for i in range(y.shape[0]):
            out[i] = y[i] * 0.0
            if y[i] > 0.0:
                top = max(top, np.float64(y[i]))
                mean += y[i] * v[i]
        if top == 0.0 or a == np.inf:
            continue
        mass = 0.0
        for i in range(y.shape[0]):
            if y[i] > 0.0:
                mass += (y[i] / top) ** a
        norm = top * mass ** (1.0 / a)
        total = 0.0
        for i in range(y.shape[0]):
            if y[i] > 0.0:
                kappa = norm * min((y[i] / norm) ** (2.0 - a), _STEEPEST) / (a - 1.0)
                out[i] = kappa * (v[i] - mean)
                total += kappa * (v[i] - mean)
        for i in range(y.shape[0]):
            if y[i] > 0.0:
                out[i] -= y[i] * total
