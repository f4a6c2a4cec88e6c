"""The patterns of one process: rows, ids, order and values, behind states that never change."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from hopfy._growing import Growing
from hopfy.memory.parts import lifted, squared_lengths
from hopfy.search import ExactIndex

__all__ = ["StoredPatterns", "routed"]

_MANY = 4096
"""With fewer patterns principal directions do not pay."""


def routed(counts: list[int], new: int) -> list[int]:
    """How many of ``new`` patterns each shard gets if each goes to the emptiest one in turn.

    >>> routed([5, 2, 3], 4), routed([0, 0], 3), routed([1, 9], 1)
    ([0, 3, 1], [2, 1], [1, 0])
    """
    order = sorted(range(len(counts)), key=lambda rank: (counts[rank], rank))
    level, left, filled = counts[order[0]], new, 0
    for filled in range(1, len(order) + 1):  # raise the lowest shards together, step by step
        above = counts[order[filled]] if filled < len(order) else None
        if above is None or (above - level) * filled >= left:
            break
        left -= (above - level) * filled
        level = above
    shares = [0] * len(counts)
    lowest = sorted(order[:filled])
    for place, rank in enumerate(lowest):
        shares[rank] = level - counts[rank] + left // filled + (place < left % filled)
    return shares


@dataclass(frozen=True, eq=False)
class StoredPatterns:
    """What one process stores; a change gives another `StoredPatterns` and leaves this one as it is.

    ``numbers`` say in which order patterns were stored on all processes; they increase from row to
    row. Under a ``radius`` the rows carry one more coordinate (see `hopfy.memory`).
    """

    _rows: Growing
    _ids: Growing
    _numbers: Growing
    _values: Growing | None
    stored: int
    radius: float | None
    _derived: dict[str, ExactIndex | tuple[Tensor, Tensor]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        rows: Tensor,
        ids: Tensor,
        numbers: Tensor,
        values: Tensor | None,
        radius: float | None,
    ) -> StoredPatterns:
        kept = None if values is None else Growing(values)
        return cls(Growing(rows), Growing(ids), Growing(numbers), kept, len(rows), radius)

    @classmethod
    def empty(
        cls, size: int, dtype: torch.dtype, values: Tensor | None, radius: float | None
    ) -> StoredPatterns:
        """No patterns of ``size`` coordinates yet; the values will be like ``values``."""
        none = torch.zeros(0, dtype=torch.int64)
        width = size if radius is None else size + 1
        like = None if values is None else values[:0].clone()
        return cls.of(torch.empty(0, width, dtype=dtype), none, none.clone(), like, radius)

    def __len__(self) -> int:
        return self.stored

    @property
    def rows(self) -> Tensor:
        """(n, W), what the network holds."""
        return self._rows.rows(self.stored)

    @property
    def patterns(self) -> Tensor:
        """(n, D), as they were given."""
        return self.rows if self.radius is None else self.rows[:, :-1]

    @property
    def ids(self) -> Tensor:
        return self._ids.rows(self.stored)

    @property
    def numbers(self) -> Tensor:
        return self._numbers.rows(self.stored)

    @property
    def values(self) -> Tensor | None:
        return None if self._values is None else self._values.rows(self.stored)

    @property
    def index(self) -> ExactIndex:
        """An index of the rows, of which there is at least one; made once."""
        if "index" not in self._derived:
            directions = None if self.stored >= _MANY else 0
            self._derived["index"] = ExactIndex.over(
                self.rows, directions, lifted=self.radius is not None
            )
        made = self._derived["index"]
        assert isinstance(made, ExactIndex)
        return made

    def places_of(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the ids are stored here, (M,) booleans, and the rows of those that are."""
        if not self.stored or not ids.numel():
            return torch.zeros_like(ids, dtype=torch.bool), ids[:0]
        if "by id" not in self._derived:
            ordered = self.ids.sort()
            self._derived["by id"] = (ordered.values, ordered.indices)
        known, where = self._derived["by id"]  # type: ignore[misc]
        spot = torch.searchsorted(known, ids).clamp_max(self.stored - 1)
        found = known[spot] == ids
        return found, where[spot][found]

    # ------------------------------------------------------------------ changes

    def at_radius(self, radius: float | None) -> StoredPatterns:
        """The same patterns on a larger sphere."""
        if radius == self.radius or radius is None:
            return self
        patterns = self.patterns
        rows = lifted(patterns, squared_lengths(patterns), radius)
        return replace(self, _rows=Growing(rows), radius=radius, _derived={})

    def plus(
        self,
        patterns: Tensor,
        ids: Tensor,
        numbers: Tensor,
        values: Tensor | None,
        radius: float | None,
    ) -> StoredPatterns:
        """More patterns, whose numbers are larger than all before."""
        base = self.at_radius(radius)
        used, count = self.stored, len(patterns)
        new = patterns if radius is None else lifted(patterns, squared_lengths(patterns), radius)
        kept = base._values
        if kept is not None and values is not None:
            kept = kept.plus(used, count, [values])
        rows = base._rows.plus(used, count, [new])
        index = base._derived.get("index")
        derived: dict[str, ExactIndex | tuple[Tensor, Tensor]] = {}
        if isinstance(index, ExactIndex) and count:
            index = index.extended(rows.rows(used + count))
        if isinstance(index, ExactIndex):
            derived["index"] = index
        return replace(
            base,
            _rows=rows,
            _ids=base._ids.plus(used, count, [ids]),
            _numbers=base._numbers.plus(used, count, [numbers]),
            _values=kept,
            stored=used + count,
            _derived=derived,
        )

    def without(self, places: Tensor) -> StoredPatterns:
        """Forget these rows, in one pass over the others."""
        keep = torch.ones(self.stored, dtype=torch.bool)
        keep[places] = False
        values = None if self.values is None else self.values[keep]
        rows = self.rows[keep]
        made = StoredPatterns.of(rows, self.ids[keep], self.numbers[keep], values, self.radius)
        index = self._derived.get("index")
        if isinstance(index, ExactIndex) and len(rows):
            made._derived["index"] = index.restricted(keep.nonzero().flatten(), rows)
        return made
