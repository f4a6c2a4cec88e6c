r"""The Hopfield-Fenchel-Young energy (Eq. 8), computed without cancellation.

Written out, Eq. 8 is a difference of terms of size :math:`M^2`. With the update
:math:`\hat x = X^\top \hat y`, :math:`\hat y = \hat y_\Omega(\beta X q)`, it equals

.. math:: E(q) = \frac{\Omega(\hat y) - \Omega(y_0)}{\beta} + \frac12 \|q - \hat x\|^2
          + \frac12 \left(R^2 - \|\hat x\|^2\right),

three terms that are never negative. :math:`y_0 = \hat y_\Omega(0)`, the point where :math:`\Omega`
is least, is the base point: :math:`\mathbf 1 / N` for every generalized negentropy, as in the
paper, and k/N each for k-subsets. :math:`R` bounds the norm of a state: the largest pattern norm
:math:`M` for maps onto the simplex, the sum of the k largest norms for k-subsets. So
:math:`E \ge 0` for *every* query, not only in the convex hull, and for structures too.

With another regularizer :math:`\Psi` of the state the same three terms are

.. math:: E(q) = \frac{\Omega(\hat y) - \Omega(y_0)}{\beta}
          + \left[\Psi(q) + \Psi^*(\hat x) - \langle q, \hat x\rangle\right]
          + \left[c - \Psi^*(\hat x)\right],

where c bounds :math:`\Psi^*` over all mixtures of patterns. Where weights have no bound there is no
such c: the energy is :math:`-\Omega^*(\beta X q)/\beta + \Psi(q)`, and -inf where that is below the
least float.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.omega import Omega
from hopfy.states import State

__all__ = ["Energy", "energy", "energy_parts"]

# Entries of memories that are widened to float64 at a time.
_BLOCK = 1 << 23


class Energy(NamedTuple):
    """The two parts of Eq. 8; their sum is the energy."""

    concave: Tensor
    convex: Tensor


def energy(
    queries: Tensor, memories: Tensor, omega: Omega, beta: float | Tensor, state: State
) -> Tensor:
    """Eq. 8 in the queries' dtype, shape ``queries.shape[:-1]``; beta is a number or (..., 1)."""
    wide = _wide(queries)
    scores = _times_memories(wide * beta, memories)
    if not omega.is_bounded:
        value = _plain(wide, scores, omega, memories, beta, state)
        return torch.where(state.contains(queries), value, torch.inf).to(queries.dtype)
    with torch.no_grad():
        weights = omega(scores)
        update = _weighted_sum(weights, memories)
        spread = omega.rise(scores, weights).clamp_min(0) / _flat(beta)
        room = state.room(update, _largest_total(omega, memories, state))
        value = spread + state.loss(wide, update) + room
        value = torch.where(state.contains(queries), value, torch.inf)
    if torch.is_grad_enabled():
        value = _with_gradient_of(value, _plain(wide, scores, omega, memories, beta, state))
    return value.to(queries.dtype)


def _plain(
    wide: Tensor,
    scores: Tensor,
    omega: Omega,
    memories: Tensor,
    beta: float | Tensor,
    state: State,
) -> Tensor:
    r""":math:`-(\Omega^*(\beta X q) - \Omega^*(0))/\beta + \Psi(q) + c`: right gradients."""
    constant = _constant(omega, memories, state)
    return -omega.conjugate_gain(scores) / _flat(beta) + state.inner_value(wide) + constant


def _with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    return value + torch.where(value.isfinite(), other - other.detach(), 0.0)


def energy_parts(
    queries: Tensor, memories: Tensor, omega: Omega, beta: float | Tensor, state: State
) -> Energy:
    r"""The concave and the convex part of Eq. 8.

    For the Euclidean state both are written around the base point, as in the paper: the concave part
    is :math:`-L_\Omega(\beta X q; y_0)/\beta \le 0`, which Eq. 22 bounds from below. For other states the
    convex part is :math:`\Psi(q) + c` and the concave one the rest.
    """
    wide = _wide(queries)
    scores = _times_memories(wide * beta, memories)
    if not state.is_identity:
        constant = _constant(omega, memories, state)
        inside = torch.where(state.contains(queries), state.inner_value(wide), torch.inf)
        concave, convex = -omega.conjugate_gain(scores) / _flat(beta), inside + constant
        return Energy(concave.to(queries.dtype), convex.to(queries.dtype))
    base = omega.base_point(scores)
    together = base.ndim > 1 or memories.ndim == 2
    concave = -omega.base_loss(scores) / _flat(beta)
    mean = _weighted_sum(base if together else base.unsqueeze(0), memories)
    room = state.room(mean, _largest_total(omega, memories, state))
    convex = state.loss(wide, mean) + room
    return Energy(concave.to(queries.dtype), convex.to(queries.dtype))


def _constant(omega: Omega, memories: Tensor, state: State) -> Tensor | float:
    r"""The constant c, a bound on :math:`\Psi^*(X^\top y)` over all answers y; 0 if there is none."""
    if not omega.is_bounded:
        return 0.0
    return state.ceiling(_largest_total(omega, memories, state), memories.shape[-1])


def _largest_total(omega: Omega, memories: Tensor, state: State) -> Tensor:
    """The largest sum of sizes of patterns that an answer can add up, (..., 1)."""
    blocks = torch.split(memories, _rows_per_block(memories), dim=-2)
    sizes = torch.cat([state.size(_wide(block)) for block in blocks], -1)
    mass = omega.largest_mass
    if mass is None:
        mass = float(sizes.shape[-1])
    # No answer adds up more than the largest sizes, each with a weight of at most 1.
    largest = sizes.sort(-1, descending=True).values
    places = torch.arange(sizes.shape[-1], device=sizes.device)
    share = (torch.as_tensor(mass, device=sizes.device).amax() - places).clamp(0, 1)
    return (largest * share).sum(-1, keepdim=sizes.ndim > 1)


def _times_memories(queries: Tensor, memories: Tensor) -> Tensor:
    blocks = torch.split(memories, _rows_per_block(memories), dim=-2)
    return torch.cat([queries @ block.to(queries.dtype).mT for block in blocks], -1)


def _weighted_sum(weights: Tensor, memories: Tensor) -> Tensor:
    size = _rows_per_block(memories)
    blocks = zip(torch.split(weights, size, -1), torch.split(memories, size, -2), strict=True)
    products = [part @ block.to(part.dtype) for part, block in blocks]
    return torch.stack(products).sum(0) if len(products) > 1 else products[0]


def _rows_per_block(memories: Tensor) -> int:
    return max(1, _BLOCK // max(1, memories.shape[-1]))


def _wide(tensor: Tensor) -> Tensor:
    """Float64, or float32 where the device has no float64."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


def _flat(beta: float | Tensor) -> float | Tensor:
    return beta.squeeze(-1) if isinstance(beta, Tensor) and beta.ndim else beta
