# mypy: ignore-errors
r"""Compiled rows of entmax and normmax, forward and backward.

Both maps solve the threshold equation of `hopfy._kernels.threshold.reference`, here in units of the scores:
with distances :math:`d_i = \max\theta - \theta_i` and the margin m, the root :math:`S \in (0, m]` of
:math:`\sum_i (S - d_i)_+^{\gamma} = m^{\gamma}`. Only candidates, :math:`d_i < m`, take part; they and
all that follows are float64 whatever the dtype of the row.
"""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.row_tools import (
    LANES,
    PADDING,
    collect,
    exp_of,
    keep_below,
    pad,
    powers_of,
    rest_powers,
    row_tops,
    support,
    type_of,
)
from hopfy._runtime.compilation import jit

__all__ = ["entmax_backward", "entmax_forward", "normmax_backward", "normmax_forward"]

_STEPS = 200  # Newton needs a few; the limit only stops a loop that rounding keeps alive
_STEEPEST = 1e150  # keeps products of slopes finite
_FEW = LANES // 4  # parts within the margin of the top: more of them, and a better bound pays
_SHORT = 128  # in rows up to this size, and with cheap powers, every entry is a candidate
_MANY = 4 * LANES  # from this many candidates on it pays to drop those that are out of reach


# --- the threshold equation -----------------------------------------------------------------------


@jit(forceinline=True)
def _candidates(row, top, lanes, gamma, margin, d, index):
    """Fill ``d`` and ``index`` with what can be in the support; return their number and a bound of S.

    Leaving entries out of the equation raises its root, and so does a larger exponent: a step on the
    maxima of the row's parts rules out much of what the margin alone would let through.
    """
    # In the row's own dtype, so that a gap equal to the rounded margin counts as the margin.
    s = np.float64(type_of(row, margin))
    near = 0
    for j in range(LANES):
        lanes[j] = np.float64(top) - lanes[j]
        near += np.int64(lanes[j] < s)
    easier = 1.0 if gamma <= 1.0 else (2.0 if gamma <= 2.0 else 4.0)
    if near > _FEW and gamma <= 4.0:
        first, total = _power_sums(lanes, LANES, s, easier, lanes)
        s = min(s, _newton(s, first, total, easier, margin) * (1.0 + 1e-9))
    return collect(row, top, max(s, 1e-300), d, index), s


@jit(forceinline=True)
def _root(d, index, count, s, gamma, margin, settled, powers):
    """Root S of the threshold equation for gamma >= 1, from an upper bound of it; also the count.

    Newton from the right, see `_newton`. As S only moves down, candidates that fall outside can be
    dropped for good. Convergence is quadratic: a step below ``settled`` margins is the last.
    """
    padded = pad(d, count)
    for trial in range(_STEPS):
        first, total = _power_sums(d, padded, s, gamma, powers)
        lower = _newton(s, first, total, gamma, margin)
        if not lower < s:
            break
        step, s = s - lower, lower
        if step < settled * margin:
            break
        if trial < 2 and count > _MANY:
            count = keep_below(d, index, count, s)
            padded = pad(d, count)
    return s, count


@jit(forceinline=True)
def _settled(row, gamma):
    """The step, in margins, after which another one would not show in the row's dtype."""
    single = row.itemsize == 4
    if gamma == 1.0:
        return 1e-7 if single else 1e-15  # piecewise linear: the steps end by themselves
    if single:
        return 1e-5 if gamma >= 2.0 else 1e-6
    return 1e-9 if gamma >= 2.0 else 1e-11


@jit(forceinline=True)
def _newton(s, first, total, gamma, margin):
    r"""One step for :math:`\|(S - d)_+\|_\gamma = m`: the norm is convex and nearly linear in S.

    ``first`` and ``total`` are the sums of `_power_sums`.
    """
    if gamma == 1.0:
        return s - (total - margin) / first
    if gamma == 2.0:
        return s - (total - margin * math.sqrt(total)) / first
    if gamma == 4.0:
        root = math.sqrt(total)
        return s - (total - margin * root * math.sqrt(root)) / first
    if gamma == 1.25:
        return s - (total - margin * total**0.2) / first
    return s * (1.0 - total / first) + margin * total ** (1.0 - 1.0 / gamma) / first


