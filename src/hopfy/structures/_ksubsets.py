"""Sets of a given size, or of at most that size."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._checks import SUBSET_SIZE, check_parameter, number_of, values_can_be_read
from hopfy._facts import Reach
from hopfy._kernels import oracles
from hopfy.structures._base import Rows, Structure, flat_rows

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["AtMostK", "KSubsets", "budget_rows", "clipped", "mass_outside"]


def clipped(k: float | Tensor, counts: int | Tensor) -> float | Tensor:
    """The smaller of a size k and the entries that there are, a number or beside the rows."""
    if not isinstance(counts, Tensor):
        return k.clamp_max(counts) if isinstance(k, Tensor) else min(k, counts)
    if not isinstance(k, Tensor):
        return counts.clamp_max(k)
    beside = k if k.ndim in (0, counts.ndim) else k.unsqueeze(-1)
    return torch.minimum(beside, counts)


def mass_outside(weights: Tensor, k: float | Tensor) -> Tensor:
    """How far sums of weights (..., N) exceed (positive) or miss (negative) their size k."""
    total = weights.sum(-1)
    if isinstance(k, Tensor) and k.ndim == weights.ndim:
        k = k.squeeze(-1)
    return total - k


def budget_rows(k: float | Tensor, scores: Tensor, name: str) -> Tensor:
    """The budget of every row as integers shaped like the batch; at most the number of entries."""
    batch, size = scores.shape[:-1], scores.shape[-1]
    budget = torch.as_tensor(k, device="cpu").detach().cpu()
    if budget.is_floating_point():
        budget = torch.where(budget == math.inf, float(size), budget)  # as many as there are
    if budget.is_floating_point() and not bool((budget == budget.round()).all()):
        raise ValueError(f"expected {name} with a whole number k to have structures, got k={k}.")
    if budget.ndim == len(batch) + 1 and budget.shape[-1] == 1:
        budget = budget.squeeze(-1)
    try:
        return budget.long().expand(batch)
    except RuntimeError:
        raise ValueError(
            f"expected the k of {name} to broadcast over the rows {tuple(batch)} of scores with "
            f"shape {tuple(scores.shape)} ({size} entries each), got shape {tuple(budget.shape)}."
        ) from None


def check_whole(k: float | Tensor, name: str) -> None:
    """Exactly k entries: no row has infinitely many."""
    check_parameter(k, SUBSET_SIZE)
    if isinstance(k, Tensor):
        infinite = values_can_be_read(k) and bool((k == math.inf).any())
    else:
        infinite = k == math.inf
    if infinite:
        raise ValueError(
            f"expected the k of {name} to be at most the number of entries, got inf; AtMostK(inf) "
            "selects any number of them."
        )


def _check_budget(budget: Tensor, size: int, name: str) -> None:
    wrong = (budget > size).reshape(-1)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"expected a budget between 0 and the {size} entries of {name}, got "
            f"{int(budget.reshape(-1)[row])} in row {row}: no structure meets it."
        )


@dataclass(frozen=True, eq=False)
class _Subsets(Structure):
    """Subsets of the entries of a row, of a size that ``k`` bounds."""

    k: float | Tensor
    has_factors = False
    merges_by_support = True

    @property
    def has_exact_oracle(self) -> bool:
        return float(number_of(self.k) or 0.0).is_integer()

    @property
    def largest_mass(self) -> float | Tensor:
        return self.k

    @property
    def oracle_key(self) -> Hashable:
        return type(self)


@dataclass(frozen=True, eq=False)
class KSubsets(_Subsets):
    r"""All choices of k entries, :math:`\{y \in \{0,1\}^N : 1^\top y = k\}` (Example 1).

    Its SparseMAP is the exact projection `hopfy.functional.ksubsets`. A row with fewer than k entries
    to select takes all of them.

    >>> import torch, hopfy
    >>> hopfy.structures.KSubsets(2).argmax(torch.tensor([0.3, 1.0, -2.0, 0.5]))
    tensor([0., 1., 0., 1.])
    """

    family = "subsets"
    has_fixed_mass = True

    def __post_init__(self) -> None:
        check_whole(self.k, "KSubsets")

    @property
    def name(self) -> str:
        k = number_of(self.k)
        return "k-subsets" if k is None else f"{k:g}-subsets"

    def solve(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.ksubsets(scores, self.k, dim=dim, mask=mask)

    def reach(self) -> Reach:
        r"""Scores that trail the k-th best by 1 get weight 0: :math:`\tau \ge \theta_{(k)} - 1`."""
        largest = float(torch.as_tensor(self.k, device="cpu").detach().max())
        return Reach(max(1, math.ceil(largest)), 1.0)

    def exact_margin(self, size: int) -> Fraction | None:
        return Fraction(1) if number_of(self.k) == size else None

    def clip(self, counts: int | Tensor) -> Self:
        return replace(self, k=clipped(self.k, counts))

    def violation(self, weights: Tensor, present: Tensor) -> Tensor:
        mass = mass_outside(weights.detach(), self.k).abs()
        return torch.maximum(super().violation(weights, present), mass * present.any(-1))

    @property
    def closed_form(self) -> tuple[str, float | Tensor]:
        return "ksubsets", self.k

    def rows(self, scores: Tensor) -> Rows:
        budget = budget_rows(self.k, scores, "KSubsets")
        _check_budget(budget, scores.shape[-1], "KSubsets")
        return flat_rows(scores, 1, data=(budget,))

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        return oracles.top(rows.scores, rows.data[0]), _no_factors(rows)


@dataclass(frozen=True, eq=False)
class AtMostK(_Subsets):
    r"""All choices of up to k entries, :math:`\{y \in \{0,1\}^N : 1^\top y \le k\}`.

    Its SparseMAP clips the scores to [0, 1] if that spends no more than k, and is the one of
    `KSubsets` otherwise.

    >>> import torch, hopfy
    >>> hopfy.structures.AtMostK(2).argmax(torch.tensor([0.3, -1.0, -2.0, -0.5]))
    tensor([1., 0., 0., 0.])
    """

    family = "at-most-k"

    def __post_init__(self) -> None:
        check_parameter(self.k, SUBSET_SIZE)

    @property
    def name(self) -> str:
        k = number_of(self.k)
        return "at most k" if k is None else f"at most {k:g}"

    def solve(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.at_most_k(scores, self.k, dim=dim, mask=mask)

    def violation(self, weights: Tensor, present: Tensor) -> Tensor:
        mass = mass_outside(weights.detach(), self.k).clamp_min(0)
        return torch.maximum(super().violation(weights, present), mass)

    @property
    def margin(self) -> float:
        # Structures of different sizes lie on no common sphere: dropping d bits costs d, not d / 2.
        return 2.0

    def rows(self, scores: Tensor) -> Rows:
        return flat_rows(scores, 1, data=(budget_rows(self.k, scores, "AtMostK"),))

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        positive = torch.where(rows.scores > 0, rows.scores, -torch.inf)
        return oracles.top(positive, rows.data[0]), _no_factors(rows)


def _no_factors(rows: Rows) -> Tensor:
    return torch.zeros((rows.scores.shape[0], 0), dtype=torch.int8, device="cpu")
