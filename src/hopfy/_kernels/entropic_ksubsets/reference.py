"""Entropic k-subsets in plain torch."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hopfy._kernels.threshold.reference import steps_for

__all__ = ["slope", "solve", "vjp"]


def solve(scores: Tensor, k: Tensor) -> Tensor:
    """Weights (..., N) of scores (..., N); a row with fewer than k finite scores takes all of them.

    The threshold lies within :math:`\\log N` and a few of the middle between the k-th and the next
    score (or of the score that k cuts, if k is no whole number): a bisection there finds it, and steps
    of Newton's method give it all digits.
    """
    kept = scores > -torch.inf
    available = kept.sum(-1, keepdim=True)
    spoiled = scores.isnan().any(-1, keepdim=True) | (scores == torch.inf).any(-1, keepdim=True)
    k = torch.minimum(k.to(_wide(scores)), available.to(_wide(scores)))
    d = torch.where(kept & ~spoiled, scores - _pivot(scores, k), -torch.inf)
    part = k - torch.floor(k)
    slack = -torch.log(torch.where(part > 0, torch.minimum(part, 1 - part), 1.0))
    high = (math.log(max(scores.shape[-1], 1)) + 1 + slack + math.log(2)).expand(*d.shape[:-1], 1)
    low = -high - torch.log(k.clamp_min(1))
    for _ in range(steps_for(torch.float64)):
        middle = (low + high) / 2
        above = torch.sigmoid(d - middle).sum(-1, keepdim=True, dtype=k.dtype) >= k
        low = torch.where(above, middle, low)
        high = torch.where(above, high, middle)
    weights = torch.sigmoid(d - (low + high) / 2).to(scores.dtype)
    weights = torch.where(k >= available, 1.0, weights)
    weights = torch.where(kept & (k > 0), weights, 0.0)
    return torch.where(spoiled, torch.nan, weights).to(scores.dtype)


def _pivot(scores: Tensor, k: Tensor) -> Tensor:
    """The middle between the k-th score and the next; the score that is cut for fractions of k."""
    ordered = scores.sort(-1, descending=True).values
    last = max(scores.shape[-1] - 1, 0)
    place = (torch.ceil(k).long() - 1).clamp(0, last).expand(*scores.shape[:-1], 1)
    best = ordered.gather(-1, place)
    following = ordered.gather(-1, (place + 1).clamp_max(last))
    whole = (k == torch.ceil(k)) & (following > -torch.inf) & (k > 0)
    return best - torch.where(whole, (best - following) / 2, 0.0)


def _wide(scores: Tensor) -> torch.dtype:
    """Sums in float64 where the device has it."""
    return torch.float32 if scores.device.type == "mps" else torch.float64


def vjp(weights: Tensor, k: Tensor, cotangent: Tensor) -> Tensor:
    r"""Gradient with respect to the scores, :math:`g (v - g^\top v / 1^\top g)`, g = y (1 - y)."""
    steepness = weights * (1 - weights)
    total = steepness.sum(-1, keepdim=True)
    mean = (steepness * cotangent).sum(-1, keepdim=True) / torch.where(total > 0, total, 1.0)
    gradient = steepness * (cotangent - mean)
    return torch.where(weights.isnan(), torch.nan, gradient)


def slope(weights: Tensor, k: Tensor) -> Tensor:
    r""":math:`\partial y / \partial k = g / 1^\top g`: the threshold falls for all entries alike."""
    steepness = weights * (1 - weights)
    total = steepness.sum(-1, keepdim=True)
    return steepness / torch.where(total > 0, total, 1.0)
