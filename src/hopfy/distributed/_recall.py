"""Recall from patterns on many processes: the steps of `hopfy.memory`, taken together.

All processes hold the same cues and take the same decisions. What they exchange are candidates, the
rows that some cue leads to, and proofs. The answers are those of one memory with all patterns.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from hopfy.distributed._engine import Engine
from hopfy.distributed._merge import Cues, merged_weights
from hopfy.distributed._network import ShardedHopfieldNetwork
from hopfy.distributed._proof import prove
from hopfy.memory.parts import KINDS, Piece, RecallBudget, fill, temperature_share
from hopfy.network import HopfieldNetwork, Kind
from hopfy.search import Metric, SparseRows

__all__ = ["Recaller", "check_fetch", "compacted"]

_PATTERN, _METASTABLE, _MOVING = (
    KINDS.index(kind) for kind in (Kind.PATTERN, Kind.METASTABLE, Kind.MOVING)
)
_MOST_QUERIES = 1024
_SCRATCH = 256 << 20  # bytes for candidates that compete, see `RecallBudget`


class Recaller:
    """What all processes do for one state of the memory at one beta.

    Args:
        engine: of the network's rows (n, W) of this process.
        radius: of the sphere on which the rows lie; None: the rows are the patterns.
        beta: the inverse temperature.
        largest_norm: of all rows of all processes.
        max_steps: the largest number of updates.
    """

    def __init__(
        self,
        engine: Engine,
        radius: float | None,
        beta: float,
        largest_norm: float,
        max_steps: int,
    ) -> None:
        self._engine, self._radius, self._beta = engine, radius, beta
        self._norm, self._max_steps = largest_norm, max_steps
        self._network = ShardedHopfieldNetwork._over(engine, beta)

    def pieces(self, cues: Tensor, known: Tensor | None) -> Iterator[Piece]:
        """What the cues (Q, D) lead to, where ``known`` (Q, D)."""
        places = torch.arange(len(cues))
        whole = torch.ones(len(cues), dtype=torch.bool) if known is None else known.all(-1)
        for some in _blocks(places[whole]):
            yield from self._complete(cues[some], some)
        if known is not None:
            for some in _blocks(places[~whole]):
                yield from self._incomplete(cues[some], known[some], some)

    # ------------------------------------------------------------------ complete cues

    def _complete(self, cues: Tensor, places: Tensor) -> Iterator[Piece]:
        """The first step compares by distance (or by inner product); most cues need no other.

        The others go on from the mixture that it gives.
        """
        metric: Metric = "inner" if self._radius is None else "euclidean"
        weights = self._weights(cues, self._betas(len(cues)), metric, None)
        done = self._proven(weights)
        if bool(done.any()):
            yield Piece.certain(places[done], weights.take(done.nonzero().flatten()))
        left = (~done).nonzero().flatten()
        if not left.numel():
            return
        chosen = weights.take(left)
        if self._max_steps == 1:
            yield Piece.unfinished(places[left], chosen)
            return
        rows, small = self._rows_of(chosen)
        for piece in self._released(small.matmul(rows), places[left], self._max_steps - 1):
            yield piece._replace(steps=piece.steps + 1)

    def _weights(
        self, cues: Tensor, beta: Tensor, metric: Metric, known: Tensor | None
    ) -> SparseRows:
        engine = self._engine
        return merged_weights(
            Cues(cues, beta), engine.omega, engine.shard, engine.layout, engine.group, metric, known
        )

    def _betas(self, count: int) -> Tensor:
        return torch.full((count,), self._beta, dtype=torch.float64)

    def _proven(self, weights: SparseRows) -> Tensor:
        """Which rows are single patterns that are proven to be fixed points."""
        alone = weights.counts == 1
        if self._engine.omega.exact_margin(1) is None or not bool(alone.any()):
            return torch.zeros_like(alone)
        members = weights.indices[weights.offsets[:-1][alone]]
        patterns, back = torch.unique(members, return_inverse=True)
        beta = self._betas(len(patterns))
        proven = prove(self._engine, patterns.unsqueeze(1), beta, self._norm)
        alone[alone.clone()] = proven[back]
        return alone

    def _released(
        self, states: Tensor, places: Tensor, max_steps: int | None = None
    ) -> Iterator[Piece]:
        """The whole network goes on from these states (Q, W)."""
        if not len(states):
            return
        max_steps = self._max_steps if max_steps is None else max_steps
        found = self._network.retrieve(states, max_steps=max_steps)
        assert found.support is not None
        kinds = torch.tensor([KINDS.index(kind) for kind in found.kind])
        yield Piece(places, found.support, found.certified, kinds, found.steps)

    # ------------------------------------------------------------------ incomplete cues

    def _incomplete(self, cues: Tensor, known: Tensor, places: Tensor) -> Iterator[Piece]:
        if self._radius is not None:  # a cue says nothing about the lift
            cues = torch.nn.functional.pad(cues, (0, 1))
            known = torch.nn.functional.pad(known, (0, 1), value=False)
        held = cues.masked_fill(~known, 0.0)
        beta = self._beta * temperature_share(known)
        same = bool((known == known[:1]).all())
        mask = known[:1].contiguous() if same else known.contiguous()
        weights = self._weights(held, beta, "inner", mask)
        rows, small = self._rows_of(weights)
        network = HopfieldNetwork(rows, self._engine.omega, self._beta)
        filled = fill(held, known, small, network, self._max_steps, RecallBudget(_SCRATCH))
        mixed = filled.weights.counts > 1
        yield from self._released(filled.states[~mixed], places[~mixed])
        if bool(mixed.any()):
            kinds = torch.where(filled.settled[mixed], _METASTABLE, _MOVING)
            none = torch.zeros_like(kinds)
            chosen = filled.weights.take(mixed.nonzero().flatten())
            ids = torch.unique(weights.indices)
            columns = self._engine.layout.columns
            back = SparseRows(chosen.offsets, ids[chosen.indices], chosen.values, columns)
            yield Piece(places[mixed], back, none.bool(), kinds, none)

    def _rows_of(self, weights: SparseRows) -> tuple[Tensor, SparseRows]:
        """The rows that take part, on all processes, and the weights on them."""
        ids, small = compacted(weights)
        check_fetch(self._engine, len(ids))
        return self._engine.fetch(ids, self._engine.shard.memories), small


def compacted(weights: SparseRows) -> tuple[Tensor, SparseRows]:
    """The ids that take part, increasing, and the weights with these as columns."""
    ids = torch.unique(weights.indices)
    places = torch.searchsorted(ids, weights.indices)
    return ids, SparseRows(weights.offsets, places, weights.values, len(ids))


def check_fetch(engine: Engine, count: int) -> None:
    """Raise, on all processes alike, if so many rows are too many to fetch."""
    rows = engine.shard.memories
    needed = count * rows.shape[1] * rows.element_size()
    if needed > engine.gather_limit:
        raise ValueError(
            f"expected recalls that involve patterns of up to {engine.gather_limit:.2g} bytes, got "
            f"mixtures of {count} patterns ({needed:.2g} bytes), which every process would fetch. "
            "Raise beta, ask fewer queries at once, or raise gather_limit."
        )


def _blocks(places: Tensor) -> list[Tensor]:
    return [some for some in torch.split(places, _MOST_QUERIES) if len(some)]
