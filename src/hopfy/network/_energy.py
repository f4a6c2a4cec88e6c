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
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.omega import Omega

__all__ = ["Energy", "energy", "energy_parts"]

# Entries of memories that are widened to float64 at a time.
_BLOCK = 1 << 23


class Energy(NamedTuple):
    """The two parts of Eq. 8; their sum is the energy."""

    concave: Tensor
    convex: Tensor


def energy(queries: Tensor, memories: Tensor, omega: Omega, beta: float | Tensor) -> Tensor:
    """Eq. 8 in the queries' dtype, shape ``queries.shape[:-1]``; beta is a number or (..., 1)."""
    wide = _wide(queries)
    scaled = wide * beta
    scores = _times_memories(scaled, memories)
    with torch.no_grad():
        weights = omega(scores)
        update = _weighted_sum(weights, memories)
        spread = omega.rise(scores, weights).clamp_min(0) / _flat(beta)
        radius = _radius(omega, memories)
        norm = torch.linalg.vector_norm(update, dim=-1)
        room = ((radius - norm) * (radius + norm)).clamp_min(0) / 2
        value = spread + (wide - update).square().sum(-1) / 2 + room
    if torch.is_grad_enabled():
        value = _with_gradient_of(value, _plain(wide, scores, omega, memories, beta))
    return value.to(queries.dtype)  # type: ignore[no-any-return]


def _plain(
    wide: Tensor, scores: Tensor, omega: Omega, memories: Tensor, beta: float | Tensor
) -> Tensor:
    r""":math:`-(\Omega^*(\beta X q) - \Omega^*(0))/\beta + (\|q\|^2 + R^2)/2`: right gradients."""
    conjugate = omega.conjugate(scores) - omega.conjugate(omega.origin(scores))
    radius = _radius(omega, memories)
    return -conjugate / _flat(beta) + (wide.square().sum(-1) + radius.square()) / 2


def _with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    return value + (other - other.detach())


def energy_parts(queries: Tensor, memories: Tensor, omega: Omega, beta: float | Tensor) -> Energy:
    """The concave part (never positive) and the convex part of Eq. 8."""
    wide = _wide(queries)
    scores = _times_memories(wide * beta, memories)
    base = omega.base_point(scores)
    together = base.ndim > 1 or memories.ndim == 2
    concave = -omega.base_loss(scores) / _flat(beta)
    mean = _weighted_sum(base if together else base.unsqueeze(0), memories)
    radius = _radius(omega, memories)
    norm = torch.linalg.vector_norm(mean, dim=-1)
    room = (radius - norm) * (radius + norm) / 2
    convex = (wide - mean).square().sum(-1) / 2 + room
    return Energy(concave.to(queries.dtype), convex.to(queries.dtype))


def _radius(omega: Omega, memories: Tensor) -> Tensor:
    """A bound on the norm of every state, shape (...,  1) beside the queries."""
    blocks = torch.split(memories, _rows_per_block(memories), dim=-2)
    norms = torch.cat([torch.linalg.vector_norm(_wide(block), dim=-1) for block in blocks], -1)
    mass = omega.largest_mass
    if mass is None:
        mass = float(norms.shape[-1])
    # No state is longer than the norms that its weights, each at most 1, can add up.
    largest = norms.sort(-1, descending=True).values
    places = torch.arange(norms.shape[-1], device=norms.device)
    share = (torch.as_tensor(mass, device=norms.device).amax() - places).clamp(0, 1)
    return (largest * share).sum(-1, keepdim=norms.ndim > 1)


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
