"""Bits in a row with scores for neighbors."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import number_of
from hopfy._kernels import oracles
from hopfy.structures._base import Rows, Structure, flat_rows
from hopfy.structures._ksubsets import budget_rows, check_whole, clipped, mass_outside

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["Bits", "SequentialKSubsets", "edge_tables"]


def edge_tables(transition: float | Tensor, scores: Tensor, name: str) -> Tensor:
    """Tables (..., N - 1, 2, 2) from a number, from edges (..., N - 1) or from tables.

    Size 1 instead of N - 1 repeats one for all edges. A number or an edge rewards neighbors that
    are both selected: it is the entry [1, 1].
    """
    batch, edges = scores.shape[:-1], max(scores.shape[-1] - 1, 0)
    if not isinstance(transition, Tensor):
        transition = torch.tensor(float(transition), dtype=torch.float64, device=scores.device)
    shape = transition.shape
    try:
        if len(shape) >= 3 and shape[-2:] == (2, 2) and shape[-3] in (1, edges):
            return transition.expand(*batch, edges, 2, 2)
        if not shape or shape[-1] in (1, edges):
            reward = transition.expand(*batch, edges)
            tables = torch.nn.functional.pad(reward[..., None], (3, 0))
            return tables.reshape(*batch, edges, 2, 2)
    except RuntimeError:
        pass
    raise ValueError(
        f"expected the transition of {name} to be a number, {edges} edges or tables "
        f"({edges}, 2, 2), alone or for each row of the scores of shape {tuple(scores.shape)}, "
        f"got shape {tuple(shape)}."
    )


def _edge_bits(bits: Tensor, scores: Tensor) -> Tensor:
    """One-hot tables (R, (N - 1) * 4) of the edges whose both ends are present."""
    present = scores > -torch.inf
    both = present[:, 1:] & present[:, :-1]
    pair = 2 * bits[:, :-1].long() + bits[:, 1:].long()
    tables = (pair[..., None] == torch.arange(4, device="cpu")) & both[..., None]
    return tables.flatten(1).to(torch.int8)


def _is_tables(transition: float | Tensor) -> bool:
    """Whether transitions are scores of the states (previous, next), (..., N - 1, 2, 2)."""
    return (
        isinstance(transition, Tensor) and transition.ndim >= 3 and transition.shape[-2:] == (2, 2)
    )


@dataclass(frozen=True, eq=False)
class Bits(Structure):
    """Free bits in a row, or k of them, with scores for neighbors: the factor behind `Sequence`."""

    k: int | Tensor | None = None
    transition: float | Tensor = 0.0
    margin = 2.0

    @property
    def varies_by_row(self) -> bool:
        k, transition = (
            torch.as_tensor(0 if self.k is None else self.k, device="cpu"),
            self.transition,
        )
        if not isinstance(transition, Tensor):
            return k.ndim > 0
        return k.ndim > 0 or transition.ndim > (3 if _is_tables(transition) else 1)

    def scale_factors(self, scale: float | Tensor) -> Structure:
        if isinstance(scale, Tensor) and scale.ndim and _is_tables(self.transition):
            scale = scale[..., None, None]
        return replace(self, transition=self.transition * scale)

    @property
    def oracle_key(self) -> Hashable:
        return type(self)

    def rows(self, scores: Tensor) -> Rows:
        name = type(self).__name__
        tables = edge_tables(self.transition, scores, name)
        free = self.k is None
        budget = budget_rows(-1 if self.k is None else self.k, scores, name)
        present = (scores.detach() > -torch.inf).sum(-1).cpu()
        wrong = ((budget > present) & (present > 0)).reshape(-1)
        if not free and bool(wrong.any()):
            row = int(wrong.nonzero()[0])
            raise ValueError(
                f"expected a budget of at most the entries that may be selected for {name}, got "
                f"k={int(budget.reshape(-1)[row])} of {int(present.reshape(-1)[row])} in row {row}: "
                "no structure meets it."
            )
        return flat_rows(scores, 1, tables, (budget,))

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        tables = rows.factor_scores.reshape(rows.scores.shape[0], -1, 2, 2)
        bits = oracles.bits(rows.scores, tables, rows.data[0])
        return bits, _edge_bits(bits, rows.scores)

    def factor_shape(self, event: torch.Size) -> tuple[int, ...]:
        return (max(event[-1] - 1, 0), 2, 2)

    def factors_of(self, bits: Tensor, rows: Rows) -> Tensor:
        return _edge_bits(bits, rows.scores).to(rows.scores)


@dataclass(frozen=True, eq=False)
class SequentialKSubsets(Bits):
    r"""k of N items in a row, with scores for neighbors (Example 2).

    As in the paper's factor graph each bit counts with both of its states, so the regularizer is
    :math:`\tfrac12(\|y\|^2 + \|1 - y\|^2)`, here without its constant :math:`N/2`:
    :math:`\Omega(y) = -\sum_i y_i (1 - y_i)`. Hence with transition 0 the SparseMAP equals
    ``ksubsets(scores / 2, k)``.

    Args:
        k: how many items to select; a tensor broadcasts over the rows.
        transition: a number, or a tensor (N - 1,) with one for each edge, rewards neighbors that are
            both selected; tables (N - 1, 2, 2) score the states (previous, next) of each edge. Leading
            dimensions broadcast over the rows, size 1 repeats one for all edges, and tensors
            receive gradients.

    An item that is masked is not there, and neither are the edges that touch it.

    >>> import torch, hopfy
    >>> scores = torch.tensor([1.0, 0.0, 0.9, -1.0])
    >>> hopfy.structures.SequentialKSubsets(2, transition=0.5).argmax(scores)
    tensor([1., 0., 1., 0.])
    >>> hopfy.structures.SequentialKSubsets(2, transition=1.0).argmax(scores)
    tensor([1., 1., 0., 0.])
    """

    curvature = 2.0
    family = "sequential-subsets"
    has_fixed_mass = True
    margin = 1.0

    def __post_init__(self) -> None:
        check_whole(self.budget, "SequentialKSubsets")

    @property
    def name(self) -> str:
        k, transition = number_of(self.k), number_of(self.transition)
        subsets = "sequential k-subsets" if k is None else f"sequential-{k:g}-subsets"
        if transition == 0:
            return subsets
        return f"{subsets}, transition {'scores' if transition is None else f'{transition:g}'}"

    def solve(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.sequential_ksubsets(scores, self.budget, self.transition, dim=dim, mask=mask)

    def marginals(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        if isinstance(self.transition, Tensor) and self.transition.requires_grad:
            return super().marginals(scores)  # only the active set knows how the edges' change
        return F.sequential_marginals(scores, self)

    @property
    def largest_mass(self) -> float | Tensor:
        return self.budget

    def clip(self, counts: int | Tensor) -> Self:
        return replace(self, k=clipped(self.budget, counts))  # type: ignore[arg-type]

    def violation(self, weights: Tensor, present: Tensor) -> Tensor:
        mass = mass_outside(weights.detach(), self.budget).abs()
        return torch.maximum(super().violation(weights, present), mass * present.any(-1))

    @property
    def budget(self) -> int | Tensor:
        """k, which is never missing here."""
        return 0 if self.k is None else self.k

    def slope(self, weights: Tensor) -> Tensor:
        return 2 * weights - 1

    def regularizer(self, weights: Tensor) -> Tensor:
        return -(weights * (1 - weights)).sum(-1)
