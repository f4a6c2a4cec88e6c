# mypy: ignore-errors
r"""Compiled rows of maps given by the threshold equation.

The equation of `hopfy._kernels.threshold.reference`, in units of the scores: with distances
:math:`d_i = \max\theta - \theta_i` and the margin m, the root :math:`S \in (0, m]` of
:math:`\sum_i (S - d_i)_+^{\gamma} = m^{\gamma}`; the weights are proportional to
:math:`(S - d_i)_+^e`. Only candidates, :math:`d_i < m`, take part.

`solve` runs a map given by :math:`(\gamma, m, e)` over the rows of a tensor. Other kernels can call,
from compiled code:

* ``near_candidates(row, bits, margin, d, index)`` and, for rows of more than SHORT entries,
  ``far_candidates(row, bits, margin, lanes, d, index)``: the entries that can have weight, and an
  upper bound of S;
* ``root(d, index, count, s, gamma, margin, settled, powers)``: S, from an upper bound;
* ``cheap_step(d, padded, s, gamma, margin)``: one Newton step for :math:`\gamma` 1 or 2, and
  ``step(d, padded, s, gamma, margin, powers)``: the same for any :math:`\gamma \ge 1`;
* ``bounding_power(gamma)`` and ``bounding_step(d, count, s, power)``: steps to an upper bound of S.

``d`` has room for PADDING infinities after its ``count`` distances (`rows.scan.pad`). Pass counts as
int64 (``x.shape[0]``, not a constant): numba compiles a function anew for literal integers.
"""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.rows.calls import run_forward
from hopfy._kernels.rows.powers import rest_powers
from hopfy._kernels.rows.scan import (
    LANES,
    PADDING,
    collect,
    fill,
    gather_near,
    keep_below,
    pad,
    short_top,
    wide_tops,
)
from hopfy._runtime.compilation import inlined, jit, part

__all__ = [
    "SHORT",
    "bounding_power",
    "bounding_step",
    "cheap_step",
    "far_candidates",
    "near_candidates",
    "root",
    "settled_at",
    "short_rows",
    "solve",
    "step",
]

SHORT = 128  # in rows up to this size every entry is a candidate if powers are cheap
_STEPS = 200  # Newton needs a few; the limit only stops a loop that rounding keeps alive
_FEW = LANES // 4  # parts within the margin of the top: more of them, and a better bound pays
_SMALLEST = 1e-300
_MANY = 4 * LANES  # from this many candidates on it pays to drop those that are out of reach


def solve(scores, equation, weights=None):
    """Weights (..., N) of scores (..., N) for ``equation`` (1, 3) or (rows, 3) of float64.

    Its columns are gamma, the margin and the exponent of the weights. Rows with gamma = NaN are left
    as they are in ``weights``, which are new if not given.
    """
    gamma, _, exponent = equation[0].tolist()  # numbers of Python compare faster
    if len(equation) == 1 and gamma in (1.0, 2.0) and exponent in (1.0, 2.0):
        kernel = short_rows if scores.shape[-1] <= SHORT else _long_rows
    else:
        kernel = _any_short_rows if scores.shape[-1] < 2 * LANES else _any_long_rows
    return run_forward(kernel, scores, equation, weights)[0]


# --- gamma 1 and 2 --------------------------------------------------------------------------------


@jit
def short_rows(start, stop, scores, bits, equation, weights):
    """Rows of up to SHORT entries, gamma and the exponent 1 or 2, one equation for all rows.

    Newton runs in the row's own dtype over all entries: whole vectors of them cost less than
    choosing among them. The last sums, which make the weights add up to one, are float64.
    """
    gamma, margin, exponent = equation[0, 0], equation[0, 1], equation[0, 2]
    size = scores.shape[1]
    d = np.empty(size + PADDING, scores.dtype)
    settled = settled_at(scores, gamma) * margin
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        top, spoiled = short_top(bits[r])
        if spoiled or top == -np.inf:
            fill(out, np.nan if spoiled else 0.0)
            continue
        for i in range(size):
            d[i] = top - row[i]
        padded = pad(d, size)
        s = margin
        for _ in range(_STEPS):
            lower = cheap_step(d, padded, s, gamma, margin)
            if not lower < s:
                break
            change, s = s - lower, lower
            if change < settled:
                break
        total = 0.0
        for i in range(padded):
            u = s - d[i]
            u = u if u > 0.0 else 0.0
            total += u * u if exponent == 2.0 else u
        scale = 1.0 / total
        for i in range(size):
            u = s - d[i]
            u = u if u > 0.0 else 0.0
            out[i] = scale * (u * u if exponent == 2.0 else u)


