"""Attention from its definition: one row at a time, in float64, without any code of hopfy."""

from __future__ import annotations

import math

import numpy as np


def weights_of(scores: np.ndarray, kind: str, parameter: float) -> np.ndarray:
    """The map of one row of finite scores, by bisection on its threshold."""
    top = scores.max()
    if kind == "softmax":
        powers = np.exp(scores - top)
        return powers / powers.sum()
    if kind == "ksubsets":
        k = min(parameter, len(scores))
        return _bisected(lambda tau: np.clip(scores - tau, 0, 1), scores.min() - 1, top, k)
    if kind == "entmax":
        a = parameter - 1
        x = a * scores
        return _bisected(
            lambda tau: np.maximum(x - tau, 0) ** (1 / a), a * top - 1, a * top, 1, scale=True
        )
    e = 1 / (parameter - 1)
    tau = _threshold(lambda t: np.maximum(scores - t, 0) ** (1 + e), top - 1, top, 1)
    powers = np.where(scores > tau, np.maximum(scores - tau, 0) ** e, 0)
    return powers / powers.sum()


def _threshold(rows, low: float, high: float, total: float) -> float:
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if rows(middle).sum() >= total else (low, middle)
    return low


def _bisected(rows, low: float, high: float, total: float, scale: bool = False) -> np.ndarray:
    found = rows(_threshold(rows, low, high, total))
    return found / found.sum() if scale else found


def attention(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    kind: str,
    parameter: np.ndarray,
    allowed: np.ndarray,
    bias: np.ndarray,
    scale: float | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Output and weights of q (B, Hq, M, D), k (B, H, N, D), v (B, H, N, E).

    ``allowed`` and ``bias`` have the shape (B, Hq, M, N); ``parameter`` one number per query head.
    """
    batch, heads, rows, size = q.shape
    shared = heads // k.shape[1]
    scale = 1 / math.sqrt(size) if scale is None else scale
    output = np.zeros((batch, heads, rows, v.shape[-1]))
    weights = np.zeros((batch, heads, rows, k.shape[2]))
    for b, h, m in np.ndindex(batch, heads, rows):
        keys, values = k[b, h // shared], v[b, h // shared]
        scores = scale * (keys @ q[b, h, m]) + bias[b, h, m]
        there = allowed[b, h, m] & (scores > -np.inf)
        if there.any():
            weights[b, h, m, there] = weights_of(scores[there], kind, parameter[h])
            output[b, h, m] = weights[b, h, m] @ values
    return output, weights
