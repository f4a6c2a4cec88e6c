r"""Proofs for structures with an exact oracle, factor scores included.

A structure y is the SparseMAP answer to scores :math:`\theta` exactly if it is also the best structure
for the *linear* scores :math:`\theta - \nabla\Omega(y)`: that is the optimality condition of a concave
problem at a vertex. One run of the oracle decides it, so no separation has to be known, and scores on
the factors are counted.

Rounding is kept out in two steps. The scores of y are rounded down and all others up, by more than
their errors, to whole numbers times a power of two. On these the oracle runs: sums of whole numbers
below :math:`2^{53}` are exact in float64, so every algorithm that adds, subtracts and compares finds
a best structure of the rounded problem without any error of its own: Viterbi, Eisner,
Chu-Liu-Edmonds, shortest augmenting paths, sorting, and the function of a user's `Oracle` if it does
no more than that. If y is still as good as what it finds, y is the best for the true scores.

What is left open by float64 scores is rounded once more from scores in rational arithmetic, which
loses nothing if they are whole numbers times a power of two of moderate size: so ties at the margin
are settled for grids, signs and one-hot patterns.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from hopfy.structures import Rows, Structure
from hopfy.theory._exact import exact_products, fractions_of
from hopfy.theory._rounding import norm_bounds, rounding_bound
from hopfy.theory._whole_scores import Whole, rounded_apart, rounded_apart_exactly

__all__ = ["StructureScores", "proves_structure"]

_BLOCK = 1 << 21
# Entries of one problem for which rational arithmetic is worth its time.
_EXACT_ENTRIES = 1 << 14


def proves_structure(
    memories: Tensor, members: Tensor, structure: Structure, betas: Tensor
) -> Tensor:
    """`proves_fixed_point` for one set of structures that is the same for all rows."""
    proven = torch.zeros(members.shape[0], dtype=torch.bool, device="cpu")
    if not structure.has_exact_oracle or structure.varies_by_row or structure.event_dims > 1:
        return proven.to(members.device)  # no exact oracle, or another problem in each row
    problem = StructureScores(memories, structure)
    usable = ((betas > 0) & betas.isfinite()).nonzero().flatten()
    for part in torch.split(usable, max(1, _BLOCK // max(1, memories.shape[0]))):
        try:
            proven[part] = problem.proves(members[part.to(members.device)].cpu(), betas[part])
        except ImportError:  # oracles need numba
            break
    return proven.to(members.device)


class StructureScores:
    """The linear problems of sets of patterns, on the CPU in float64."""

    def __init__(self, memories: Tensor, structure: Structure) -> None:
        self.memories = memories.detach().double().cpu()
        self.norms = norm_bounds(self.memories)
        self.structure = structure

    def proves(self, members: Tensor, betas: Tensor, radius: Tensor | None = None) -> Tensor:
        """Which sets (P, k) are the answers at their own sums, and ``radius`` (P,) around them."""
        chosen, linear, error = self.linear(members, betas)
        if radius is not None:
            error = error + (radius * betas).unsqueeze(-1) * self.norms * (1 + 1e-15)
        rows = self.structure.rows(linear).detached()
        found = self._favored(chosen, linear, error, rows)
        likely = (found[0] == chosen).all(-1)
        proven = torch.zeros_like(likely)
        which = likely.nonzero().flatten()
        if which.numel() == 0:
            return proven
        taken, factors = rows.take(which), found[1][which]
        whole = rounded_apart(
            taken.scores, taken.factor_scores, error[which], chosen[which], factors
        )
        proven[which] = self._is_best(whole, chosen[which], factors, taken)
        if radius is None and chosen.shape[1] <= _EXACT_ENTRIES:
            for row in (likely & ~proven).nonzero().flatten().tolist():
                one = rows.take(torch.tensor([row], device="cpu"))
                proven[row] = self._settle(
                    members[row], betas[row], chosen[row], found[1][row], one
                )
        return proven

    def linear(self, members: Tensor, betas: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        r"""The sets as bits (P, N), :math:`\beta X a - \nabla\Omega(y)`, and bounds on its errors."""
        size, (count, dimension) = members.shape[1], self.memories.shape
        chosen = self.memories.new_zeros(members.shape[0], count).scatter(1, members, 1.0)
        beta = betas.unsqueeze(-1)
        scores = beta * (self.memories[members].sum(1) @ self.memories.T)
        slope = self.structure.slope(chosen)
        reach = beta * self.norms[members].sum(-1, keepdim=True) * self.norms
        facts = torch.finfo(torch.float64)
        relative = rounding_bound(dimension, size, torch.float64) + 8 * facts.eps
        error = relative * reach + 8 * facts.eps * slope.abs()
        error = error + 8 * (dimension + size) * facts.tiny * (1 + beta) * (1 + self.norms.max())
        return chosen, scores - slope, error

    def _favored(
        self, chosen: Tensor, linear: Tensor, error: Tensor, rows: Rows
    ) -> tuple[Tensor, Tensor]:
        """What the oracle finds if the sets get the benefit of every doubt: they, or they are out.

        It also says which factor bits belong to them.
        """
        largest = linear.abs().amax(-1, keepdim=True)
        forbidding = rows.factor_scores.abs() > 1e6 * (largest + 1)
        factors = torch.where(forbidding, 0.0, rows.factor_scores.abs())
        size = linear.abs().sum(-1, keepdim=True) + factors.sum(-1, keepdim=True)
        favor = 2 * error + 64 * linear.shape[-1] * torch.finfo(torch.float64).eps * size
        raised = linear + favor * (2 * chosen - 1)
        bits, factors = self.structure.oracle(rows._replace(scores=raised))
        return bits.double(), factors.double()

    def _is_best(self, whole: Whole, chosen: Tensor, factors: Tensor, rows: Rows) -> Tensor:
        """Whether no structure has a larger sum of whole numbers."""
        problem = rows._replace(scores=whole.scores, factor_scores=whole.factor_scores)
        bits, others = self.structure.oracle(problem)
        best, own = whole.total(bits.double(), others.double()), whole.total(chosen, factors)
        return whole.fits & (bits >= 0).all(-1) & (own >= best) & own.isfinite()

    def exact_scores(self, members: Tensor, beta: Tensor, chosen: Tensor) -> list[Fraction] | None:
        """The linear scores of one set as rational numbers."""
        products = exact_products(self.memories[members], self.memories)
        if products is None:
            return None
        slope = fractions_of(self.structure.slope(chosen.unsqueeze(0)))
        factor = Fraction(float(beta))
        return [factor * p - s for p, s in zip(products, slope, strict=True)]

    def _settle(
        self, members: Tensor, beta: Tensor, chosen: Tensor, factors: Tensor, row: Rows
    ) -> bool:
        """Decide one set from scores without rounding errors."""
        scores = self.exact_scores(members, beta, chosen)
        finite = bool((row.factor_scores < torch.inf).all())  # and no NaN
        if scores is None or not finite:
            return False
        fixed = self.structure.has_fixed_mass
        whole = rounded_apart_exactly(scores, row.factor_scores[0], chosen, factors, fixed)
        return bool(self._is_best(whole, chosen.unsqueeze(0), factors.unsqueeze(0), row))