@jit(forceinline=True)
def _power_sums(d, padded, s, gamma, powers):
    """Sums of u^(gamma-1) and u^gamma over u = S - d > 0, or, if not cheap, over u = 1 - d / S."""
    first, total = 0.0, 0.0
    if gamma == 1.0:
        inside = 0
        for j in range(padded):
            u = s - d[j]
            inside += np.int64(u > 0.0)
            total += u if u > 0.0 else 0.0
        return float(inside), total
    if gamma == 2.0:
        for j in range(padded):
            u = s - d[j]
            u = u if u > 0.0 else 0.0
            first += u
            total += u * u
    elif gamma == 4.0:
        for j in range(padded):
            u = s - d[j]
            u = u if u > 0.0 else 0.0
            first += u * u * u
            total += (u * u) * (u * u)
    elif gamma == 1.25:
        for j in range(padded):
            u = s - d[j]
            u = u if u > 0.0 else 0.0
            w = math.sqrt(math.sqrt(u))
            first += w
            total += w * u
    else:
        rest_powers(d, padded, s, gamma - 1.0, powers)
        for j in range(padded):
            u = 1.0 - d[j] / s
            first += powers[j]
            total += powers[j] * (u if u > 0.0 else 0.0)
    return first, total


@jit(forceinline=True)
def _power_weights(d, padded, s, exponent, powers):
    """``(S - d)_+^exponent``, up to a common factor."""
    if exponent == 0.0:
        for j in range(padded):
            powers[j] = 1.0 if d[j] < s else 0.0
    elif exponent == 1.0:
        for j in range(padded):
            u = s - d[j]
            powers[j] = u if u > 0.0 else 0.0
    elif exponent == 2.0:
        for j in range(padded):
            u = s - d[j]
            powers[j] = u * u if u > 0.0 else 0.0
    elif exponent == 4.0:
        for j in range(padded):
            u = s - d[j]
            powers[j] = (u * u) * (u * u) if u > 0.0 else 0.0
    elif exponent == 0.25:
        for j in range(padded):
            u = s - d[j]
            powers[j] = math.sqrt(math.sqrt(u if u > 0.0 else 0.0))
    else:
        rest_powers(d, padded, s, exponent, powers)


@jit
def _write(powers, index, count, padded, out):
    """Put the powers, scaled to sum to one, where they belong; ``out`` is zero so far."""
    total = 0.0
    for j in range(padded):
        total += powers[j]
    scale = 1.0 / total
    for j in range(count):
        out[index[j]] = powers[j] * scale


@jit(forceinline=True)
def _weigh(row, top, lanes, gamma, margin, exponent, scratch, short, out):
    """A row whose weights are proportional to ``(S - d)_+^exponent``, by the quickest way."""
    is_short = row.shape[0] <= _SHORT
    # Written-out constants: the compiler makes loops of their own for the two commonest maps.
    if gamma == 1.0 and exponent == 1.0:
        if is_short:
            _short_row(row, top, 1.0, 1.0, 1.0, short, out)
        else:
            _sparse_row(row, top, lanes, 1.0, 1.0, 1.0, scratch, out)
    elif gamma == 2.0 and exponent == 2.0:
        if is_short:
            _short_row(row, top, 2.0, 2.0, 2.0, short, out)
        else:
            _sparse_row(row, top, lanes, 2.0, 2.0, 2.0, scratch, out)
    elif is_short and gamma == 2.0:
        _short_row(row, top, 2.0, 1.0, 1.0, short, out)
    else:
        _sparse_row(row, top, lanes, gamma, margin, exponent, scratch, out)


@jit(forceinline=True)
def _sparse_row(row, top, lanes, gamma, margin, exponent, scratch, out):
    """Gather candidates, solve for them, and scatter their weights."""
    d, powers, index = scratch
    count, s = _candidates(row, top, lanes, gamma, margin, d, index)
    out[:] = 0.0
    s, count = _root(d, index, count, s, gamma, margin, _settled(row, gamma), powers)
    padded = pad(d, count)
    _power_weights(d, padded, s, exponent, powers)
    _write(powers, index, count, padded, out)


