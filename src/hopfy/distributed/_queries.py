"""Queries of all processes, and the way back to the caller's own."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hopfy.distributed._collectives import for_shards, gathered, own_rows
from hopfy.distributed._engine import Engine
from hopfy.distributed._inputs import QueryLayout, beta_rows, needs_grad
from hopfy.distributed._merge import Cues
from hopfy.network import Outcome, Retrieval
from hopfy.search import SparseRows

if TYPE_CHECKING:
    from hopfy.distributed._network import ShardedHopfieldNetwork

__all__ = ["GroupQueries", "RowsById"]


class RowsById:
    """Sharded memories that are fetched when they are indexed by global ids."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getitem__(self, ids: Tensor) -> Tensor:
        wanted, place = torch.unique(ids, return_inverse=True)
        return self._engine.fetch(wanted, self._engine.shard.memories)[place]


class GroupQueries:
    """The queries of all processes as rows, and the way back to the caller's own."""

    def __init__(self, network: ShardedHopfieldNetwork, queries: Tensor, layout: QueryLayout):
        self._network, group = network, network._group
        self.shape = queries.shape
        flat = queries.reshape(-1, queries.shape[-1])
        shared = network.beta
        if layout == "sharded" and isinstance(shared, Tensor):
            shared = for_shards(shared, group)  # each process uses it for its own queries
        beta = group.together(lambda: beta_rows(shared, queries))
        self.first, self.stop = 0, len(flat)
        if layout == "sharded":
            counts = [int(each[0]) for each in group.gather(lambda: [torch.tensor([len(flat)])])]
            self.first = sum(counts[: group.rank])
            self.stop = self.first + len(flat)
            flat, beta = gathered(flat, group), gathered(beta, group)
        self.rows, self.beta = flat, beta
        self._sharded = layout == "sharded"
        self.differentiable = torch.is_grad_enabled() and (
            any(needs_grad(each) for each in (flat, network.memories, beta, network.values))
            or network.omega.requires_grad
            or network.state.requires_grad
        )

    @property
    def cues(self) -> Cues:
        """All queries and their beta."""
        return self.at(self.rows)

    def at(self, states: Tensor, active: Tensor | None = None) -> Cues:
        """States of the active queries in place of the queries."""
        return Cues(states, self.beta if active is None else self.beta[active])

    def own(self, rows: Tensor) -> Tensor:
        """This process's rows of a replicated answer (M, E), in the shape of its queries."""
        mine = (
            own_rows(rows, self.first, self.stop, self._network._group) if self._sharded else rows
        )
        return mine.reshape(*self.shape[:-1], rows.shape[-1])

    def result(self, outcome: Outcome, state: Tensor, readout: Tensor | None) -> Retrieval:
        rows, part = self.shape[:-1], slice(self.first, self.stop)
        weights = outcome.weights
        support = None
        if isinstance(weights, SparseRows):
            support = weights.take(torch.arange(self.first, self.stop))
        energies = None
        if outcome.energies:
            energies = torch.stack(outcome.energies)[:, part].reshape(-1, *rows)
        return Retrieval(
            state=self.own(state),
            steps=outcome.steps[part].reshape(rows),
            converged=outcome.converged[part].reshape(rows),
            certified=outcome.certified[part].reshape(rows),
            pattern=outcome.pattern[part].reshape(rows),
            size=outcome.size[part].reshape(rows),
            support=support,
            readout=None if readout is None else self.own(readout),
            energies=energies,
            _exact=outcome.exact[part],
            _dense=weights[part] if isinstance(weights, Tensor) else None,
        )
