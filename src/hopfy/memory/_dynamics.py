"""From cues to recalled patterns, a bounded number of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

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
_MOST_QUERIES = 1024
_BYTES = 256  # of scratch memory for each pattern of a mixture, measured


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
    scratch: int
    max_steps: int
    prepared_map: PreparedMap | None = None

    @property
    def omega(self) -> Omega:
        return self.network.omega

    @property
    def prepared(self) -> PreparedMap:
        return PreparedMap.of(self.omega) if self.prepared_map is None else self.prepared_map

    def pieces(self, cues: Tensor, known: Tensor | None) -> Iterator[Piece]:
        """What the cues (Q, D) lead to, where ``known`` (Q, D), each part within the scratch."""
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
        if self.index is None:
            return None
        beta = float(self.network.beta)
        found = self.index.singles(cues, self.prepared, beta, metric=self._metric)
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
        for some, weights in self.index.parts(cues, self.prepared, beta, metric=self._metric):
            done = self._proven(weights)
            if bool(done.any()):
                yield Piece.certain(places[some[done]], weights.take(done.nonzero().flatten()))
            left = (~done).nonzero().flatten()
            if left.numel():
                yield from self._continued(weights.take(left), places[some[left]])

    def _continued(self, weights: SparseRows, places: Tensor) -> Iterator[Piece]:
        """The whole network goes on from what the first step made of some cues."""
        if self.max_steps == 1:
            yield Piece.unfinished(places, weights)
            return
        states = weights.matmul(self.contents.rows)
        for piece in self._released(states, places, self.max_steps - 1):
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

    def _released(
        self, states: Tensor, places: Tensor, max_steps: int | None = None
    ) -> Iterator[Piece]:
        """The whole network goes on from these states (Q, W)."""
        max_steps = self.max_steps if max_steps is None else max_steps
        start, count = 0, self.contents.rows.shape[0]
        largest = count  # what a mixture may be of; later blocks learn it from those before
        while start < states.shape[0]:
            fitting = self.scratch // (2 * _BYTES * largest)  # the answer keeps the other half
            stop = start + max(1, min(_MOST_QUERIES, fitting))
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
        for some, weights in self.index.parts(held, self.prepared, beta, mask=mask):
            yield from self._filled(held[some], known[some], weights, places[some])

    def _filled(
        self, held: Tensor, known: Tensor, weights: SparseRows, places: Tensor
    ) -> Iterator[Piece]:
        filled = fill(held, known, weights, self.network, self.max_steps)
        mixed = filled.weights.counts > 1
        yield from self._released(filled.states[~mixed], places[~mixed])
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
        """Whole rows of scores, as many cues at a time as the scratch memory allows."""
        rows = self.contents.rows
        # Scores, weights and their sparse form, at their largest; the answer keeps the other half.
        size = max(1, self.scratch // (2 * 96 * rows.shape[0]))
        cues, known = self._with_lift(cues, known)
        for some in torch.split(torch.arange(cues.shape[0], device=cues.device), size):
            part, own = cues[some], known[some]
            if bool(own.all()):
                yield from self._released(part, places[some])
                continue
            held = part.masked_fill(~own, 0.0)
            lacking = ~own[:, : self.contents.patterns.shape[1]].all(-1)
            share = torch.where(lacking, temperature_share(own), 1.0).unsqueeze(1)
            scores = start_scores(held, own, rows).mul_(float(self.network.beta) * share)
            weights = SparseRows.from_dense(self.omega(scores))
            if bool(lacking.all()):
                yield from self._filled(held, own, weights, places[some])
            else:
                states = torch.where(own, held, weights.to(rows.dtype).matmul(rows))
                yield from self._released(states, places[some])
