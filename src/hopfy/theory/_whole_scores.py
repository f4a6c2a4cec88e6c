r"""Scores rounded against one structure, to whole numbers of which all sums are exact.

Lowering the scores of a structure y and raising all others can only make y look worse. Scores far
below what could matter are raised too, so that a "forbidding" score of -1e30 does not cost digits.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import torch
from torch import Tensor

__all__ = ["Whole", "rounded_apart", "rounded_apart_exactly"]

# The sum of all sizes, times 4 N for what algorithms add to scores, stays below 2**52.
_BITS = 51
_CPU: Any = {"dtype": torch.float64, "device": "cpu"}


class Whole(NamedTuple):
    """Scores (R, N) and factor scores (R, f) as whole numbers of units; ``fits`` (R,): sums are exact."""

    scores: Tensor
    factor_scores: Tensor
    unit: Tensor
    fits: Tensor

    def total(self, bits: Tensor, factors: Tensor) -> Tensor:
        """The exact sum of what a structure selects, in units, (R,)."""
        unary = torch.where(bits > 0, self.scores, 0.0).sum(-1)
        return unary + torch.where(factors > 0, self.factor_scores, 0.0).sum(-1)


def rounded_apart(
    scores: Tensor, factor_scores: Tensor, error: Tensor, bits: Tensor, factors: Tensor
) -> Whole:
    """Round scores (R, N) that are off by up to ``error``, and exact factor scores (R, f)."""
    low, high = scores - error, scores + error
    own, free = bits > 0, factors > 0
    floor = -_worth(low, high, factor_scores, own, free) * (1 + 1e-9)
    away = torch.where(own, low, torch.maximum(high, floor))
    beside = torch.where(free, factor_scores, _raised(factor_scores, floor))
    size = away.abs().sum(-1, keepdim=True) + _finite(beside).abs().sum(-1, keepdim=True)
    exponent = torch.frexp(size * 4 * scores.shape[-1])[1] - _BITS
    fits = size.isfinite() & (exponent > -1000) & (exponent < 900)
    exponent = torch.where(fits, exponent, 0)
    unit = torch.ldexp(torch.ones_like(size), exponent)
    return Whole(
        _apart(away, unit, own),
        _apart(beside, unit, free),
        unit.squeeze(-1),
        fits.squeeze(-1),
    )


def _worth(low: Tensor, high: Tensor, factor_scores: Tensor, own: Tensor, free: Tensor) -> Tensor:
    """More than what the structure lacks plus what all others could gain, (R, 1)."""
    factors = _finite(factor_scores)
    mine = torch.where(own, low, 0.0).abs().sum(-1) + torch.where(free, factors, 0.0).abs().sum(-1)
    others = high.clamp_min(0).sum(-1) + factors.clamp_min(0).sum(-1)
    return (mine + others + torch.finfo(torch.float64).tiny).unsqueeze(-1)


def _raised(factor_scores: Tensor, floor: Tensor) -> Tensor:
    """Factor scores that forbid by their size are raised to the floor; -inf still forbids."""
    finite = factor_scores > -torch.inf
    return torch.where(finite, torch.maximum(factor_scores, floor), factor_scores)


def _finite(values: Tensor) -> Tensor:
    return torch.where(values == -torch.inf, 0.0, values)


def _apart(values: Tensor, unit: Tensor, down: Tensor) -> Tensor:
    """Whole multiples of a power of two: below where ``down``, above elsewhere."""
    parts = values / unit  # exact unless it underflows
    vanished = (parts == 0) & (values != 0)
    parts = torch.where(vanished, values.sign() / 2, parts)
    return torch.where(down, parts.floor(), parts.ceil())


def rounded_apart_exactly(
    scores: list[Fraction], factor_scores: Tensor, bits: Tensor, factors: Tensor, centered: bool
) -> Whole:
    """The same for one problem in rational arithmetic; ``centered``: constants change nothing."""
    own, free = [b > 0 for b in bits.tolist()], [b > 0 for b in factors.tolist()]
    if centered and scores:
        middle = (min(scores) + max(scores)) / 2
        scores = [score - middle for score in scores]
    edges = [None if f == -math.inf else Fraction(f) for f in factor_scores.tolist()]
    known = [edge for edge in edges if edge is not None]
    mine = sum((abs(s) for s, o in zip(scores, own, strict=True) if o), Fraction(1))
    mine += sum(
        (abs(e) for e, o in zip(edges, free, strict=True) if o and e is not None), Fraction(0)
    )
    floor = -(mine + sum((s for s in (*scores, *known) if s > 0), Fraction(0)))
    scores = [s if o else max(s, floor) for s, o in zip(scores, own, strict=True)]
    edges = [e if o or e is None else max(e, floor) for e, o in zip(edges, free, strict=True)]
    size = sum(abs(s) for s in scores) + sum(abs(e) for e in edges if e is not None)
    unit = _exact_unit(size * 4 * max(1, len(scores)))
    numbers = [_whole(s, o, unit) for s, o in zip(scores, own, strict=True)]
    beside = [_whole(e, o, unit) for e, o in zip(edges, free, strict=True)]
    return Whole(
        torch.tensor([numbers], **_CPU),
        torch.tensor(beside, **_CPU).reshape(1, len(beside)),
        torch.tensor([float(unit)], **_CPU),
        torch.tensor([True], device="cpu"),
    )


def _exact_unit(size: Fraction | int) -> Fraction:
    """The power of two in whose units ``size`` is below 2**51 and above 2**49."""
    if size == 0:
        return Fraction(1)
    size = Fraction(size)
    exponent = size.numerator.bit_length() - size.denominator.bit_length() - _BITS + 1
    return Fraction(2) ** exponent


def _whole(value: Fraction | None, down: bool, unit: Fraction) -> float:
    if value is None:
        return -math.inf
    value = value / unit
    return float(math.floor(value) if down else math.ceil(value))
