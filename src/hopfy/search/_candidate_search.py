"""Candidates of all queries: under the cheapest bounds that work, and never too many at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels import select
from hopfy._kernels.select import Array, Found, Measure
from hopfy.search._bounds import BLOCK, Bounds, widened
from hopfy.search._budget import SCRATCH, Budget
from hopfy.search._plan import budget_for
from hopfy.search._problem import Problem
from hopfy.search._short import Short, short_of
from hopfy.search._state import State
from hopfy.search._sweep import exact_rows, sweep
from hopfy.search._two_pass import Agreement, Looked, best_of, collected, floors_of, looked_at

__all__ = ["find", "find_in_two_passes", "looks_for_best_first", "reference_scores"]

_MANY = 1 << 16
"""From so many memories on, best scores may be looked for first, and then what is within reach."""
_FEW = 1 << 10
"""Memories of a sample that shows how many scores lie within reach of each other."""
_LARGE_PART = 0.25
"""Of the memories: from here on scoring all of them exactly is cheaper than finding out which."""
_TRIAL = 32
"""Queries that show whether pruning helps, before the others follow."""


def find(
    state: State, problem: Problem, scratch: int = SCRATCH
) -> Iterator[tuple[Tensor, Found, Array]]:
    """Places among the queries, what was found for them, and which rows of it are complete.

    Together the complete rows are all queries with finite entries, each once. What exists at the same
    time is within ``scratch`` bytes as `Budget` divides them; the map's share is left to the caller.
    """
    queries, budget = problem.queries, Budget(scratch)
    if not state.is_compiled:
        yield from _reference(state, problem, scratch)
        return
    finite = queries.isfinite().all(1)
    wanted = finite.nonzero().squeeze(1)
    short = _simply(state, problem)
    if short is not None and wanted.numel():
        yield _all_at_once(short, problem.take(wanted), wanted)
        return
    if not _best_first(state, problem, budget):
        left: list[Tensor] = [wanted[:0]]
        for places, found, rows in _sweeps(state, problem, wanted, budget):
            _note_crowd(state, problem.take(places), found)
            yield places, found, rows
            left.append(places[torch.from_numpy(found.status != select.FINE)])
        wanted = torch.cat(left).sort().values
    if not bool(problem.reach[wanted].isfinite().all()):
        yield from _by_rows(state, problem, wanted, budget)
        return
    # What is within reach of the best score so far may be much, until the best one is met.
    size = budget.looked_at(state.stored)
    for some in torch.split(wanted, size) if wanted.numel() else ():
        for places, found, rows in find_in_two_passes(state, problem.take(some), None, scratch):
            yield some[places], found, rows


def looks_for_best_first(state: State, problem: Problem, scratch: int) -> bool:
    """Whether `find` would make two passes, of which the first one looks for the best scores."""
    if not state.is_compiled or short_of(state, problem.queries.shape[0]) is not None:
        return False
    return _best_first(state, problem, Budget(scratch))


def _best_first(state: State, problem: Problem, budget: Budget) -> bool:
    """Whether to look for the best scores before anything else.

    Without principal directions a pass costs its product, which runs faster in a sweep, unless that
    meets too much.
    """
    if not bool(problem.reach.isfinite().all()):
        return False
    if _was_crowded(state, problem):
        return True
    if problem.measure is Measure.PARTIAL or state.stored < _MANY:
        return False
    return state.principal_for(problem) is not None or _is_crowded(state, problem, budget)


def _is_crowded(state: State, problem: Problem, budget: Budget) -> bool:
    """Whether a sweep would probably meet too much for a quarter of the queries, judged by a sample.

    What is within reach of the best score of a few memories is kept until a better one is met.
    """
    step = state.stored // _FEW
    sample = widened(state.memories[::step])
    scores = problem.bounded.to(sample.dtype) @ sample.mT
    if problem.bias is not None:
        scores += problem.bias[::step]
    rank = min(problem.rank, sample.shape[0])
    floors = scores.topk(rank, 1).values[:, -1:] - problem.reach.unsqueeze(1)
    many = (scores >= floors).sum(1) * step > budget.one_pass(state.stored, problem.rank).room
    return 4 * int(many.sum()) > many.numel()


def _note_crowd(state: State, problem: Problem, found: Found) -> None:
    """Remember the reach of a sweep most of whose queries kept a large part of all memories."""
    many = (found.status == select.FULL) | (found.counts > _LARGE_PART * state.stored)
    if 2 * int(many.sum()) > many.size:
        crowds = state.derived.setdefault("crowds", {})
        reach = float(problem.reach.min())
        crowds[problem.measure] = min(reach, crowds.get(problem.measure, reach))


def _was_crowded(state: State, problem: Problem) -> bool:
    """Whether a sweep met too much before, with a reach that was not larger."""
    crowds = state.derived.get("crowds")
    if crowds is None or not problem.reach.numel():
        return False
    return bool(float(problem.reach.min()) >= crowds.get(problem.measure, torch.inf))


def _simply(state: State, problem: Problem) -> Short | None:
    """The memories as arrays, if one call should do it."""
    short = short_of(state, problem.queries.shape[0])
    if short is None or problem.measure is Measure.PARTIAL:
        return None
    return short if bool((problem.floors == -torch.inf).all()) else None


def _all_at_once(short: Short, problem: Problem, places: Tensor) -> tuple[Tensor, Found, Array]:
    found, _, _ = select.exact_candidates(
        short.rows,
        short.alive,
        problem.queries.contiguous().numpy(),
        problem.measure,
        problem.rank,
        problem.reach.contiguous().numpy(),
        problem.nudge,
    )
    return places, found, np.arange(places.numel())


def _sweeps(
    state: State, problem: Problem, wanted: Tensor, budget: Budget
) -> Iterator[tuple[Tensor, Found, Array]]:
    """Sweeps under principal directions where they help, and under the plain product elsewhere.

    A query that gave up under the directions is tried again under the product; only the last try is
    reported with rows that are not complete.
    """
    size, room = budget.one_pass(state.stored, problem.rank)
    principal = None if problem.measure is Measure.PARTIAL else state.principal_for(problem)
    if principal is not None:
        left: list[Tensor] = []
        for number, places in enumerate(_with_a_trial(wanted, size)):
            if number == 1 and 2 * left[0].numel() > _TRIAL:
                left.append(wanted[_TRIAL:])  # the bounds do not help here
                break
            limit = budget_for(state.memories)
            found = sweep(state.rows, problem.take(places), principal, room, limit)
            again = torch.from_numpy(found.status == select.GAVE_UP)
            left.append(places[again])
            kept = (~again).nonzero().squeeze(1)
            yield from _reported(places[kept], _take(found, kept))
        wanted = torch.cat(left).sort().values if left else wanted
    for places in _in_blocks(wanted, size):
        some = problem.take(places)
        yield from _reported(places, sweep(state.rows, some, _plain_bounds(state, some), room))


def find_in_two_passes(
    state: State, problem: Problem, agree: Agreement | None, scratch: int
) -> Iterator[tuple[Tensor, Found, Array]]:
    """The same as `find` where the best scores are not met early; for compiled states.

    ``agree`` is called once, with the best scores of all queries.
    """
    budget = Budget(scratch)
    room = budget.one_pass(state.stored, problem.rank).room
    wanted = problem.queries.isfinite().all(1).nonzero().squeeze(1)
    looked = list(_first_passes(state, problem, wanted, budget))
    best = best_of(looked, problem)
    unseen = _rows_with(looked, select.GAVE_UP)
    for places, found in _exactly(state, problem.take(unseen), budget):
        best[unseen[places]] = torch.from_numpy(found.best).sort(1, descending=True).values
    floors = floors_of(best[:, -1] if agree is None else agree(best), problem)
    anywhere = torch.full_like(problem.reach, torch.inf)
    above = problem._replace(floors=floors, reach=anywhere)
    again, crowded = [unseen], [unseen[:0]]
    for part in looked:
        many = part.share_within_reach(floors[part.places]) > _LARGE_PART
        crowded.append(part.places[many & ~part.gave_up])
        few = part.take(~many & ~part.gave_up)
        if not few.places.numel():
            continue
        found = collected(state.rows, few, floors[few.places], room)
        yield few.places, found, np.flatnonzero(found.status == select.FINE)
        crowded.append(few.places[torch.from_numpy(found.status == select.FULL)])
        again.append(few.places[torch.from_numpy(found.status == select.GAVE_UP)])
    looked.clear()
    yield from _by_rows(state, above, torch.cat(crowded).sort().values, budget)
    yield from _above(state, above, torch.cat(again).sort().values, budget)


def _rows_with(looked: Sequence[Looked], status: int) -> Tensor:
    parts = [part.places[torch.from_numpy(part.found.status == status)] for part in looked]
    return torch.cat([*parts, torch.empty(0, dtype=torch.int64)]).sort().values


def _above(
    state: State, problem: Problem, wanted: Tensor, budget: Budget
) -> Iterator[tuple[Tensor, Found, Array]]:
    """All scores above the problem's floors, under the plain product and then without bounds."""
    left: list[Tensor] = []
    size, room = budget.one_pass(state.stored, problem.rank)
    for places in _in_blocks(wanted, size):
        some = problem.take(places)
        found = sweep(state.rows, some, _plain_bounds(state, some), room)
        yield from _reported(places, found)
        left.append(places[torch.from_numpy(found.status != select.FINE)])
    rest = torch.cat(left) if left else wanted[:0]
    yield from _by_rows(state, problem, rest, budget)