@jit
def _long_rows(start, stop, scores, bits, equation, weights):
    """Rows of more than SHORT entries, gamma and the exponent 1 or 2, one equation for all rows."""
    gamma, margin, exponent = equation[0, 0], equation[0, 1], equation[0, 2]
    size = scores.shape[1]
    d, lanes = np.empty(size + PADDING), np.empty(LANES)
    index = np.empty(size + PADDING, np.int64)
    reach = np.float64(scores.dtype.type(margin))  # see `_reach`
    settled = settled_at(scores, gamma) * margin
    for r in range(start, stop):
        row, out = scores[r], weights[r]
        top, spoiled = wide_tops(bits[r], lanes)
        fill(out, np.nan if spoiled else 0.0)
        if spoiled or top == -np.inf:
            continue
        s = reach
        if _parts_within(np.float64(top), lanes, s) > _FEW:
            bound = cheap_step(lanes, lanes.shape[0], s, gamma, margin) * (1.0 + 1e-9)
            s = bound if bound < s else s
        count = collect(row, np.float64(top), s, d, index)
        s, count = root(d, index, count, s, gamma, margin, settled, None)
        padded = pad(d, count)
        total = 0.0
        for j in range(padded):
            u = s - d[j]
            u = u if u > 0.0 else 0.0
            d[j] = u * u if exponent == 2.0 else u
            total += d[j]
        scale = 1.0 / total
        for j in range(count):
            out[index[j]] = d[j] * scale


@inlined
def settled_at(scores, gamma):
    """The step, in margins, after which another one would not show in the row's dtype."""
    single = scores.itemsize == 4
    if gamma == 1.0:  # piecewise linear: the steps end by themselves
        settled = 1e-7 if single else 1e-15
    elif gamma >= 2.0:
        settled = 1e-5 if single else 1e-9
    else:
        settled = 1e-6 if single else 1e-11
    return settled


@inlined
def _parts_within(top, lanes, s):
    """Turn the maxima of a row's parts into distances; return how many lie within s of the top."""
    near = 0
    for j in range(LANES):
        lanes[j] = top - lanes[j]
        near += np.int64(lanes[j] < s)
    return near


@part
def cheap_step(d, padded, s, gamma, margin):
    r"""One step for :math:`\|(S - d)_+\|_\gamma = m`, gamma 1 or 2, in the dtype of ``d``."""
    edge, zero = d.dtype.type(s), d.dtype.type(0.0)
    total = zero
    if gamma == 1.0:
        inside = np.int32(0)
        for j in range(padded):
            u = edge - d[j]
            inside += np.int32(u > zero)
            total += u if u > zero else zero
        return s - (np.float64(total) - margin) / np.float64(inside)
    first = zero
    for j in range(padded):
        u = edge - d[j]
        u = u if u > zero else zero
        first += u
        total += u * u
    return s - (np.float64(total) - margin * math.sqrt(np.float64(total))) / np.float64(first)


# --- any gamma >= 1 -------------------------------------------------------------------------------


@jit
def _any_short_rows(start, stop, scores, bits, equation, weights):
    """Rows of fewer than two entries per lane, with an equation for all rows or one for each."""
    size = scores.shape[1]
    d, powers = np.empty(size + PADDING), np.empty(size + PADDING)
    index = np.empty(size + PADDING, np.int64)
    for r in range(start, stop):
        e = r if equation.shape[0] > 1 else 0
        gamma, margin, exponent = equation[e, 0], equation[e, 1], equation[e, 2]
        if gamma != gamma:
            continue
        count, s = near_candidates(scores[r], bits[r], margin, d, index)
        settled = settled_at(scores, gamma) * margin
        _weigh(d, index, count, s, gamma, margin, exponent, settled, powers, weights[r])


