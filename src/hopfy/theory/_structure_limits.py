"""Separations and radii of structures, rounded down, from runs of their oracle."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hopfy.structures import Rows
from hopfy.theory._structure_proof import StructureScores
from hopfy.theory._whole_scores import Whole, rounded_apart

__all__ = ["StructureLimits"]

_DOUBLINGS = 60
_HALVINGS = 45


class StructureLimits(StructureScores):
    """How far the structures of sets of patterns are from the next ones."""

    def separation(self, members: Tensor, beta: float) -> Tensor:
        """The lead of each set (P, k) over every other structure, in units of similarity, (P,)."""
        betas = torch.full((len(members),), beta, dtype=torch.float64, device="cpu")
        chosen, linear, error = self.linear(members, betas)
        slope = self.structure.slope(chosen)
        rows = self.structure.rows(linear + slope).detached()
        error = error + 8 * torch.finfo(torch.float64).eps * (linear.abs() + slope.abs())
        factors = self._factors(chosen, rows)
        whole = rounded_apart(rows.scores, rows.factor_scores, error, chosen, factors)
        own, rival = whole.total(chosen, factors), self._next_best(whole, chosen, rows)
        lead = (own - rival) * whole.unit / beta
        # Only the division rounds.
        below = torch.nextafter(lead, torch.full_like(lead, -math.inf))
        below = torch.where(lead.isinf(), lead, below)
        return torch.where(whole.fits, below, -math.inf)

    def radius(self, members: Tensor, beta: float) -> Tensor:
        """The largest distance at which each set (P, k) is proven to be recalled in one step, (P,)."""
        betas = torch.full((len(members),), beta, dtype=torch.float64, device="cpu")
        fixed = self.proves(members, betas)
        low = torch.zeros_like(betas)
        high = torch.full_like(betas, float(self.norms.max()) * 1e-3 + 1e-300)
        for _ in range(_DOUBLINGS):
            proven = fixed & self.proves(members, betas, high)
            if not bool(proven.any()):
                break
            low, high = torch.where(proven, high, low), torch.where(proven, 2 * high, high)
        unlimited = fixed & self.proves(members, betas, high)
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            proven = self.proves(members, betas, middle)
            low, high = torch.where(proven, middle, low), torch.where(proven, high, middle)
        return torch.where(fixed, torch.where(unlimited, math.inf, low), -math.inf)

    def _factors(self, chosen: Tensor, rows: Rows) -> Tensor:
        """The factor bits (P, f) of the sets, which must be structures."""
        favored = rows._replace(scores=2 * chosen - 1, factor_scores=_signs(rows.factor_scores))
        bits, factors = self.structure.oracle(favored)
        strange = (bits != chosen).any(-1)
        if bool(strange.any()):
            row = int(strange.nonzero()[0])
            raise ValueError(
                f"expected members that form a structure of {self.structure}, got "
                f"{chosen[row].nonzero().flatten().tolist()} in row {row}."
            )
        return factors.double()

    def _next_best(self, whole: Whole, chosen: Tensor, rows: Rows) -> Tensor:
        """The largest total (P,) of a structure that differs in at least one bit; -inf: none."""
        finite = torch.where(whole.factor_scores.isfinite(), whole.factor_scores, 0.0)
        weight = 2 * (whole.scores.abs().sum(-1) + finite.abs().sum(-1)) + 2
        best = torch.full_like(weight, -math.inf)
        for bit in range(chosen.shape[1]):
            on = chosen[:, bit] > 0
            if self.structure.has_fixed_mass and not bool(on.any()):
                continue  # a structure of the same size that adds a bit also drops one
            scores = whole.scores.clone()
            scores[:, bit] = torch.where(on, -weight, weight)
            bits, factors = self.structure.oracle(
                rows._replace(scores=scores, factor_scores=whole.factor_scores)
            )
            total = whole.total(bits.double(), factors.double())
            differs = (bits[:, bit] != chosen[:, bit]) & (bits >= 0).all(-1)
            best = torch.where(differs, torch.maximum(best, total), best)
        return best


def _signs(factor_scores: Tensor) -> Tensor:
    """Factor scores that matter less than any bit; -inf still forbids."""
    return torch.where(factor_scores == -math.inf, factor_scores, 0.0)
