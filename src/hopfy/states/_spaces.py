"""Spaces of states: all vectors, a ball, layer-normalized vectors, signs, and soft signs."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy._checks import Rule, check_parameter
from hopfy.states._base import State

__all__ = ["Ball", "Euclidean", "LayerNorm", "Sign", "Tanh"]

_RADIUS = Rule("radius", "> 0 and finite", lambda r: (r > 0) & (r < float("inf")))
_SCALE = Rule("scale", "> 0 and finite", lambda s: (s > 0) & (s < float("inf")))
_STEEPNESS = Rule("b", "> 0 and finite", lambda b: (b > 0) & (b < float("inf")))
_SHIFT = Rule("shift", "finite", lambda s: (s > -float("inf")) & (s < float("inf")))


@dataclass(frozen=True, eq=False)
class Euclidean(State):
    r"""All vectors, :math:`\Psi(q) = \tfrac12\|q\|^2`: the map is the identity (the paper's network).

    >>> import torch, hopfy
    >>> hopfy.states.Euclidean()(torch.tensor([3.0, 4.0]))
    tensor([3., 4.])
    """

    family = "euclidean"
    name = "euclidean"
    is_identity = True
    is_bounded = False

    def __call__(self, z: Tensor) -> Tensor:
        return z

    def inner_value(self, state: Tensor) -> Tensor:
        return state.square().sum(-1) / 2

    def conjugate(self, z: Tensor) -> Tensor:
        return z.square().sum(-1) / 2

    def loss(self, state: Tensor, z: Tensor) -> Tensor:
        return (state - z).square().sum(-1) / 2

    def slope(self, state: Tensor) -> Tensor:
        return state

    def size(self, patterns: Tensor) -> Tensor:
        return _norm(patterns)

    def ceiling(self, total: Tensor, dimension: int) -> Tensor:  # noqa: ARG002
        return total.square() / 2

    def room(self, z: Tensor, total: Tensor) -> Tensor:
        norm = _norm(z)
        return ((total - norm) * (total + norm)).clamp_min(0) / 2

    def keeps(self, patterns: Tensor) -> Tensor:
        return torch.ones(patterns.shape[:-1], dtype=torch.bool, device=patterns.device)

    def rounding(self, patterns: Tensor) -> Tensor:
        return torch.zeros_like(patterns.detach().sum(-1))


@dataclass(frozen=True, eq=False)
class Ball(State):
    r"""The ball of radius r, :math:`\Psi` its indicator: :math:`\hat q(z) = r z / \|z\|`.

    :math:`\Psi^*(z) = r\|z\|`. At z = 0 every point of the ball is a maximizer; the center is taken.

    >>> import torch, hopfy
    >>> hopfy.states.Ball(2.0)(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[1.2000, 1.6000],
            [0.0000, 0.0000]])
    """

    radius: float | Tensor = 1.0
    family = "ball"
    name = "ball"
    is_scale_free = True

    def __post_init__(self) -> None:
        check_parameter(self.radius, _RADIUS)

    def __call__(self, z: Tensor) -> Tensor:
        return self.radius * _direction(z)

    def inner_value(self, state: Tensor) -> Tensor:
        return torch.zeros_like(state.sum(-1))

    def contains(self, state: Tensor) -> Tensor:
        return _is_within(_norm(state), self.radius, state)

    def conjugate(self, z: Tensor) -> Tensor:
        return self.radius * _norm(z)


@dataclass(frozen=True, eq=False)
class LayerNorm(State):
    r"""Vectors of mean :math:`\delta` with :math:`\|q - \delta 1\| \le \eta\sqrt D`: layer normalization.

    .. math:: \hat q(z) = \delta + \eta\sqrt D\, \frac{z - \bar z}{\|z - \bar z\|}, \qquad
              \Psi^*(z) = \eta\sqrt D\,\|z - \bar z\| + \delta\, 1^\top z,

    `torch.nn.LayerNorm` with one weight, one bias and eps = 0, so that a step of attention followed by
    layer normalization is an update of this network. For constant z the center :math:`\delta 1` is
    taken.

    >>> import torch, hopfy
    >>> hopfy.states.LayerNorm()(torch.tensor([1.0, 2.0, 3.0]))
    tensor([-1.2247,  0.0000,  1.2247])
    """

    shift: float | Tensor = 0.0
    scale: float | Tensor = 1.0
    family = "layer-norm"
    name = "layer-norm"
    is_scale_free = True

    def __post_init__(self) -> None:
        check_parameter(self.shift, _SHIFT)
        check_parameter(self.scale, _SCALE)

    def __call__(self, z: Tensor) -> Tensor:
        return self.shift + self.scale * math.sqrt(z.shape[-1]) * _direction(_centered(z))

    def inner_value(self, state: Tensor) -> Tensor:
        return self.shift * torch.zeros_like(state.sum(-1))

    def contains(self, state: Tensor) -> Tensor:
        limit = self.scale * math.sqrt(state.shape[-1])
        reach = _norm(state - self.shift)
        off = (state.mean(-1) - self.shift).abs() if state.shape[-1] else reach
        size = state.abs().amax(-1) if state.shape[-1] else reach
        return _is_within(reach, limit, state) & (off <= _slack(state) * (1 + size))

    def conjugate(self, z: Tensor) -> Tensor:
        reach = self.scale * math.sqrt(z.shape[-1]) * _norm(_centered(z))
        return reach + self.shift * z.sum(-1)


@dataclass(frozen=True, eq=False)
class Sign(State):
    r"""The box :math:`[-1, 1]^D`, :math:`\Psi` its indicator: :math:`\hat q(z) = \mathrm{sign}(z)`.

    :math:`\Psi^*(z) = \|z\|_1`. Where :math:`z_i = 0` every value in [-1, 1] is a maximizer; 0 is taken.

    >>> import torch, hopfy
    >>> hopfy.states.Sign()(torch.tensor([0.3, -2.0, 0.0]))
    tensor([ 1., -1.,  0.])
    """

    family = "sign"
    name = "sign"
    is_scale_free = True

    def __call__(self, z: Tensor) -> Tensor:
        return torch.where(z.isnan(), z, z.sign())  # torch gives 0 to NaN

    def inner_value(self, state: Tensor) -> Tensor:
        return torch.zeros_like(state.sum(-1))

    def contains(self, state: Tensor) -> Tensor:
        largest = state.abs().amax(-1) if state.shape[-1] else state.sum(-1)
        return _is_within(largest, 1.0, state)

    def conjugate(self, z: Tensor) -> Tensor:
        return z.abs().sum(-1)

    def rounding(self, patterns: Tensor) -> Tensor:
        return torch.zeros_like(patterns.detach().sum(-1))  # signs are exact


@dataclass(frozen=True, eq=False)
class Tanh(State):
    r"""Soft signs: :math:`\hat q(z) = \tanh(b z)`, the binary negentropy at temperature 1/b.

    :math:`\Psi^*(z) = \tfrac1b \sum_i \log 2\cosh(b z_i)`; b to infinity is `Sign`. A stored pattern is
    in general not a state of its own, so nothing is certified.

    >>> import torch, hopfy
    >>> hopfy.states.Tanh(2.0)(torch.tensor([0.5, -0.5]))
    tensor([ 0.7616, -0.7616])
    """

    b: float | Tensor = 1.0
    family = "tanh"
    name = "tanh"

    def __post_init__(self) -> None:
        check_parameter(self.b, _STEEPNESS)

    def __call__(self, z: Tensor) -> Tensor:
        return torch.tanh(self.b * z)

    def contains(self, state: Tensor) -> Tensor:
        return (state.abs() <= 1).all(-1)

    def inner_value(self, state: Tensor) -> Tensor:
        r""":math:`\tfrac1b \sum_i p_i \log p_i + (1 - p_i) \log(1 - p_i)`, :math:`p_i = (1 + q_i)/2`."""
        on, off = ((1 + state) / 2).clamp_min(0), ((1 - state) / 2).clamp_min(0)
        return (torch.xlogy(on, on) + torch.xlogy(off, off)).sum(-1) / self.b

    def conjugate(self, z: Tensor) -> Tensor:
        size = (self.b * z).abs()
        return (size + torch.log1p(torch.exp(-2 * size))).sum(-1) / self.b

    def slope(self, state: Tensor) -> Tensor:
        return torch.atanh(state) / self.b

    def size(self, patterns: Tensor) -> Tensor:
        return patterns.abs().sum(-1)

    def ceiling(self, total: Tensor, dimension: int) -> Tensor:
        return total + dimension * math.log(2.0) / self.b  # log 2 cosh(t) <= |t| + log 2

    def of_patterns(self, patterns: Tensor) -> Tensor:
        """The patterns themselves: squashing them would only shrink them."""
        return patterns


def _norm(z: Tensor) -> Tensor:
    norm: Tensor = torch.linalg.vector_norm(z, dim=-1)
    return norm


def _direction(z: Tensor) -> Tensor:
    """``z / |z|``, zero at zero with a gradient of zero; huge and tiny vectors keep their digits.

    Vectors that are not finite have no direction: NaN.
    """
    largest = z.detach().abs().amax(-1, keepdim=True) if z.shape[-1] else z.detach()
    there = largest != 0
    scaled = torch.where(there, z / torch.where(there, largest, 1.0), 0.0)
    norm = _norm(torch.where(there, scaled, 1.0)).unsqueeze(-1)
    return torch.where(there, scaled / norm, 0.0)


def _centered(z: Tensor) -> Tensor:
    """``z - mean(z)``, exactly zero for constant z."""
    if not z.shape[-1]:
        return z
    anchored = z - z.detach()[..., :1]
    return anchored - anchored.mean(-1, keepdim=True)


def _slack(state: Tensor) -> float:
    return 64 * math.sqrt(max(state.shape[-1], 1)) * float(torch.finfo(state.dtype).eps)


def _is_within(size: Tensor, limit: float | Tensor, state: Tensor) -> Tensor:
    """Where ``size`` is within ``limit``, up to rounding."""
    return size <= limit * (1 + _slack(state))
