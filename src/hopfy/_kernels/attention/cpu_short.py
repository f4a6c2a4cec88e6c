# mypy: ignore-errors
"""Compiled maps of short rows in float32: sixteen rows at a time, one in each lane of vectors.

Rows of some dozens of scores are too short for loops along them: most of the time would go into the
ends of loops. So a block of rows is turned, entry j of all rows side by side, see
`hopfy._kernels.attention.cpu_lanes`.
"""

from __future__ import annotations

import math

import numpy as np

from hopfy._kernels.attention import cpu_lanes
from hopfy._kernels.attention.cpu_lanes import (
    LANES,
    distances,
    first_step,
    moments,
    newton_step,
    norm_slopes,
    slopes,
    sums,
    through,
    tops,
    weights,
)
from hopfy._kernels.attention.cpu_transpose import turn, turn_back
from hopfy._runtime.compilation import jit, part

__all__ = ["norm_through", "short_through", "short_weights"]

_MAX_STEPS = 60
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_LARGEST = np.float32(np.finfo(np.float32).max)
_SETTLED, _SETTLED_IF_SMOOTH = np.float32(5e-7), np.float32(1e-4)
_sums, _sums_1, _sums_2 = sums[0], sums[1], sums[2]
_weights, _weights_1, _weights_2 = weights[0], weights[1], weights[2]
_moments, _moments_1 = moments[0], moments[1]
_norm_slopes, _norm_slopes_1 = norm_slopes[0], norm_slopes[1]
_norm_through = cpu_lanes.norm_through
_slopes, _slopes_1, _slopes_2 = slopes[0], slopes[1], slopes[2]


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
def _guess(s, n, first, second, lower, smallest):
    """Close to the root s, from the sums of distances and of their squares.

    ``n ((s - mean)^gamma + gamma (gamma - 1) / 2 (s - mean)^(gamma - 2) variance) = 1`` to first
    order. Without the variance it is an upper bound (Jensen); equal distances, a lower one.
    """
    for lane in range(LANES):
        mean = first[lane] / np.float32(n)
        spread = max(second[lane] / np.float32(n) - mean * mean, _ZERO)
        bound = smallest[lane] + mean
        guess = bound - _HALF * lower[lane] * spread / smallest[lane]
        guess = guess if guess > smallest[lane] else smallest[lane]
        s[lane] = guess if bound < _ONE else _ONE


@part(fastmath={"contract"})
def _solve(x, n, lanes, gamma_mode, exponent_mode):
    """Weights in place of turned scores, up to the factor of each lane; False if not all are finite."""
    top, s, u, v, lower, exponent, scale, smallest, root = lanes
    tops(x, x, n, top, top, top, v)
    for lane in range(LANES):
        if v[lane] > _ZERO or top[lane] > _LARGEST:
            return False
    distances(x, x, n, top, scale, u, v)
    _guess(s, n, u, v, lower, smallest)
    # The norm of the rests bends little where gamma >= 2: an error after a step is less than its square.
    settled = _SETTLED
    if gamma_mode != 1 and min(lower) >= _ONE:
        settled = _SETTLED_IF_SMOOTH
    for trial in range(_MAX_STEPS):
        if gamma_mode == 1:
            _sums_1(x, x, n, s, lower, u, v)
        elif gamma_mode == 2:
            _sums_2(x, x, n, s, lower, u, v)
        else:
            _sums(x, x, n, s, lower, u, v)
        step = first_step(s, root, u, v) if trial == 0 else newton_step(s, root, u, v)
        if not step > settled:
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
        turn(scores, r, count, n, x)
        if not _solve(x, n, lanes, gamma_mode, exponent_mode):
            return False
        turn_back(x, u, r, count, n, scores)
    return True


@jit
def short_through(start, stop, weights, along, alpha, scale):
    """Apply the Jacobian of entmax, 1 < alpha <= 2, to ``along``, in place, and scale the result."""
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
        turn(weights, r, count, n, p)
        turn(along, r, count, n, v)
        if mode == 1:
            _slopes_1(p, v, n, power, power, total, mean)
        elif mode == 2:
            _slopes_2(p, v, n, power, power, total, mean)
        else:
            _slopes(p, v, n, power, power, total, mean)
        for lane in range(LANES):
            mean[lane] = mean[lane] / total[lane] if total[lane] > _ZERO else _ZERO
        through(p, v, n, mean, factor, total, total)
        turn_back(v, unit, r, count, n, along)


@jit
def norm_through(start, stop, weights, along, alpha, scale):
    r"""The same for normmax: :math:`\|p\|^{\alpha-1} (u - p \sum u) / (\alpha - 1)`.

    Here :math:`u = p^{2-\alpha} (v - \langle p, v\rangle)` on the support.
    """
    n = weights.shape[1]
    p, v = np.empty(n * LANES, np.float32), np.empty(n * LANES, np.float32)
    store = np.empty((5, LANES), np.float32)
    whole, power, total, mean, factor = store[0], store[1], store[2], store[3], store[4]
    square = alpha.size == 1 and alpha[0] == 2.0
    for r in range(start, stop, LANES):
        count = min(LANES, stop - r)
        for lane in range(LANES):
            whole[lane] = alpha[r + min(lane, count - 1) if alpha.size > 1 else 0]
            power[lane] = 2.0 - whole[lane]
        turn(weights, r, count, n, p)
        turn(along, r, count, n, v)
        if square:
            _moments_1(p, v, n, whole, whole, total, mean)
        else:
            _moments(p, v, n, whole, whole, total, mean)
        for lane in range(LANES):
            own = np.float64(whole[lane])
            norm = math.sqrt(total[lane]) if square else total[lane] ** (1.0 - 1.0 / own)
            factor[lane] = scale * norm / (own - 1.0)
        if square:
            _norm_slopes_1(p, v, n, mean, power, total, whole)
        else:
            _norm_slopes(p, v, n, mean, power, total, whole)
        _norm_through(p, v, n, total, factor, whole, whole)
        for lane in range(LANES):
            factor[lane] = _ONE
        turn_back(v, factor, r, count, n, along)