def _by_rows(
    state: State, problem: Problem, wanted: Tensor, budget: Budget
) -> Iterator[tuple[Tensor, Found, Array]]:
    """Without bounds: some whole rows of exact scores at a time."""
    if wanted.numel():
        for places, found in _exactly(state, problem.take(wanted), budget):
            yield wanted[places], found, np.arange(places.numel())


def _exactly(state: State, problem: Problem, budget: Budget) -> Iterator[tuple[Tensor, Found]]:
    return exact_rows(state.rows, problem, budget.whole_rows(state.stored))


def _first_passes(
    state: State, problem: Problem, wanted: Tensor, budget: Budget
) -> Iterator[Looked]:
    """The best scores of all wanted queries, under the bounds that `_sweeps` would take."""
    size = budget.one_pass(state.stored, problem.rank).queries
    principal = None if problem.measure is Measure.PARTIAL else state.principal_for(problem)
    if principal is not None:
        left: list[Tensor] = []
        for number, places in enumerate(_with_a_trial(wanted, size)):
            if number == 1 and 2 * left[0].numel() > _TRIAL:
                left.append(wanted[_TRIAL:])
                break
            limit = budget_for(state.memories)
            looked = looked_at(state.rows, places, problem.take(places), principal, limit)
            left.append(places[looked.gave_up])
            yield looked.take(~looked.gave_up)
        wanted = torch.cat(left).sort().values if left else wanted
    for places in _in_blocks(wanted, size):
        some = problem.take(places)
        yield looked_at(state.rows, places, some, _plain_bounds(state, some))


