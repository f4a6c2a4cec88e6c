"""Hopfield updates on one state of an index."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hopfy._checks import as_positive, as_queries
from hopfy.search._budget import Budget
from hopfy.search._candidate_search import find
from hopfy.search._candidates import in_slices, weights_of
from hopfy.search._prepared import PreparedMap
from hopfy.search._problem import Problem
from hopfy.search._short import quick_step, short_of
from hopfy.search._sparse_rows import SparseRows
from hopfy.search._state import State
from hopfy.search._whole_rows import softmax_mix, whole_weights

__all__ = [
    "Metric",
    "Stepped",
    "as_betas",
    "numbered",
    "parts",
    "problem_of",
    "step",
    "steps",
    "weights",
]

Metric = Literal["inner", "euclidean"]


def step(
    state: State, queries: Tensor, prepared: PreparedMap, beta: float | Tensor, scratch: int
) -> tuple[Tensor, SparseRows | None]:
    """The next states of ``queries`` (M, D) and their weights, None for softmax."""
    queries = as_queries(queries, state.memories)
    if prepared.omega.is_softmax:
        (states,) = softmax_mix(state, queries, as_betas(beta), [state.memories])
        return states, None
    found = list(steps(state, queries, prepared, beta, scratch))
    if len(found) == 1:
        return found[0].states, found[0].weights
    made = queries.new_empty(queries.shape[0], state.memories.shape[1])
    for part in found:
        made[part.places] = part.states
    rows = [(part.places, part.weights) for part in found]
    return made, SparseRows.assemble(rows) if rows else _nothing(state, 0)


class Stepped(NamedTuple):
    """The next states of the queries at ``places``, which increase, and their weights."""

    places: Tensor
    states: Tensor
    weights: SparseRows


def steps(
    state: State, queries: Tensor, prepared: PreparedMap, beta: float | Tensor, scratch: int
) -> Iterator[Stepped]:
    """`step` of a map with zeros, a part of the queries at a time."""
    queries = as_queries(queries, state.memories)
    betas, count = as_betas(beta), queries.shape[0]
    short = short_of(state, count)
    quick = None if short is None else quick_step(short, queries, prepared, betas)
    if quick is not None:
        rows = SparseRows.of_arrays(quick.offsets, quick.indices, quick.values, state.stored)
        everyone = torch.arange(count, device="cpu")
        yield Stepped(everyone, torch.from_numpy(quick.states), numbered(state, rows))
        return
    done = 0
    for places, mixed in parts(state, queries, prepared, betas, "inner", None, scratch):
        done += places.numel()
        made = mixed.matmul(state.memories, queries.dtype)
        yield Stepped(places, made, numbered(state, mixed))
    if done < count:
        spoiled = _spoiled(queries)
        lost = queries.new_full((spoiled.numel(), queries.shape[1]), math.nan)
        yield Stepped(spoiled, lost, numbered(state, _nothing(state, spoiled.numel())))


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
    if not found or sum(places.numel() for places, _ in found) < queries.shape[0]:
        spoiled = _spoiled(queries)
        found.append((spoiled, _nothing(state, spoiled.numel())))
    return SparseRows.assemble(found)


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
    at_once = Budget(scratch).mapped
    for places, found, complete in find(state, problem, scratch):
        for rows in in_slices(complete, found.counts, at_once):
            chosen = places[torch.from_numpy(rows)]
            own = betas[chosen] if isinstance(betas, Tensor) and betas.ndim else betas
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
            wrong = betas[~((betas > 0) & betas.isfinite())]
            raise ValueError(f"expected every beta to be finite and > 0, got {float(wrong[0])}.")
        return betas if betas.ndim else float(betas)
    return as_positive(beta, "beta")


def numbered(state: State, rows: SparseRows) -> SparseRows:
    """The same with columns counted by the users' numbers."""
    if state.numbers is None:
        return rows
    columns = state.next_number
    return SparseRows(rows.offsets, state.numbers[rows.indices], rows.values, columns)


def _spoiled(queries: Tensor) -> Tensor:
    """The queries that are not finite."""
    return (~queries.isfinite().all(1)).nonzero().squeeze(1).cpu()


def _nothing(state: State, rows: int) -> SparseRows:
    like = torch.empty(0, dtype=torch.float64, device="cpu")
    return SparseRows.empty(rows, state.stored, like)
