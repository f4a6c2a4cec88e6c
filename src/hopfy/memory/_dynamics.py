"""From cues to recalled patterns, a bounded number of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy.memory._budget import RecallBudget
from hopfy.memory._fill import fill, start_scores, temperature_share
from hopfy.memory._store import Contents
from hopfy.network import HopfieldNetwork, Kind
from hopfy.omega import Omega
from hopfy.search import ExactIndex, Metric, PreparedMap, SparseRows
from hopfy.theory import proves_with_index

__all__ = ["KINDS", "Engine", "Piece"]

KINDS = tuple(Kind)
_PATTERN, _METASTABLE, _MOVING = (
    KINDS.index(kind) for kind in (Kind.PATTERN, Kind.METASTABLE, Kind.MOVING)
)


class Piece(NamedTuple):
    """What some cues, at ``places``, led to; ``kinds`` are numbers in `KINDS`."""

    places: Tensor
    weights: SparseRows
    certified: Tensor
    kinds: Tensor
    steps: Tensor

    @classmethod
    def certain(cls, places: Tensor, weights: SparseRows) -> Piece:
        """Certified patterns, after one step."""
        kinds = torch.full_like(weights.counts, _PATTERN)
        return cls(places, weights, torch.ones_like(kinds).bool(), kinds, torch.ones_like(kinds))

    @classmethod
    def unfinished(cls, places: Tensor, weights: SparseRows) -> Piece:
        """Not certified and still moving, after one step."""
        ones = torch.ones_like(weights.counts)
        moving = torch.full_like(ones, _MOVING)
        return cls(places, weights, torch.zeros_like(ones).bool(), moving, ones)


@dataclass(frozen=True)
class Engine:
    """What a recall works with: one state of the memory and the network on it.

    ``index`` is None where none can be used (softmax, other devices).
    """

    contents: Contents
    network: HopfieldNetwork
    index: ExactIndex | None
    budget: RecallBudget
    max_steps: int
    prepared_map: PreparedMap | None = None

    @property
    def omega(self) -> Omega:
        return self.network.omega

    @property
    def prepared(self) -> PreparedMap:
        return PreparedMap.of(self.omega) if self.prepared_map is None else self.prepared_map

    def pieces(self, cues: Tensor, known: Tensor | None) -> Iterator[Piece]:
        """What the cues (Q, D) lead to, where ``known`` (Q, D), each part within the budget."""
        places = torch.arange(cues.shape[0], device=cues.device)
        if known is None:
            yield from self._complete(cues, places)
            return
        whole = known.all(-1)
        if bool(whole.any()):
            yield from self._complete(cues[whole], places[whole])
        if not bool(whole.all()):
            yield from self._incomplete(cues[~whole], known[~whole], places[~whole])

    # ------------------------------------------------------------------ complete cues

    @property
    def _metric(self) -> Metric:
        return "inner" if self.contents.radius is None else "euclidean"

    def certain(self, cues: Tensor) -> Tensor | None:
        """(Q,) the row that each of a few complete cues leads to, if all of them are proven at once."""
        return self._certain(cues, self._metric)

    def _certain(self, queries: Tensor, metric: Metric) -> Tensor | None:
        if self.index is None:
            return None
        beta = float(self.network.beta)
        found = self.index.singles(queries, self.prepared, beta, metric=metric)
        if found is None or not bool(self._proves(found).all()):
            return None
        return found

    def _complete(self, cues: Tensor, places: Tensor) -> Iterator[Piece]:
        """The first step compares by distance (or by inner product); most cues need no other.

        The others go on from the mixture that it gives.
        """
        if self.index is None:
            yield from self._by_blocks(cues, torch.ones_like(cues, dtype=torch.bool), places)
            return
        beta = float(self.network.beta)
        going = _Going()  # the search ends before the network goes on: they share their bytes
        for some, weights in self.index.parts(cues, self.prepared, beta, metric=self._metric):
            done = self._proven(weights)
            if bool(done.any()):
                yield Piece.certain(places[some[done]], weights.take(done.nonzero().flatten()))
            left = (~done).nonzero().flatten()
            if not left.numel():
                continue
            rest = weights.take(left) if bool(done.any()) else weights
            if self.max_steps == 1:
                yield Piece.unfinished(places[some[left]], rest)
            else:
                going.append(places[some[left]], rest.matmul(self.contents.rows))
        for piece in self._released(*going.joined(cues), self.max_steps - 1):
            yield piece._replace(steps=piece.steps + 1)

    def _proven(self, weights: SparseRows) -> Tensor:
        """Which rows are single patterns that are proven to be fixed points."""
        alone = weights.counts == 1
        if self.index is None or self.prepared.lead is None or not bool(alone.any()):
            return torch.zeros_like(alone)
        members = weights.indices[weights.offsets[:-1][alone]]
        alone[alone.clone()] = self._proves(members)
        return alone

    def _proves(self, members: Tensor) -> Tensor:
        """Which single patterns (P,) are proven to be fixed points; known answers are looked up."""
        if self.index is None or self.prepared.lead is None:
            return torch.zeros_like(members, dtype=torch.bool)
        beta, one = float(self.network.beta), members.numpy()
        known = self.index.proven_leads().proven.numpy()[one] >= self.prepared.lead / beta
        if not known.all():
            asked = np.flatnonzero(~known)
            patterns, back = np.unique(one[asked], return_inverse=True)
            betas = torch.full(patterns.shape, beta, dtype=torch.float64, device="cpu")
            sets = torch.from_numpy(patterns).unsqueeze(1)
            known[asked] = proves_with_index(self.index, sets, self.omega, betas).numpy()[back]
        return torch.from_numpy(known)

    def _released(self, places: Tensor, states: Tensor, max_steps: int) -> Iterator[Piece]:
        """The whole network goes on from these states (Q, W)."""
        start, count = 0, self.contents.rows.shape[0]
        largest = count  # what a mixture may be of; later blocks learn it from those before
        while start < states.shape[0]:
            stop = start + self.budget.read(largest)
            some = torch.arange(start, min(stop, states.shape[0]), device=states.device)
            start = stop
            found = self.network.retrieve(states[some], max_steps=max_steps)
            weights = found.support
            if weights is None:
                weights = SparseRows.from_dense(found.weights.reshape(some.numel(), -1))
            kinds = torch.tensor([KINDS.index(kind) for kind in found.kind], device=states.device)
            largest = min(count, 4 * max(16, int(weights.counts.max())))
            yield Piece(places[some], weights, found.certified, kinds, found.steps)

    # ------------------------------------------------------------------ incomplete cues

    def _incomplete(self, cues: Tensor, known: Tensor, places: Tensor) -> Iterator[Piece]:
        if self.index is None:
            yield from self._by_blocks(cues, known, places)
            return
        cues, known = self._with_lift(cues, known)
        held = cues.masked_fill(~known, 0.0)
        beta = float(self.network.beta) * temperature_share(known)
        same = bool((known == known[:1]).all())
        mask = known[:1].contiguous() if same else known.contiguous()
        decided = _Going()
        for some, weights in self.index.parts(held, self.prepared, beta, mask=mask):
            yield from self._filled(held[some], known[some], weights, places[some], decided)
        places, states = decided.joined(held)
        found = self._certain(states, "inner") if places.numel() else None
        if found is None:
            yield from self._released(places, states, self.max_steps)
        else:
            yield Piece.certain(places, self._alone(found))

    def _alone(self, rows: Tensor) -> SparseRows:
        """Weight 1 for one stored row (Q,) each."""
        offsets = torch.arange(len(rows) + 1, device=rows.device)
        ones = torch.ones(len(rows), dtype=torch.float64, device=rows.device)
        return SparseRows(offsets, rows, ones, self.contents.rows.shape[0])

    def _filled(
        self, held: Tensor, known: Tensor, weights: SparseRows, places: Tensor, decided: _Going
    ) -> Iterator[Piece]:
        """What remains a mixture; cues that have decided for one pattern are ``decided``."""
        filled = fill(held, known, weights, self.network, self.max_steps, self.budget)
        mixed = filled.weights.counts > 1
        decided.append(places[~mixed], filled.states[~mixed])
        if bool(mixed.any()):
            kinds = torch.where(filled.settled[mixed], _METASTABLE, _MOVING)
            none = torch.zeros_like(kinds)
            rows = filled.weights.take(mixed.nonzero().flatten())
            yield Piece(places[mixed], rows, none.bool(), kinds, none)

    def _with_lift(self, cues: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        if self.contents.radius is None:
            return cues, known
        pad = torch.nn.functional.pad  # a cue says nothing about the lift
        return pad(cues, (0, 1)), pad(known, (0, 1), value=False)

    # ------------------------------------------------------------------ without an index

    def _by_blocks(self, cues: Tensor, known: Tensor, places: Tensor) -> Iterator[Piece]:
        """Whole rows of scores, as many cues at a time as the budget allows."""
        rows = self.contents.rows
        cues, known = self._with_lift(cues, known)
        everyone = torch.arange(cues.shape[0], device=cues.device)
        for some in torch.split(everyone, self.budget.dense(rows.shape[0])):
            part, own = cues[some], known[some]
            if bool(own.all()):
                yield from self._released(places[some], part, self.max_steps)
                continue
            held = part.masked_fill(~own, 0.0)
            lacking = ~own[:, : self.contents.patterns.shape[1]].all(-1)
            share = torch.where(lacking, temperature_share(own), 1.0).unsqueeze(1)
            scores = start_scores(held, own, rows).mul_(float(self.network.beta) * share)
            weights = SparseRows.from_dense(self.omega(scores))
            going = _Going()
            if bool(lacking.all()):
                yield from self._filled(held, own, weights, places[some], going)
            else:
                states = torch.where(own, held, weights.to(rows.dtype).matmul(rows))
                going.append(places[some], states)
            yield from self._released(*going.joined(held), self.max_steps)


class _Going:
    """Cues that the whole network goes on with: their places, and their states (Q, W)."""

    def __init__(self) -> None:
        self._places: list[Tensor] = []
        self._states: list[Tensor] = []

    def append(self, places: Tensor, states: Tensor) -> None:
        self._places.append(places)
        self._states.append(states)

    def joined(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """All of them, in the order of their places; on the device of ``like``."""
        none = torch.empty(0, dtype=torch.int64, device=like.device)
        places = torch.cat([*self._places, none])
        order = places.argsort()
        states = torch.cat(self._states)[order] if self._states else like[:0]
        return places[order], states