def _plain_bounds(state: State, problem: Problem) -> Bounds:
    if problem.known is not None and problem.bias is None:
        return state.partial_bounds(problem.known)
    return state.plain


def _reported(places: Tensor, found: Found) -> Iterator[tuple[Tensor, Found, Array]]:
    if places.numel():
        yield places, found, np.flatnonzero(found.status == select.FINE)


def _take(found: Found, rows: Tensor) -> Found:
    if rows.numel() == found.counts.size:
        return found
    return Found(*(each[rows.numpy()] for each in found))


def _with_a_trial(places: Tensor, size: int) -> list[Tensor]:
    """A few queries first, then the rest in blocks."""
    return [places[:_TRIAL], *_in_blocks(places[_TRIAL:], size)] if places.numel() else []


def _in_blocks(places: Tensor, size: int) -> Sequence[Tensor]:
    return torch.split(places, size) if places.numel() else ()


# --- without numba, and on other devices -----------------------------------------------------------


def _reference(
    state: State, problem: Problem, scratch: int
) -> Iterator[tuple[Tensor, Found, Array]]:
    wanted = problem.queries.isfinite().all(1).nonzero().squeeze(1)
    size = max(1, scratch // (48 * max(1, state.stored)))
    for places in torch.split(wanted, size) if wanted.numel() else ():
        some = problem.take(places)
        found = _kept(reference_scores(state, some), some)
        yield places, found, np.arange(places.numel())


def reference_scores(state: State, problem: Problem) -> Tensor:
    """Exact scores (M, N) in plain torch, float64 on the CPU; -inf where a memory was removed."""
    device = state.memories.device
    queries = problem.queries.to(device)
    scores = torch.empty(queries.shape[0], state.stored, dtype=torch.float64, device="cpu")
    known = None if problem.known is None else problem.known.to(device)
    for first in range(0, state.stored, BLOCK):
        rows = widened(state.memories[first : first + BLOCK]).double()
        if problem.measure is Measure.EUCLIDEAN:
            block = _closeness(queries, rows[:, : queries.shape[1]])
        else:
            block = queries @ rows.mT
        if known is not None:
            block = block + (~known).double() @ rows.square().mT / 2
        scores[:, first : first + BLOCK] = block.cpu()
    if state.alive is not None:
        scores[:, state.alive == 0] = -torch.inf
    return scores


def _closeness(queries: Tensor, rows: Tensor) -> Tensor:
    mode = "donot_use_mm_for_euclid_dist"
    return torch.cdist(queries, rows, compute_mode=mode).square() / -2


def _kept(scores: Tensor, problem: Problem) -> Found:
    rank = min(problem.rank, scores.shape[1])
    best = scores.topk(rank, 1).values[:, -1:]
    reach = problem.reach.unsqueeze(1)
    floor = best - reach
    if problem.nudge:
        floor -= problem.nudge * (best.abs() + reach)
    inside = (scores > floor) if problem.nudge else (scores >= floor)
    inside &= scores > problem.floors.unsqueeze(1)
    counts = inside.sum(1)
    width = int(counts.max()) if counts.numel() else 0
    found = Found.nothing(scores.shape[0], rank, width)
    found.counts[:] = counts.numpy()
    row, column = inside.nonzero(as_tuple=True)
    slot = torch.arange(row.numel(), device="cpu") - (counts.cumsum(0) - counts)[row]
    found.indices[row.numpy(), slot.numpy()] = column.numpy()
    found.scores[row.numpy(), slot.numpy()] = scores[row, column].numpy()
    return found
