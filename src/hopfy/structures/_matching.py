"""Bipartite matchings."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy._facts import IndexTarget
from hopfy._kernels import oracles
from hopfy.structures._base import Rows, Structure, one_per_row

__all__ = ["Matching"]


@dataclass(frozen=True, eq=False)
class Matching(Structure):
    r"""Matchings between m rows and n columns; best matching by shortest augmenting paths.

    Scores are (..., m, n). Every member of the smaller side is matched to one of the other, and
    none twice; :math:`\Omega(y) = \tfrac12\|y\|^2` over the pairs. For m = n the hull is the Birkhoff
    polytope of doubly stochastic matrices.

    A row or column that is all masked is not there.

    >>> import torch, hopfy
    >>> hopfy.structures.Matching().argmax(torch.tensor([[3.0, 2.0, 0.0], [3.0, 0.0, 0.0]]))
    tensor([[0., 1., 0.],
            [1., 0., 0.]])
    """

    event_dims = 2
    family = "matching"
    has_factors = False
    has_fixed_mass = True

    def violation(self, weights: Tensor, present: Tensor) -> Tensor:
        weights = weights.detach()
        rows, columns = present.any(-1), present.any(-2)
        pairs = torch.minimum(rows.sum(-1), columns.sum(-1))
        over = torch.maximum(weights.sum(-1).amax(-1), weights.sum(-2).amax(-1)) - 1
        missing = (weights.sum((-2, -1)) - pairs).abs()
        return torch.maximum(super().violation(weights, present), torch.maximum(over, missing))

    def target_from(self, indices: Tensor, scores: Tensor, ignore_index: int) -> IndexTarget:
        """Partners (..., m) of the rows: a column, -1 for none (if m > n); or ignored: no such row."""
        alone = indices == -1 if ignore_index != -1 else torch.zeros_like(indices, dtype=torch.bool)
        given = torch.where(alone, ignore_index, indices)
        found = one_per_row(given, scores, ignore_index, "partners of the rows")
        return found._replace(present=(indices != ignore_index).unsqueeze(-1))

    @property
    def oracle_key(self) -> Hashable:
        return type(self)

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        bits = oracles.assignment(rows.scores)
        return bits, torch.zeros((bits.shape[0], 0), dtype=torch.int8, device="cpu")
