# mypy: ignore-errors
"""Compiled maps of short rows in float32: sixteen rows at a time, one in each lane of vectors.

Rows of some dozens of scores are too short for loops along them: most of the time would go into the
ends of loops. So a block of rows is turned, entry j of all rows side by side, see
`hopfy._kernels.attention.cpu_lanes`.
"""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.attention.cpu_lanes import (
    LANES,
    distances,
    newton_step,
    slopes,
    sums,
    through,
    tops,
    weights,
)
from hopfy._runtime.compilation import jit, part

__all__ = ["short_through", "short_weights"]

_MAX_STEPS = 60
_ZERO, _ONE = np.float32(0), np.float32(1)
_LARGEST = np.float32(np.finfo(np.float32).max)
_SETTLED = np.float32(5e-7)
_sums, _sums_1, _sums_2 = sums[0], sums[1], sums[2]
_weights, _weights_1, _weights_2 = weights[0], weights[1], weights[2]
_slopes, _slopes_1, _slopes_2 = slopes[0], slopes[1], slopes[2]


@part(fastmath={"contract"})
def _turn(rows, first, count, n, out):
    """``out[16 j + lane] = rows[first + lane, j]``; lanes without a row repeat the first."""
    for lane in range(LANES):
        row = rows[first + (lane if lane < count else 0)]
        for j in range(n):
            out[LANES * j + lane] = row[j]


@part(fastmath={"contract"})
def _turn_back(block, factor, first, count, n, rows):
    """The inverse of `_turn`, every lane times its factor."""
    for lane in range(count):
        row, own = rows[first + lane], factor[lane]
        for j in range(n):
            row[j] = block[LANES * j + lane] * own


@part(fastmath={"contract"})
def _mode(exponents):
    """1 or 2 if that is the exponent of all lanes, else 0."""
    for whole in (1, 2):
        same = True
        for lane in range(LANES):
            same = same and exponents[lane] == whole
        if same:
            return whole
    return 0


@part(fastmath={"contract"})
def _solve(x, n, lanes, gamma_mode, exponent_mode):
    """Weights in place of turned scores, up to the factor of each lane; False if not all are finite."""
    top, s, u, v, lower, exponent, scale, smallest, root = lanes
    tops(x, x, n, top, top, top, v)
    for lane in range(LANES):
        if v[lane] > _ZERO or top[lane] > _LARGEST:
            return False
    distances(x, x, n, top, scale, u, v)
    for lane in range(LANES):  # Jensen's inequality; exact where all distances are equal
        bound = u[lane] / np.float32(n) + smallest[lane]
        s[lane] = bound if bound < _ONE else _ONE
    for _ in range(_MAX_STEPS):
        if gamma_mode == 1:
            _sums_1(x, x, n, s, lower, u, v)
        elif gamma_mode == 2:
            _sums_2(x, x, n, s, lower, u, v)
        else:
            _sums(x, x, n, s, lower, u, v)
        if not newton_step(s, root, u, v) > _SETTLED:
            break
    if exponent_mode == 1:
        _weights_1(x, x, n, s, exponent, u, v)
    elif exponent_mode == 2:
        _weights_2(x, x, n, s, exponent, u, v)
    else:
        _weights(x, x, n, s, exponent, u, v)
    for lane in range(LANES):
        u[lane] = _ONE / u[lane] if u[lane] > _ZERO else _ZERO
    return True


