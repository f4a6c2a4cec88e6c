"""What the inner operation of attention is told: the map, and which keys are visible."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["Family", "Visible"]


class Family(NamedTuple):
    """A map by its kind and parameter: alpha of "entmax" and "normmax", k of "ksubsets"."""

    kind: str
    parameter: Tensor  # 0-d, or one for each row (G, R)


class Visible(NamedTuple):
    """Which keys a row may select: all conditions hold together.

    ``mask`` (K, M or 1, N) is True where a key may be selected, ``bias`` (K', M or 1, N) is added to
    the scores. Query head h of group g, that is the rows ``h * M .. (h + 1) * M`` of the group, has
    the mask number ``mask_of[g * repeat + h]``, and the bias likewise. ``causal`` is the offset c of
    the condition ``key <= position + c`` (0: upper left, N - M: lower right), None without one.
    """

    period: int  # M: row r stands at position r % M
    mask: Tensor | None = None
    mask_of: Tensor | None = None
    bias: Tensor | None = None
    bias_of: Tensor | None = None
    causal: int | None = None

    @property
    def restricts(self) -> bool:
        """Whether some row may not see all keys as they are."""
        return self.mask is not None or self.bias is not None or self.causal is not None

    def dense_mask(self, scores: Tensor) -> Tensor | None:
        """The conditions as one boolean tensor that broadcasts to the scores (G, R, N)."""
        groups, rows, count = scores.shape
        found = self._per_row(self.mask, self.mask_of, groups, rows)
        if self.causal is not None:
            device = scores.device
            position = torch.arange(rows, device=device) % self.period
            allowed = torch.arange(count, device=device) <= position[:, None] + self.causal
            found = allowed if found is None else found & allowed
        return found

    def dense_bias(self, groups: int, rows: int) -> Tensor | None:
        """What is added to the scores, broadcasting to (G, R, N)."""
        return self._per_row(self.bias, self.bias_of, groups, rows)

    def _per_row(self, part: Tensor | None, which: Tensor | None, g: int, r: int) -> Tensor | None:
        if part is None or which is None:
            return None
        repeat = r // self.period
        full = part[which].expand(-1, self.period, -1)
        return full.reshape(g, repeat * self.period, part.shape[-1])
