"""One state of a sharded memory, how it changes, and what is derived from it."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hopfy.distributed._engine import Engine
from hopfy.distributed._group import Group
from hopfy.distributed._new_patterns import NewPatterns
from hopfy.distributed._separations import Separations, completed
from hopfy.distributed._shard import Numbered, Shard
from hopfy.distributed._stored_patterns import StoredPatterns
from hopfy.memory.parts import ROOM, Codec, Settings, radius_for, squared_lengths

__all__ = ["MemoryState", "Stored"]

_ROWS_PER_QUERY = 64
"""Rows that are fetched for each query and mixed as in one process."""
_LARGEST_ID = 1 << 62


@dataclass(frozen=True, eq=False)
class Stored:
    """One state of the memory: this process's part, and what all processes know."""

    held: StoredPatterns
    counts: list[int]
    next_id: int
    next_number: int
    separations: Separations

    @property
    def total(self) -> int:
        return sum(self.counts)


class MemoryState:
    """What a sharded memory holds; all methods are called by all processes together."""

    _group: Group
    _settings: Settings
    _gather_limit: int
    _stored: Stored | None
    _codec: Codec | None
    _engine_of: tuple[StoredPatterns, Engine] | None
    _beta_of: tuple[StoredPatterns, float] | None

    # ------------------------------------------------------------------ changes

    def _filled(self) -> Stored:
        if self._stored is None or self._stored.total == 0:
            raise ValueError("expected a memory with patterns, got an empty one; add some first.")
        return self._stored

    def _places_of(self, ids: Tensor) -> Tensor:
        """The rows of those ids that are here; a KeyError on all processes if one is nowhere."""
        stored = self._stored
        found, places = torch.zeros_like(ids, dtype=torch.bool), ids[:0]
        if stored is not None:
            found, places = stored.held.places_of(ids)
        anywhere = self._group.maximum(lambda: found.to(torch.uint8)).bool()
        missing = ids[~anywhere].tolist()
        if missing:
            raise KeyError(
                f"expected ids that are stored, got {missing[:5]} ({len(missing)} unknown); "
                "nothing was changed."
            )
        return places

    def _new_ids(self, offer: NewPatterns) -> Tensor:
        """The ids (M,) of what is offered; an error on all processes if they are not new."""
        stored = self._stored
        if offer.ids is None:
            first = 0 if stored is None else stored.next_id
            return torch.arange(first, first + offer.total)
        ids = offer.ids
        outside = ids[(ids < 0) | (ids >= _LARGEST_ID)]
        if outside.numel():
            raise ValueError(f"expected ids from 0 to 2**62 - 1, got {int(outside[0])}.")
        taken = torch.zeros_like(ids, dtype=torch.bool)
        if stored is not None:
            taken, _ = stored.held.places_of(ids)
        anywhere = self._group.maximum(lambda: taken.to(torch.uint8)).bool()
        unique, counts = torch.unique(ids, return_counts=True)
        again = torch.unique(torch.cat([ids[anywhere], unique[counts > 1]])).tolist()
        if again:
            raise ValueError(
                f"expected new ids, each once, got {again[:5]} again; remove the patterns that "
                "have them first."
            )
        return ids

    def _radius_with(self, offer: NewPatterns) -> float | None:
        """The radius of the sphere that also holds what is offered."""
        if self._settings.compare != "distance":
            return None
        own = squared_lengths(offer.patterns)
        longest = self._group.maximum(lambda: torch.cat([own, own.new_zeros(1)]).max().reshape(1))
        before = 0.0 if self._stored is None else self._stored.held.radius or 0.0
        return radius_for(longest, before) if offer.total else before

    def _with(self, offer: NewPatterns, new: Tensor, radius: float | None) -> Stored:
        """What will be stored, with counts still to be exchanged; nothing changes yet."""
        before, count = self._stored, len(offer.patterns)
        values = offer.values
        if values is not None and offer.codec is not None:
            known = self._codec or Codec(offer.codec.kind)
            table = torch.tensor(known.planned(offer.codec.entries), dtype=torch.int64)
            values = table[values] if len(values) else values
        if before is None:
            kind = offer.patterns.shape[1], offer.patterns.dtype
            held = StoredPatterns.empty(*kind, values, None if radius is None else 0.0)
            before = Stored(held, [], 0, 0, Separations.unknown(0))
        first = before.next_number + offer.first
        numbers = torch.arange(first, first + count)
        ids = new[offer.first : offer.first + count]
        known_gaps = before.separations
        if radius != before.held.radius:
            known_gaps = Separations.unknown(len(known_gaps.delta))
        held = before.held.plus(offer.patterns, ids, numbers, values, radius)
        next_id = max(before.next_id, int(new.max()) + 1) if len(new) else before.next_id
        gaps = known_gaps.extended(count)
        return Stored(held, before.counts, next_id, before.next_number + offer.total, gaps)

    def _gathered_counts(self, after: Stored) -> list[int]:
        parts = self._group.gather(lambda: [torch.tensor([len(after.held)])])
        return [int(part[0]) for part in parts]

    # ------------------------------------------------------------------ searches

    def _shard(self, stored: Stored) -> Shard:
        held = stored.held
        return Shard(held.rows, held.index if len(held) else None)

    def _engine(self, stored: Stored) -> Engine:
        held = stored.held
        if self._engine_of is None or self._engine_of[0] is not held:
            layout = Numbered(stored.counts, self._group.rank, held.numbers, stored.next_number)
            shard = self._group.together(lambda: self._shard(stored))
            engine = Engine(
                shard, layout, self._group, self._settings.omega, self._gather_limit, _ROWS_PER_QUERY
            )  # fmt: skip
            self._engine_of = (held, engine)
        return self._engine_of[1]

    def _largest_norm(self, stored: Stored) -> float:
        held = stored.held

        def own() -> Tensor:
            norm = held.index.largest_norm if len(held) else 0.0
            return torch.tensor([norm], dtype=torch.float64)

        return float(self._group.maximum(own))

    # ------------------------------------------------------------------ beta

    def _separated(self, stored: Stored) -> Stored:
        """The state with all separations known."""
        known = completed(stored.separations, stored.held, self._group)
        self._stored = replace(stored, separations=known)
        return self._stored

    def _hopeless(self, stored: Stored) -> Tensor:
        """Which of our rows no beta makes a fixed point, as far as their dtype can tell."""
        limit = torch.finfo(stored.held.rows.dtype).eps * self._largest_square(stored)
        return stored.separations.delta <= limit

    def _largest_square(self, stored: Stored) -> float:
        own = squared_lengths(stored.held.rows)
        return float(self._group.maximum(lambda: torch.cat([own, own.new_zeros(1)]).max()[None]))

    def _beta(self, stored: Stored) -> float:
        if self._settings.beta is not None:
            return self._settings.beta
        if self._beta_of is None or self._beta_of[0] is not stored.held:
            stored = self._separated(stored)
            delta = stored.separations.delta
            hopeful = delta[~self._hopeless(stored) & delta.isfinite()]
            least = torch.cat([hopeful, hopeful.new_full((1,), torch.inf)]).min().reshape(1)
            smallest = -float(self._group.maximum(lambda: -least))
            if smallest == float("inf"):
                smallest = max(self._largest_square(stored), 1.0)
            self._beta_of = (stored.held, ROOM * self._settings.omega.margin / smallest)
        return self._beta_of[1]
