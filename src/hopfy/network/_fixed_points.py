"""States that are proven to be fixed points stay where they are, bit for bit."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hopfy.network._step import Step, with_gradient_of
from hopfy.search import SparseRows

__all__ = ["kept_in_place"]

Prove = Callable[[Tensor, Tensor], Tensor]


def kept_in_place(queries: Tensor, memories: Tensor, step: Step, prove: Prove) -> Step:
    """The step, with proven fixed points among the queries (Q, D) returned as they came.

    At the margin the score of a rival is rounded, and may come out an ulp too large: the weights are
    then not exactly one (or k ones), although in real numbers they are. Only such rows are looked at:
    if the patterns that have most of the weight add up to the query itself, a proof decides.

    Args:
        queries: (Q, D), the states before the step.
        memories: (N, D).
        step: what the step made of them.
        prove: ``(rows, members)`` to booleans, for sets of patterns (P, k) of these rows.
    """
    weights = step.weights
    if not isinstance(weights, SparseRows) or weights.values.numel() == 0:
        return step
    values, row = weights.values.detach(), weights.row_of_entry
    inexact = torch.zeros_like(weights.counts).index_add_(0, row, (values != 1).long()) > 0
    chosen = (values > 0.5) & inexact[row]
    if not bool(chosen.any()):
        return step
    sizes = torch.zeros_like(weights.counts).index_add_(0, row, chosen.long())
    kept = torch.zeros_like(inexact)
    for size in torch.unique(sizes[sizes > 0]).tolist():
        rows = (sizes == size).nonzero().flatten()
        members = weights.indices[chosen & (sizes == size)[row]].reshape(-1, size)
        same = (memories[members].sum(1) == queries[rows]).all(-1)
        if bool(same.any()):
            kept[rows[same]] = prove(rows[same], members[same])
    if not bool(kept.any()):
        return step
    exact = torch.where(kept.unsqueeze(-1), queries.detach(), step.states.detach())
    return step._replace(states=with_gradient_of(exact, step.states))
