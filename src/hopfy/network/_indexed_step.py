"""Updates and proofs through an `ExactIndex`: streamed, pruned, the same answers."""

from __future__ import annotations

from torch import Tensor

from hopfy.network._step import Step
from hopfy.omega import Omega
from hopfy.search import ExactIndex
from hopfy.theory import proves_with_index

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
        return proves_with_index(self._index, members, self._omega, beta)
