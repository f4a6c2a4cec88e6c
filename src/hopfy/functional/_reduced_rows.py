"""Large scores of a factor graph, brought closer to zero where that can be checked afterward."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.functional._joint_set import JointSet
from hopfy.structures import Rows

__all__ = ["ReducedRows"]

# How far above their typical size scores may be, and the size from which all are scaled down.
_WITHIN = 100.0
_SHRINK = 1e8
_EXACTLY = 1e-13


class ReducedRows(NamedTuple):
    r"""Rows whose large scores are replaced by smaller ones, and what makes that harmless.

    Raising a negative score leaves the solution alone if its entry is 0 there: for all y,
    :math:`f_\theta(y) \le f_{\theta'}(y) \le f_{\theta'}(y^*) = f_\theta(y^*)`. The same holds for
    lowering a positive score whose entry is 1. And a solution of zeros and ones stays optimal if
    all scores grow by the same factor, as does one that solves the linear problem, too
    (`JointSet.scalable`).
    """

    rows: Rows
    low: Tensor  # (B, n + f) bool: raised, so the entry must be 0
    high: Tensor  # (B, n + f) bool: lowered, so the entry must be 1
    shrunk: Tensor  # (B,) bool: multiplied by a factor below 1, so larger scores must not matter

    @staticmethod
    def of(rows: Rows, attempt: int) -> ReducedRows:
        """Scores within some multiple of their typical size; as they are in the last attempt."""
        whole = torch.cat([rows.scores, rows.factor_scores], 1)
        present = whole > -torch.inf
        size = torch.where(present, whole.abs(), 0.0)
        n = rows.scores.shape[1]
        # Padding may be most of a row: what is typical shows first in the smallest scores.
        share = (0.0, 0.5, torch.inf)[attempt]
        typical = torch.maximum(_quantile(size[:, :n], share), _quantile(size[:, n:], share))
        limit = _WITHIN * (1 + typical)
        low, high = present & (whole < -limit), whole > limit
        whole = torch.where(present, whole.clamp(-limit, limit), whole)
        most = torch.where(present, whole.abs(), 0.0).amax(1, keepdim=True)
        shrunk = (most > _SHRINK) & (attempt < 2)
        whole = torch.where(shrunk & present, whole * (_WITHIN / most.clamp_min(1)), whole)
        reduced = rows._replace(scores=whole[:, :n], factor_scores=whole[:, n:])
        return ReducedRows(reduced, low, high, shrunk[:, 0])

    def holds(self, joint: JointSet) -> Tensor:
        """(B,) bool: whether the solution solves the original rows as well."""
        if not bool((self.low | self.high).any() | self.shrunk.any()):
            return torch.ones(len(self.shrunk), dtype=torch.bool, device="cpu")
        y = torch.cat([joint.marginals, joint.factor_marginals], 1)
        zero, one = y <= _EXACTLY, y >= 1 - _EXACTLY
        holds = (~self.low | zero).all(1) & (~self.high | one).all(1)
        binary = (zero | one)[:, : joint.marginals.shape[1]].all(1)
        return holds & (~self.shrunk | binary | joint.scalable)


def _quantile(size: Tensor, share: float) -> Tensor:
    """The quantile (B, 1) of the sizes that are not zero; 0 if there are none."""
    if share > 1:
        return size.new_full((size.shape[0], 1), torch.inf)
    count = (size > 0).sum(1, keepdim=True)
    ordered = torch.where(size > 0, size, torch.inf).sort(1).values
    ordered = torch.nn.functional.pad(ordered, (0, 1), value=torch.inf)
    found = ordered.gather(1, ((count - 1).clamp_min(0) * share).long())
    return torch.where(count > 0, found, 0.0)
