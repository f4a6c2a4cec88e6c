"""Updates and proofs through an `ExactIndex`: streamed, pruned, the same answers."""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.network._sparse_rows import SparseRows
from hopfy.network._step import Step
from hopfy.omega import Omega
from hopfy.search import ExactIndex
from hopfy.theory import exact_margin, proves_fixed_point, rounding_bound

__all__ = ["IndexedStep"]


class IndexedStep:
    """A `Stepper` that never holds the score matrix (CPU, float32 or float64, no gradients).

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
        if weights is None:
            return Step(states, None)
        values = weights.values.to(states.dtype)
        return Step(states, SparseRows(weights.offsets, weights.indices, values, weights.columns))

    def prove(self, members: Tensor, beta: Tensor) -> Tensor:
        """One search decides most sets: their members lead, and the next score trails by enough.

        What is too close for float64 is settled as in the dense case.
        """
        margin = exact_margin(self._omega, members.shape[1])
        if margin is None or members.shape[0] == 0:
            return proves_fixed_point(self._index.memories, members, self._omega, beta)
        lowest, highest = self._gaps(members)
        lead = float(margin) / beta
        proven = lowest >= lead * (1 + 1e-14)
        rest = (~proven & (highest >= lead * (1 - 1e-14))).nonzero().flatten()
        if rest.numel():
            memories = self._index.memories
            proven[rest] = proves_fixed_point(memories, members[rest], self._omega, beta[rest])
        return proven

    def _gaps(self, members: Tensor) -> tuple[Tensor, Tensor]:
        """Bounds on how far the weakest member of each set leads the strongest outsider."""
        memories, size = self._index.memories, members.shape[1]
        if size >= len(self._index):
            everyone = torch.full((members.shape[0],), torch.inf, dtype=torch.float64)
            return everyone, everyone
        found = self._index.top(memories[members].sum(1), size + 1)
        same = (found.indices[:, :size].sort(-1).values == members.sort(-1).values).all(-1)
        # A set that is not on top trails some outsider: its gap is zero or less.
        gap = torch.where(same, found.scores[:, size - 1] - found.scores[:, size], 0.0)
        reach = torch.linalg.vector_norm(memories[members].double(), dim=-1).sum(-1)
        error = rounding_bound(memories.shape[1], 1, torch.float64)
        if size > 1:  # the sum was rounded to the memories' precision
            error += rounding_bound(0, size, memories.dtype)
        slack = 2 * error * reach * self.largest_norm * (1 + 1e-6)  # the norms are rounded too
        return torch.where(same, gap - slack, -torch.inf), gap + slack
