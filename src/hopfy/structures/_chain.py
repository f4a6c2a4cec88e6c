"""Chains of states."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hopfy._facts import IndexTarget
from hopfy._kernels import oracles
from hopfy.structures._base import Rows, Structure, flat_rows, one_per_row

__all__ = ["Chain"]


@dataclass(frozen=True, eq=False)
class Chain(Structure):
    r"""One of S states at each of N positions, with transition scores; best path by Viterbi.

    Scores are (..., N, S); the structures are :math:`N \times S` bits with one per position, and
    :math:`\Omega(y) = \tfrac12\|y\|^2` over them.

    Args:
        transition: (S, S), from the previous state (row) to the next (column), shared by all edges, or
            (N - 1, S, S), one per edge; a number scores staying in the same state. Leading
            dimensions broadcast over the rows. A score of ``-inf`` forbids a transition.

    A position whose states are all masked is not there, and neither are the edges that touch it.

    >>> import torch, hopfy
    >>> scores = torch.tensor([[1.0, 0.0], [0.0, 0.4], [1.0, 0.0]])
    >>> hopfy.structures.Chain(0.5).argmax(scores)
    tensor([[1., 0.],
            [1., 0.],
            [1., 0.]])
    """

    transition: float | Tensor = 0.0
    event_dims = 2
    family = "chain"

    @property
    def varies_by_row(self) -> bool:
        return isinstance(self.transition, Tensor) and self.transition.ndim > 3

    def scale_factors(self, scale: float | Tensor) -> Structure:
        if isinstance(scale, Tensor):
            scale = scale[..., None, None]
        return replace(self, transition=self.transition * scale)

    @property
    def has_fixed_mass(self) -> bool:
        return True

    def violation(self, weights: Tensor, present: Tensor) -> Tensor:
        excess = (weights.detach().sum(-1) - present.any(-1).to(weights.dtype)).abs().amax(-1)
        return torch.maximum(super().violation(weights, present), excess)

    def target_from(self, indices: Tensor, scores: Tensor, ignore_index: int) -> IndexTarget:
        """States (..., N) of the positions; ``ignore_index`` removes a position."""
        return one_per_row(indices, scores, ignore_index, "states of the positions")

    @property
    def oracle_key(self) -> Hashable:
        return type(self)

    def rows(self, scores: Tensor) -> Rows:
        if scores.ndim < 2:
            return flat_rows(scores, 2)  # which says what is wrong
        return flat_rows(scores, 2, self._edges(scores))

    def _edges(self, scores: Tensor) -> Tensor:
        (length, states), batch = scores.shape[-2:], scores.shape[:-2]
        edges = max(length - 1, 0)
        transition = self.transition
        if not isinstance(transition, Tensor) or transition.ndim == 0:
            same = torch.eye(states, dtype=torch.float64, device=scores.device)
            transition = transition * same
        shape = transition.shape
        if len(shape) < 2 or shape[-2:] != (states, states):
            pass
        elif len(shape) == 2:
            return transition.expand(*batch, edges, states, states)
        elif shape[-3] in (1, edges):
            try:
                return transition.expand(*batch, edges, states, states)
            except RuntimeError:
                pass
        raise ValueError(
            f"expected the transition of Chain to be a number, ({states}, {states}) or ({edges}, "
            f"{states}, {states}), alone or for each row of the scores of shape "
            f"{tuple(scores.shape)}, got shape {tuple(shape)}."
        )

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        count, _, states = rows.scores.shape
        transition = rows.factor_scores.reshape(count, -1, states, states)
        bits = oracles.chain(rows.scores, transition)
        return bits, _edge_bits(bits)

    def factor_shape(self, event: torch.Size) -> tuple[int, ...]:
        return (max(event[-2] - 1, 0), event[-1], event[-1])

    def factors_of(self, bits: Tensor, rows: Rows) -> Tensor:
        return _edge_bits(bits).to(rows.scores)


def _edge_bits(bits: Tensor) -> Tensor:
    return (bits[:, :-1, :, None] * bits[:, 1:, None, :]).flatten(1)
