# mypy: ignore-errors
"""Compiled maps of short float32 rows whose equation is not convex, sixteen rows at a time.

Entmax with alpha > 2, where ``sum((s - x)_+ ** gamma) = 1`` has gamma < 1, and k-subsets, where
``sum(min(1, (s - x)_+)) = k``. Both sums rise with s: Newton steps inside a bracket. Close to the edge
of the support a rounding of s would show in the weights (gamma = 1/2 makes 2e-4 of 6e-8). So the
distances are shifted by the first root, which is exact close to it, and the equation is solved
again for the small remainder.
"""

from __future__ import annotations

import numpy as np

from hopfy._kernels.attention.cpu_lanes import (
    LANES,
    LARGEST,
    bracketed_step,
    capped_through,
    caps,
    centers,
    distances,
    largest,
    rises,
    slopes,
    spans,
    steepest,
    steps,
    through,
    tops,
)
from hopfy._kernels.attention.cpu_transpose import turn, turn_back
from hopfy._runtime.compilation import jit, part

__all__ = ["short_steep", "short_subsets", "steep_through", "subsets_through"]

_MAX_STEPS = 80
_ZERO, _HALF, _ONE = np.float32(0), np.float32(0.5), np.float32(1)
_TOO_LARGE = np.float32(np.finfo(np.float32).max)
_STEEP, _CUBIC, _SUBSETS = 0, 1, 2  # modes of the passes
_steps, _steps_1, _steps_2 = steps[0], steps[1], steps[2]
_rises, _rises_1, _rises_2 = rises[0], rises[1], rises[2]
_slopes = slopes[0]


@part(fastmath={"contract"})
def _root(x, n, mode, lanes):
    """Solve for the s of every lane, between low and high."""
    s, low, high, target, power, u, v = lanes
    for _ in range(_MAX_STEPS):
        if mode == 1:
            _steps_1(x, x, n, s, power, u, v)
        elif mode == 2:
            _steps_2(x, x, n, s, power, u, v)
        else:
            _steps(x, x, n, s, power, u, v)
        if not bracketed_step(s, low, high, target, u, v):
            break


@part(fastmath={"contract"})
def _solve(x, n, mode, lanes, start, minus):
    """`_root`, then again around it: the distances x are shifted by what is left in ``start``."""
    s, low, high, _, _, u, v = lanes
    _root(x, n, mode, lanes)
    for lane in range(LANES):
        start[lane] = s[lane]
    distances(x, x, n, start, minus, u, v)
    for lane in range(LANES):
        room = np.float32(1e-4) * (_ONE + abs(start[lane]))
        low[lane] = -room
        high[lane] = min(room, _ONE - start[lane]) if mode != 2 else room
        s[lane] = _ZERO
    _root(x, n, mode, lanes)


@jit
def short_steep(start, stop, scores, alpha):
    """Entmax with alpha > 2 of the rows [start, stop), in place; False if a score is not finite."""
    n = scores.shape[1]
    x, few = np.empty(n * LANES, np.float32), np.empty(LARGEST * LANES, np.float32)
    store = np.empty((11, LANES), np.float32)
    s, low, high, target, power = store[0], store[1], store[2], store[3], store[4]
    u, v, top, scale, first, minus = store[5], store[6], store[7], store[8], store[9], store[10]
    lanes = (s, low, high, target, power, u, v)
    mode = _CUBIC if alpha.size == 1 and alpha[0] == 3.0 else _STEEP
    for lane in range(LANES):
        minus[lane] = -_ONE
    for r in range(start, stop, LANES):
        count = min(LANES, stop - r)
        turn(scores, r, count, n, x)
        tops(x, x, n, top, top, top, v)
        for lane in range(LANES):
            if v[lane] > _ZERO or top[lane] > _TOO_LARGE:
                return False
            own = alpha[r + min(lane, count - 1) if alpha.size > 1 else 0]
            scale[lane], power[lane] = own - 1.0, 1.0 / (own - 1.0)
            s[lane], low[lane], high[lane] = _ONE, _ZERO, _ONE
        largest(x, n, few)
        distances(x, x, n, top, scale, u, v)
        distances(few, few, LARGEST, top, scale, u, v)
        for lane in range(LANES):  # a lane without a key has no mass
            target[lane] = _ONE if few[lane] < np.inf else _ZERO
        if _few_do_not_suffice(few, n, lanes, mode, first, minus):
            for lane in range(LANES):  # more entries have a smaller root
                s[lane], low[lane] = first[lane], _ZERO
                high[lane] = min(_ONE, first[lane] + np.float32(1e-4))
            _solve(x, n, mode, lanes, first, minus)
        else:
            distances(x, x, n, first, minus, u, v)
        if mode == 1:
            _rises_1(x, x, n, s, power, u, v)
        else:
            _rises(x, x, n, s, power, u, v)
        for lane in range(LANES):
            u[lane] = _ONE / u[lane] if u[lane] > _ZERO else _ZERO
        turn_back(x, u, r, count, n, scores)
    return True


