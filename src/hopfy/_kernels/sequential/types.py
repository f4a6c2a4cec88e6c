"""What a solver of sequential k-subsets has found."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

__all__ = ["Details", "Solution"]


class Solution(NamedTuple):
    """What `solve` found, and what `vjp` needs of it."""

    y: Tensor  # (R, N) marginals
    unit: Tensor  # (R, N) fractional positions that move as one; -1: 0 or 1 for certain, -2: masked
    size: Tensor  # (R, 2) active subsets and the positions in which they differ; 0 if certified
    iterations: Tensor  # (R) steps of the active set; 0 where the relaxation was exact
    gap: Tensor  # (R) duality gap; 0 where the relaxation was exact
    missing: Tensor  # (R) how much k exceeds the positions that may be selected
    indicators: Tensor  # the active subsets of all rows, one after the other
    numbers: Tensor  # the inverses of their overlaps and their weights


class Details(NamedTuple):
    """The solution of `solve_details`; all with the leading dimensions of the scores."""

    marginals: Tensor  # (..., N)
    pairs: Tensor  # (..., N - 1) probability that both neighbors are selected
    subsets: Tensor  # (...) how many subsets the mixture needs
    iterations: Tensor  # (...) steps of the active set; 0 where the relaxation was exact
    gap: Tensor  # (...) duality gap
