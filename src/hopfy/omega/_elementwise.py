"""Regularizers without a simplex: each weight depends on its own score alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy._checks import Rule, check_count, check_parameter, masked, values_can_be_read
from hopfy.omega._base import Omega

__all__ = ["Exponential", "Polynomial", "Quadratic"]

_STEEPNESS = Rule("b", "> 0 and finite", lambda b: (b > 0) & (b < float("inf")))


class ElementwiseOmega(Omega):
    """Weights that are not normalized: bounded by the state, never exact, zero where masked."""

    is_bounded = False
    margin = math.inf

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:  # noqa: ARG002
        scores = masked(scores, mask)
        there = scores > -torch.inf
        weights = self._weights(torch.where(there | scores.isnan(), scores, 0.0))
        return torch.where(there | scores.isnan(), weights, 0.0)

    def direction(self, scores: Tensor) -> tuple[Tensor, Tensor | float]:
        # Scores of a network are products: nothing is masked, and no pass over them is spent on it.
        return self._weights(scores), 0.0

    def conjugate(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        """The sum of the conjugates of all entries: infinite where it exceeds the largest float."""
        scores = masked(scores, mask)
        there = scores > -torch.inf
        conjugates = self._conjugates(torch.where(there | scores.isnan(), scores, 0.0))
        return torch.where(there | scores.isnan(), conjugates, 0.0).sum(dim)

    def _weights(self, scores: Tensor) -> Tensor:
        raise NotImplementedError

    def _conjugates(self, scores: Tensor) -> Tensor:
        """Entry by entry; their derivatives are the weights."""
        raise NotImplementedError


def _whole_power(base: Tensor, n: int, *, own: bool = False) -> Tensor:
    """``base**n`` for n >= 1 by multiplications, in one new tensor where no gradient is recorded.

    If the base may be overwritten (``own``), a power of two needs none.
    """
    recorded = torch.is_grad_enabled() and base.requires_grad
    bits = f"{n:b}"[1:]
    held = not own or "1" in bits
    power = base
    for bit in bits:
        power = power * power if recorded or (held and power is base) else power.mul_(power)
        if bit == "1":
            power = power * base if recorded else power.mul_(base)
    return power


@dataclass(frozen=True, eq=False)
class Quadratic(ElementwiseOmega):
    r"""Half the squared norm on all of :math:`\mathbb R^N`: the weights are the scores.

    With the state `hopfy.states.Sign` this is Hopfield's network of 1982,
    :math:`q \leftarrow \mathrm{sign}(X^\top X q)`.

    >>> import torch, hopfy
    >>> hopfy.omega.Quadratic()(torch.tensor([1.0, -2.0]))
    tensor([ 1., -2.])
    """

    family = "quadratic"
    name = "identity"

    def _weights(self, scores: Tensor) -> Tensor:
        return scores

    def _conjugates(self, scores: Tensor) -> Tensor:
        return scores.square() / 2

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        return weights.square().sum(dim) / 2


@dataclass(frozen=True, eq=False)
class Polynomial(ElementwiseOmega):
    r"""The conjugate of :math:`\sum_i |\theta_i|^{n+1}/(n+1)`: the weights are :math:`\theta_i^n`.

    For even n negative scores get weight 0, so that the conjugate stays convex. With the state
    `hopfy.states.Sign` this is the dense associative memory of Krotov and Hopfield (2016).

    >>> import torch, hopfy
    >>> hopfy.omega.Polynomial(2)(torch.tensor([3.0, -2.0]))
    tensor([9., 0.])
    >>> hopfy.omega.Polynomial(3)(torch.tensor([3.0, -2.0]))
    tensor([27., -8.])
    """

    n: int = 3
    family = "polynomial"

    def __post_init__(self) -> None:
        check_count(self.n, "n")

    @property
    def name(self) -> str:
        return f"{self.n}-polynomial"

    def _weights(self, scores: Tensor) -> Tensor:
        if self.n % 2:
            return _whole_power(scores, self.n)
        return _whole_power(scores.clamp_min(0), self.n, own=True)

    def _conjugates(self, scores: Tensor) -> Tensor:
        base = scores if self.n % 2 else scores.clamp_min(0)
        return _whole_power(base, self.n + 1) / (self.n + 1)

    def direction(self, scores: Tensor) -> tuple[Tensor, Tensor | float]:
        if self._fits(scores):
            return self._weights(scores), 0.0
        top = scores.detach().abs().amax(-1, keepdim=True)
        top = torch.where((top > 0) & top.isfinite(), top, 1.0)
        # Dividing by a power of two rounds nothing: fields that cancel without it cancel with it,
        # so a row's signs do not depend on the other rows.
        scale = torch.ldexp(torch.ones_like(top), torch.frexp(top).exponent - 1)
        return self._weights(scores / scale), self.n * scale.log()

    def _fits(self, scores: Tensor) -> bool:
        """Whether no power comes near the largest float, or near the smallest in every row."""
        if not scores.numel() or not values_can_be_read(scores):
            return False
        scores = scores.detach()
        rows = torch.maximum(scores.amax(-1), -scores.amin(-1))  # 15 times faster than aminmax
        smallest, largest = float(rows.min()), float(rows.max())
        limit = 0.5 * math.log(torch.finfo(scores.dtype).max) / self.n
        return smallest > 0 and -limit < math.log(smallest) and math.log(largest) < limit

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        power = (self.n + 1) / self.n
        value = self.n / (self.n + 1) * weights.abs().pow(power).sum(dim)
        outside = (weights < 0).any(dim) if self.n % 2 == 0 else torch.zeros_like(value).bool()
        return torch.where(outside, torch.inf, value)


@dataclass(frozen=True, eq=False)
class Exponential(ElementwiseOmega):
    r"""The conjugate of :math:`\sum_i e^{b\theta_i}/b`: the weights are :math:`e^{b\theta_i}`.

    With the state `hopfy.states.Sign` this is the network of Demircigil et al. (2017). A network computes
    the weights relative to the largest, so that nothing overflows; by itself the map may give infinity.

    >>> import torch, hopfy
    >>> hopfy.omega.Exponential()(torch.tensor([0.0, 1.0]))
    tensor([1.0000, 2.7183])
    """

    b: float | Tensor = 1.0
    family = "exponential"
    name = "exponential"

    def __post_init__(self) -> None:
        check_parameter(self.b, _STEEPNESS)

    def _weights(self, scores: Tensor) -> Tensor:
        return torch.exp(self.b * scores)

    def _conjugates(self, scores: Tensor) -> Tensor:
        return torch.exp(self.b * scores) / self.b

    def conjugate_gain(self, scores: Tensor) -> Tensor:
        return torch.expm1(self.b * scores).sum(-1) / self.b  # small scores keep their digits

    def direction(self, scores: Tensor) -> tuple[Tensor, Tensor | float]:
        top = scores.detach().amax(-1, keepdim=True)
        top = torch.where(top.isfinite(), top, 0.0)
        return self._weights(scores - top), self.b * top

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        value = (torch.xlogy(weights, weights) - weights).sum(dim) / self.b
        return torch.where((weights < 0).any(dim), torch.inf, value)