@jit
def short_weights(start, stop, scores, alpha, norm):
    """Weights of the rows [start, stop) in place of their scores; a key out of sight has -inf.

    The same equation as in `hopfy._kernels.attention.cpu_select.select`. Returns False if some
    score is NaN or infinite: then nothing of it is to be used.
    """
    n = scores.shape[1]
    x = np.empty(n * LANES, np.float32)
    store = np.empty((10, LANES), np.float32)
    top, s, u, v, lower = store[0], store[1], store[2], store[3], store[4]
    exponent, scale, smallest, root = store[5], store[6], store[7], store[8]
    gamma = store[9]
    lanes = (top, s, u, v, lower, exponent, scale, smallest, root)
    gamma_mode = exponent_mode = 0
    for r in range(start, stop, LANES):
        count = min(LANES, stop - r)
        if r == start or alpha.size > 1:
            for lane in range(LANES):
                own = alpha[r + min(lane, count - 1) if alpha.size > 1 else 0]
                gamma[lane] = own / (own - 1.0) if norm else 1.0 / (own - 1.0)
                lower[lane], root[lane] = gamma[lane] - _ONE, _ONE - _ONE / gamma[lane]
                exponent[lane] = 1.0 / (own - 1.0)
                scale[lane] = 1.0 if norm else own - 1.0
                smallest[lane] = math.exp(-math.log(n) / gamma[lane])
            gamma_mode, exponent_mode = _mode(gamma), _mode(exponent)
        _turn(scores, r, count, n, x)
        if not _solve(x, n, lanes, gamma_mode, exponent_mode):
            return False
        _turn_back(x, u, r, count, n, scores)
    return True


@part(fastmath={"contract"})
def _through_norm(p, v, n, scale, total, mean):
    """The same for the normmax with alpha = 2: ``|p| (u - p sum(u))``, u = v - <p, v> on the support."""
    for lane in range(LANES):
        total[lane], mean[lane] = _ZERO, _ZERO
    for j in range(n):
        for lane in range(LANES):
            total[lane] += p[LANES * j + lane] * p[LANES * j + lane]
            mean[lane] += p[LANES * j + lane] * v[LANES * j + lane]
    for lane in range(LANES):
        total[lane] = math.sqrt(total[lane])
    lanes_sum = np.zeros(LANES, np.float32)
    for j in range(n):
        for lane in range(LANES):
            rest = v[LANES * j + lane] - mean[lane]
            rest = rest if p[LANES * j + lane] > _ZERO else _ZERO
            v[LANES * j + lane] = rest
            lanes_sum[lane] += rest
    for j in range(n):
        for lane in range(LANES):
            rest = v[LANES * j + lane] - p[LANES * j + lane] * lanes_sum[lane]
            v[LANES * j + lane] = total[lane] * rest * scale


@jit
def short_through(start, stop, weights, along, alpha, norm, scale):
    """Apply the Jacobian of every row at its weights to ``along``, in place, and scale the result.

    Entmax with 1 < alpha <= 2, or, with ``norm``, the normmax with alpha = 2.
    """
    n = weights.shape[1]
    p, v = np.empty(n * LANES, np.float32), np.empty(n * LANES, np.float32)
    store = np.empty((5, LANES), np.float32)
    power, total, mean, factor, unit = store[0], store[1], store[2], store[3], store[4]
    for lane in range(LANES):
        factor[lane], unit[lane] = scale, _ONE
    mode = 0
    for r in range(start, stop, LANES):
        count = min(LANES, stop - r)
        if r == start or alpha.size > 1:
            mode = 0
            for lane in range(LANES):
                own = alpha[r + min(lane, count - 1) if alpha.size > 1 else 0]
                power[lane] = 2.0 - own
            if alpha.size == 1 and alpha[0] == 2.0:
                mode = 1
            elif alpha.size == 1 and alpha[0] == 1.5:
                mode = 2
        _turn(weights, r, count, n, p)
        _turn(along, r, count, n, v)
        if norm:
            _through_norm(p, v, n, scale, total, mean)
        else:
            if mode == 1:
                _slopes_1(p, v, n, power, power, total, mean)
            elif mode == 2:
                _slopes_2(p, v, n, power, power, total, mean)
            else:
                _slopes(p, v, n, power, power, total, mean)
            for lane in range(LANES):
                mean[lane] = mean[lane] / total[lane] if total[lane] > _ZERO else _ZERO
            through(p, v, n, mean, factor, total, total)
        _turn_back(v, unit, r, count, n, along)
