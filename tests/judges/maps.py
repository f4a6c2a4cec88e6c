"""Independent answers: high precision, enumeration and quadratic programs."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np


def entmax(scores: list[float], alpha: float) -> list[mpmath.mpf]:
    """Entmax by bisection on the largest probability.

    A weight p takes the digits of p^(alpha - 1) from a difference: the larger alpha, the more digits.
    """
    digits = 40 if alpha in (1, math.inf) else 40 + int(2 * alpha)
    with mpmath.workdps(digits):
        theta = [mpmath.mpf(s) for s in scores]
        top = max(theta)
        if alpha == math.inf:
            best = [mpmath.mpf(t == top) for t in theta]
            return [b / sum(best) for b in best]
        if alpha == 1:
            powers = [mpmath.exp(t - top) for t in theta]
            return [p / sum(powers) for p in powers]
        a = mpmath.mpf(alpha) - 1

        def weights(largest: mpmath.mpf) -> list[mpmath.mpf]:
            rooms = [largest**a - (top - t) * a for t in theta]
            return [r ** (1 / a) if r > 0 else mpmath.mpf(0) for r in rooms]

        low, high = mpmath.mpf(1) / (len(theta) + 1), mpmath.mpf(1)
        for _ in range(int(3.2 * digits)):
            middle = (low + high) / 2
            low, high = (low, middle) if sum(weights(middle)) > 1 else (middle, high)
        return weights(high)


def normmax(scores: list[float], alpha: float) -> list[mpmath.mpf]:
    """Normmax to 40 digits by bisection on the threshold (Alg. 1)."""
    with mpmath.workdps(40):
        theta = [mpmath.mpf(s) for s in scores]
        top = max(theta)
        e = mpmath.mpf(0) if alpha == math.inf else 1 / (mpmath.mpf(alpha) - 1)
        low, high = top - 1, top
        for _ in range(130):
            middle = (low + high) / 2
            total = sum((t - middle) ** (1 + e) for t in theta if t > middle)
            low, high = (low, middle) if total < 1 else (middle, high)
        powers = [(t - low) ** e if t > low else mpmath.mpf(0) for t in theta]
        return [p / sum(powers) for p in powers]


def ksubsets(scores: list[float], k: float) -> list[mpmath.mpf]:
    """The projection onto the k-subsets' hull, piece by piece in 40 digits."""
    with mpmath.workdps(40):
        theta = [mpmath.mpf(s) for s in scores]

        def weights(tau: mpmath.mpf) -> list[mpmath.mpf]:
            return [min(max(t - tau, mpmath.mpf(0)), mpmath.mpf(1)) for t in theta]

        breaks = sorted(set(theta) | {t - 1 for t in theta})
        for low, high in itertools.pairwise(breaks):
            top, bottom = sum(weights(low)), sum(weights(high))
            if bottom <= k <= top:
                share = (top - k) / (top - bottom) if top > bottom else mpmath.mpf(0)
                return weights(low + share * (high - low))
        return weights(breaks[0]) if k >= sum(weights(breaks[0])) else weights(breaks[-1])


def entropic_ksubsets(scores: list[float], k: float) -> list[mpmath.mpf]:
    """Sigmoids of ``score - tau`` that sum to k, by bisection on tau in 40 digits and more."""
    spread = max(scores) - min(scores)
    with mpmath.workdps(40 + len(str(int(spread)))):
        theta = [mpmath.mpf(s) for s in scores]
        if k in (0, len(theta)):
            return [mpmath.mpf(k != 0)] * len(theta)

        def weights(tau: mpmath.mpf) -> list[mpmath.mpf]:
            return [1 / (1 + mpmath.exp(tau - t)) for t in theta]

        def excess(tau: mpmath.mpf) -> mpmath.mpf:
            """sum - k without the cancellation of entries that are nearly 1."""
            ranked = sorted(theta, reverse=True)
            whole = int(k)
            missing = sum(1 / (1 + mpmath.exp(t - tau)) for t in ranked[:whole])
            return (
                sum(1 / (1 + mpmath.exp(tau - t)) for t in ranked[whole:]) - missing - (k - whole)
            )

        low, high = min(theta) - 100, max(theta) + 100
        for _ in range(150 + int(4 * len(str(int(spread))))):
            middle = (low + high) / 2
            low, high = (middle, high) if excess(middle) > 0 else (low, middle)
        return weights(low)


def capped(scores: list[float], upper: list[float]) -> list[Fraction]:
    """The projection onto the simplex below upper bounds in rational arithmetic, piece by piece."""
    theta, caps = [Fraction(s) for s in scores], [min(Fraction(u), 1) for u in upper]

    def weights(tau: Fraction) -> list[Fraction]:
        return [min(max(t - tau, Fraction(0)), u) for t, u in zip(theta, caps, strict=True)]

    breaks = sorted(set(theta) | {t - u for t, u in zip(theta, caps, strict=True)})
    if sum(weights(breaks[0])) <= 1:
        return weights(breaks[0])
    for low, high in itertools.pairwise(breaks):
        top, bottom = sum(weights(low)), sum(weights(high))
        if bottom <= 1 <= top:
            share = (top - 1) / (top - bottom) if top > bottom else Fraction(0)
            return weights(low + share * (high - low))
    raise AssertionError("no piece holds the root")


def extended_threshold(distances: np.ndarray, gamma: float) -> np.longdouble:
    """Root of ``sum (s - x)_+^gamma = 1`` in extended precision, for rows too long for mpmath."""
    x = distances.astype(np.longdouble)
    low, high = np.longdouble(0), np.longdouble(1)
    for _ in range(70):
        middle = (low + high) / 2
        inside = x[x < middle]
        total = ((middle - inside) ** np.longdouble(gamma)).sum()
        low, high = (low, middle) if total > 1 else (middle, high)
    return high


def vertices(size: int, k: int) -> np.ndarray:
    """Every k-subset of ``size`` entries as a binary row."""
    chosen = itertools.combinations(range(size), k)
    return np.array([[float(i in c) for i in range(size)] for c in chosen])


def project(scores: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Argmax of ``scores . y - |y|^2 / 2`` over the hull of the corners, by a QP solver."""
    import cvxpy

    mixture = cvxpy.Variable(len(corners), nonneg=True)
    y = corners.T @ mixture
    objective = cvxpy.Maximize(scores @ y - cvxpy.sum_squares(y) / 2)
    problem = cvxpy.Problem(objective, [cvxpy.sum(mixture) == 1])
    problem.solve(solver="CLARABEL", tol_gap_abs=1e-12, tol_gap_rel=1e-12, tol_feas=1e-12)
    return corners.T @ mixture.value
