r"""The energy (Eq. 8) over all shards, as the sum of terms that are never negative:

.. math:: E(q) = \frac{\Omega(\hat y) - \Omega(y_0)}{\beta} + \frac12 \|q - \hat x\|^2
          + \frac12 \left(R^2 - \|\hat x\|^2\right).

See `hopfy.network` for the derivation, also for other regularizers of the state. What is sent: the
candidates, one state per query and the few largest norms of each shard.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hopfy.distributed._collectives import gathered
from hopfy.distributed._engine import Engine
from hopfy.distributed._merge import Cues
from hopfy.search import SparseRows
from hopfy.states import State

__all__ = ["energy"]


def energy(engine: Engine, cues: Cues, state: State) -> Tensor:
    """Energies (M,), in the queries' dtype."""
    queries, flat = cues
    wide = queries.double()
    with torch.no_grad():
        update, rise = _update_and_rise(engine, cues)
        bounded = engine.omega.is_bounded
        room = state.room(update, _total(engine, state)) if bounded else -state.conjugate(update)
        value = rise.clamp_min(0) / flat + state.loss(wide, update) + room
        value = torch.where(state.contains(queries), value, torch.inf)
        value = torch.where(queries.isfinite().all(-1), value, torch.nan)
    if torch.is_grad_enabled():
        conjugate = _conjugate(engine, cues) - _conjugate_at_zero(engine, cues)
        plain = -conjugate / flat + state.inner_value(wide)
        if engine.omega.is_bounded:
            plain = plain + state.ceiling(_total(engine, state), queries.shape[-1])
        value = value + torch.where(value.isfinite(), plain - plain.detach(), 0.0)
    return value.to(queries.dtype)


def _update_and_rise(engine: Engine, cues: Cues) -> tuple[Tensor, Tensor]:
    """States (M, D) in float64 and the regularizer above its least value (M,)."""
    omega, memories = engine.omega, engine.shard.memories
    if omega.is_softmax:
        update = engine.softmax_mix(cues, memories.double())
        rise = (cues.scaled(torch.float64) * update).sum(-1) - engine.log_total(cues)
        return update, rise + math.log(engine.layout.total)
    if engine.merge == "all scores":
        scores = engine.all_scores(cues)
        weights = omega(scores)
        update = engine.mix_dense(weights, memories)
        return update, omega.rise(scores, weights)
    support = engine.weights(cues)
    update = engine.mix(support, memories, torch.float64)
    return update, omega.value(padded(support, 0.0)) + _conjugate_at_zero(engine, cues)


def _conjugate(engine: Engine, cues: Cues) -> Tensor:
    if engine.omega.is_softmax:
        return engine.log_total(cues)
    if engine.merge == "all scores":
        return engine.omega.conjugate(engine.all_scores(cues))
    found = engine.candidates(cues)
    values = found.values * cues.beta[found.row_of_entry]
    return engine.omega.conjugate(padded(found.with_values(values), -torch.inf))


def _conjugate_at_zero(engine: Engine, cues: Cues) -> Tensor:
    r""":math:`\Omega^*(0) = -\Omega(y_0)`, the least value of the regularizer with its sign changed."""
    zeros = torch.zeros(engine.layout.total, dtype=torch.float64)
    if engine.omega.varies_by_row:
        zeros = zeros.expand(len(cues), -1)
    return engine.omega.conjugate(zeros)


def _total(engine: Engine, state: State) -> Tensor:
    """The largest sum of sizes of patterns that weights of at most 1 can add up."""
    norms = state.size(engine.shard.memories.double())
    mass = engine.omega.largest_mass
    most = engine.layout.total if mass is None else math.ceil(float(torch.as_tensor(mass).max()))
    largest = norms.topk(min(most, len(norms))).values
    largest = gathered(largest, engine.group).sort(descending=True).values
    places = torch.arange(largest.numel())
    limit = torch.as_tensor(float(most) if mass is None else mass).amax()
    return (largest * (limit - places).clamp(0, 1)).sum(-1)


def padded(rows: SparseRows, empty: float) -> Tensor:
    """The entries of each row side by side, (rows, width), with ``empty`` behind them."""
    counts = rows.counts
    slot = torch.arange(rows.indices.numel()) - rows.offsets[rows.row_of_entry]
    width = max(1, int(counts.max())) if counts.numel() else 1
    blank = rows.values.new_full((rows.rows, width), empty)
    return blank.index_put((rows.row_of_entry, slot), rows.values)
