from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy.structures._base import Rows, Structure

__all__ = ["AtLeastOne"]


@dataclass(frozen=True, eq=False)
class AtLeastOne(Structure):
    """All non-empty choices: the structures of the factor `Or`."""

    family = "at-least-one"
    has_factors = False
    merges_by_support = True
    margin = 2.0

    @property
    def oracle_key(self) -> Hashable:
        return type(self)

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        scores = rows.scores
        top = (scores == scores.amax(-1, keepdim=True)) & (scores > -torch.inf)
        first = top & (top.cumsum(-1) == 1)
        bits = ((scores > 0) | first).to(torch.int8)
        return bits, torch.zeros((scores.shape[0], 0), dtype=torch.int8, device="cpu")
