"""One pass of many queries over all memories, block by block."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels import select
from hopfy._kernels.select import ALL_ALIVE, NO_BIAS, NOTHING_KNOWN, Block, Fine, Found, Search
from hopfy._runtime.precision import full_precision, outside_autocast
from hopfy.search._bounds import BLOCK, Bounds, Left, widened
from hopfy.search._problem import Problem

__all__ = [
    "Rows",
    "blocks_of",
    "exact_rows",
    "grouped",
    "start_of",
    "sweep",
    "whole_scores",
]

_NO_LIMIT = 1 << 62
_SCORES = 1 << 19
"""Bounds held at once: they should stay in the cache between the product and the selection."""


class Rows:
    """Memories (N, W) and which of them are there; ``alive`` (N,) uint8, None: all."""

    def __init__(self, memories: Tensor, alive: Tensor | None) -> None:
        self.memories, self.alive = memories, alive

    def search(self, problem: Problem, first: int, stop: int, budget: int) -> Search:
        """The compiled search's fields for the memories ``first .. stop``."""
        known = problem.known
        return Search(
            rows=widened(self.memories[first:stop]).numpy(),
            bias=NO_BIAS if problem.bias is None else problem.bias[first:stop].numpy(),
            alive=ALL_ALIVE if self.alive is None else self.alive[first:stop].numpy(),
            queries=problem.queries.numpy(),
            known=NOTHING_KNOWN if known is None else known.view(torch.uint8).numpy(),
            measure=int(problem.measure),
            reach=problem.reach.numpy(),
            nudge=problem.nudge,
            budget=budget,
        )


def sweep(
    rows: Rows, problem: Problem, bounds: Bounds, room: int, budget: int | None = None
) -> Found:
    """At most ``room`` candidates of each query, under ``bounds``.

    A query whose bounds rule out so little that it exceeds ``budget`` (see `Search`) gives up. Rows
    come back with a status; the candidates of those with status `select.FINE` are complete.
    """
    left, found, limit = start_of(problem, bounds, budget, room)
    by_memory = select.by_memory(problem.queries.shape[0])
    for block, fine, search in blocks_of(rows, problem, bounds, left, limit, by_memory):
        select.solve(block, fine, search, found)
    return found


def start_of(
    problem: Problem, bounds: Bounds, budget: int | None, room: int
) -> tuple[Left, Found, int]:
    """The queries' side of the bounds, nothing found yet, and the budget as a number."""
    left = bounds.left(problem.bounded)
    if problem.bias_error is not None and problem.constant is not None:
        left.slack.add_(problem.bias_error.unsqueeze(1)).add_(problem.constant)
    found = Found.nothing(problem.queries.shape[0], problem.rank, room)
    found.floor[:] = problem.floors.numpy()
    found.status[~left.safe.numpy()] = select.GAVE_UP
    return left, found, _NO_LIMIT if budget is None else budget


def blocks_of(
    rows: Rows, problem: Problem, bounds: Bounds, left: Left, budget: int, transposed: bool
) -> Iterator[tuple[Block, Fine, Search]]:
    """Upper bounds of all memories, one block after the other in one buffer."""
    queries, count = left.vectors.shape[0], rows.memories.shape[0]
    step, slack = grouped(left)
    buffer = torch.empty(queries * min(step, count), dtype=left.vectors.dtype, device="cpu")
    fine_queries = left.fine.numpy()
    vectors = left.vectors.mT.contiguous() if transposed else left.vectors
    for number, first in enumerate(range(0, count, step)):
        stop = min(first + step, count)
        part, right = buffer[: queries * (stop - first)], bounds.right(first, stop)
        if transposed:
            upper = _product(right, vectors, part.view(-1, queries))
        else:
            upper = _product(vectors, right.mT, part.view(queries, -1))
        block = Block(upper.numpy(), slack[number], first, stop == count)
        fine = Fine(fine_queries, bounds.fine[first:stop].numpy())
        yield block, fine, rows.search(problem, first, stop, budget)


def grouped(left: Left) -> tuple[int, np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Memories per block for so many queries, and the largest slack of each block (blocks, M)."""
    group = max(1, min(16, _SCORES // (max(1, left.vectors.shape[0]) * BLOCK)))
    parts = [part.amax(0) for part in torch.split(left.slack, group)]
    return group * BLOCK, np.ascontiguousarray(torch.stack(parts).numpy())


def _product(left: Tensor, right: Tensor, out: Tensor) -> Tensor:
    """``left @ right`` with the rounding errors that the slack counts on."""
    with outside_autocast(left):
        if full_precision(left):
            return torch.mm(left, right, out=out)
        return out.copy_(left.double() @ right.double())


def exact_rows(rows: Rows, problem: Problem, size: int) -> Iterator[tuple[Tensor, Found]]:
    """Candidates from whole rows of exact scores, of ``size`` queries at a time."""
    places = torch.arange(problem.queries.shape[0], device="cpu")
    for some in torch.split(places, size) if places.numel() else ():
        yield some, _whole(rows, problem.take(some))


def _whole(rows: Rows, problem: Problem) -> Found:
    scores = whole_scores(rows, problem)
    return select.keep_above_floor(
        scores, problem.rank, problem.reach.numpy(), problem.floors.numpy(), problem.nudge
    )


def whole_scores(rows: Rows, problem: Problem) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Exact scores (M, N); -inf where a memory was removed."""
    queries, count = problem.queries.shape[0], rows.memories.shape[0]
    scores = np.empty((queries, count))
    for first in range(0, count, BLOCK):
        stop = min(first + BLOCK, count)
        part = np.empty((queries, stop - first))
        select.exact_scores(rows.search(problem, first, stop, _NO_LIMIT), part)
        scores[:, first:stop] = part
    return scores
