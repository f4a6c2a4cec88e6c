"""What all maps share: checks, the dimension, the mask and the dtype."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from hopfy._checks import Rule, as_dim, as_mask, as_parameter, as_scores
from hopfy._runtime.backends import backend_for
from hopfy._runtime.dispatch import is_compiling, records_gradients

__all__ = ["along_rows", "budget_of_rows", "checked"]


def along_rows(
    scores: Tensor,
    dim: int,
    mask: Tensor | None,
    apply: Callable[[Tensor], Tensor],
    parameter: Tensor | None = None,
    *,
    in_steps: bool = False,
) -> Tensor:
    """Run ``apply`` on the scores with ``dim`` last, masked entries at -inf, at least float32.

    Half precision stays as it is where a kernel reads it, unless a gradient (of the scores, or of the
    map's ``parameter``) needs weights in float32, or the map works ``in_steps`` and would round between
    them.
    """
    if mask is not None:
        scores = scores.masked_fill(~as_mask(mask, scores), -torch.inf)
    if scores.shape[dim] == 0 or scores.numel() == 0:
        return scores.clone()
    last = dim == scores.ndim - 1
    rows = scores if last else scores.movedim(dim, -1)
    half = rows.dtype in (torch.float16, torch.bfloat16)
    if half and (in_steps or not _served_as_they_are(rows, parameter)):
        weights = apply(rows.float()).to(scores.dtype)
    else:
        weights = apply(rows)
    return weights if last else weights.movedim(-1, dim)


def _served_as_they_are(rows: Tensor, parameter: Tensor | None) -> bool:
    """Whether a kernel reads half precision itself; gradients need weights in float32."""
    inputs = (rows,) if parameter is None else (rows, parameter)
    return not is_compiling() and backend_for(rows) == "triton" and not records_gradients(*inputs)


def checked(scores: Tensor, dim: int) -> int:
    """Check the scores and return ``dim`` as a non-negative number."""
    return as_dim(dim, as_scores(scores).ndim)


def budget_of_rows(k: float | Tensor, scores: Tensor, dim: int) -> Tensor:
    """How many entries each row selects: k, checked, as a tensor beside the rows."""
    size = int(scores.shape[dim])
    most = size or math.inf  # an empty row has nothing to select, whatever k is
    rule = Rule("k", f"between 0 and the row's size {size}", lambda k: (k <= most) & (k >= 0))
    return as_parameter(k, scores, dim, rule)