@jit(forceinline=True)
def _short_row(row, top, gamma, margin, exponent, d, out):
    """The same without gathering, in the row's own dtype, for gamma 1 or 2 and exponent 1 or 2.

    Whole vectors of entries cost less than choosing among them.
    """
    size = row.shape[0]
    for i in range(size):
        d[i] = top - row[i]
    padded = pad(d, size)
    s = margin
    for _ in range(_STEPS):
        first, total = _short_sums(d, padded, type_of(row, s), gamma)
        lower = _newton(s, np.float64(first), np.float64(total), gamma, margin)
        if not lower < s:
            break
        step, s = s - lower, lower
        if step < _settled(row, gamma) * margin:
            break
    zero, edge = type_of(row, 0.0), type_of(row, s)
    scale = type_of(row, 1.0)
    if gamma != 1.0:  # otherwise they sum to one already
        scale /= _short_sums(d, padded, edge, exponent)[1]
    for i in range(size):
        u = edge - d[i] if edge > d[i] else zero
        out[i] = scale * (u * u if exponent == 2.0 else u)


@jit(forceinline=True)
def _short_sums(d, padded, s, gamma):
    """`_power_sums` in the dtype of ``d``, for gamma 1 or 2."""
    zero = type_of(d, 0.0)
    first, total, inside = zero, zero, np.int32(0)
    for i in range(padded):
        u = s - d[i]
        u = u if u > zero else zero
        inside += np.int32(u > zero)
        first += u
        total += u * u if gamma == 2.0 else u
    return (type_of(d, inside) if gamma == 1.0 else first), total


@jit
def _scratch(size):
    return np.empty(size + PADDING), np.empty(size + PADDING), np.empty(size + PADDING, np.int64)


# --- entmax ---------------------------------------------------------------------------------------


@jit
def entmax_forward(start, stop, scores, bits, alpha, weights):
    """Rows [start, stop) of entmax; ``alpha`` has one entry, or one per row."""
    scratch, lanes = _scratch(scores.shape[1]), np.empty(LANES)
    short = np.empty(_SHORT + PADDING, scores.dtype)
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        a = alpha[r if alpha.shape[0] > 1 else 0]
        top, spoiled = row_tops(row, bits[r], lanes)
        if spoiled or top == -np.inf:
            out[:] = np.nan if spoiled else 0.0
        elif a == 1.0:
            _softmax_row(row, top, scratch[1], out)
        elif a <= 2.0:
            gamma = 1.0 / (a - 1.0)
            _weigh(row, top, lanes, gamma, gamma, gamma, scratch, short, out)
        else:
            _entmax_concave(row, top, lanes, a, scratch, out)


@jit(fastmath={"contract"})
def _softmax_row(row, top, powers, out):
    total = 0.0
    for i in range(row.shape[0]):
        powers[i] = exp_of(np.float64(row[i]) - np.float64(top))
    for i in range(row.shape[0]):
        total += powers[i]
    for i in range(row.shape[0]):
        out[i] = powers[i] / total


@jit
def _entmax_concave(row, top, lanes, alpha, scratch, out):
    """alpha > 2: Newton for the smallest positive weight (see `entmax`); infinity shares the top."""
    a = alpha - 1.0
    margin = 1.0 / a
    d, powers, index = scratch
    # u^(1/a) >= u for u <= 1, so the support lies inside sparsemax's.
    count, s = _candidates(row, top, lanes, 1.0, margin, d, index)
    out[:] = 0.0
    if count == 1 or alpha == np.inf:
        for j in range(count):
            out[index[j]] = 1.0 / count
        return
    s, count = _root(d, index, count, s, 1.0, margin, 1e-15, powers)
    count = keep_below(d, index, count, s)
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
    size = weights.shape[1]
    x, g, index = _scratch(size)
    for r in range(start, stop):
        p, v, out = weights[r], cotangent[r], gradient[r]
        a = alpha[r if alpha.shape[0] > 1 else 0]
        spoiled = p[0] != p[0]
        out[:] = np.nan if spoiled else 0.0
        if spoiled or a == np.inf:
            continue
        count = support(p, index)
        _gather(p, index, count, x)
        _slopes(x, count, 2.0 - a, g)
        _gather(v, index, count, x)
        origin = x[_steepest(g, count)] if count else 0.0
        total, mass = 0.0, 0.0
        for j in range(count):
            total += g[j] * (x[j] - origin)
            mass += g[j]
        mean = total / mass
        for j in range(count):
            out[index[j]] = g[j] * ((x[j] - origin) - mean)


