# mypy: ignore-errors
"""Entmax compiled, one kernel for each regime of alpha: a call compiles only what it needs.

Up to alpha = 2 the forward pass is that of `hopfy._kernels.threshold.cpu`.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch

from hopfy._kernels.rows.calls import per_row, run_backward, run_forward
from hopfy._kernels.rows.powers import exponentials, powers_of
from hopfy._kernels.rows.scan import LANES, PADDING, fill, keep_below, pad, short_top, support
from hopfy._kernels.threshold import cpu as threshold
from hopfy._runtime.compilation import inlined, jit, part

__all__ = ["newton_concave", "solve", "vjp"]

_STEPS = 200  # Newton needs a few; the limit only stops a loop that rounding keeps alive
_STEEPEST = 1e150  # keeps products of slopes finite


def solve(scores, alpha):
    """Weights (..., N) of scores (..., N); ``alpha`` is 0-d or (..., 1)."""
    alphas = per_row(alpha, scores)
    if len(alphas) == 1:
        return _solve_regime(scores, alphas, alphas[0], None)
    weights = torch.empty_like(scores, memory_format=torch.contiguous_format)
    for regime, belongs in (
        (1.0, alphas == 1.0),
        (1.5, (alphas > 1.0) & (alphas <= 2.0)),
        (3.0, alphas > 2.0),
    ):
        if belongs.any():  # kernels leave rows with NaN for a parameter alone
            _solve_regime(scores, np.where(belongs, alphas, np.nan), regime, weights)
    return weights


def _solve_regime(scores, alphas, regime, weights):
    if regime == 1.0:
        return run_forward(_softmax, scores, alphas, weights)[0]
    if regime <= 2.0:
        return threshold.solve(scores, _equation(alphas), weights)
    kernel = _concave_short if scores.shape[-1] <= threshold.SHORT else _concave_long
    return run_forward(kernel, scores, alphas, weights)[0]


def _equation(alphas):
    if len(alphas) == 1:
        return _shared_equation(alphas[0])
    gamma = 1.0 / (alphas - 1.0)
    return np.stack([gamma, gamma, gamma], axis=1)


@lru_cache(maxsize=256)
def _shared_equation(alpha):
    return np.full((1, 3), 1.0 / (alpha - 1.0))


def vjp(weights, alpha, cotangent):
    """Gradient with respect to the scores."""
    alphas = per_row(alpha, weights)
    cheap = len(alphas) == 1 and alphas[0] in (1.0, 1.5, 2.0, math.inf)
    return run_backward(_backward_cheap if cheap else _backward, weights, alphas, cotangent)


# --- forward --------------------------------------------------------------------------------------


@jit
def _softmax(start, stop, scores, bits, alpha, weights):
    """Rows with alpha = 1."""
    size = scores.shape[1]
    powers = np.empty(size)
    for r in range(start, stop):
        if alpha[r if alpha.shape[0] > 1 else 0] != 1.0:
            continue
        row, out = scores[r], weights[r]
        top, spoiled = short_top(bits[r])
        if spoiled or top == -np.inf:
            fill(out, np.nan if spoiled else 0.0)
            continue
        for i in range(size):
            powers[i] = np.float64(row[i]) - np.float64(top)
        exponentials(powers, size, powers)
        total = 0.0
        for i in range(size):
            total += powers[i]
        for i in range(size):
            out[i] = powers[i] / total


@jit
def _concave_short(start, stop, scores, bits, alpha, weights):
    """Rows with alpha > 2 and up to SHORT entries; infinity shares the top."""
    size = scores.shape[1]
    d, index = np.empty(size + PADDING), np.empty(size + PADDING, np.int64)
    for r in range(start, stop):
        own = alpha[r if alpha.shape[0] > 1 else 0]
        if own > 2.0:
            margin = 1.0 / (own - 1.0)
            count, s = threshold.near_candidates(scores[r], bits[r], margin, d, index)
            _weigh_concave(d, index, count, s, own, weights[r])


@jit
def _concave_long(start, stop, scores, bits, alpha, weights):
    """The same for rows of more than SHORT entries."""
    size = scores.shape[1]
    d, lanes = np.empty(size + PADDING), np.empty(LANES)
    index = np.empty(size + PADDING, np.int64)
    for r in range(start, stop):
        own = alpha[r if alpha.shape[0] > 1 else 0]
        if own > 2.0:
            margin = 1.0 / (own - 1.0)
            count, s = threshold.far_candidates(scores[r], bits[r], margin, lanes, d, index)
            _weigh_concave(d, index, count, s, own, weights[r])


@inlined
def _weigh_concave(d, index, count, s, alpha, out):
    """Weights of the candidates within s; zeros elsewhere, NaN everywhere if count is -1.

    As u^(1/a) >= u for u <= 1, the support lies inside sparsemax's.
    """
    fill(out, np.nan if count < 0 else 0.0)
    a = alpha - 1.0
    if count == 1 or alpha == np.inf:
        for j in range(count):
            out[index[j]] = 1.0 / count
    elif count > 0:
        s, count = threshold.root(d, index, count, s, 1.0, 1.0 / a, 1e-15 / a, None)
        count = keep_below(d, index, count, s)
        newton_concave(d, index, count, a, out)


@part
def newton_concave(d, index, count, a, out):
    """Newton for the smallest positive weight, see `hopfy._kernels.entmax`."""
    for j in range(count):
        d[j] *= a
    count = _support_of_concave(d, index, count, 1.0 / a)
    edge = d[count - 1]
    for j in range(count):
        d[j] = edge - d[j] if a == 2.0 else (edge - d[j]) ** (1.0 / a)
    w = 1.0 / count
    for _ in range(_STEPS):
        total, slope = 0.0, 0.0
        for j in range(count):
            p = _concave_weight(w, d[j], a)
            total += p
            slope += w / p if a == 2.0 else (w / p) ** (a - 1.0)
        lower = w - (total - 1.0) / slope
        if not lower < w or lower <= 0.0:
            break
        change, w = w - lower, lower
        if change < 1e-16:
            break
    for j in range(count):
        out[index[j]] = _concave_weight(w, d[j], a)


@part
def _concave_weight(w, rest, a):
    """(w^a + rest^a)^(1/a); for a = 2 ``rest`` comes squared."""
    if a == 2.0:
        return math.sqrt(w * w + rest)
    large, small = max(w, rest), min(w, rest)
    return large * (1.0 + (small / large) ** a) ** (1.0 / a)


@part
def _support_of_concave(x, index, count, gamma):
    """Sort the candidates and return how many have ``sum_i (x_k - x_i)_+^gamma < 1``."""
    _sort(x, index, count)
    low, high = np.int64(1), count  # the first is always in
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


@part
def _sort(x, index, count):
    """Sort both by x, in place: insertion for up to 32 entries, a heap for more."""
    if count <= 32:
        for j in range(1, count):
            value, position = x[j], index[j]
            i = j
            while i > 0 and x[i - 1] > value:
                x[i], index[i] = x[i - 1], index[i - 1]
                i -= 1
            x[i], index[i] = value, position
        return
    for k in range(2 * count - 1, 0, -1):
        # First every inner node sinks, from the last to the root; then the largest leaves the heap.
        size, node = count, k - count
        if k < count:
            x[0], x[k] = x[k], x[0]
            index[0], index[k] = index[k], index[0]
            size, node = k, 0
        value, position = x[node], index[node]
        child = 2 * node + 1
        while child < size:
            child += child + 1 < size and x[child + 1] > x[child]
            if not x[child] > value:
                break
            x[node], index[node] = x[child], index[child]
            node, child = child, 2 * child + 1
        x[node], index[node] = value, position


# --- backward -------------------------------------------------------------------------------------


@jit
def _backward_cheap(start, stop, weights, cotangent, alpha, gradient):
    """Rows of g (v - mean_g(v)) for g = p^(2 - alpha) and alpha 1, 1.5, 2 or infinity."""
    a = alpha[0]
    g, index = np.empty(weights.shape[1]), np.empty(weights.shape[1], np.int64)
    for r in range(start, stop):
        p, v, out = weights[r], cotangent[r], gradient[r]
        spoiled = p[0] != p[0]
        fill(out, np.nan if spoiled else 0.0)
        if spoiled or a == np.inf:
            continue
        count = support(p, index)
        steepest = 0
        for j in range(count):
            slope = 1.0
            if a == 1.5:
                slope = math.sqrt(np.float64(p[index[j]]))
            elif a == 1.0:
                slope = np.float64(p[index[j]])
            g[j] = slope
            steepest = j if slope > g[steepest] else steepest
        _centered(v, index, count, steepest, g, out)


@jit
def _backward(start, stop, weights, cotangent, alpha, gradient):
    """Rows of g (v - mean_g(v)), g = p^(2 - alpha) on the support, for any alpha."""
    size = weights.shape[1]
    x, g = np.empty(size + PADDING), np.empty(size + PADDING)
    index = np.empty(size, np.int64)
    for r in range(start, stop):
        p, v, out = weights[r], cotangent[r], gradient[r]
        a = alpha[r if alpha.shape[0] > 1 else 0]
        spoiled = p[0] != p[0]
        fill(out, np.nan if spoiled else 0.0)
        if spoiled or a == np.inf:
            continue
        count = support(p, index)
        for j in range(count):
            x[j] = p[index[j]]
        pad(x, count)
        powers_of(x, count, 2.0 - a, g)
        steepest = 0
        for j in range(count):
            g[j] = min(g[j], _STEEPEST)  # tiny weights have huge slopes past alpha = 2
            steepest = j if g[j] > g[steepest] else steepest
        _centered(v, index, count, steepest, g, out)


@inlined
def _centered(v, index, count, steepest, g, out):
    """Write g (v - mean_g(v)).

    One slope may be far larger than the others: measured from there, the cotangent keeps its digits.
    """
    if count > 0:
        origin = np.float64(v[index[steepest]])
        total, mass = 0.0, 0.0
        for j in range(count):
            total += g[j] * (np.float64(v[index[j]]) - origin)
            mass += g[j]
        mean = total / mass
        for j in range(count):
            out[index[j]] = g[j] * ((np.float64(v[index[j]]) - origin) - mean)
