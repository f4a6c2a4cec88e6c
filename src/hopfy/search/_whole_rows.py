"""Updates that need every score: softmax, and maps that may give weight anywhere.

Nothing here holds more than a few rows of scores, or one block of them, at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from hopfy._runtime.precision import outside_autocast
from hopfy.omega import Omega
from hopfy.search._candidate_search import reference_scores
from hopfy.search._problem import Problem
from hopfy.search._softmax import SoftmaxRows
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
) -> list[Tensor]:
    r"""Mixtures :math:`T^\top \mathrm{softmax}(\beta X q)` of the rows of each table (N, E).

    One pass over the memories, see `hopfy.search._softmax`; ``beta`` is a number or (M,).
    """
    betas = torch.as_tensor(beta, dtype=torch.float64, device=queries.device)
    betas = betas.expand(queries.shape[0])
    parts = []
    with outside_autocast(queries):
        for some, own in zip(
            torch.split(queries, _QUERIES), torch.split(betas, _QUERIES), strict=True
        ):
            rows = SoftmaxRows(state.memories, state.alive, some, own)
            parts.append(rows.mixed(tables).mixtures)
    return [torch.cat(columns) for columns in zip(*parts, strict=True)]


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