@jit
def _any_long_rows(start, stop, scores, bits, equation, weights):
    """The same for longer rows, in which the maxima of the row's parts rule many entries out."""
    size = scores.shape[1]
    d, powers = np.empty(size + PADDING), np.empty(size + PADDING)
    index, lanes = np.empty(size + PADDING, np.int64), np.empty(LANES)
    for r in range(start, stop):
        e = r if equation.shape[0] > 1 else 0
        gamma, margin, exponent = equation[e, 0], equation[e, 1], equation[e, 2]
        if gamma != gamma:
            continue
        row, s = scores[r], _reach(scores, margin)
        top, spoiled = wide_tops(bits[r], lanes)
        count = np.int64(-1 if spoiled else 0)
        if not spoiled and top > -np.inf:
            if _parts_within(np.float64(top), lanes, s) > _FEW and gamma <= 4.0:
                bound = _part_step(lanes, size, s, gamma, margin, powers) * (1.0 + 1e-9)
                s = bound if _SMALLEST < bound < s else s
            count = collect(row, np.float64(top), s, d, index)
        settled = settled_at(scores, gamma) * margin
        _weigh(d, index, count, s, gamma, margin, exponent, settled, powers, weights[r])


@part
def _part_step(lanes, size, s, gamma, margin, powers):
    """A step on the maxima of the parts of a row, which gives an upper bound of S.

    So does a larger exponent: 2 or 4 where the powers would cost more than they rule out.
    """
    if gamma <= 2.0:
        return cheap_step(lanes, lanes.shape[0], s, 1.0 if gamma == 1.0 else 2.0, margin)
    if size <= SHORT:
        return _fourth_step(lanes, lanes.shape[0], s, margin)
    return step(lanes, lanes.shape[0], s, gamma, margin, powers)


@inlined
def _reach(scores, margin):
    """The margin in the row's own dtype: a gap equal to the rounded margin counts as the margin.

    It is not zero, so that the maxima always belong.
    """
    s = np.float64(scores.dtype.type(margin))
    return s if s > _SMALLEST else _SMALLEST


@inlined
def near_candidates(row, bits, margin, d, index):
    """Fill ``d`` and ``index`` with what lies within the margin of the top, in a short row.

    Returns how many, and a bound of S. The number is 0 where the row holds -inf only, and -1 where
    NaN or +inf are in it.
    """
    s = _reach(row, margin)
    top, spoiled = short_top(bits)
    count = np.int64(-1 if spoiled else 0)
    if not spoiled and top > -np.inf:
        count = gather_near(row, np.float64(top), s, d, index)
    return count, s


@inlined
def far_candidates(row, bits, margin, lanes, d, index):
    """`near_candidates` of a long row, where gamma = 1.

    Leaving entries out of the equation raises its root: a step on the maxima of the row's parts rules
    out much of what the margin alone would let through.
    """
    s = _reach(row, margin)
    top, spoiled = wide_tops(bits, lanes)
    count = np.int64(-1 if spoiled else 0)
    if not spoiled and top > -np.inf:
        if _parts_within(np.float64(top), lanes, s) > _FEW:
            bound = cheap_step(lanes, lanes.shape[0], s, 1.0, margin) * (1.0 + 1e-9)
            s = bound if _SMALLEST < bound < s else s
        count = collect(row, np.float64(top), s, d, index)
    return count, s


@part
def _weigh(d, index, count, s, gamma, margin, exponent, settled, powers, out):
    """Write the weights of the candidates, and zeros elsewhere; NaN everywhere if count is -1."""
    fill(out, np.nan if count < 0 else 0.0)
    if count > 0:
        s, count = root(d, index, count, s, gamma, margin, settled, powers)
        padded = pad(d, count)
        _power_weights(d, padded, s, exponent, powers)
        total = 0.0
        for j in range(padded):
            total += powers[j]
        scale = 1.0 / total
        for j in range(count):
            out[index[j]] = powers[j] * scale


