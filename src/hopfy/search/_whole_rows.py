"""Updates that need every score: softmax, and maps that may give weight anywhere.

Nothing here holds more than a few rows of scores, or one block of them, at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hopfy._runtime.precision import outside_autocast
from hopfy.omega import Omega
from hopfy.search._bounds import BLOCK, widened
from hopfy.search._find import reference_scores
from hopfy.search._problem import Problem
from hopfy.search._sparse_rows import SparseRows
from hopfy.search._state import State
from hopfy.search._sweep import whole_scores

__all__ = ["softmax_mix", "whole_weights"]

_QUERIES = 1024


def softmax_mix(
    state: State,
    queries: Tensor,
    beta: float | Tensor,
    tables: Sequence[Tensor],
    bias: Tensor | None = None,
) -> list[Tensor]:
    r"""Mixtures :math:`T^\top \mathrm{softmax}(\beta (X q + b))` of the rows of each table (N, E).

    One pass over the memories: each block adds :math:`e^{\beta s_j - c}` and its mixtures under a
    running maximum c; when c rises, what was summed so far is scaled down. ``beta`` is a number or
    (M,).
    """
    dtype = torch.float32 if state.memories.element_size() == 2 else state.memories.dtype
    betas = torch.as_tensor(beta, dtype=torch.float64, device=queries.device)
    betas = betas.expand(queries.shape[0]).unsqueeze(1)
    scaled = (queries.double() * betas).to(dtype)
    if not scaled.shape[0]:
        return [scaled.new_empty(0, table.shape[1]) for table in tables]
    pairs = zip(torch.split(scaled, _QUERIES), torch.split(betas, _QUERIES), strict=True)
    with outside_autocast(scaled):
        parts = [_mix_some(state, some, own.to(dtype), tables, bias) for some, own in pairs]
    return [torch.cat(columns) for columns in zip(*parts, strict=True)]


def _mix_some(
    state: State, queries: Tensor, beta: Tensor, tables: Sequence[Tensor], bias: Tensor | None
) -> list[Tensor]:
    rows = queries.shape[0]
    top = queries.new_full((rows, 1), -torch.inf)
    total = queries.new_zeros(rows, 1)
    sums = [queries.new_zeros(rows, table.shape[1]) for table in tables]
    for first in range(0, state.stored, BLOCK):
        part = slice(first, first + BLOCK)
        scores = queries @ widened(state.memories[part]).mT
        if bias is not None:
            scores += beta * bias[part].to(scores.dtype)
        if state.alive is not None:
            scores.masked_fill_(state.alive[part] == 0, -torch.inf)
        higher = torch.maximum(top, scores.amax(1, keepdim=True))
        fixed = higher.clamp_min(torch.finfo(scores.dtype).min)  # a block of removed rows only
        scale = torch.exp(top - fixed)
        weights = scores.sub_(fixed).exp_()
        total = total.mul_(scale).add_(weights.sum(1, keepdim=True))
        for mixture, table in zip(sums, tables, strict=True):
            mixture.mul_(scale).addmm_(weights, widened(table[part]).to(weights.dtype))
        top = higher
    return [mixture / total for mixture in sums]


def whole_weights(
    state: State, problem: Problem, omega: Omega, beta: float | Tensor, scratch: int
) -> Iterator[tuple[Tensor, SparseRows]]:
    """Places and weights for maps that may give weight anywhere, some queries at a time."""
    wanted = problem.queries.isfinite().all(1).nonzero().squeeze(1)
    alive = None if state.alive is None else state.alive.nonzero().squeeze(1)
    # A map may need ten times the scores while it works.
    for places in torch.split(wanted, max(1, scratch // (128 * state.stored))):
        if not places.numel():
            continue
        some = problem.take(places)
        scores = (
            torch.from_numpy(whole_scores(state.rows, some))
            if state.is_compiled
            else reference_scores(state, some)
        )
        own = beta[places].unsqueeze(1) if isinstance(beta, Tensor) and beta.ndim else beta
        if alive is None:
            yield places, SparseRows.from_dense(omega(scores * own))
            continue
        kept = SparseRows.from_dense(omega(scores[:, alive] * own))
        yield places, SparseRows(kept.offsets, alive[kept.indices], kept.values, state.stored)
