"""The loop of `hopfy.network._dynamics` through an index, with as few calls as possible."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy.network._dynamics import Outcome
from hopfy.network._indexed_step import IndexedStep, Moved
from hopfy.search import SparseRows

__all__ = ["iterate_with_index"]

Array = np.ndarray[Any, Any]


class _Reading(NamedTuple):
    """Which rows are sums of patterns with weight 1, of how many, and which comes first."""

    exact: Array
    size: Array
    first: Array


def iterate_with_index(
    queries: Tensor, stepper: IndexedStep, beta: float | Tensor, max_steps: int, tolerance: float
) -> Outcome:
    """`iterate` for a sparse map on queries (Q, D) on the CPU, of which no gradient is wanted.

    ``beta`` is a number or (Q, 1).
    """
    current = queries.detach().contiguous()
    own = beta.detach() if isinstance(beta, Tensor) else beta
    result = _Result(current.numpy(), stepper.columns)
    active: Array = np.arange(current.shape[0])
    for count in range(1, max_steps + 1):
        if not active.size:
            break
        left: list[tuple[Array, Array]] = []  # places that go on, and their states
        for places, moved in stepper.moved(current, own):
            some = _Some.at(places, active, current, own)
            reading = _read(moved)
            certified = _proofs(stepper, moved, reading, some.beta)
            still = result.record(some, moved, reading, certified, tolerance, count)
            leaving = still | (count == max_steps)
            result.keep(some.rows, moved.rows(stepper.columns), leaving)
            if not leaving.all():
                left.append((places.numpy()[~leaving], moved.states[~leaving]))
        going: Array = np.concatenate([places for places, _ in left]) if left else active[:0]
        active = active[going]
        if left:
            current = torch.from_numpy(np.concatenate([states for _, states in left]))
            own = own[torch.from_numpy(going)] if isinstance(own, Tensor) and own.ndim else own
    return result.outcome()


class _Some(NamedTuple):
    """Queries that were moved together: their numbers, their states before, and their beta."""

    rows: Array
    old: Array
    beta: float | Tensor

    @classmethod
    def at(cls, places: Tensor, active: Array, current: Tensor, beta: float | Tensor) -> _Some:
        """Those at ``places`` of the active ones, which increase."""
        if places.numel() == active.size:
            return cls(active, current.numpy(), beta)
        own = beta[places] if isinstance(beta, Tensor) and beta.ndim else beta
        return cls(active[places.numpy()], current[places].numpy(), own)


class _Result:
    """What has become of every query so far."""

    def __init__(self, queries: Array, columns: int) -> None:
        rows = queries.shape[0]
        self.columns = columns
        self.states = self.previous = queries
        self.steps = np.ones(rows, np.int64)
        none = np.zeros(rows, np.bool_)
        self.size, self.pattern = np.zeros(rows, np.int64), np.full(rows, -1)
        self.converged = self.certified = self.exact = none
        self.weights: list[tuple[Array, SparseRows]] = []
        self._owns_arrays = False  # at first they are the queries, or what a step returned

    def keep(self, rows: Array, weights: SparseRows, chosen: Array) -> None:
        """The weights (R, N) of those of the ``rows`` (R,) that are ``chosen``."""
        if chosen.all():
            self.weights.append((rows, weights))
        elif chosen.any():
            self.weights.append((rows[chosen], weights.take(torch.from_numpy(chosen.nonzero()[0]))))

    def record(
        self,
        some: _Some,
        moved: Moved,
        reading: _Reading,
        certified: Array,
        tolerance: float,
        count: int,
    ) -> Array:
        """Note what has become of some queries; return which of them move no more."""
        still: Array
        if certified.all():  # how far they moved does not matter
            settled = still = certified
        else:
            distance = np.square(moved.states - some.old, dtype=np.float64).sum(1)
            settled = certified | (distance <= tolerance * tolerance)
            still = settled | ~np.isfinite(distance)
        alone = reading.exact & (reading.size == 1) & settled
        pattern, rows = np.where(alone, reading.first, -1), some.rows
        if count == 1 and rows.size == self.steps.size:
            self.states, self.previous = moved.states, some.old
            self.size, self.exact, self.certified = reading.size, reading.exact, certified
            self.converged, self.pattern = settled, pattern
            return still
        if not self._owns_arrays:
            self._owns_arrays = True
            self.states, self.previous = self.states.copy(), self.previous.copy()
            self.converged, self.certified = self.converged.copy(), self.certified.copy()
            self.exact = self.exact.copy()
        self.states[rows], self.previous[rows] = moved.states, some.old
        self.size[rows], self.exact[rows] = reading.size, reading.exact
        self.certified[rows], self.converged[rows] = certified, settled
        self.pattern[rows], self.steps[rows] = pattern, count
        return still

    def outcome(self) -> Outcome:
        parts = self.weights
        if len(parts) == 1:
            weights: SparseRows | None = parts[0][1]
        elif parts:
            weights = SparseRows.assemble([(torch.from_numpy(rows), part) for rows, part in parts])
        else:
            weights = None
        return Outcome(
            states=torch.from_numpy(self.states),
            previous=torch.from_numpy(self.previous),
            steps=torch.from_numpy(self.steps),
            converged=torch.from_numpy(self.converged),
            certified=torch.from_numpy(self.certified),
            exact=torch.from_numpy(self.exact),
            size=torch.from_numpy(self.size),
            pattern=torch.from_numpy(self.pattern),
            weights=weights,
        )


def _read(moved: Moved) -> _Reading:
    offsets, values, indices = moved.offsets, moved.values, moved.indices
    rows = offsets.size - 1
    if moved.singles:
        return _Reading(np.ones(rows, np.bool_), np.ones(rows, np.int64), indices)
    counts = np.diff(offsets)
    # A single weight of 1 copies its pattern; sums are rounded anyway, and so are their weights.
    row = np.repeat(np.arange(rows), counts)
    slack = np.where(counts > 1, 64 * np.finfo(values.dtype).eps, 0.0)[row]
    ones = np.bincount(row[np.abs(values - 1) <= slack], minlength=rows)
    exact = (ones == counts) & (counts > 0)
    first = np.zeros(rows, np.int64)
    first[exact] = indices[offsets[:-1][exact]]
    return _Reading(exact, counts, first)


def _proofs(stepper: IndexedStep, moved: Moved, reading: _Reading, beta: float | Tensor) -> Array:
    """Ask for a proof for every exact row; rows of one support size are asked together."""
    exact, sizes = reading.exact, reading.size
    if moved.singles:
        return stepper.proves_singles(reading.first, beta)
    proven = np.zeros(exact.size, np.bool_)
    if not exact.any():
        return proven
    for size in np.unique(sizes[exact]).tolist():
        rows = np.flatnonzero(exact & (sizes == size))
        own = beta[torch.from_numpy(rows)] if isinstance(beta, Tensor) and beta.ndim else beta
        if size == 1:
            proven[rows] = stepper.proves_singles(reading.first[rows], own)
            continue
        entries = moved.offsets[rows][:, None] + np.arange(size)
        proven[rows] = stepper.prove_sets(torch.from_numpy(moved.indices[entries]), own).numpy()
    return proven