@part
def root(d, index, count, s, gamma, margin, settled, powers):
    """Root S of the threshold equation for gamma >= 1, from an upper bound of it; also the count.

    Newton from the right, by `step`, or by `cheap_step` if ``powers`` is None. As S only moves down,
    candidates that fall outside can be dropped for good. Convergence is quadratic: a step below
    ``settled`` is the last.
    """
    padded = pad(d, count)
    for trial in range(_STEPS):
        if powers is None:
            lower = cheap_step(d, padded, s, gamma, margin)
        else:
            lower = step(d, padded, s, gamma, margin, powers)
        if not lower < s:
            break
        change, s = s - lower, lower
        if change < settled:
            break
        if trial < 2 and count > _MANY:
            count = keep_below(d, index, count, s)
            padded = pad(d, count)
    return s, count


@part
def step(d, padded, s, gamma, margin, powers):
    r"""One step for :math:`\|(S - d)_+\|_\gamma = m`: the norm is convex and nearly linear in S."""
    if gamma == 1.0 or gamma == 2.0:
        return cheap_step(d, padded, s, gamma, margin)
    if gamma == 4.0:
        return _fourth_step(d, padded, s, margin)
    first, total = 0.0, 0.0
    if gamma == 1.25:
        for j in range(padded):
            u = s - d[j]
            u = u if u > 0.0 else 0.0
            w = math.sqrt(math.sqrt(u))
            first += w
            total += w * u
        return s - (total - margin * total**0.2) / first
    rest_powers(d, padded, s, gamma - 1.0, powers)
    for j in range(padded):
        u = 1.0 - d[j] / s
        first += powers[j]
        total += powers[j] * (u if u > 0.0 else 0.0)
    return s * (1.0 - total / first) + margin * total ** (1.0 - 1.0 / gamma) / first


@part
def _fourth_step(d, padded, s, margin):
    """`step` for gamma = 4, in the dtype of ``d``."""
    edge, zero = d.dtype.type(s), d.dtype.type(0.0)
    first, total = zero, zero
    for j in range(padded):
        u = edge - d[j]
        u = u if u > zero else zero
        first += u * u * u
        total += (u * u) * (u * u)
    half = math.sqrt(np.float64(total))
    return s - (np.float64(total) - margin * half * math.sqrt(half)) / np.float64(first)


# --- bounds ---------------------------------------------------------------------------------------


@part
def bounding_power(gamma):
    """An exponent of at least gamma whose powers are cheap; 0 if there is none.

    A larger exponent raises the root, so that it gives an upper bound.
    """
    if gamma <= 1.0:
        return 1
    if gamma <= 2.0:
        return 2
    if gamma <= 4.0:
        return 4
    return 16 if gamma <= 16.0 else 0


@part
def bounding_step(d, count, s, power):
    """One step for ``sum((S - d)_+ ** power) = 1``, in the dtype of ``d``; power 1, 2, 4 or 16."""
    if power <= 2:
        lower = cheap_step(d, count, s, np.float64(power), 1.0)
    elif power == 4:
        lower = _fourth_step(d, count, s, 1.0)
    else:
        edge, zero = d.dtype.type(s), d.dtype.type(0.0)
        first, total = zero, zero
        for j in range(count):
            u = edge - d[j]
            u = u if u > zero else zero
            second = u * u
            fourth = second * second
            eighth = fourth * fourth
            first += u * second * fourth * eighth
            total += eighth * eighth
        whole = np.float64(total)
        lower = s - (whole - whole ** (1.0 - 1.0 / 16.0)) / np.float64(first)
    return lower if lower < s else s


@inlined
def _power_weights(d, padded, s, exponent, powers):
    """``(S - d)_+^exponent``, up to a common factor."""
    if exponent == 4.0:
        for j in range(padded):
            u = s - d[j]
            powers[j] = (u * u) * (u * u) if u > 0.0 else 0.0
    elif exponent == 0.25:
        for j in range(padded):
            u = s - d[j]
            powers[j] = math.sqrt(math.sqrt(u if u > 0.0 else 0.0))
    else:
        rest_powers(d, padded, s, exponent, powers)
