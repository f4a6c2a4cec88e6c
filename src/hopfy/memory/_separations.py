r"""Separations :math:`\Delta_i` of many patterns, kept up to date as patterns come and go."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy.memory._blocks import blocks
from hopfy.memory._equal_lengths import squared_lengths
from hopfy.memory._progress import progress
from hopfy.search import ExactIndex

__all__ = ["Separations"]

_TILE = 2048


@dataclass(frozen=True)
class Separations:
    r"""For every pattern its separation and the rival that sets it.

    Attributes:
        delta: (N,) float64, :math:`\Delta_i = x_i^\top x_i - \max_{j \ne i} x_i^\top x_j`; infinite
            for a pattern without rivals.
        rival: (N,) int64, the row j that attains the maximum (-1 if there is none).

    Rivals are searched for in the patterns' precision; the separation itself is computed in float64.
    Where rounding errors could change a separation by more than half of it, the search is repeated
    in float64.
    """

    delta: Tensor
    rival: Tensor

    @classmethod
    def none(cls) -> Separations:
        return cls(
            torch.zeros(0, dtype=torch.float64, device="cpu"),
            torch.zeros(0, dtype=torch.int64, device="cpu"),
        )

    def kept(self, keep: Tensor) -> Separations:
        """Only the rows where ``keep`` (N,) is True; a rival that was removed becomes unknown (-1)."""
        place = torch.cumsum(keep, 0) - 1
        survives = (self.rival >= 0) & keep[self.rival]
        rival = torch.where(survives, place[self.rival], -1)
        delta = torch.where(survives, self.delta, torch.nan)
        return Separations(delta[keep], rival[keep])

    def without(self, gone: Tensor, index: ExactIndex) -> Separations:
        """The same places with the rows ``gone`` out of the competition: infinite, without a rival.

        Rows whose rival is gone look for another one in ``index``, in which those rows are removed.
        """
        delta, rival = self.delta.clone(), self.rival.clone()
        removed = torch.zeros(delta.numel(), dtype=torch.bool, device="cpu")
        removed[gone] = True
        lost = ((rival >= 0) & removed[rival] & ~removed).nonzero().flatten()
        delta[removed], rival[removed] = torch.inf, -1
        if len(index) > 1:
            for part in blocks(lost, _TILE):
                rival[part], delta[part] = _nearest(index, part)
        else:
            delta[lost], rival[lost] = torch.inf, -1
        return Separations(delta, rival)

    def extended(self, rows: Tensor, index: ExactIndex | None = None) -> Separations:
        """The separations of all ``rows``, whose first rows are the ones already known here.

        Every row that is new, or whose rival was removed, is multiplied with all rows at most once.
        Where most rows are new, an ``index`` of all of them computes fewer products.
        """
        known, total = self.delta.numel(), rows.shape[0]
        if index is not None and total > max(_TILE, 2 * known):
            return _by_index(index, total)
        best = torch.full((total,), -torch.inf, dtype=torch.float64, device="cpu")
        rival = torch.full((total,), -1, dtype=torch.int64, device="cpu")
        own = squared_lengths(rows).cpu()
        best[:known] = torch.where(self.rival >= 0, own[:known] - self.delta, -torch.inf)
        rival[:known] = self.rival
        lost = (self.rival < 0).nonzero().flatten()
        fresh = torch.arange(known, total, device="cpu")
        for part in blocks(torch.cat([lost, fresh]), _TILE):
            _search(rows, part.to(rows.device), best, rival, first_new=known)
        delta = _refined(rows, rival)
        _repair(rows, own, delta, rival)
        return Separations(delta, rival)


def _by_index(index: ExactIndex, total: int) -> Separations:
    """The two best rows for every row, itself and its rival, a block at a time."""
    delta = torch.empty(total, dtype=torch.float64, device="cpu")
    rival = torch.empty(total, dtype=torch.int64, device="cpu")
    everyone = torch.arange(total, device="cpu")
    for part in progress(list(torch.split(everyone, _TILE)), "comparing all pairs of patterns"):
        rival[part], delta[part] = _nearest(index, part)
    return Separations(delta, rival)


def _nearest(index: ExactIndex, part: Tensor) -> tuple[Tensor, Tensor]:
    """The rivals of the rows in ``part`` and their separations."""
    top = index.top(index.memories[part], 2)
    itself = top.indices == part.unsqueeze(1)
    # A row that is not among its own two best is dominated: its best is its rival.
    other = torch.where(itself[:, 0], 1, 0).unsqueeze(1)
    rival = top.indices.gather(1, other).squeeze(1)
    return rival, _gaps(index.memories, part, rival)


def _search(rows: Tensor, part: Tensor, best: Tensor, rival: Tensor, first_new: int) -> None:
    """Multiply the rows in ``part`` with all rows, and update the rivals of both rows of each pair."""
    mine = rows[part]
    here = part.cpu()
    new = here >= first_new
    for start in range(0, rows.shape[0], _TILE):
        stop = min(start + _TILE, rows.shape[0])
        if bool(new.all()) and start > int(here[-1]):
            break  # these pairs are computed when the later rows are searched
        scores = mine @ rows[start:stop].T
        inside = ((here >= start) & (here < stop)).nonzero().flatten()
        scores[inside.to(scores.device), (here[inside] - start).to(scores.device)] = -torch.inf
        _keep_larger(best, rival, here, *scores.max(1), shift=start)
        if bool(new.any()):
            top, who = scores.max(0)
            columns = torch.arange(start, stop, device="cpu")
            _keep_larger(best, rival, columns, top, part[who], shift=0)


def _keep_larger(
    best: Tensor, rival: Tensor, places: Tensor, scores: Tensor, who: Tensor, shift: int
) -> None:
    scores, who = scores.double().cpu(), who.cpu() + shift
    better = (scores > best[places]) & scores.isfinite()
    best[places[better]] = scores[better]
    rival[places[better]] = who[better]


def _refined(rows: Tensor, rival: Tensor) -> Tensor:
    delta = torch.full(rival.shape, torch.inf, dtype=torch.float64, device="cpu")
    for part in blocks((rival >= 0).nonzero().flatten(), _TILE):
        delta[part] = _gaps(rows, part, rival[part])
    return delta


def _gaps(rows: Tensor, part: Tensor, who: Tensor) -> Tensor:
    r""":math:`x_i^\top (x_i - x_r)` in float64, for i in ``part`` and its rivals r."""
    mine = rows[part.to(rows.device)].double()
    return (mine * (mine - rows[who.to(rows.device)].double())).sum(-1).cpu()


def _repair(rows: Tensor, own: Tensor, delta: Tensor, rival: Tensor) -> None:
    """Search again in float64 where rounding errors could change more than half of a separation.

    A separation that is not positive stays as it is: a better rival could only make it smaller.
    """
    if rows.shape[0] < 2 or rows.dtype is torch.float64:
        return
    unit = torch.finfo(rows.dtype).eps / 2
    rounding = 2 * rows.shape[1] * unit * own.sqrt() * own.max().sqrt()
    doubtful = ((delta > 0) & (delta < 4 * rounding)).nonzero().flatten()
    for part in blocks(doubtful, 64):
        mine = rows[part.to(rows.device)].double()
        top = torch.full(part.shape, -torch.inf, dtype=torch.float64, device="cpu")
        who = torch.full(part.shape, -1, dtype=torch.int64, device="cpu")
        for start in range(0, rows.shape[0], _TILE):
            scores = (mine @ rows[start : start + _TILE].double().T).cpu()
            inside = (part >= start) & (part < start + scores.shape[1])
            scores[inside.nonzero().flatten(), part[inside] - start] = -torch.inf
            found, place = scores.max(1)
            better = found > top
            top, who = torch.where(better, found, top), torch.where(better, place + start, who)
        rival[part] = who
        delta[part] = _gaps(rows, part, who)
