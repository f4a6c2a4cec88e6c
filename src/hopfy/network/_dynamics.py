"""The loop of a retrieval: queries are updated until they are fixed points, then left as they are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from hopfy.network._step import Step
from hopfy.search import SparseRows

__all__ = ["Outcome", "Rules", "iterate"]

# Softmax weights above this count as taking part (the paper's Tab. 1).
_COUNTED = 0.01
_ROWS = 64  # rows of dense weights that are looked at together


@dataclass(frozen=True)
class Rules:
    """When to stop, and how to move; states are flat (Q, D), ``active`` holds row numbers.

    Attributes:
        advance: ``(states, active)`` to the step of the active rows.
        prove: ``(active, members)`` to booleans, see `Stepper.prove`.
        energy: all states to energies (Q,), or None if no trace is wanted.
        max_steps: the largest number of updates, at least 1.
        tol: how far a settled state may move.
    """

    advance: Callable[[Tensor, Tensor], Step]
    prove: Callable[[Tensor, Tensor], Tensor]
    energy: Callable[[Tensor], Tensor] | None
    max_steps: int
    tol: float


@dataclass
class Outcome:
    """What became of Q queries; every tensor has Q rows.

    Attributes:
        states: (Q, D), the states in the end; ``previous`` those before the last update.
        steps: (Q,), the number of updates.
        converged: (Q,), proven to be a fixed point, or moved by no more than the tolerance.
        certified: (Q,), proven to be a fixed point.
        exact: (Q,), a sum of patterns with weight 1 each.
        size: (Q,), how many patterns have weight.
        pattern: (Q,), the pattern that was retrieved, or -1.
        weights: the weights of the last update, if they were kept.
        energies: (Q,) each, before the first update and after every one, if a trace is wanted.
    """

    states: Tensor
    previous: Tensor
    steps: Tensor
    converged: Tensor
    certified: Tensor
    exact: Tensor
    size: Tensor
    pattern: Tensor
    weights: SparseRows | Tensor | None = None
    energies: list[Tensor] = field(default_factory=list)


def iterate(queries: Tensor, rules: Rules) -> Outcome:
    """Move every query until it is proven fixed, moves by ``tol`` or less, or ``max_steps`` are made."""
    outcome = _blank(queries)
    active = torch.arange(queries.shape[0], device=queries.device)
    kept: list[tuple[Tensor, SparseRows | Tensor | None]] = []
    if rules.energy is not None:
        outcome.energies.append(rules.energy(outcome.states))
    for count in range(1, rules.max_steps + 1):
        if active.numel() == 0:
            break
        old = outcome.states[active]
        step = _spoil(rules.advance(outcome.states, active), old)
        outcome.states = outcome.states.index_copy(0, active, step.states)
        if rules.energy is not None:
            outcome.energies.append(rules.energy(outcome.states))
        leaving = _judge(outcome, active, old.detach(), step, rules) | (count == rules.max_steps)
        places = active[leaving]
        outcome.previous = outcome.previous.index_copy(0, places, old[leaving])
        outcome.steps[places] = count
        kept.append((places, _rows(step.weights, leaving)))
        del step  # the next one is made without it
        active = active[~leaving]
    outcome.weights = _assemble(kept)
    return outcome


def _blank(queries: Tensor) -> Outcome:
    rows = queries.shape[0]
    numbers = torch.zeros(rows, dtype=torch.int64, device=queries.device)
    no = torch.zeros(rows, dtype=torch.bool, device=queries.device)
    return Outcome(
        states=queries,
        previous=queries,
        steps=numbers,
        converged=no,
        certified=no.clone(),
        exact=no.clone(),
        size=numbers.clone(),
        pattern=numbers - 1,
    )


def _spoil(step: Step, old: Tensor) -> Step:
    """NaN or infinity in a query makes its state NaN, whatever the map made of it."""
    lost = ~old.detach().isfinite().all(-1, keepdim=True)
    if not bool(lost.any()):
        return step
    return step._replace(states=torch.where(lost, torch.nan, step.states))


def _judge(outcome: Outcome, active: Tensor, old: Tensor, step: Step, rules: Rules) -> Tensor:
    """Record what the active rows have become; return which of them leave."""
    new = step.states.detach()
    exact, size, first = _reading(step.weights, new)
    if step.unmoved is not None:  # else the state is the image of a pattern, or of a sum
        exact = exact & step.unmoved
    certified = torch.zeros_like(exact)
    certified[exact] = _proofs(active[exact], step.weights, exact, rules)
    wide = torch.float64 if new.device.type == "cpu" else new.dtype
    moved = (new - old).to(wide).square().sum(-1)
    still = moved <= rules.tol * rules.tol
    lost = ~new.isfinite().all(-1)
    outcome.size[active] = size
    outcome.exact[active] = exact
    outcome.certified[active] = certified
    outcome.converged[active] = (certified | still) & ~lost
    outcome.pattern[active] = torch.where(exact & (size == 1) & (certified | still), first, -1)
    leaving: Tensor = certified | still | lost
    return leaving


def _reading(weights: SparseRows | Tensor | None, states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Which rows are sums of patterns with weight 1, of how many, and which comes first."""
    rows = states.shape[0]
    if not isinstance(weights, SparseRows):
        none = torch.zeros(rows, dtype=torch.bool, device=states.device)
        if weights is None:
            return none, none.long() - 1, none.long() - 1
        blocks = torch.split(weights.detach(), _ROWS)  # a sum of booleans makes numbers of all
        return none, torch.cat([(part > _COUNTED).sum(-1) for part in blocks]), none.long() - 1
    counts, values = weights.counts, weights.values.detach()
    row = weights.row_of_entry
    # A single weight of 1 copies its pattern; sums are rounded anyway, and so are their weights.
    slack = torch.where(counts > 1, 64 * torch.finfo(values.dtype).eps, 0.0)[row]
    ones = torch.zeros_like(counts)
    ones.index_add_(0, row, ((values - 1).abs() <= slack).long())
    exact = (ones == counts) & (counts > 0)
    first = torch.zeros_like(counts)
    first[exact] = weights.indices[weights.offsets[:-1][exact]]
    return exact, counts, first


