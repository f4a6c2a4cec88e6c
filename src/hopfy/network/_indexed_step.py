"""Updates and proofs through an `ExactIndex`: streamed, pruned, the same answers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy.network._fixed_points import kept_in_place
from hopfy.network._step import Step
from hopfy.omega import Omega
from hopfy.search import ExactIndex, PreparedMap, SparseRows
from hopfy.theory import proves_with_index

__all__ = ["IndexedStep", "Moved"]

Array = np.ndarray[Any, Any]


class Moved(NamedTuple):
    """A `Step` as arrays: states (Q, D) and compressed rows of weights, in the queries' dtype.

    ``singles``: every query has one weight, which is 1.
    """

    states: Array
    offsets: Array
    indices: Array
    values: Array
    singles: bool

    @classmethod
    def of(cls, states: Tensor, weights: SparseRows) -> Moved:
        rows = (weights.offsets.numpy(), weights.indices.numpy(), weights.values.numpy())
        return cls(states.numpy(), *rows, False)

    def rows(self, columns: int) -> SparseRows:
        return SparseRows.of_arrays(self.offsets, self.indices, self.values, columns)


class IndexedStep:
    """A `Stepper` that never holds the score matrix (CPU, no gradients).

    ``largest_norm`` is the largest norm of a memory.
    """

    def __init__(self, index: ExactIndex, omega: Omega) -> None:
        self._index = index
        self._omega = omega
        # Tensors may change in place: then the facts have to be asked for again.
        self._prepared = None if omega.tensors() else PreparedMap.of(omega)
        self.largest_norm = index.largest_norm
        self.columns = index.memories.shape[0]

    @property
    def _facts(self) -> PreparedMap:
        return PreparedMap.of(self._omega) if self._prepared is None else self._prepared

    def step(self, queries: Tensor, beta: float | Tensor) -> Step:
        states, weights = self._index.step(queries, self._facts, _flat(beta))
        states = states.to(queries.dtype)
        return Step(states, None if weights is None else weights.to(queries.dtype))

    def prove(self, members: Tensor, beta: Tensor) -> Tensor:
        return proves_with_index(self._index, members, self._omega, beta)

    # ------------------------------------------------------------------ with proofs

    def fixed_update(self, beta: float) -> Callable[[Tensor], Tensor | None] | None:
        """`update` for few memories at one beta, with fewer calls; see `ExactIndex.fixed_update`."""
        return None if self._prepared is None else self._index.fixed_update(self._prepared, beta)

    def update(self, queries: Tensor, beta: float | Tensor) -> Tensor:
        """The next states, with fixed points among the queries kept."""
        quick = self._index.quick(queries, self._facts, _flat(beta))
        if quick is not None and not quick.doubtful:
            return torch.from_numpy(quick.states)
        if self._facts.omega.is_softmax:
            return self.step(queries, beta).states
        made = torch.empty_like(queries)
        for places, step in self._steps(queries, beta):
            made[places] = step.states
        return made

    def moved(self, queries: Tensor, beta: float | Tensor) -> Iterator[tuple[Tensor, Moved]]:
        """Places and `step` as arrays for a sparse map, with fixed points among the queries kept.

        The queries come in parts, so that weights of many patterns need not be held for all of them.
        """
        quick = self._index.quick(queries, self._facts, _flat(beta))
        if quick is not None:
            everyone = torch.arange(queries.shape[0], device="cpu")
            values = quick.values.astype(quick.states.dtype, copy=False)
            moved = Moved(quick.states, quick.offsets, quick.indices, values, quick.singles)
            if not quick.singles and quick.doubtful and self._may_be_fixed(queries, moved):
                step = Step(torch.from_numpy(quick.states), moved.rows(self.columns))
                moved = _as_arrays(self._kept(queries, step, beta))
            yield everyone, moved
            return
        for places, step in self._steps(queries, beta):
            yield places, _as_arrays(step)

    def _steps(self, queries: Tensor, beta: float | Tensor) -> Iterator[tuple[Tensor, Step]]:
        """Places and steps of a map with zeros, in parts, with fixed points kept."""
        for places, states, weights in self._index.steps(queries, self._facts, _flat(beta)):
            step = Step(states.to(queries.dtype), weights.to(queries.dtype))
            own = queries if places.numel() == queries.shape[0] else queries[places]
            yield places, self._kept(own, step, _taken(beta, places))

    def prove_sets(self, members: Tensor, beta: float | Tensor) -> Tensor:
        """`prove` for sets that may be equal, at one beta or one for each; equal ones cost once."""
        betas = torch.as_tensor(_flat(beta), dtype=torch.float64, device="cpu").flatten()
        if betas.numel() > 1 or members.shape[0] == 1:
            return self.prove(members, betas.expand(members.shape[0]))
        sets, back = torch.unique(members, dim=0, return_inverse=True)
        return self.prove(sets, betas.expand(sets.shape[0]))[back]

    def proves_singles(self, patterns: Array, beta: float | Tensor) -> Array:
        """Which single patterns are proven fixed points; known answers are looked up."""
        margin = self._facts.lead
        if margin is None:
            return np.zeros(patterns.size, np.bool_)
        flat = _flat(beta)
        lead = margin / (flat.numpy() if isinstance(flat, Tensor) else flat)
        known: Array = self._index.proven_leads().proven.numpy()[patterns] >= lead
        if not known.all():
            rows = torch.from_numpy(np.flatnonzero(~known))
            asked = torch.from_numpy(patterns)[rows].unsqueeze(1)
            known[rows.numpy()] = self.prove_sets(asked, _taken(beta, rows)).numpy()
        return known

    def _kept(self, queries: Tensor, step: Step, beta: float | Tensor) -> Step:
        """The step with fixed points kept, see `kept_in_place`; most steps are not looked at."""
        weights = step.weights
        if not isinstance(weights, SparseRows):
            return step
        if not self._may_be_fixed(queries, Moved.of(step.states, weights)):
            return step

        def prove(rows: Tensor, members: Tensor) -> Tensor:
            return self.prove_sets(members, _taken(beta, rows))

        return kept_in_place(queries, self._index.memories, step, prove)

    def _may_be_fixed(self, queries: Tensor, moved: Moved) -> bool:
        """Whether some query is about the sum of the patterns that have most of its weight."""
        chosen = (moved.values > 0.5) & (moved.values != 1).any()
        if not chosen.any():
            return False
        row = np.repeat(np.arange(moved.offsets.size - 1), np.diff(moved.offsets))[chosen]
        rows, places = np.unique(row, return_inverse=True)
        memories = self._index.memories
        sums = np.zeros((rows.size, memories.shape[1]))
        np.add.at(sums, places, memories[torch.from_numpy(moved.indices[chosen])].double().numpy())
        own = queries.numpy()[rows]
        size = np.abs(sums).sum(1) + np.abs(own).sum(1)
        return bool((np.abs(sums - own).max(1, initial=0.0) <= 1e-3 * size).any())


def _as_arrays(step: Step) -> Moved:
    if not isinstance(step.weights, SparseRows):
        raise TypeError("expected a map with zeros; softmax is iterated without an index.")
    return Moved.of(step.states, step.weights)


def _flat(beta: float | Tensor) -> float | Tensor:
    """A number, or (Q,) float64."""
    if not isinstance(beta, Tensor):
        return beta
    beta = beta.detach()
    return beta.double().reshape(-1).contiguous() if beta.ndim else float(beta)


def _taken(beta: float | Tensor, rows: Tensor) -> float | Tensor:
    return beta.detach().reshape(-1)[rows] if isinstance(beta, Tensor) and beta.ndim else beta
