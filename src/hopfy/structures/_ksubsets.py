from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from hopfy._checks import SUBSET_SIZE, check_parameter

__all__ = ["KSubsets"]


@dataclass(frozen=True)
class KSubsets:
    r"""All choices of k entries, :math:`\{y \in \{0,1\}^N : 1^\top y = k\}` (Example 1)."""

    k: float | Tensor

    def __post_init__(self) -> None:
        check_parameter(self.k, SUBSET_SIZE)
