# mypy: ignore-errors
"""Compiled rows of at most k: one pass clips a row; those that spend more than k are k-subsets."""

from __future__ import annotations

import math

import numpy as np
import torch

from hopfy._kernels.at_most_k.reference import rounding
from hopfy._kernels.ksubsets import cpu as ksubsets
from hopfy._kernels.rows.calls import per_row, run_backward, run_forward
from hopfy._kernels.rows.scan import fill
from hopfy._runtime.compilation import jit

__all__ = ["solve", "vjp"]


def solve(scores, k):
    """Weights (..., N) of scores (..., N); ``k`` is 0-d or (..., 1)."""
    weights, over = run_forward(_clip_rows, scores, per_row(k, scores))
    rows, size = scores.numel() // scores.shape[-1], scores.shape[-1]
    tight = torch.from_numpy(np.concatenate(over))
    if len(tight) == rows:
        return ksubsets.solve(scores, k)
    if len(tight):
        own = k if k.ndim == 0 else k.expand(*scores.shape[:-1], 1).reshape(rows, 1)[tight]
        weights.view(rows, size)[tight] = ksubsets.solve(scores.reshape(rows, size)[tight], own)
    return weights


def vjp(weights, k, cotangent):
    """Gradient with respect to the scores."""
    least = per_row(k, weights) - rounding(weights)
    return run_backward(_backward, weights, least, cotangent)


@jit
def _clip_rows(start, stop, scores, bits, k, weights):
    """Clip rows [start, stop) to [0, 1]; return those that add up to more than k."""
    over, count = np.empty(stop - start, np.int64), 0
    for r in range(start, stop):
        total, spoiled = 0.0, False
        for i in range(scores.shape[1]):
            score = scores[r, i]
            spoiled |= not score < np.inf
            weight = score if score > 0.0 else 0.0
            weights[r, i] = weight if weight < 1.0 else 1.0
            total += np.float64(weights[r, i])
        if spoiled:
            fill(weights[r], math.nan)
        elif total > k[r if k.shape[0] > 1 else 0]:
            over[count] = r
            count += 1
    return over[:count]


@jit
def _backward(start, stop, weights, cotangent, least, gradient):
    """Rows [start, stop): the cotangent between 0 and 1, centered where the sum is not below least."""
    for r in range(start, stop):
        y, v, out = weights[r], cotangent[r], gradient[r]
        spent, total, count = 0.0, 0.0, 0
        for i in range(y.shape[0]):
            spent += np.float64(y[i])
            if 0.0 < y[i] < 1.0:
                total += np.float64(v[i])
                count += 1
        has_slack = spent < least[r if least.shape[0] > 1 else 0]
        mean = 0.0 if has_slack or count == 0 else total / count
        for i in range(y.shape[0]):
            inside = 0.0 < y[i] < 1.0
            out[i] = v[i] - mean if inside else (math.nan if y[i] != y[i] else 0.0)
