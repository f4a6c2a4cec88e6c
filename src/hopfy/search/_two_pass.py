"""The best scores of all queries first, and then everything within reach of them.

A search that has not met a query's best score yet cannot rule out what is within reach of the best
one so far, which may be much. So the first pass looks for the best scores alone. Between the passes
the floors are known: of these memories, or, by an `Agreement`, of all shards of a larger set.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels import select
from hopfy._kernels.select import Array, Found
from hopfy.search._bounds import Bounds, Left
from hopfy.search._problem import Problem
from hopfy.search._sweep import Rows, blocks_of, grouped, start_of

__all__ = ["Agreement", "Looked", "best_of", "collected", "floors_of", "looked_at"]

_SAMPLE = 1024
"""Chunks of memories that show how many are within reach."""
Agreement = Callable[[Tensor], Tensor]
"""From the best scores here (M, rank), best first, to the rank-th best of all (M,)."""


class Looked(NamedTuple):
    """The first pass of some queries: ``places`` among all, and what the second one needs."""

    places: Tensor
    problem: Problem
    bounds: Bounds
    left: Left
    found: Found
    peaks: Array
    budget: int

    @property
    def gave_up(self) -> Tensor:
        return torch.from_numpy(self.found.status == select.GAVE_UP)

    def take(self, chosen: Tensor) -> Looked:
        """Only the queries where ``chosen`` (M,) is True."""
        keep = chosen.nonzero().squeeze(1)
        if keep.numel() == self.places.numel():
            return self
        rows = keep.numpy()
        left = Left(
            self.left.vectors[keep], self.left.slack[:, keep], self.left.fine[keep],
            self.left.safe[keep],
        )  # fmt: skip
        found = Found(*(each[rows] for each in self.found))
        return self._replace(
            places=self.places[keep],
            problem=self.problem.take(keep),
            left=left,
            found=found,
            peaks=self.peaks[rows],
        )

    def share_within_reach(self, floors: Tensor) -> Tensor:
        """(M,) about the share of memories in chunks that may hold a score above ``floors`` (M,)."""
        step = max(1, self.peaks.shape[1] // _SAMPLE)
        limits = floors.numpy() - self.left.slack.amax(0).numpy()
        return torch.from_numpy((self.peaks[:, ::step] > limits[:, None]).mean(1))


def looked_at(
    rows: Rows, places: Tensor, problem: Problem, bounds: Bounds, budget: int | None = None
) -> Looked:
    """The first pass: the best scores of all queries of the problem, and the peaks of their bounds."""
    count, queries = rows.memories.shape[0], problem.queries.shape[0]
    left, found, budget = start_of(problem, bounds, budget, 0)
    peaks: Array = np.empty((queries, -(-count // select.CHUNK)), left.vectors.numpy().dtype)
    for block, fine, search in blocks_of(rows, problem, bounds, left, budget, transposed=False):
        select.look(block, fine, search, found, peaks)
    return Looked(places, problem, bounds, left, found, peaks, budget)


def best_of(looked: Sequence[Looked], problem: Problem) -> Tensor:
    """The best scores (M, rank) of all queries, best first; -inf where there are none."""
    rows, rank = problem.queries.shape[0], problem.rank
    best = torch.full((rows, rank), -torch.inf, dtype=torch.float64, device="cpu")
    for part in looked:
        best[part.places] = torch.from_numpy(part.found.best).sort(1, descending=True).values
    return best


def floors_of(best: Tensor, problem: Problem) -> Tensor:
    """(M,) scores at or below have no part in the answer, if ``best`` (M,) are the rank-th best."""
    reach = problem.reach
    floor = best - reach - problem.nudge * (best.abs() + reach)
    lowest = torch.full_like(floor, -torch.inf)
    # Without a nudge a tie with the rank-th best stays.
    floor = floor - 1e-300 if problem.nudge else torch.nextafter(floor, lowest)
    known = best.isfinite() & reach.isfinite()
    return torch.maximum(torch.where(known, floor, -torch.inf), problem.floors)


def collected(rows: Rows, looked: Looked, floors: Tensor, room: int) -> Found:
    """The second pass: all scores above ``floors`` (M,), with a status like that of a sweep."""
    problem, bounds, left = looked.problem, looked.bounds, looked.left
    count, queries = rows.memories.shape[0], problem.queries.shape[0]
    begun = Found.nothing(queries, 1, room)
    found = begun._replace(floor=floors.numpy().copy(), status=looked.found.status.copy())
    step, slack = grouped(left)
    starts = range(0, count, step)
    tops = _tops(looked.peaks, step // select.CHUNK, len(starts))
    limits = floors.numpy() - slack  # (blocks, M)
    for number, first in enumerate(starts):
        if not (tops[:, number] > limits[number] - 1e-6 * np.abs(limits[number]) - 1e-30).any():
            continue
        stop = min(first + step, count)
        fine = select.Fine(left.fine.numpy(), bounds.fine[first:stop].numpy())
        search = rows.search(problem, first, stop, looked.budget)
        right = bounds.right(first, stop).numpy()
        select.revisit(
            left.vectors.numpy(), right, first, slack[number], fine, search, looked.peaks, found
        )
    return found


def _tops(peaks: Array, chunks: int, blocks: int) -> Array:
    """The highest bound of each block (M, blocks)."""
    edges = np.arange(blocks) * chunks
    tops: Array = np.maximum.reduceat(peaks, edges, axis=1)
    return tops
