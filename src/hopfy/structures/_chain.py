"""Chains of states."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import masked
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
            (N - 1, S, S), one per edge; a number, or (1, 1), scores staying in the same state.
            Leading dimensions broadcast over the rows. A score of ``-inf`` forbids a transition.

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
    has_fixed_mass = True

    @property
    def varies_by_row(self) -> bool:
        return isinstance(self.transition, Tensor) and self.transition.ndim > 3

    def scale_factors(self, scale: float | Tensor) -> Structure:
        if isinstance(scale, Tensor):
            scale = scale[..., None, None]
        return replace(self, transition=self.transition * scale)

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
        return self._table(scores).expand(*batch, max(length - 1, 0), states, states)

    def _table(self, scores: Tensor) -> Tensor:
        """The transitions, ready to broadcast to (..., N - 1, S, S)."""
        (length, states), batch = scores.shape[-2:], scores.shape[:-2]
        edges = max(length - 1, 0)
        transition = self.transition
        if not isinstance(transition, Tensor) or transition.shape[-2:] in ((), (1, 1)):
            same = torch.eye(states, dtype=torch.float64, device=scores.device)
            transition = transition * same
        shape = transition.shape
        fits = len(shape) >= 2 and shape[-2:] == (states, states)
        if fits and (len(shape) == 2 or shape[-3] in (1, edges)):
            try:
                transition.expand(*batch, edges, states, states)
            except RuntimeError:
                fits = False
        else:
            fits = False
        if not fits:
            raise ValueError(
                f"expected the transition of Chain to be a number, ({states}, {states}) or ({edges}, "
                f"{states}, {states}), alone or for each row of the scores of shape "
                f"{tuple(scores.shape)}, got shape {tuple(shape)}."
            )
        return transition if len(shape) > 2 else transition[None]

    def solve(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor | None:
        scores = masked(scores, mask)
        if dim not in (-1, scores.ndim - 1):
            return None
        found = self._solved(scores, with_pairs=False)
        return None if found is None else found[0]

    def marginals(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        found = self._solved(scores, with_pairs=True)
        return super().marginals(scores) if found is None else found

    def _solved(self, scores: Tensor, *, with_pairs: bool) -> tuple[Tensor, Tensor] | None:
        """Marginals and those of the edges by the compiled solver, where it can serve."""
        if scores.ndim < 2 or scores.numel() == 0:
            return None
        batch, table = scores.shape[:-2], self._table(scores)
        if table.ndim > 3 and table.shape[:-3].numel() > 1:
            table = table.expand(*batch, *table.shape[-3:])
        rows = scores.reshape(batch.numel(), *scores.shape[-2:])
        tables = table.reshape(table.shape[:-3].numel(), *table.shape[-3:])
        found = F.chain_marginals(rows, tables, with_pairs=with_pairs)
        if found is None:
            return None
        y = found[0].reshape(scores.shape).to(scores.dtype)
        if found[1] is None:
            return y, y.new_empty(0)
        return y, found[1].reshape(*batch, *found[1].shape[1:]).to(scores.dtype)

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
