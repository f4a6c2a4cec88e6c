r"""One update for many queries: the interface between the dynamics and what computes them.

Everything that a network does with its memories goes through a `Stepper`:

* ``step`` maps queries (Q, D) and :math:`\beta` to :math:`\hat y_\Omega(\beta X q)` and
  :math:`X^\top \hat y` (Eq. 9);
* ``prove`` says which sets of patterns are exact fixed points (Props. 2 and 5), with a proof that
  rounding cannot invalidate.

`DenseStep` holds the whole score matrix of the queries it is given. An engine that streams or
prunes implements the same two methods; its supports must be identical to the dense ones.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from hopfy.omega import Omega
from hopfy.search import SparseRows
from hopfy.states import Euclidean, State
from hopfy.theory import proves_fixed_point

__all__ = ["DenseStep", "Step", "Stepper", "mixture", "widened", "with_gradient_of"]

# Scores held at once when no gradient is needed.
_BLOCK = 1 << 22


class Step(NamedTuple):
    """What one update gives for Q queries.

    Attributes:
        states: (Q, D), the next states; halves may still be in float32.
        weights: on the support if the map is sparse; a dense (Q, N) tensor if every
            weight is positive (softmax), or None if an engine streamed it and kept nothing.
        unmoved: (Q,), where the state's map left the mixture of patterns as it is; None: everywhere.
    """

    states: Tensor
    weights: SparseRows | Tensor | None
    unmoved: Tensor | None = None

    def take(self, rows: Tensor) -> Step:
        """These rows, in this order."""
        weights = self.weights
        if weights is not None:
            weights = weights.take(rows) if isinstance(weights, SparseRows) else weights[rows]
        unmoved = None if self.unmoved is None else self.unmoved[rows]
        return Step(self.states[rows], weights, unmoved)

    def mapped(self, state: State, dtype: torch.dtype) -> Step:
        """The step with the state's map, in this dtype; patterns that are states come bit for bit."""
        mixed = self.states.to(dtype)
        if state.is_identity:
            return self._replace(states=mixed)
        made = state(self.states).to(dtype)
        if not isinstance(self.weights, SparseRows):
            return self._replace(states=made)
        whole = self.weights.is_one_hot & state.keeps(mixed)
        exact = torch.where(whole.unsqueeze(-1), mixed.detach(), made.detach())
        unmoved = (exact == mixed.detach()).all(-1)
        return self._replace(states=with_gradient_of(exact, made), unmoved=unmoved)


class Stepper(Protocol):
    """Computes updates against one fixed set of memories (N, D) with one omega."""

    def step(self, queries: Tensor, beta: float | Tensor) -> Step:
        """One update of queries (Q, D); ``beta`` is a number or (Q, 1)."""

    def prove(self, members: Tensor, beta: Tensor) -> Tensor:
        """Whether the sum of ``memories[members[p]]`` is a fixed point at ``beta[p]``, for each p.

        ``members`` (P, k) holds k different indices per row (k = 1: a single pattern), ``beta``
        (P,) is float64. Returns (P,) booleans; True is a proof, False only the lack of one.
        """


class DenseStep:
    """The update as one product, one map and one product (differentiable, any device)."""

    def __init__(self, memories: Tensor, omega: Omega, state: State | None = None) -> None:
        self._memories = memories
        self._omega = omega
        self._state = Euclidean() if state is None else state
        self._rows_are_alike = memories.ndim == 2 and not omega.varies_by_row

    def step(self, queries: Tensor, beta: float | Tensor) -> Step:
        scaled_queries = widened(queries) * beta
        size = max(1, _BLOCK // self._memories.shape[-2])
        whole = not self._rows_are_alike or torch.is_grad_enabled()
        if whole or scaled_queries.shape[0] <= size:
            return self._step(scaled_queries)
        steps = map(self._step, torch.split(scaled_queries, size))
        return _joined(steps, scaled_queries.shape[0])

    def _step(self, scaled_queries: Tensor) -> Step:
        memories = widened(self._memories)
        scores = scaled_queries @ memories.mT
        states, weights = mixture(scores, memories, self._omega, self._state.is_scale_free)
        states = states.reshape(states.shape[:-1].numel(), memories.shape[-1])
        weights = weights.to(self._memories.dtype).reshape(-1, weights.shape[-1])
        return Step(states, SparseRows.from_dense(weights) if self._omega.is_sparse else weights)

    def prove(self, members: Tensor, beta: Tensor) -> Tensor:
        if self._memories.ndim > 2:  # each row of `members` would need its own batch of memories
            return torch.zeros(members.shape[0], dtype=torch.bool, device=members.device)
        return proves_fixed_point(self._memories.detach(), members, self._omega, beta)


def mixture(
    scores: Tensor, memories: Tensor, omega: Omega, up_to_scale: bool = False
) -> tuple[Tensor, Tensor]:
    r""":math:`X^\top \hat y_\Omega(\theta)` (..., M, D) for scores, and the weights up to a factor.

    Weights that would exceed the largest float are taken relative to the largest of their row; the factor
    comes back in the end, up to the largest float, unless ``up_to_scale``.
    """
    weights, log_factor = omega.direction(scores)
    mixed = weights @ memories
    if isinstance(log_factor, Tensor) and not up_to_scale:
        mixed = mixed * log_factor.exp().clamp_max(torch.finfo(mixed.dtype).max)
    return mixed, weights


def widened(tensor: Tensor) -> Tensor:
    """Halves in float32, where scores and sums of them neither overflow nor lose whole numbers."""
    return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor


def with_gradient_of(value: Tensor, other: Tensor) -> Tensor:
    """``value``, bit for bit, with the gradient of ``other``."""
    return value + (other - other.detach()) if other.requires_grad else value


def _joined(steps: Iterable[Step], rows: int) -> Step:
    """One step of so many ``rows``; dense weights are copied as they come, so that they exist once."""
    states: list[Tensor] = []
    sparse: list[SparseRows] = []
    dense: Tensor | None = None
    done = 0
    for step in steps:
        states.append(step.states)
        if isinstance(step.weights, SparseRows):
            sparse.append(step.weights)
        elif step.weights is not None:
            dense = step.weights.new_empty(rows, step.weights.shape[1]) if dense is None else dense
            dense[done : done + step.weights.shape[0]] = step.weights
            done += step.weights.shape[0]
    return Step(torch.cat(states), SparseRows.stack(sparse) if sparse else dense)
