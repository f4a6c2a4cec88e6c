"""Exact updates and searches over many memories, without the score matrix."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._checks import as_memories, as_positive, as_queries, finite_norms
from hopfy._kernels import select
from hopfy._kernels.select import Found
from hopfy._runtime.compilation import compiled, runs_compiled
from hopfy.omega import Omega
from hopfy.search._bounds import Bounds, Plain, block_maxima
from hopfy.search._candidates import best_first, weights_of
from hopfy.search._goal import Goal, goal_of
from hopfy.search._growing import Growing
from hopfy.search._plan import budget_for, planned_bounds, principal_bounds
from hopfy.search._principal import Principal
from hopfy.search._sweep import QUERIES, sweep
from hopfy.search._weights import SparseWeights
from hopfy.search._whole_rows import dense_top, dense_update, softmax_update

__all__ = ["ExactIndex", "Top", "Update"]

_TRIAL = 32
"""Queries that show whether pruning helps, before the others follow."""


class Update(NamedTuple):
    """What one update gives for M queries.

    Attributes:
        states: (M, D), the next states, in the memories' dtype.
        weights: on their support, or None for softmax, whose weights are all positive.
    """

    states: Tensor
    weights: SparseWeights | None


class Top(NamedTuple):
    """The k best memories of M queries: ``scores`` (M, k) float64, best first, and ``indices``."""

    scores: Tensor
    indices: Tensor


class ExactIndex:
    r"""One exact Hopfield update :math:`q \leftarrow X^\top \hat y(\beta X q)` for many queries.

    Memories (N, D) and queries are taken in blocks, so memory use does not grow with N times M.
    Every score that takes part in an answer is computed in float64, and what is left out is ruled
    out by a bound that counts rounding: the answer does not depend on blocks, threads or bounds.

    Args:
        memories: (N, D), float32 or float64 (halves are widened); a NumPy memory map will do.
            They are not copied: do not change them afterwards.
        directions: principal directions whose bounds rule memories out before they are scored in
            full; None chooses from the memories, 0 scores all of them.

    >>> import torch, hopfy
    >>> index = ExactIndex(torch.eye(3))
    >>> update = index.update(torch.tensor([[0.9, 0.2, 0.0]]), hopfy.Tsallis(2.0), beta=2.0)
    >>> update.states
    tensor([[1., 0., 0.]])
    >>> index.top(torch.tensor([[0.25, 0.5, 0.0]]), k=2).indices
    tensor([[1, 0]])
    """

    def __init__(self, memories: Tensor, directions: int | None = None) -> None:
        self._memories = as_memories(memories)
        self._norms = Growing(finite_norms(self._memories))
        self._wanted = directions
        self._planned_for = len(self)
        self._compiled = runs_compiled(self._memories) and compiled("select.cpu") is not None
        self._principal = self._plan(directions) if self._compiled else None
        self._plain = Plain(self._memories, _largest(self._norms, len(self)))

    def _plan(self, directions: int | None) -> Principal | None:
        if directions is None:
            return planned_bounds(self._memories)
        if not isinstance(directions, int) or isinstance(directions, bool) or directions < 0:
            raise ValueError(f"expected directions to be None or at least 0, got {directions!r}.")
        return principal_bounds(self._memories, directions) if directions else None

    def extended(self, memories: Tensor) -> ExactIndex:
        """An index of ``memories``, whose first rows are the present ones, unchanged.

        The cost is that of the new rows: centre and directions stay, as any give valid bounds. They
        are chosen anew when the number of memories has doubled. This index stays as it is.

        >>> index = ExactIndex(torch.eye(3)[:2])
        >>> len(index.extended(torch.eye(3)))
        3
        """
        memories = as_memories(memories)
        count = len(self)
        if memories.shape[0] < count or memories.shape[1:] != self._memories.shape[1:]:
            raise ValueError(
                f"expected the {tuple(self._memories.shape)} memories with rows added, "
                f"got shape {tuple(memories.shape)}."
            )
        if memories.shape[0] >= 2 * self._planned_for or memories.dtype != self._memories.dtype:
            return ExactIndex(memories, self._wanted)
        rows = memories[count:]
        norms = (
            self._norms.plus(count, finite_norms(rows, first=count)) if len(rows) else self._norms
        )
        principal = self._principal
        if principal is not None and len(rows):
            principal = principal.extended(rows)
        return self._with(memories, norms, principal)

    def restricted(self, kept: Tensor, memories: Tensor | None = None) -> ExactIndex:
        """An index of the memories numbered ``kept`` only, in that order.

        ``memories``, if given, must be ``index.memories[kept]``; otherwise they are copied here.

        >>> ExactIndex(torch.eye(3)).restricted(torch.tensor([2, 0])).memories
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
        """
        memories = as_memories(self._memories[kept] if memories is None else memories)
        norms = Growing(self._norms.rows(len(self))[kept])
        principal = None if self._principal is None else self._principal.taken(kept)
        return self._with(memories, norms, principal)

    def _with(self, memories: Tensor, norms: Growing, principal: Principal | None) -> ExactIndex:
        index = copy(self)
        index._memories, index._norms, index._principal = memories, norms, principal
        index._plain = Plain(memories, _largest(norms, len(index)))
        return index

    def __len__(self) -> int:
        return self._memories.shape[0]

    @property
    def memories(self) -> Tensor:
        return self._memories

    @property
    def directions(self) -> int:
        """Principal directions that rule memories out; 0 where the plain product is as good."""
        return 0 if self._principal is None else self._principal.coarse

    @torch.no_grad()
    def update(self, queries: Tensor, omega: Omega, beta: float = 1.0) -> Update:
        r"""The next states of ``queries`` (M, D) and their weights (Eq. 9).

        A query with NaN or infinite entries gives a state of NaN and an empty support.
        """
        queries = as_queries(queries, self._memories)
        beta = as_positive(beta, "beta")
        if omega.is_softmax:
            return Update(softmax_update(self._memories, queries, beta), None)
        goal = goal_of(omega, beta)
        if goal is None or not self._can_sweep(goal):
            return Update(*self._dense_update(queries, omega, beta))
        parts = []
        left = torch.ones(queries.shape[0], dtype=torch.bool)
        for places, found, rows in self._sweeps(queries, goal):
            weights = weights_of(found, rows, omega, beta, len(self))
            parts.append((places[rows], weights))
            left[places[rows]] = False
        rest = left.nonzero().squeeze(1)
        if rest.numel():
            parts.append((rest, self._dense_update(queries[rest], omega, beta)[1]))
        weights = SparseWeights.assemble(parts, len(self))
        states = weights.mix(self._memories)
        return Update(_spoil(states, queries), weights)

    @torch.no_grad()
    def top(self, queries: Tensor, k: int = 1) -> Top:
        """The ``k`` memories with the highest scores for each query (M, D), best first.

        Of equal scores the memory stored first counts. A query with NaN or infinite entries gets
        scores of NaN.
        """
        queries = as_queries(queries, self._memories)
        if not isinstance(k, int) or not 0 < k <= len(self):
            raise ValueError(f"expected k from 1 to the {len(self)} memories, got {k!r}.")
        scores = torch.full((queries.shape[0], k), torch.nan, dtype=torch.float64)
        indices = torch.zeros(queries.shape[0], k, dtype=torch.int64)
        left = torch.ones(queries.shape[0], dtype=torch.bool)
        goal = Goal(k, 0.0, ties=False)
        if self._can_sweep(goal):
            for places, found, rows in self._sweeps(queries, goal):
                scores[places[rows]], indices[places[rows]] = best_first(found, rows, k)
                left[places[rows]] = False
        rest = (left & queries.isfinite().all(1)).nonzero().squeeze(1)
        if rest.numel():
            scores[rest], indices[rest] = dense_top(self._memories, queries[rest].double(), k)
        return Top(scores, indices)

    @torch.no_grad()
    def separations(self, kept: Tensor) -> Tensor:
        r""":math:`\Delta_i = x_i^\top x_i - \max_{j \ne i} x_i^\top x_j` (Def. 2) of some memories.

        For those numbered ``kept`` (P,), in float64; infinite where there is only one memory.
        Pattern i is a fixed point if :math:`\Delta_i \ge m / \beta` (Prop. 2).

        >>> ExactIndex(2 * torch.eye(3)).separations(torch.tensor([0, 2]))
        tensor([4., 4.], dtype=torch.float64)
        """
        own = self._memories[kept]
        if len(self) == 1:
            return torch.full((own.shape[0],), torch.inf, dtype=torch.float64)
        top = self.top(own, 2)
        itself = top.indices == kept.unsqueeze(1)
        # Its own score comes from the same arithmetic where possible: duplicates give exactly 0.
        score = torch.where(itself, top.scores, 0.0).sum(1)
        score = torch.where(itself.any(1), score, own.double().square().sum(1))
        return score - torch.where(itself, -torch.inf, top.scores).amax(1)

    def _can_sweep(self, goal: Goal) -> bool:
        return self._compiled and goal.rank <= len(self) and math.isfinite(goal.reach)

    def _sweeps(self, queries: Tensor, goal: Goal) -> Iterator[tuple[Tensor, Found, Tensor]]:
        """Places in ``queries``, what was found for them, and which of those rows are complete."""
        wanted = queries.isfinite().all(1).nonzero().squeeze(1)
        if self._principal is not None:
            left: list[Tensor] = []
            for places in _with_a_trial(wanted):
                if len(left) == 1 and 2 * left[0].numel() > _TRIAL:
                    left.append(places)  # the trial showed that the bounds do not help here
                    continue
                places, found, rows = self._sweep(queries, places, goal, self._principal)
                left.append(places[torch.from_numpy(found.status == select.GAVE_UP)])
                yield places, found, rows
            wanted = torch.cat(left) if left else wanted
        for places in _in_blocks(wanted):
            yield self._sweep(queries, places, goal, self._plain)

    def _sweep(
        self, queries: Tensor, places: Tensor, goal: Goal, bounds: Bounds
    ) -> tuple[Tensor, Found, Tensor]:
        budget = None if bounds is self._plain else budget_for(self._memories)
        found = sweep(self._memories, queries[places].double(), goal, bounds, budget)
        rows = torch.from_numpy(found.status == select.FINE).nonzero().squeeze(1)
        return places, found, rows

    def _dense_update(
        self, queries: Tensor, omega: Omega, beta: float
    ) -> tuple[Tensor, SparseWeights]:
        finite = queries.isfinite().all(1)
        calm = torch.where(finite.unsqueeze(1), queries, 0.0)
        states, weights = dense_update(self._memories, calm, omega, beta)
        if not bool(finite.all()):
            weights = _without_rows(weights, ~finite)
        return _spoil(states, queries), weights


def _largest(norms: Growing, count: int) -> Tensor:
    return block_maxima(norms.rows(count).unsqueeze(1)).squeeze(1)


def _with_a_trial(places: Tensor) -> list[Tensor]:
    """A few queries first, then the rest in blocks."""
    return [*_in_blocks(places[:_TRIAL]), *_in_blocks(places[_TRIAL:])]


def _in_blocks(places: Tensor) -> Sequence[Tensor]:
    return torch.split(places, QUERIES) if places.numel() else ()


def _spoil(states: Tensor, queries: Tensor) -> Tensor:
    """NaN where the query was not finite, as in any product."""
    return torch.where(queries.isfinite().all(1, keepdim=True), states, torch.nan)


def _without_rows(weights: SparseWeights, dropped: Tensor) -> SparseWeights:
    kept = ~torch.repeat_interleave(dropped, weights.counts)
    counts = torch.where(dropped, 0, weights.counts)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    return SparseWeights(offsets, weights.indices[kept], weights.values[kept], weights.columns)
