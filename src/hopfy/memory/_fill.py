r"""Filling in the coordinates that a cue does not contain.

Write a state as :math:`q = (c, u)`: the known coordinates c of the cue and free coordinates u. Two
facts about the network's energy decide what to do.

**Where to start.** At a low temperature :math:`E(q) \to -\max_i x_i^\top q + \frac12\|q\|^2`.
With c held, the best u for pattern i is the pattern's own part :math:`x_{i,u}`, and it remains to
maximize

.. math:: s_i = c^\top x_{i,c} + \tfrac12 \|x_{i,u}\|^2 .

Among patterns of equal length this is, up to a constant, :math:`-\frac12 \|c - x_{i,c}\|^2`: the
pattern that agrees best with what is known wins, not the one that happens to have much mass there.
With nothing free :math:`s = Xq`, the network's own scores. Of D coordinates only d are known, so
the leads between scores shrink like d / D; the weights of the start are
:math:`\hat y_\Omega(\beta \frac{D}{d} s)`, which asks of a cue the same lead per known coordinate
as the whole network does.

**How to go on.** Patterns without a weight now are ruled out by what is known. If one is left, it
fills the gap: :math:`u = x_{i,u}`. If several are left, they compete with the cue held: the energy
is a convex quadratic minus a convex function, and its CCCP step on the states that contain c is the
usual update in the free coordinates alone, over the patterns that are left,
:math:`u \leftarrow (X^\top \hat y_\Omega(\beta X q))_u`. It never raises their energy, and mostly
decides for the one that fits better. Where the known part cannot decide, the mixture is the answer,
and is not certified.

A cue that has decided is released: the whole network continues from there, and only the whole
network's proof counts. For an undamaged part of a pattern, :math:`c = x_{i,c}`, the released state
is :math:`x_i` itself, and the proof is that of the complete pattern: :math:`\Delta_i \ge m/\beta`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.memory._blocks import light_blocks
from hopfy.memory._budget import RecallBudget
from hopfy.network import HopfieldNetwork
from hopfy.search import SparseRows

__all__ = ["Filled", "fill", "start_scores", "temperature_share"]


class Filled(NamedTuple):
    """Cues that have been filled in.

    Attributes:
        states: (Q, W), equal to the cues where these are known.
        weights: of the patterns that filled the gaps.
        settled: (Q,) False where the competition was still going on after the last step.
    """

    states: Tensor
    weights: SparseRows
    settled: Tensor


def fill(
    held: Tensor,
    known: Tensor,
    weights: SparseRows,
    network: HopfieldNetwork,
    max_steps: int,
    budget: RecallBudget,
) -> Filled:
    """Keep the known coordinates of the cues and let the patterns fill in the others.

    Args:
        held: (Q, W), the cues, zero where they are not known.
        known: (Q, W) booleans.
        weights: the weights of the start, (Q, N).
        network: one with N memories (N, W) and a regularizer on the simplex.
        max_steps: the largest number of clamped updates.
        budget: says how many cues may compete at once.
    """
    rows = network.memories
    weights = weights.to(rows.dtype)
    filled = Filled(
        torch.where(known, held, weights.matmul(rows)),
        weights.with_values(weights.values.clone()),
        torch.ones(held.shape[0], dtype=torch.bool, device=held.device),
    )
    undecided = (weights.counts > 1).nonzero().flatten()
    # The widest first: each part is as large as its first cue allows.
    undecided = undecided[weights.counts[undecided].argsort(descending=True, stable=True)]
    while undecided.numel():
        size = budget.competing(int(weights.counts[undecided[0]]), rows.shape[1])
        _compete(filled, undecided[:size], known, network, max_steps)
        undecided = undecided[size:]
    return filled._replace(weights=filled.weights.nonzero())


def temperature_share(known: Tensor) -> Tensor:
    """How much colder a cue is that knows only some of its coordinates: D / d, (Q,) float64."""
    return known.shape[1] / known.sum(-1).clamp_min(1).double()


def _compete(
    filled: Filled, part: Tensor, known: Tensor, network: HopfieldNetwork, max_steps: int
) -> None:
    """Clamped updates of the cues in ``part``, each over its own candidates, written in place."""
    weights, beta = filled.weights, float(network.beta)
    counts = weights.counts[part]
    slot = torch.arange(int(counts.max()), device=part.device)
    there = slot < counts.unsqueeze(1)
    entries = (weights.offsets[part].unsqueeze(1) + slot).clamp_max(weights.indices.numel() - 1)
    own = network.memories[weights.indices[entries]]  # (P, width, W)
    tolerance = torch.finfo(own.dtype).eps ** 0.75
    filled.settled[part] = False
    for _ in range(max_steps):
        before = filled.states[part]
        shares = network.omega(beta * (own @ before.unsqueeze(-1)).squeeze(-1), there)
        mixed = (shares.unsqueeze(1) @ own).squeeze(1)
        after = torch.where(known[part], before, mixed)
        filled.states[part] = after
        weights.values[entries[there]] = shares[there]
        step = torch.linalg.vector_norm(after - before, dim=-1)
        moving = step > tolerance * torch.linalg.vector_norm(after, dim=-1)
        # A cue that has settled leaves: its answer does not depend on its neighbors.
        filled.settled[part[~moving]] = True
        if not bool(moving.all()):
            part, own, there, entries = part[moving], own[moving], there[moving], entries[moving]
        if part.numel() == 0:
            break


def start_scores(held: Tensor, known: Tensor, rows: Tensor) -> Tensor:
    """(Q, N) scores s, without a copy of the rows."""
    scores = held @ rows.T
    if bool((known == known[:1]).all()):
        free = ~known[0]
        only = free.nonzero().flatten()
        half = [block[:, only].square().sum(-1) / 2 for block in light_blocks(rows)]
        return scores + torch.cat(half)
    free = (~known).to(rows.dtype)
    start = 0
    for block in light_blocks(rows):
        scores[:, start : start + block.shape[0]] += free @ block.square().T / 2
        start += block.shape[0]
    return scores
