"""Searches on one state of an index: the best, those within a range, rivals of a pattern."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hopfy._kernels.select import Array, Found
from hopfy.search._bounds import rounding, widened
from hopfy.search._candidate_search import find, find_in_two_passes, looks_for_best_first
from hopfy.search._candidates import best_first, rows_of
from hopfy.search._problem import Problem
from hopfy.search._short import short_of, short_verdicts
from hopfy.search._sparse_rows import SparseRows
from hopfy.search._state import State
from hopfy.search._two_pass import Agreement, floors_of
from hopfy.search._updates import Metric, numbered, problem_of

__all__ = ["best", "inside", "near", "numbers_of", "rivals", "separations", "verdicts"]


def best(
    state: State, queries: Tensor, k: int, metric: Metric, scratch: int
) -> tuple[Tensor, Tensor]:
    """Scores (M, k), distances for ``"euclidean"``, and numbers of the k best memories."""
    rows = queries.shape[0]
    scores = torch.full((rows, k), torch.nan, dtype=torch.float64, device="cpu")
    indices = torch.zeros(rows, k, dtype=torch.int64, device="cpu")
    zeros = torch.zeros(rows, dtype=torch.float64, device="cpu")
    problem = problem_of(state, queries.double(), metric, k, zeros)._replace(nudge=0.0)
    for places, found, complete in find(state, problem, scratch):
        chosen = places[torch.from_numpy(complete)]
        if complete.size:
            scores[chosen], indices[chosen] = best_first(found, complete, k)
    if metric == "euclidean":
        scores = (-2 * scores).clamp_min(0).sqrt()
    return scores, numbers_of(state)[indices]


def inside(
    state: State, queries: Tensor, limits: Tensor, metric: Metric, scratch: int
) -> SparseRows:
    """All memories within ``limits`` (M,): scores at least, or distances at most."""
    if metric == "euclidean":
        limits = torch.where(limits < 0, torch.inf, -limits.square() / 2)
    anywhere = torch.full((queries.shape[0],), torch.inf, dtype=torch.float64, device="cpu")
    problem = problem_of(state, queries.double(), metric, 1, anywhere)
    # A distance is a rounded root: let the edge in and look again below.
    floors = limits - 1e-14 * limits.abs() - 1e-300
    found = _found(state, problem._replace(floors=floors), queries, scratch)
    keep = found.values >= limits[found.row_of_entry]
    if metric == "euclidean":
        keep |= (-2 * found.values).sqrt() <= (-2 * limits).sqrt()[found.row_of_entry]
    found = found.kept(keep)
    if metric == "euclidean":
        found = found.with_values((-2 * found.values).clamp_min(0).sqrt())
    return numbered(state, found)


def near(
    state: State,
    queries: Tensor,
    reach: Tensor,
    rank: int,
    metric: Metric,
    mask: Tensor | None,
    scratch: int,
    agree: Agreement | None = None,
) -> SparseRows:
    """All memories above the ``rank``-th best score minus ``reach`` (M,), with their scores.

    With ``agree``, the rank-th best scores are those that it gives for the best ones found here.
    """
    if mask is None:
        problem = problem_of(state, queries.double(), metric, rank, reach)
    else:
        problem = state.partial(queries.double(), mask, rank, reach)
    if agree is None:
        return numbered(state, _found(state, problem, queries, scratch))
    if looks_for_best_first(state, problem, scratch):
        steps = find_in_two_passes(state, problem, agree, scratch)
        return numbered(state, _assembled(steps, state, queries))
    found = _found(state, problem, queries, scratch)
    floors = floors_of(agree(_best_values(found, rank)), problem)
    return numbered(state, found.kept(found.values > floors[found.row_of_entry]))


def _best_values(found: SparseRows, k: int) -> Tensor:
    """The k best values (rows, k) of each row, best first; -inf where a row has fewer."""
    best = torch.full((found.rows, k), -torch.inf, dtype=torch.float64)
    order = found.values.argsort(descending=True, stable=True)
    order = order[found.row_of_entry[order].argsort(stable=True)]
    place = torch.arange(order.numel()) - found.offsets[:-1][found.row_of_entry]
    kept = place < k
    best[found.row_of_entry[kept], place[kept]] = found.values[order[kept]]
    return best


def rivals(state: State, members: Tensor, lead: Tensor, scratch: int) -> tuple[SparseRows, Tensor]:
    """Memories within ``lead`` (P,) of sets (P, k), see `ExactIndex.rivals`."""
    own = widened(state.memories[members]).double()
    anchors = own.sum(1)
    weakest = torch.einsum("pkd,pd->pk", own, anchors).amin(1)
    size = own.norm(dim=-1).sum(1) * state.largest_norm
    slack = 4 * rounding(own.shape[-1] + own.shape[1] + 8, torch.float64) * size
    slack = slack + 8 * torch.finfo(torch.float64).eps * lead + 1e-290
    edge = weakest - lead
    anywhere = torch.full_like(edge, torch.inf)
    problem = state.inner(anchors, 1, anywhere)._replace(floors=edge - slack)
    found = _found(state, problem, anchors, scratch)
    row = found.row_of_entry
    outside = (found.indices.unsqueeze(1) != members[row]).all(1)
    return found.with_values(found.values - edge[row]).kept(outside), slack


def verdicts(state: State, members: Tensor, lead: Tensor, scratch: int) -> Tensor:
    """(P,) int8: 1 where nothing comes within the lead, -1 where something does, else 0."""
    short = short_of(state, members.shape[0])
    if short is not None:
        return torch.from_numpy(
            short_verdicts(short, members.contiguous().numpy(), lead.contiguous().numpy())
        )
    found, slack = rivals(state, members, lead, scratch)
    row = found.row_of_entry
    decided = (found.counts == 0).to(torch.int8)
    decided[row[found.values > slack[row]]] = -1
    return decided


def separations(state: State, kept: Tensor, scratch: int) -> Tensor:
    """Of the memories at rows ``kept`` (P,), in float64; see `ExactIndex.separations`."""
    own = state.memories[kept]
    if len(state) == 1:
        return torch.full((own.shape[0],), torch.inf, dtype=torch.float64, device="cpu")
    scores, numbers = best(state, widened(own), 2, "inner", scratch)
    itself = numbers == numbers_of(state)[kept].unsqueeze(1)
    # Its own score comes from the same arithmetic where possible: duplicates give exactly 0.
    score = torch.where(itself, scores, 0.0).sum(1)
    score = torch.where(itself.any(1), score, own.double().square().sum(1))
    return score - torch.where(itself, -torch.inf, scores).amax(1)


def numbers_of(state: State) -> Tensor:
    """(N,) the numbers that users know the stored rows by."""
    if state.numbers is not None:
        return state.numbers
    return torch.arange(state.stored, device="cpu")


def _found(state: State, problem: Problem, queries: Tensor, scratch: int) -> SparseRows:
    """All candidates with their scores; rows of queries that are not finite are empty."""
    return _assembled(find(state, problem, scratch), state, queries)


def _assembled(
    steps: Iterator[tuple[Tensor, Found, Array]], state: State, queries: Tensor
) -> SparseRows:
    found = []
    for places, some, complete in steps:
        chosen = places[torch.from_numpy(complete)]
        if complete.size:
            found.append((chosen, rows_of(some, complete, state.stored)))
    if sum(places.numel() for places, _ in found) < queries.shape[0] or not found:
        spoiled = (~queries.isfinite().all(1)).nonzero().squeeze(1)
        like = torch.empty(0, dtype=torch.float64, device="cpu")
        found.append((spoiled, SparseRows.empty(spoiled.numel(), state.stored, like)))
    return SparseRows.assemble(found)
