"""Hopfield updates on one state of an index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal

import torch
from torch import Tensor

from hopfy._checks import as_positive, as_queries
from hopfy.search._candidate_search import find
from hopfy.search._candidates import weights_of
from hopfy.search._prepared import PreparedMap
from hopfy.search._problem import Problem
from hopfy.search._short import quick_step, short_of
from hopfy.search._sparse_rows import SparseRows
from hopfy.search._state import State
from hopfy.search._whole_rows import softmax_mix, whole_weights

__all__ = ["Metric", "as_betas", "numbered", "parts", "problem_of", "step", "weights"]

Metric = Literal["inner", "euclidean"]


def step(
    state: State, queries: Tensor, prepared: PreparedMap, beta: float | Tensor, scratch: int
) -> tuple[Tensor, SparseRows | None]:
    """The next states of ``queries`` (M, D) and their weights, None for softmax."""
    queries = as_queries(queries, state.memories)
    betas = as_betas(beta)
    if prepared.omega.is_softmax:
        (states,) = softmax_mix(state, queries, betas, [state.memories])
        return states, None
    short = short_of(state, queries.shape[0])
    if short is not None:
        quick = quick_step(short, queries, prepared, betas)
        if quick is not None:
            rows = SparseRows.of_arrays(quick.offsets, quick.indices, quick.values, state.stored)
            return torch.from_numpy(quick.states), numbered(state, rows)
    mixed = weights(state, queries, prepared, betas, "inner", scratch)
    states = mixed.matmul(state.memories, queries.dtype)
    return _spoil(states, queries), numbered(state, mixed)


def weights(
    state: State,
    queries: Tensor,
    prepared: PreparedMap,
    beta: float | Tensor,
    metric: Metric,
    scratch: int,
) -> SparseRows:
    """The weights of all queries; rows of queries that are not finite are empty."""
    found = list(parts(state, queries, prepared, beta, metric, None, scratch))
    done = sum(places.numel() for places, _ in found)
    like = torch.empty(0, dtype=torch.float64, device="cpu")
    if done < queries.shape[0]:
        spoiled = (~queries.isfinite().all(1)).nonzero().squeeze(1)
        found.append((spoiled, SparseRows.empty(spoiled.numel(), state.stored, like)))
    return SparseRows.assemble(found) if found else SparseRows.empty(0, state.stored, like)


def parts(
    state: State,
    queries: Tensor,
    prepared: PreparedMap,
    beta: float | Tensor,
    metric: Metric,
    mask: Tensor | None,
    scratch: int,
) -> Iterator[tuple[Tensor, SparseRows]]:
    """Places among the queries and their weights, see `ExactIndex.parts`."""
    wide, betas = queries.double(), as_betas(beta)
    distance = prepared.distances(betas, queries.shape[0])
    rank = 1 if prepared.reach is None else prepared.reach.rank
    if mask is not None:
        problem = state.partial(wide, mask, rank, distance)
    else:
        problem = problem_of(state, wide, metric, rank, distance)
    anywhere = prepared.reach is None or rank > len(state)
    if anywhere or not bool(distance.isfinite().all()):
        yield from whole_weights(state, problem, prepared.omega, betas, scratch)
        return
    for places, found, rows in find(state, problem, scratch):
        chosen = places[torch.from_numpy(rows)]
        own = betas[chosen] if isinstance(betas, Tensor) and betas.ndim else betas
        if rows.size:
            yield chosen, weights_of(found, rows, prepared, own, state.stored)


def problem_of(state: State, queries: Tensor, metric: Metric, rank: int, reach: Tensor) -> Problem:
    """What is looked for: the best inner products, or the nearest patterns."""
    make = state.euclidean if metric == "euclidean" else state.inner
    return make(queries, rank, reach)


def as_betas(beta: float | Tensor) -> float | Tensor:
    """A number, or (M,) in float64; an error unless all are finite and positive."""
    if isinstance(beta, Tensor):
        betas = beta.detach().to("cpu", torch.float64)
        if not bool(((betas > 0) & betas.isfinite()).all()):
            raise ValueError("expected every beta to be finite and > 0.")
        return betas if betas.ndim else float(betas)
    return as_positive(beta, "beta")


def numbered(state: State, rows: SparseRows) -> SparseRows:
    """The same with columns counted by the users' numbers."""
    if state.numbers is None:
        return rows
    columns = state.next_number
    return SparseRows(rows.offsets, state.numbers[rows.indices], rows.values, columns)


def _spoil(states: Tensor, queries: Tensor) -> Tensor:
    """NaN where the query was not finite, as in any product."""
    finite = queries.isfinite().all(1, keepdim=True)
    if bool(finite.all()):
        return states
    return torch.where(finite.to(states.device), states, math.nan)
