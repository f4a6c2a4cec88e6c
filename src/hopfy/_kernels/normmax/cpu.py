# mypy: ignore-errors
"""Normmax compiled; the forward pass is that of `hopfy._kernels.threshold.cpu`."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from hopfy._kernels.rows.calls import per_row, run_backward
from hopfy._kernels.rows.powers import powers_of
from hopfy._kernels.rows.scan import PADDING, fill, pad, support
from hopfy._kernels.threshold import cpu as threshold
from hopfy._runtime.compilation import jit, part

__all__ = ["solve", "vjp"]

_STEEPEST = 1e150  # keeps products of slopes finite


def solve(scores, alpha):
    """Weights (..., N) of scores (..., N); ``alpha`` is 0-d or (..., 1)."""
    alphas = per_row(alpha, scores)
    equation = _shared_equation(alphas[0]) if len(alphas) == 1 else _equation(alphas)
    return threshold.solve(scores, equation)


def _equation(alphas):
    exponent = 1.0 / (alphas - 1.0)
    return np.stack([1.0 + exponent, np.ones_like(exponent), exponent], axis=1)


@lru_cache(maxsize=256)
def _shared_equation(alpha):
    return _equation(np.array([alpha]))


def vjp(weights, alpha, cotangent):
    """Gradient with respect to the scores."""
    alphas = per_row(alpha, weights)
    cheap = len(alphas) == 1 and alphas[0] in (2.0, math.inf)
    return run_backward(_backward_cheap if cheap else _backward, weights, alphas, cotangent)


@jit
def _backward_cheap(start, stop, weights, cotangent, alpha, gradient):
    r"""Rows of :math:`(I - y 1^T) \|y\|_2 (I - 1 y^T) v` for alpha = 2, zeros for infinity."""
    index = np.empty(weights.shape[1], np.int64)
    for r in range(start, stop):
        y, v, out = weights[r], cotangent[r], gradient[r]
        spoiled = y[0] != y[0]
        fill(out, np.nan if spoiled else 0.0)
        if spoiled or alpha[0] == np.inf:
            continue
        count = support(y, index)
        mass, mean, total = 0.0, 0.0, 0.0
        for j in range(count):
            i = index[j]
            weight = np.float64(y[i])
            mass += weight * weight
            mean += weight * np.float64(v[i])
        norm = math.sqrt(mass)
        for j in range(count):
            total += norm * (np.float64(v[index[j]]) - mean)
        for j in range(count):
            i = index[j]
            out[i] = norm * (np.float64(v[i]) - mean) - np.float64(y[i]) * total


@jit
def _backward(start, stop, weights, cotangent, alpha, gradient):
    r"""Rows of :math:`(I - y 1^T) diag(\kappa) (I - 1 y^T) v`, see `hopfy._kernels.normmax.vjp`."""
    size = weights.shape[1]
    y, kappa, index = np.empty(size + PADDING), np.empty(size + PADDING), np.empty(size, np.int64)
    for r in range(start, stop):
        row, v, out = weights[r], cotangent[r], gradient[r]
        a = alpha[r if alpha.shape[0] > 1 else 0]
        spoiled = row[0] != row[0]
        fill(out, np.nan if spoiled else 0.0)
        if spoiled or a == np.inf:
            continue
        count = support(row, index)
        mean, total = 0.0, 0.0
        for j in range(count):
            y[j] = row[index[j]]
            mean += y[j] * np.float64(v[index[j]])
        _curvatures(y, count, a, kappa)
        for j in range(count):
            kappa[j] *= np.float64(v[index[j]]) - mean
            total += kappa[j]
        for j in range(count):
            out[index[j]] = kappa[j] - np.float64(row[index[j]]) * total


@part
def _curvatures(y, count, alpha, kappa):
    r""":math:`\kappa = \|y\|_\alpha (y / \|y\|_\alpha)^{2 - \alpha} / (\alpha - 1)`; changes y."""
    top, mass = 0.0, 0.0
    for j in range(count):
        top = max(top, y[j])
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
