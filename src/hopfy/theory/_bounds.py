"""Bounds on the energy (Prop. 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._checks import as_patterns
from hopfy.omega import Omega, omega_from
from hopfy.theory._separation import lead

__all__ = ["energy_bound"]


def energy_bound(memories: Tensor, omega: Omega | str, beta: float) -> Tensor:
    r""":math:`\min\{2M^2, -\Omega(\mathbf 1/N)/\beta + M^2/2\}`, shape ``memories.shape[:-2]``.

    Prop. 1: :math:`0 \le E(q)` and E(q) is at most this for every q in the convex hull of the
    patterns, for generalized negentropies (Tsallis, norm, Shannon). The lower bound holds for every
    q; the upper one does not, as the energy grows with the distance from the patterns.

    >>> import torch
    >>> from hopfy import theory
    >>> theory.energy_bound(torch.eye(2), "sparsemax", beta=2.0)
    tensor(0.6250, dtype=torch.float64)
    """
    lead(omega, beta)  # refuses structures and bad betas
    omega = omega_from(omega)
    memories = as_patterns(memories).detach().double()
    square = memories.square().sum(-1).amax(-1)
    uniform = memories.new_full((memories.shape[-2],), 1 / memories.shape[-2])
    return torch.minimum(2 * square, square / 2 - omega.value(uniform) / beta)
