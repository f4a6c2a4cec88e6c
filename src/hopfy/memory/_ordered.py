"""The part of the memory that recalls many patterns from one cue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hopfy.memory._arrays import ArrayLike, as_queries, in_kind_of
from hopfy.memory._recall_order import (
    Fatigue,
    Inhibition,
    Plan,
    RecallOrder,
    checked_steps,
    free_order,
    sequential_order,
)

if TYPE_CHECKING:
    from hopfy.memory._store import Contents, Snapshot
    from hopfy.network import HopfieldNetwork

__all__ = ["Ordered"]


class Ordered:
    """Free and sequential recall."""

    if TYPE_CHECKING:

        def _filled_snapshot(self) -> Snapshot: ...

        def _network(self, snapshot: Snapshot) -> HopfieldNetwork: ...

    def free_recall(
        self,
        cue: ArrayLike,
        steps: int | None = None,
        *,
        inhibition: Inhibition | None = None,
        settle: int = 20,
    ) -> RecallOrder:
        """Recall one memory after the other from a cue (..., D), in any order.

        What was recalled is inhibited, so that the next step finds the nearest of the others. Memories
        that beta cannot tell apart come back, and are inhibited, as a mixture.

        Args:
            cue: where to begin.
            steps: how many memories to recall; by default as many as there are.
            inhibition: `hopfy.memory.Fatigue` (default) or `hopfy.memory.UseUp`.
            settle: plain updates after each step.

        >>> import torch, hopfy
        >>> memory = hopfy.AssociativeMemory(beta=4.0).fit(torch.tensor([[0.0], [2.0], [5.0], [9.0]]))
        >>> memory.free_recall(torch.tensor([2.3])).ids
        tensor([1, 0, 2, 3])
        """
        plan = Plan(Fatigue() if inhibition is None else inhibition, settle)
        if not isinstance(plan.inhibition, Inhibition):
            raise TypeError(f"expected an inhibition such as Fatigue(), got {inhibition!r}.")
        return self._in_order(free_order, cue, steps, plan)

    def sequential_recall(
        self,
        cue: ArrayLike,
        steps: int | None = None,
        *,
        inhibition: Fatigue | None = None,
        settle: int = 20,
    ) -> RecallOrder:
        """Recall the memory that the cue (..., D) leads to, then its neighbors in the order of storage.

        Args:
            cue: where to begin; from the first memory all of them come back in order, if beta is high
                enough to tell them apart.
            steps: how many memories to recall; by default as many as there are.
            inhibition: how the memories that were left tire.
            settle: plain updates after each step.

        >>> import torch, hopfy
        >>> memory = hopfy.AssociativeMemory(beta=4.0).fit(torch.eye(4))
        >>> memory.sequential_recall(torch.tensor([0.9, 0.1, 0.0, 0.0])).ids
        tensor([0, 1, 2, 3])
        """
        plan = Plan(Fatigue() if inhibition is None else inhibition, settle)
        if not isinstance(plan.inhibition, Fatigue):
            raise TypeError(f"expected an inhibition Fatigue(...), got {inhibition!r}.")
        return self._in_order(sequential_order, cue, steps, plan)

    def _in_order(
        self, order: Callable[..., Any], cue: ArrayLike, steps: int | None, plan: Plan
    ) -> RecallOrder:
        snapshot = self._filled_snapshot()
        contents, network = snapshot.contents, self._network(snapshot)
        cues = as_queries(cue, contents.patterns.shape[1], contents.rows.dtype)
        flat = cues.reshape(-1, cues.shape[-1]).to(contents.patterns.device).double()
        if not bool(flat.isfinite().all()):
            raise ValueError("expected a cue of finite numbers, got NaN or infinity in it.")
        patterns = contents.patterns.double()
        beta = float(network.beta)
        scores_of = _scores(contents, patterns, beta)
        plan = plan.fitted(beta, patterns)
        count = checked_steps(steps, len(contents.ids))
        with torch.no_grad():
            places, shares = order(scores_of, network.omega, patterns, flat, count, plan)
        shape = (*cues.shape[:-1], count)
        ids = contents.ids[places.cpu()].reshape(shape)
        return RecallOrder(in_kind_of(ids, cue), in_kind_of(shares.cpu().reshape(shape), cue))


def _scores(contents: Contents, patterns: Tensor, beta: float) -> Callable[[Tensor], Tensor]:
    r""":math:`\beta X q`, or :math:`-\tfrac\beta2 \|x_i - q\|^2` up to a constant by distance."""
    lengths = patterns.square().sum(-1) / 2 if contents.radius is not None else 0.0
    return lambda states: beta * (states @ patterns.mT - lengths)
