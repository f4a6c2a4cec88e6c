"""Updates and proofs through an `ExactIndex`: streamed, pruned, the same answers."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.network._step import Step
from hopfy.omega import Omega
from hopfy.search import ExactIndex
from hopfy.theory import exact_margin, proves_fixed_point

__all__ = ["IndexedStep"]


class IndexedStep:
    """A `Stepper` that never holds the score matrix (CPU, no gradients).

    ``largest_norm`` is the largest norm of a memory.
    """

    def __init__(self, index: ExactIndex, omega: Omega) -> None:
        self._index = index
        self._omega = omega
        self.largest_norm = index.largest_norm

    def step(self, queries: Tensor, beta: float | Tensor) -> Step:
        if isinstance(beta, Tensor):
            beta = beta.reshape(-1) if beta.ndim else float(beta)
        states, weights = self._index.update(queries, self._omega, beta)
        states = states.to(queries.dtype)
        return Step(states, None if weights is None else weights.to(queries.dtype))

    def prove(self, members: Tensor, beta: Tensor) -> Tensor:
        """One search decides most sets: nothing comes within the margin of their members.

        What is too close for float64 is settled in rational arithmetic, as in the dense case.
        """
        margin = exact_margin(self._omega, members.shape[1])
        memories = self._index.memories
        if margin is None or members.shape[0] == 0:
            return proves_fixed_point(memories, members, self._omega, beta)
        rivals, slack = self._index.rivals(members, float(margin) / beta)
        row = rivals.row_of_entry
        refuted = torch.zeros_like(beta, dtype=torch.bool)
        refuted[row[rivals.values > slack[row]]] = True
        proven = rivals.counts == 0
        rest = (~proven & ~refuted).nonzero().flatten()
        if rest.numel():
            proven[rest] = proves_fixed_point(memories, members[rest], self._omega, beta[rest])
        return proven
