"""Updates over all shards: candidates, log-sum-exp, or all scores, whichever the map allows."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hopfy.distributed._collectives import for_shards, gathered, summed
from hopfy.distributed._group import Group
from hopfy.distributed._merge import Cues, all_scores, candidates, merged_weights
from hopfy.distributed._shard import Layout, Shard
from hopfy.network import Step, widened
from hopfy.omega import Omega
from hopfy.search import SparseRows, weights_on

__all__ = ["Engine"]

_BLOCK = 1 << 24
"""Scores of softmax held at once without gradients."""


class Engine:
    """What all processes compute together, for one omega.

    All take replicated `Cues`. Up to ``rows_per_query`` rows per query are fetched and mixed in the
    order of their ids, as in one process; of more, each shard sends its partial sum.
    """

    def __init__(
        self,
        shard: Shard,
        layout: Layout,
        group: Group,
        omega: Omega,
        gather_limit: int,
        rows_per_query: int = 4,
    ) -> None:
        self.shard, self.layout, self.group, self.omega = shard, layout, group, omega
        self.gather_limit, self._rows_per_query = gather_limit, rows_per_query

    @property
    def merge(self) -> str:
        """How the shards' parts become one answer."""
        if self.omega.is_softmax:
            return "log-sum-exp"
        by_support = self.omega.merges_by_support and not self.omega.varies_by_row
        return "candidates" if by_support and self.omega.event_dims == 1 else "all scores"

    # ------------------------------------------------------------------ updates

    def step(self, cues: Cues, scale_free: bool = False) -> Step:
        """Mixtures (M, D) of the memories, halves in float32, and their weights; None for softmax.

        With ``scale_free`` the mixtures of maps without a bound may lack a positive factor.
        """
        if self.omega.is_softmax:
            return Step(self.softmax_mix(cues, widened(self.shard.memories)), None)
        if not self.omega.is_sparse:
            return self._dense_step(cues, scale_free)
        weights = self.weights(cues)
        dtype = cues.queries.dtype
        wide = widened(cues.queries).dtype
        return Step(self.mix(weights, self.shard.memories, wide), weights.to(dtype))

    def weights(self, cues: Cues) -> SparseRows:
        """The weights on their support, float64, by global id, equal on all processes."""
        if self.merge == "all scores":
            return SparseRows.from_dense(self._from_all_scores(cues))
        if not torch.is_grad_enabled():
            return merged_weights(cues, self.omega, self.shard, self.layout, self.group)
        return weights_on(self.candidates(cues), self.omega, cues.beta)

    def candidates(self, cues: Cues) -> SparseRows:
        """Scores of candidates, differentiable where gradients are enabled."""
        found = candidates(cues.detach(), self.omega, self.shard, self.layout, self.group)
        if not torch.is_grad_enabled():
            return found
        rows, own = found.row_of_entry, self.layout.is_own(found.indices)
        shared = for_shards(cues.queries, self.group)
        mine = self.shard.memories[self.layout.places(found.indices[own])]
        scores = (shared[rows[own]].double() * mine.double()).sum(-1)
        everyone = gathered(scores, self.group)
        starts = torch.tensor(self.layout.starts[1:-1], dtype=torch.int64)
        owner = torch.bucketize(found.indices, starts, right=True)
        return found.with_values(everyone[owner.argsort(stable=True).argsort()])

    def mix(self, weights: SparseRows, table: Tensor, dtype: torch.dtype) -> Tensor:
        """Sums (M, E) of rows of the sharded ``table`` (n, E) with these weights."""
        if torch.is_grad_enabled() or self._is_wide(weights):
            return self._mix_by_sums(weights, table, dtype)
        ids = torch.unique(weights.indices)
        rows = self.fetch(ids, table)
        compact = SparseRows(
            weights.offsets, torch.searchsorted(ids, weights.indices), weights.values, len(ids)
        )
        return compact.matmul(rows, dtype)

    def fetch(self, ids: Tensor, table: Tensor) -> Tensor:
        """Rows of the sharded ``table`` by increasing global ids, on all processes."""
        (rows,) = self.fetch_all(ids, [table])
        return rows

    def fetch_all(self, ids: Tensor, tables: Sequence[Tensor]) -> list[Tensor]:
        """The same for several tables with one exchange."""

        def send() -> list[Tensor]:
            own = self.layout.is_own(ids)
            places = self.layout.places(ids[own])
            found = [table.detach()[places] for table in tables]
            return [own.nonzero().flatten(), *found] if self.layout.needs_ids else found

        parts = self.group.gather(send)
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        if not self.layout.needs_ids:
            return columns
        order = columns[0].argsort()
        return [column[order] for column in columns[1:]]

    def _is_wide(self, weights: SparseRows) -> bool:
        return weights.values.numel() > self._rows_per_query * max(1, weights.rows)

    def _mix_by_sums(self, weights: SparseRows, table: Tensor, dtype: torch.dtype) -> Tensor:
        own = self.layout.is_own(weights.indices)
        shares = for_shards(weights.values, self.group)[own]
        rows = table[self.layout.places(weights.indices[own])]
        zeros = shares.new_zeros(weights.rows, table.shape[1])
        partial = zeros.index_add(0, weights.row_of_entry[own], shares.unsqueeze(1) * rows.double())
        return summed(partial, self.group).to(dtype)

    # ------------------------------------------------------------------ softmax

    def softmax_mix(self, cues: Cues, table: Tensor) -> Tensor:
        """Mixtures (M, E) of the rows of ``table`` (n, E) under softmax, merged by log-sum-exp."""
        shared = for_shards(cues.scaled(widened(cues.queries).dtype), self.group)
        top, sums = self.group.together(lambda: self._own_sums(shared, widened(table)))
        highest = self.group.maximum(lambda: top)
        scale = torch.where(highest.isfinite(), (top - highest).exp(), 1.0).to(sums.dtype)
        whole = summed(sums * scale.unsqueeze(1), self.group)
        return (whole[:, :-1] / whole[:, -1:]).to(table.dtype)

    def _own_sums(self, scaled: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        """The best score of each query here, and (M, E + 1): mixtures and total under it."""
        ones = table.new_ones(len(table), 1)
        wide = torch.cat([table, ones], 1)
        size = max(1, _BLOCK // max(1, len(table)))
        if torch.is_grad_enabled() or len(scaled) <= size:
            return self._own_block(scaled, wide)
        parts = [self._own_block(some, wide) for some in torch.split(scaled, size)]
        return torch.cat([top for top, _ in parts]), torch.cat([sums for _, sums in parts])

    def _own_block(self, scaled: Tensor, wide: Tensor) -> tuple[Tensor, Tensor]:
        memories = self.shard.memories
        if not len(memories):
            none = torch.full((len(scaled),), -torch.inf, dtype=torch.float64)
            return none, scaled.double() @ wide.double().new_zeros(scaled.shape[1], wide.shape[1])
        scores = scaled.to(wide.dtype) @ memories.to(wide.dtype).mT
        top = scores.detach().amax(1, keepdim=True)
        fixed = torch.where(top.isfinite(), top, 0.0)
        return top.squeeze(1).double(), ((scores - fixed).exp() @ wide).double()

    def log_total(self, cues: Cues) -> Tensor:
        """The log-sum-exp of all scores (M,), float64 and differentiable."""
        shared = for_shards(cues.scaled(torch.float64), self.group)
        memories = self.shard.memories
        scores = shared @ memories.double().mT
        top = (
            scores.detach().amax(1) if len(memories) else scores.new_full((len(cues),), -torch.inf)
        )
        highest = self.group.maximum(lambda: top)
        return summed((scores - highest.unsqueeze(1)).exp().sum(1), self.group).log() + highest

    def dense_softmax(self, cues: Cues) -> Tensor:
        """Softmax weights (M, N) of all memories; N numbers per query are sent."""
        scaled = cues.scaled()
        scores = gathered((for_shards(scaled, self.group) @ self.shard.memories.mT).T, self.group).T
        return self.omega(scores)

    def count_above(self, cues: Cues, level: float) -> Tensor:
        """How many softmax weights of each query exceed ``level``."""
        size = max(1, _BLOCK // max(1, len(self.shard)))
        scaled = cues.scaled(torch.float64)
        normalizer = self.log_total(cues) + torch.tensor(level, dtype=torch.float64).log()

        def count() -> Tensor:
            memories = self.shard.memories.detach().double()
            parts = zip(torch.split(scaled, size), torch.split(normalizer, size), strict=True)
            counts = [(s @ memories.mT > n.unsqueeze(1)).sum(1) for s, n in parts]
            return torch.cat(counts) if counts else torch.zeros(0, dtype=torch.int64)

        return self.group.total(count)

    # ------------------------------------------------------------------ all scores

    def all_scores(self, cues: Cues) -> Tensor:
        """Every score (M, N), float64, differentiable where gradients are enabled."""
        needed = len(cues) * self.layout.total * 8
        if needed > self.gather_limit:
            raise ValueError(
                f"expected an omega whose parts can be merged, got {self.omega.name}: the support "
                "on all memories need not lie in the supports on the shards, so all "
                f"{len(cues)} x {self.layout.total} scores ({needed:.2g} bytes) would be sent. "
                "Use a map onto the simplex or k-subsets, ask fewer queries at once, or raise "
                f"gather_limit above {self.gather_limit:.2g} bytes."
            )
        if not torch.is_grad_enabled():
            scores = all_scores(cues.queries, self.shard, self.group)
            return scores * cues.beta.unsqueeze(1)
        shared = for_shards(cues.queries, self.group)
        own = (shared.double() @ self.shard.memories.double().mT).T
        return gathered(own, self.group).T * cues.beta.unsqueeze(1)

    def mix_dense(self, weights: Tensor, table: Tensor) -> Tensor:
        """Sums (M, E) of the sharded ``table`` (n, E) with weights (M, N), float64."""
        own = for_shards(weights.double(), self.group)[:, self.layout.first : self.layout.stop]
        return summed(own @ table.double(), self.group)

    def _dense_step(self, cues: Cues, scale_free: bool) -> Step:
        """The step of a map that gives weight to every memory."""
        dtype, wide = cues.queries.dtype, widened(cues.queries).dtype
        weights, log_factor = self.omega.direction(self.all_scores(cues))
        states = self.mix_dense(weights, self.shard.memories)
        if isinstance(log_factor, Tensor) and not scale_free:
            states = states * log_factor.exp().clamp_max(torch.finfo(wide).max)
        return Step(states.to(wide), weights.to(dtype))

    def _from_all_scores(self, cues: Cues) -> Tensor:
        scores = self.all_scores(cues)
        lost = ~scores.detach().isfinite().all(1, keepdim=True)
        return torch.where(lost, 0.0, self.omega(torch.where(lost, 0.0, scores)))
