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
    active = np.arange(current.shape[0])
    for count in range(1, max_steps + 1):
        if not active.size:
            break
        old, moved = current.numpy(), stepper.moved(current, own)
        reading = _read(moved)
        certified = _proofs(stepper, moved, reading, own)
        if certified.all():  # how far they moved does not matter
            result.record(active, old, moved, reading, certified, certified, count)
            result.keep(active, moved.rows(stepper.columns))
            break
        distance = np.square(moved.states - old, dtype=np.float64).sum(1)
        settled = certified | (distance <= tolerance * tolerance)
        result.record(active, old, moved, reading, certified, settled, count)
        leaving = settled | ~np.isfinite(distance)
        weights = moved.rows(stepper.columns)
        if count == max_steps or leaving.all():
            result.keep(active, weights)
            break
        staying = torch.from_numpy(np.flatnonzero(~leaving))
        if leaving.any():
            result.keep(active[leaving], weights.take(torch.from_numpy(np.flatnonzero(leaving))))
        active = active[~leaving]
        current = torch.from_numpy(moved.states)[staying]
        own = own[staying] if isinstance(own, Tensor) and own.ndim else own
    return result.outcome()


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

    def keep(self, rows: Array, weights: SparseRows) -> None:
        self.weights.append((rows, weights))

    def record(
        self,
        active: Array,
        old: Array,
        moved: Moved,
        reading: _Reading,
        certified: Array,
        settled: Array,
        count: int,
    ) -> None:
        alone = reading.exact & (reading.size == 1) & settled
        pattern = np.where(alone, reading.first, -1)
        if count == 1:  # all of them
            self.states, self.previous = moved.states, old
            self.size, self.exact, self.certified = reading.size, reading.exact, certified
            self.converged, self.pattern = settled, pattern
            return
        if count == 2:  # arrays of its own from now on
            self.states, self.previous = self.states.copy(), self.previous.copy()
            self.converged = self.converged.copy()
        self.states[active], self.previous[active] = moved.states, old
        self.size[active], self.exact[active] = reading.size, reading.exact
        self.certified[active], self.converged[active] = certified, settled
        self.pattern[active], self.steps[active] = pattern, count

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