@part(fastmath={"contract"})
def _few_do_not_suffice(few, n, lanes, mode, first, minus):
    """Solve for the largest entries alone; whether, in some lane, others may be selected too."""
    _solve(few, LARGEST, mode, lanes, first, minus)
    s = lanes[0]
    beyond = np.int64(0)
    for lane in range(LANES):
        beyond += np.int64(s[lane] > few[(LARGEST - 1) * LANES + lane])
    return n > LARGEST and beyond > 0


@jit
def short_subsets(start, stop, scores, k):
    """K-subsets of the rows [start, stop), in place; a row with fewer visible keys takes all."""
    n = scores.shape[1]
    x = np.empty(n * LANES, np.float32)
    store = np.empty((12, LANES), np.float32)
    s, low, high, target, power = store[0], store[1], store[2], store[3], store[4]
    u, v, top, one, first, minus = store[5], store[6], store[7], store[8], store[9], store[10]
    nothing = store[11]
    lanes = (s, low, high, target, power, u, v)
    for lane in range(LANES):
        minus[lane], one[lane], nothing[lane], power[lane] = -_ONE, _ONE, _ZERO, _ZERO
    for r in range(start, stop, LANES):
        count = min(LANES, stop - r)
        turn(scores, r, count, n, x)
        tops(x, x, n, top, top, top, v)
        for lane in range(LANES):
            if v[lane] > _ZERO or top[lane] > _TOO_LARGE:
                return False
        spans(x, x, n, top, top, u, v)
        for lane in range(LANES):
            own = np.float32(k[r + min(lane, count - 1) if k.size > 1 else 0])
            target[lane] = min(own, v[lane])
            there = v[lane] > _ZERO
            low[lane] = -top[lane] if there else _ZERO
            high[lane] = _ONE - u[lane] if there else _ONE
            s[lane] = low[lane] + _HALF * (high[lane] - low[lane])
        distances(x, x, n, nothing, one, u, v)
        _solve(x, n, _SUBSETS, lanes, first, minus)
        _rises_2(x, x, n, s, power, u, v)
        for lane in range(LANES):
            if not abs(u[lane] - target[lane]) <= np.float32(1e-5) * (_ONE + target[lane]):
                return False
            u[lane] = _ONE if target[lane] > _ZERO else _ZERO
        turn_back(x, u, r, count, n, scores)
    return True


@jit
def steep_through(start, stop, weights, along, alpha, scale):
    """Apply the Jacobian of entmax with alpha > 2 to ``along``, in place, times the scale.

    The slopes ``p^(2 - alpha)`` grow toward the edge of the support: cotangents are centered at the
    steepest entry first.
    """
    n = weights.shape[1]
    p, v = np.empty(n * LANES, np.float32), np.empty(n * LANES, np.float32)
    store = np.empty((4, LANES), np.float32)
    power, total, mean, factor = store[0], store[1], store[2], store[3]
    for r in range(start, stop, LANES):
        count = min(LANES, stop - r)
        for lane in range(LANES):
            own = alpha[r + min(lane, count - 1) if alpha.size > 1 else 0]
            power[lane], factor[lane] = 2.0 - own, scale
        turn(weights, r, count, n, p)
        turn(along, r, count, n, v)
        steepest(p, v, n, power, power, total, mean)
        centers(p, v, n, mean, mean, total, total)
        _slopes(p, v, n, power, power, total, mean)
        for lane in range(LANES):
            mean[lane] = mean[lane] / total[lane] if total[lane] > _ZERO else _ZERO
        through(p, v, n, mean, factor, total, total)
        for lane in range(LANES):
            factor[lane] = _ONE
        turn_back(v, factor, r, count, n, along)


@jit
def subsets_through(start, stop, weights, along, scale):
    """Center ``along`` over the weights between 0 and 1, in place, and scale the result."""
    n = weights.shape[1]
    p, v = np.empty(n * LANES, np.float32), np.empty(n * LANES, np.float32)
    store = np.empty((4, LANES), np.float32)
    total, number, factor, unit = store[0], store[1], store[2], store[3]
    for lane in range(LANES):
        factor[lane], unit[lane] = scale, _ONE
    for r in range(start, stop, LANES):
        count = min(LANES, stop - r)
        turn(weights, r, count, n, p)
        turn(along, r, count, n, v)
        caps(p, v, n, total, total, total, number)
        for lane in range(LANES):
            total[lane] = total[lane] / number[lane] if number[lane] > _ZERO else _ZERO
        capped_through(p, v, n, total, factor, number, number)
        turn_back(v, unit, r, count, n, along)
