"""Attention of short sequences in float32: three torch calls forward, five backward.

All weights are kept: they are few. Rows are solved many at a time, see
`hopfy._kernels.attention.cpu_short`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels.attention.reference import MAPS
from hopfy._kernels.attention.types import Family, Visible
from hopfy._runtime.threads import over_rows

__all__ = ["State", "backward", "forward", "serves", "solve", "through"]

# Rows of up to this many scores.
_ROW = 512
# The exponents of maps with a smaller alpha, and the slopes of those with a larger, need more digits.
_SMALLEST_ALPHA, _LARGEST_ALPHA = 1.02, 3.0

# Entries touched for each score: below some 10,000 scores a second thread costs more than it saves.
_WORK = 2
_NOTHING = torch.zeros((), device="cpu")


class State(NamedTuple):
    """What the backward pass needs beside the inputs."""

    kernels: Any
    visible: Visible
    family: Family
    scale: float
    alpha: np.ndarray[Any, Any]
    weights: Tensor  # (G, R, N)
    dropout: float = 0.0

    @property
    def backend(self) -> str:
        return "short"


def serves(dtype: torch.dtype, row: int, kind: str, alpha: np.ndarray[Any, Any]) -> bool:
    """Whether rows of this many scores are solved here."""
    if dtype is not torch.float32 or not 1 < row <= _ROW:
        return False
    if kind == "ksubsets":
        return True
    smallest, largest = (alpha[0],) * 2 if alpha.size == 1 else (alpha.min(), alpha.max())
    if kind == "entmax" and smallest > 2:
        return bool(largest <= _LARGEST_ALPHA)
    return bool(smallest >= _SMALLEST_ALPHA and largest <= 2)


def solve(kernels: Any, scores: Tensor, alpha: np.ndarray[Any, Any], kind: str) -> bool:
    """Weights in place of the scores (rows, N); False if some are not finite."""
    arrays: tuple[Any, ...] = scores.numpy(), alpha
    if kind == "ksubsets":
        kernel = kernels.short_subsets
    elif kind == "entmax" and alpha[0] > 2:
        kernel = kernels.short_steep
    else:
        kernel, arrays = kernels.short_weights, (*arrays, kind == "normmax")
    return all(over_rows(kernel, scores.shape[0], _WORK * scores.numel(), *arrays))


def through(
    kernels: Any,
    weights: Tensor,
    along: Tensor,
    alpha: np.ndarray[Any, Any],
    kind: str,
    scale: float,
) -> None:
    """Apply the Jacobian at the weights (rows, N) to ``along`` in place, times the scale."""
    arrays: tuple[Any, ...] = weights.numpy(), along.numpy(), alpha, np.float32(scale)
    if kind == "ksubsets":
        kernel, arrays = kernels.subsets_through, (*arrays[:2], arrays[3])
    elif kind == "normmax":
        kernel = kernels.norm_through
    else:
        kernel = kernels.steep_through if alpha[0] > 2 else kernels.short_through
    over_rows(kernel, weights.shape[0], _WORK * weights.numel(), *arrays)


def forward(
    kernels: Any,
    inputs: tuple[Tensor, Tensor, Tensor],
    visible: Visible,
    family: Family,
    scale: float,
    alpha: np.ndarray[Any, Any],
) -> tuple[Tensor, State] | None:
    """Where every row sees every key; None if some score is not finite."""
    q, k, v = inputs
    scores = torch.baddbmm(_NOTHING, q, k.mT, beta=0, alpha=scale)
    if not solve(kernels, scores.view(-1, k.shape[1]), alpha, family.kind):
        return None
    return torch.bmm(scores, v), State(kernels, visible, family, scale, alpha, scores)


def backward(
    state: State, queries: Tensor, keys: Tensor, values: Tensor, cotangent: Tensor, wanted: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """See `hopfy._kernels.attention`."""
    weights, family = state.weights, state.family
    along = torch.bmm(cotangent, values.mT)
    in_values = torch.bmm(weights.mT, cotangent)
    in_parameter = None
    if wanted:
        parameter = family.parameter[..., None] if family.parameter.ndim else family.parameter
        slopes = MAPS[family.kind].slope(weights, parameter)
        in_parameter = (slopes * torch.where(weights > 0, along, 0.0)).sum(-1).double()
    flat = weights.shape[0] * weights.shape[1], weights.shape[2]
    through(
        state.kernels, weights.view(flat), along.view(flat), state.alpha, family.kind, state.scale
    )
    return torch.bmm(along, keys), torch.bmm(along.mT, queries), in_values, in_parameter
