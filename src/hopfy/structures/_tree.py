"""Dependency trees."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy._facts import IndexTarget
from hopfy._kernels import oracles
from hopfy.structures._base import Rows, Structure, flat_rows, one_per_row

__all__ = ["Tree"]


@dataclass(frozen=True, eq=False)
class Tree(Structure):
    r"""Dependency trees over n words; best tree by Chu-Liu-Edmonds, or Eisner if projective.

    Scores are (..., n, n): row = dependent, column = head, diagonal = arc from the root. Every word has
    one head and no arcs form a cycle; :math:`\Omega(y) = \tfrac12\|y\|^2` over the arcs.

    Args:
        projective: whether arcs may not cross.
        single_root: whether exactly one word hangs from the root; otherwise one or more do.

    A word whose row is all masked is not there, as dependent or as head.

    >>> import torch, hopfy
    >>> scores = torch.tensor([[1.0, 0.0, 0.0], [3.0, 0.0, 4.0], [0.0, 5.0, 0.0]])
    >>> hopfy.structures.Tree().argmax(scores)
    tensor([[1., 0., 0.],
            [1., 0., 0.],
            [0., 1., 0.]])
    """

    projective: bool = False
    single_root: bool = False
    event_dims = 2
    family = "tree"
    has_factors = False
    has_fixed_mass = True

    def violation(self, weights: Tensor, present: Tensor) -> Tensor:
        excess = (weights.detach().sum(-1) - present.any(-1).to(weights.dtype)).abs().amax(-1)
        return torch.maximum(super().violation(weights, present), excess)

    def target_from(self, indices: Tensor, scores: Tensor, ignore_index: int) -> IndexTarget:
        """Heads (..., n), 0 to n - 1, a word's own number for the root; or ignored: no such word."""
        found = one_per_row(indices, scores, ignore_index, "heads of the words")
        there = indices != ignore_index
        return found._replace(present=there.unsqueeze(-1) & there.unsqueeze(-2))

    @property
    def oracle_key(self) -> Hashable:
        return self

    def rows(self, scores: Tensor) -> Rows:
        if scores.ndim >= 2 and scores.shape[-1] != scores.shape[-2]:
            raise ValueError(
                "expected square scores for Tree (row = dependent, column = head, diagonal = root), "
                f"got shape {tuple(scores.shape)}."
            )
        return flat_rows(scores, 2)

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        arcs = oracles.tree(rows.scores, projective=self.projective, single_root=self.single_root)
        return arcs, torch.zeros((arcs.shape[0], 0), dtype=torch.int8, device="cpu")
