r"""Separations :math:`\Delta_i = x_i^\top x_i - \max_{j \ne i} x_i^\top x_j` over all shards.

Rows whose separation is not known yet are shown to all processes, some at a time. Each process finds
the strongest rival among its own patterns, and notes where a new row is a rival of an old one. So
every pair of patterns is compared once for each of its two rows, the work is shared by all
processes, and after an `add` only the new rows travel.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.distributed._group import Group
from hopfy.distributed._stored_patterns import StoredPatterns

__all__ = ["Separations", "completed"]

_SHOWN = 256
"""Rows that each process shows in one round."""
_TILE = 8192


class Separations(NamedTuple):
    """For every row of one process its separation (NaN: not known yet) and its rival's number."""

    delta: Tensor
    rival: Tensor

    @classmethod
    def unknown(cls, count: int) -> Separations:
        return cls(
            torch.full((count,), torch.nan, dtype=torch.float64),
            torch.full((count,), -1, dtype=torch.int64),
        )

    def extended(self, count: int) -> Separations:
        """With ``count`` new rows."""
        more = Separations.unknown(count)
        return Separations(torch.cat([self.delta, more.delta]), torch.cat([self.rival, more.rival]))

    def kept(self, keep: Tensor, gone: Tensor) -> Separations:
        """The rows in ``keep`` (n,); those whose rival is among the numbers ``gone`` are unknown."""
        lost = torch.isin(self.rival, gone)
        return Separations(
            torch.where(lost, torch.nan, self.delta)[keep],
            torch.where(lost, -1, self.rival)[keep],
        )


def completed(known: Separations, held: StoredPatterns, group: Group) -> Separations:
    """The separations of all rows; all processes call it together."""
    delta, rival = known.delta.clone(), known.rival.clone()
    fresh = delta.isnan().nonzero().flatten()
    rounds = torch.tensor([-(-len(fresh) // _SHOWN)])
    for turn in range(int(group.maximum(lambda: rounds))):
        some = fresh[turn * _SHOWN : (turn + 1) * _SHOWN]
        shown = group.gather(lambda some=some: [held.numbers[some], held.rows[some]])  # type: ignore[misc]
        numbers = torch.cat([part[0] for part in shown])
        rows = torch.cat([part[1] for part in shown])
        found = group.gather(
            lambda numbers=numbers, rows=rows: list(_compare(numbers, rows, held, delta, rival))  # type: ignore[misc]
        )
        gaps = torch.stack([part[0] for part in found])
        rivals = torch.stack([part[1] for part in found])
        first = sum(len(part[0]) for part in shown[: group.rank])
        mine = slice(first, first + len(some))
        who = gaps[:, mine].argmin(0)
        delta[some] = gaps[:, mine].gather(0, who.unsqueeze(0)).squeeze(0)
        rival[some] = rivals[:, mine].gather(0, who.unsqueeze(0)).squeeze(0)
    return Separations(delta, rival)


def _compare(
    numbers: Tensor, rows: Tensor, held: StoredPatterns, delta: Tensor, rival: Tensor
) -> tuple[Tensor, Tensor]:
    """The separation of each shown row from this process's patterns, and the rival's number.

    Separations of our own rows that a shown row is a stronger rival of are lowered in place.
    """
    shown = rows.double()
    gaps = torch.full((len(rows),), torch.inf, dtype=torch.float64)
    rivals = torch.full((len(rows),), -1, dtype=torch.int64)
    for start in range(0, held.stored if len(rows) else 0, _TILE):
        own = held.rows[start : start + _TILE].double()
        names = held.numbers[start : start + _TILE]
        scores = shown @ own.mT
        scores.masked_fill_(numbers.unsqueeze(1) == names, -torch.inf)
        best, who = scores.max(1)
        gap = torch.where(best.isfinite(), (shown * (shown - own[who])).sum(-1), torch.inf)
        rivals = torch.where(gap < gaps, names[who], rivals)
        gaps = torch.minimum(gaps, gap)
        best, who = scores.max(0)
        gap = torch.where(best.isfinite(), (own * (own - shown[who])).sum(-1), torch.inf)
        part = slice(start, start + len(own))
        lower = gap < delta[part]  # False where it is not known yet
        delta[part] = torch.where(lower, gap, delta[part])
        rival[part] = torch.where(lower, numbers[who], rival[part])
    return gaps, rivals
