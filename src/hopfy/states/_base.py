"""What every regularizer of the state can do, written once."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor

from hopfy._facts import Described

__all__ = ["State"]


class State(Described, ABC):
    r"""A convex regularizer :math:`\Psi` of the state: where states live, and how they are made.

    ====================  ==========================================================================
    ``state(z)``          :math:`\hat q(z) = \nabla\Psi^*(z) = \arg\max_q \langle z, q\rangle - \Psi(q)`
    ``state.value(q)``    :math:`\Psi(q)`; infinite outside the domain
    ``state.conjugate``   :math:`\Psi^*(z) = \max_q \langle z, q\rangle - \Psi(q)`
    ``state.loss(q, z)``  :math:`\Psi(q) + \Psi^*(z) - \langle q, z\rangle \ge 0`, zero at ``state(z)``
    ====================  ==========================================================================

    The last dimension holds the D coordinates of one state. A network updates with
    :math:`q \leftarrow \hat q(X^\top \hat y_\Omega(\beta X q))`; the paper's case is `Euclidean`.
    """

    @abstractmethod
    def __call__(self, z: Tensor) -> Tensor:
        """The state :math:`\\nabla\\Psi^*(z)`, shaped like ``z`` (..., D)."""

    def value(self, state: Tensor) -> Tensor:
        r""":math:`\Psi(q)` of states (..., D), shape (...); infinite outside the domain."""
        return torch.where(self.contains(state), self.inner_value(state), torch.inf)

    @abstractmethod
    def inner_value(self, state: Tensor) -> Tensor:
        r""":math:`\Psi(q)` of states in the domain: 0 for an indicator."""

    def contains(self, state: Tensor) -> Tensor:
        """Which states (..., D) lie in the domain, up to the rounding of their dtype, (...)."""
        return torch.ones(state.shape[:-1], dtype=torch.bool, device=state.device)

    @abstractmethod
    def conjugate(self, z: Tensor) -> Tensor:
        r""":math:`\Psi^*(z)` of (..., D), shape (...)."""

    def loss(self, state: Tensor, z: Tensor) -> Tensor:
        r""":math:`\Psi(q) + \Psi^*(z) - \langle q, z\rangle`, never negative, for states in the domain."""
        gap = self.inner_value(state) + self.conjugate(z) - (state * z).sum(-1)
        return gap.clamp_min(0)

    def slope(self, state: Tensor) -> Tensor:
        r""":math:`\nabla\Psi(q)` inside the domain, shaped like the states; 0 for an indicator."""
        return torch.zeros_like(state)

    # ------------------------------------------------------------------ constants of the energy

    def size(self, patterns: Tensor) -> Tensor:
        r"""How much a pattern (..., N, D) can add to :math:`\Psi^*(X^\top y)`, shape (..., N)."""
        return self.conjugate(patterns)

    def ceiling(self, total: Tensor, dimension: int) -> Tensor:  # noqa: ARG002
        r"""A bound on :math:`\Psi^*(X^\top y)` from the sum of the largest sizes that y can add up."""
        return total

    def room(self, z: Tensor, total: Tensor) -> Tensor:
        r""":math:`c - \Psi^*(z)` below the ceiling c of this total, never negative."""
        return (self.ceiling(total, z.shape[-1]) - self.conjugate(z)).clamp_min(0)

    # ------------------------------------------------------------------ facts, with safe defaults

    @property
    def is_scale_free(self) -> bool:
        """Whether a positive factor of z changes nothing."""
        return False

    @property
    def is_identity(self) -> bool:
        """Whether the map is the identity, so that a network is the paper's."""
        return False

    @property
    def is_bounded(self) -> bool:
        """Whether all states lie in a bounded set."""
        return True

    def keeps(self, patterns: Tensor) -> Tensor:
        r"""Which patterns (..., N, D) are states of their own, :math:`\hat q(x) = x` up to rounding."""
        wide = patterns.detach().to(_sums(patterns))
        moved = (self(wide) - wide).abs().amax(-1) if wide.shape[-1] else wide.sum(-1)
        return moved <= self.rounding(patterns)

    def rounding(self, patterns: Tensor) -> Tensor:
        """How far rounding may move a coordinate of a pattern that is a state of its own, (..., N).

        A few roundings of the pattern itself, and those of the sums that made it, which add up like a
        random walk.
        """
        size, wide = patterns.shape[-1], _sums(patterns)
        largest = patterns.detach().to(wide).abs().amax(-1) if size else patterns.sum(-1).to(wide)
        own, sums = (float(torch.finfo(dtype).eps) for dtype in (patterns.dtype, wide))
        return (8 * own + 2 * math.sqrt(size) * sums) * largest

    def of_patterns(self, patterns: Tensor) -> Tensor:
        """Patterns as states: what experiments store and start from."""
        return self(patterns)


def _sums(patterns: Tensor) -> torch.dtype:
    """The dtype in which torch adds up numbers of this dtype."""
    return torch.promote_types(patterns.dtype, torch.float32)