@jit
def _gather(row, index, count, x):
    for j in range(count):
        x[j] = row[index[j]]


@jit
def _slopes(p, count, exponent, g):
    if exponent == 0.0:
        g[:count] = 1.0
    elif exponent == 1.0:
        g[:count] = p[:count]
    elif exponent == 0.5:
        for j in range(count):
            g[j] = math.sqrt(p[j])
    else:
        pad(p, count)
        powers_of(p, count, exponent, g)
        for j in range(count):
            g[j] = min(g[j], _STEEPEST)  # tiny weights have huge slopes past alpha = 2


@jit
def _steepest(g, count):
    """One slope may dwarf the others: centred there, the cotangent keeps its digits."""
    best = 0
    for j in range(count):
        best = j if g[j] > g[best] else best
    return best


# --- normmax --------------------------------------------------------------------------------------


@jit
def normmax_forward(start, stop, scores, bits, alpha, weights):
    """Rows [start, stop) of normmax; ``alpha`` has one entry, or one per row."""
    scratch, lanes = _scratch(scores.shape[1]), np.empty(LANES)
    short = np.empty(_SHORT + PADDING, scores.dtype)
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        exponent = 1.0 / (alpha[r if alpha.shape[0] > 1 else 0] - 1.0)
        top, spoiled = row_tops(row, bits[r], lanes)
        if spoiled or top == -np.inf:
            out[:] = np.nan if spoiled else 0.0
        else:
            _weigh(row, top, lanes, 1.0 + exponent, 1.0, exponent, scratch, short, out)


@jit
def normmax_backward(start, stop, weights, cotangent, alpha, gradient):
    r"""Rows [start, stop) of :math:`(I - y 1^T) diag(\kappa) (I - 1 y^T) v` (see `normmax.vjp`)."""
    size = weights.shape[1]
    y, kappa, index = _scratch(size)
    v = np.empty(size)
    for r in range(start, stop):
        out = gradient[r]
        a = alpha[r if alpha.shape[0] > 1 else 0]
        spoiled = weights[r, 0] != weights[r, 0]
        out[:] = np.nan if spoiled else 0.0
        if spoiled or a == np.inf:
            continue
        count = support(weights[r], index)
        _gather(weights[r], index, count, y)
        _gather(cotangent[r], index, count, v)
        _curvatures(y, count, a, kappa)
        mean, total = 0.0, 0.0
        for j in range(count):
            mean += y[j] * v[j]
        for j in range(count):
            kappa[j] *= v[j] - mean
            total += kappa[j]
        for j in range(count):
            out[index[j]] = kappa[j] - y[j] * total


@jit
def _curvatures(y, count, alpha, kappa):
    r""":math:`\kappa = \|y\|_\alpha (y / \|y\|_\alpha)^{2 - \alpha} / (\alpha - 1)`."""
    top, mass = 0.0, 0.0
    for j in range(count):
        top = max(top, y[j])
    if alpha == 2.0:
        for j in range(count):
            mass += y[j] * y[j]
        kappa[:count] = math.sqrt(mass)
        return
    for j in range(count):
        y[j] /= top
    pad(y, count)
    powers_of(y, count, alpha, kappa)
    for j in range(count):
        mass += kappa[j]
    norm = mass ** (1.0 / alpha)  # in units of the top
    powers_of(y, count, 2.0 - alpha, kappa)
    factor = top * norm ** (alpha - 1.0) / (alpha - 1.0)
    for j in range(count):
        kappa[j] = factor * min(kappa[j], _STEEPEST)
        y[j] *= top