def _proofs(
    rows: Tensor, weights: SparseRows | Tensor | None, exact: Tensor, rules: Rules
) -> Tensor:
    """Ask for a proof for every exact row; rows of one support size are asked together."""
    proven = torch.zeros(rows.numel(), dtype=torch.bool, device=rows.device)
    if not isinstance(weights, SparseRows) or rows.numel() == 0:
        return proven
    chosen = weights.take(exact.nonzero().flatten())
    counts = chosen.counts
    for size in torch.unique(counts).tolist():
        same = (counts == size).nonzero().flatten()
        members = chosen.take(same).indices.reshape(-1, size)
        proven[same] = rules.prove(rows[same], members)
    return proven


def _rows(weights: SparseRows | Tensor | None, chosen: Tensor) -> SparseRows | Tensor | None:
    if weights is None or bool(chosen.all()):
        return weights
    return (
        weights.take(chosen.nonzero().flatten())
        if isinstance(weights, SparseRows)
        else weights[chosen]
    )


def _assemble(
    kept: list[tuple[Tensor, SparseRows | Tensor | None]],
) -> SparseRows | Tensor | None:
    """The rows in the order of their places; dense parts are taken out of the list as they are copied."""
    sparse = [(places, part) for places, part in kept if isinstance(part, SparseRows)]
    if sparse:
        return SparseRows.assemble(sparse)
    if not kept or kept[0][1] is None:
        return None
    if len(kept) == 1:
        return kept[0][1]  # all rows, in their order
    if any(isinstance(part, Tensor) and part.requires_grad for _, part in kept):
        order = torch.cat([places for places, _ in kept]).argsort()
        return torch.cat([part for _, part in kept if isinstance(part, Tensor)])[order]
    rows = sum(places.numel() for places, _ in kept)
    whole: Tensor | None = None
    while kept:
        places, part = kept.pop()
        if isinstance(part, Tensor):
            whole = part.new_empty(rows, part.shape[1]) if whole is None else whole
            whole[places] = part
    return whole
