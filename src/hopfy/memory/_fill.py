r"""Filling in the coordinates that a cue does not contain.

Write a state as :math:`q = (c, u)`: the known coordinates c of the cue and free coordinates u. Two
facts about the network's energy decide what to do.

**Where to start.** At a low temperature :math:`E(q) \to -\max_i x_i^\top q + \frac12\|q\|^2`.
With c held, the best u for pattern i is the pattern's own part :math:`x_{i,u}`, and it remains to
maximise

.. math:: s_i = c^\top x_{i,c} + \tfrac12 \|x_{i,u}\|^2 .

Among patterns of equal length this is, up to a constant, :math:`-\frac12 \|c - x_{i,c}\|^2`: the
pattern that agrees best with what is known wins, not the one that happens to have much mass there.
With nothing free :math:`s = Xq`, the network's own scores. Of D coordinates only d are known, so
the leads between scores shrink like d / D; the weights of the start are
:math:`\hat y_\Omega(\beta \frac{D}{d} s)`, which asks of a cue the same lead per known coordinate
as the whole network does.

**How to go on.** The energy is a convex quadratic minus a convex function. Its CCCP step on the set
of states that contain c is the usual update in the free coordinates alone,
:math:`u \leftarrow (X^\top \hat y_\Omega(\beta X q))_u`, and never raises the energy.

A cue that settles is released: the whole network continues from there, and only the whole
network's proof counts. For an undamaged part of a pattern, :math:`c = x_{i,c}`, a one-hot start
gives :math:`q = x_i`, and the proof is that of the complete pattern: :math:`\Delta_i \ge m/\beta`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.memory._blocks import blocks
from hopfy.network._sparse_rows import SparseRows
from hopfy.omega import Omega

__all__ = ["fill"]

_ROWS = 1 << 14


def fill(
    cues: Tensor, known: Tensor, rows: Tensor, omega: Omega, beta: float, max_steps: int
) -> Tensor:
    """States (Q, W) that contain the known coordinates of the cues and settle in the others.

    Args:
        cues: (Q, W); what they hold where they are not known is ignored.
        known: (Q, W) booleans.
        rows: (N, W), the network's memories.
        omega: a regulariser on the simplex.
        beta: the network's inverse temperature.
        max_steps: the largest number of clamped updates.
    """
    held = cues.masked_fill(~known, 0.0)
    share = known.shape[1] / known.sum(-1, keepdim=True).clamp_min(1)
    scores = _start_scores(held, known, rows)
    weights = SparseRows.from_dense(omega(scores.mul_(beta * share.to(rows.dtype))))
    states = torch.where(known, held, weights.matmul(rows))
    # A one-hot start is what the released network checks next: it needs no clamped update.
    active = (weights.counts > 1).nonzero().flatten()
    tolerance = torch.finfo(rows.dtype).eps ** 0.75
    for _ in range(max_steps):
        if active.numel() == 0:
            break
        before = states[active]
        moved = SparseRows.from_dense(omega(beta * (before @ rows.T))).matmul(rows)
        after = torch.where(known[active], held[active], moved)
        states[active] = after
        step = torch.linalg.vector_norm(after - before, dim=-1)
        active = active[step > tolerance * torch.linalg.vector_norm(after, dim=-1)]
    return states


def _start_scores(held: Tensor, known: Tensor, rows: Tensor) -> Tensor:
    """(Q, N) scores s, without a copy of the rows."""
    scores = held @ rows.T
    if bool((known == known[:1]).all()):
        free = ~known[0]
        only = free.nonzero().flatten()
        half = [block[:, only].square().sum(-1) / 2 for block in blocks(rows, _ROWS)]
        return scores + torch.cat(half)
    free = (~known).to(rows.dtype)
    for start in range(0, rows.shape[0], _ROWS):
        squares = rows[start : start + _ROWS].square()
        scores[:, start : start + _ROWS] += free @ squares.T / 2
    return scores
