"""Attention from its definition, in plain differentiable torch; all weights exist at once."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy._kernels import entmax, ksubsets, normmax
from hopfy._kernels.attention.types import Family, Visible

__all__ = ["MAPS", "reference"]

MAPS = {"entmax": entmax, "normmax": normmax, "ksubsets": ksubsets}


def reference(
    queries: Tensor, keys: Tensor, values: Tensor, visible: Visible, family: Family, scale: float
) -> Tensor:
    """Output (G, R, E); shapes as in `hopfy._kernels.attention`."""
    groups, rows, _ = queries.shape
    scores = (queries * scale) @ keys.mT
    bias = visible.dense_bias(groups, rows)
    if bias is not None:
        scores = scores + bias
    mask = visible.dense_mask(scores)
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    parameter = family.parameter
    weights = MAPS[family.kind].solve(scores, parameter[..., None] if parameter.ndim else parameter)
    output: Tensor = weights @ values
    return output
