r"""Proofs for structures with an exact oracle, factor scores included.

A structure y is the SparseMAP answer to scores :math:`\theta` exactly if it is also the best structure
for the *linear* scores :math:`\theta - \nabla\Omega(y)`: that is the optimality condition of a concave
problem at a vertex. One run of the dynamic programme decides it, so no separation has to be known, and
scores on the factors are counted. To allow for rounding, the scores of y are lowered and all others
raised by more than the errors can add up to: a structure that is still the best is a proof.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.structures import Structure
from hopfy.theory._rounding import norm_bounds, rounding_bound

__all__ = ["proves_structure"]

_BLOCK = 1 << 22


def proves_structure(
    memories: Tensor, members: Tensor, structure: Structure, beta: float | Tensor
) -> Tensor:
    """`proves_fixed_point` for one set of structures that is the same for all rows."""
    rows = members.shape[0]
    proven = torch.zeros(rows, dtype=torch.bool, device=members.device)
    if not structure.has_exact_oracle or structure.varies_by_row or structure.event_dims > 1:
        return proven  # no exact oracle, or another problem in each row
    wide = memories.detach().double()
    betas = torch.as_tensor(beta, dtype=torch.float64, device=members.device).detach().expand(rows)
    norms = norm_bounds(wide)
    block = max(1, _BLOCK // memories.shape[0])
    for start in range(0, rows, block):
        part = slice(start, start + block)
        proven[part] = _block(wide, norms, members[part], structure, betas[part].unsqueeze(-1))
    return proven


def _block(
    memories: Tensor, norms: Tensor, members: Tensor, structure: Structure, beta: Tensor
) -> Tensor:
    size, (count, dimension) = members.shape[1], memories.shape
    chosen = memories.new_zeros(members.shape[0], count).scatter(1, members, 1.0)
    scores = beta * (memories[members].sum(1) @ memories.T)
    linear = scores - structure.slope(chosen)
    factors = structure.rows(linear).factor_scores.abs().sum(-1, keepdim=True)
    reach = norms[members].sum(-1, keepdim=True) * norms.max()
    # Errors of the scores, of the few operations here, and of the sums in the programme.
    unit = torch.finfo(torch.float64).eps
    error = (rounding_bound(dimension, size, torch.float64) + 4 * unit) * beta * reach + 4 * unit
    error = error + 8 * count * unit * (linear.abs().sum(-1, keepdim=True) + factors)
    best = structure.argmax(linear - error * (2 * chosen - 1))
    return (best == chosen).all(-1)
