r"""Softmax recalls: every pattern takes part, and no matrix of cues times patterns is ever made.

Patterns are streamed in blocks under a running log-sum-exp (`hopfy.search.SoftmaxRows`): one pass per
update, one to read out. Beyond the answer a recall needs a few numbers per coordinate of a cue, and
one block of scores.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy.memory._budget import RecallBudget
from hopfy.memory._dynamics import KINDS
from hopfy.memory._equal_lengths import squared_lengths
from hopfy.memory._fill import temperature_share
from hopfy.memory._store import Contents
from hopfy.network import Kind
from hopfy.search import SoftmaxRows, SparseRows

__all__ = ["Mixture", "Streamed"]

_METASTABLE, _MOVING = KINDS.index(Kind.METASTABLE), KINDS.index(Kind.MOVING)


class Mixture(NamedTuple):
    """What some cues, at ``places``, led to.

    Attributes:
        states: (Q, W), the mixtures of patterns.
        before: (Q, W), the states whose weights they are.
        settled, steps: (Q,).
        top: (Q,), the row with the largest weight.
        size: (Q,), how many weights are positive.
        values: (Q, ...), read out, or None.
    """

    places: Tensor
    states: Tensor
    before: Tensor
    settled: Tensor
    steps: Tensor
    top: Tensor
    size: Tensor
    values: Tensor | None

    @property
    def kinds(self) -> Tensor:
        return torch.where(self.settled, _METASTABLE, _MOVING)


class _Loop(NamedTuple):
    """States after the last update and before it, what was mixed meanwhile, and when they settled."""

    states: Tensor
    before: Tensor
    mixed: Tensor
    log_total: Tensor
    settled: Tensor
    steps: Tensor


@dataclass(frozen=True)
class Streamed:
    """One state of a memory with softmax: ``alive`` (N,) is zero where a row was removed."""

    contents: Contents
    alive: Tensor | None
    beta: float
    budget: RecallBudget
    max_steps: int

    def mixtures(self, cues: Tensor, known: Tensor | None) -> Iterator[Mixture]:
        """What the cues (Q, D) lead to, where ``known`` (Q, D), some of them at a time."""
        everyone = torch.arange(cues.shape[0], device=cues.device)
        whole = torch.ones_like(everyone, dtype=torch.bool) if known is None else known.all(-1)
        size = self.budget.streamed(self.contents.rows.shape[1])
        for some in torch.split(everyone[whole], size):
            if some.numel():
                yield self._complete(some, cues[some])
        for some in torch.split(everyone[~whole], size):
            if some.numel() and known is not None:
                yield self._incomplete(some, cues[some], known[some])

    def weights(self, before: Tensor) -> SparseRows:
        """The weights of one state (1, W)."""
        rows = self._rows(before)
        parts = [part for _, part in rows.weights(rows.mixed([]).log_total)]
        return SparseRows.from_dense(torch.cat(parts, 1))

    # ------------------------------------------------------------------ the dynamics

    def _complete(self, places: Tensor, cues: Tensor) -> Mixture:
        if self.contents.radius is None:
            return self._read(places, self._released(cues))
        # A cue says nothing about the lift: the patterns that it fits fill it in.
        states = torch.nn.functional.pad(cues, (0, 1))
        lift = self.contents.rows[:, -1:]
        (height,) = self._rows(states, 1.0, lift[:, 0].square() / 2).mixed([lift]).mixtures
        states[:, -1:] = height
        return self._read(places, self._released(states))

    def _released(self, states: Tensor) -> _Loop:
        """The whole network, until a state moves by less than the tolerance."""
        rows = self.contents.rows
        reach = float(squared_lengths(rows).max()) ** 0.5
        limit = torch.full(states.shape[:1], _tolerance(states) * reach, device=states.device)
        return self._settled(states, None, limit)

    def _incomplete(self, places: Tensor, cues: Tensor, known: Tensor) -> Mixture:
        """Updates of the free coordinates alone; a cue that has decided is released."""
        pad = torch.nn.functional.pad
        if self.contents.radius is not None:
            cues, known = pad(cues, (0, 1)), pad(known, (0, 1), value=False)
        held = cues.masked_fill(~known, 0.0)
        start = self._rows(held, temperature_share(known), (~known).to(held.dtype))
        (mixed,) = start.mixed([self.contents.rows]).mixtures
        clamped = self._settled(torch.where(known, held, mixed), known, None)
        found = self._read(places, clamped)._replace(steps=torch.zeros_like(places))
        decided = found.size == 1
        if not bool(decided.any()):
            return found
        free = self._read(places[decided], self._released(clamped.states[decided]))
        for old, new in zip(found[1:], free[1:], strict=True):
            if old is not None and new is not None:
                old[decided] = new
        return found

    def _settled(self, states: Tensor, known: Tensor | None, limit: Tensor | None) -> _Loop:
        """Updates; of the coordinates that are not ``known`` if given.

        A state has settled when it moves by at most ``limit`` (Q,), by default its own share.
        """
        count = states.shape[0]
        loop = _Loop(
            states.clone(),
            states.clone(),
            states.clone(),
            torch.zeros(count, 1, dtype=torch.float64, device=states.device),
            torch.zeros(count, dtype=torch.bool, device=states.device),
            torch.zeros(count, dtype=torch.int64, device=states.device),
        )
        active = torch.arange(count, device=states.device)
        for _ in range(self.max_steps):
            before = loop.states[active]
            (after,), loop.log_total[active] = self._rows(before).mixed([self.contents.rows])
            loop.before[active], loop.mixed[active] = before, after
            if known is not None:
                after = torch.where(known[active], before, after)
            loop.states[active] = after
            loop.steps[active] += 1
            moved = (after - before).double().norm(dim=-1)
            own = _tolerance(after) * after.norm(dim=-1) if limit is None else limit[active]
            still = moved <= own
            loop.settled[active] = still
            active = active[~still]
            if not active.numel():
                break
        return loop

    # ------------------------------------------------------------------ the read-out

    def _rows(
        self, states: Tensor, share: float | Tensor = 1.0, bias: Tensor | None = None
    ) -> SoftmaxRows:
        return SoftmaxRows(self.contents.rows, self.alive, states, self.beta * share, bias)

    def _read(self, places: Tensor, loop: _Loop) -> Mixture:
        """One more pass, with the weights of the last update."""
        rows, values = self._rows(loop.before), self.contents.values
        table = None
        if values is not None and values.is_floating_point():
            table = values.reshape(values.shape[0], -1)
        read = None if table is None else table.new_zeros(places.numel(), table.shape[1])
        size, top, best = torch.zeros_like(places), torch.zeros_like(places), _below(loop.log_total)
        for part, weights in rows.weights(loop.log_total):
            size += (weights > 0).sum(1)
            largest, where = weights.max(1)
            better = largest > best
            top = torch.where(better, where + part.start, top)
            best = torch.where(better, largest, best)
            if table is not None and read is not None:
                read += (weights @ table[part].to(weights.dtype)).to(read.dtype)
        if values is not None:
            read = _vote(rows, loop.log_total, values) if read is None else read
            read = read.reshape(-1, *values.shape[1:])
        return Mixture(places, loop.mixed, loop.before, loop.settled, loop.steps, top, size, read)


def _below(log_total: Tensor) -> Tensor:
    """(Q,) below every weight, in float64."""
    return torch.full_like(log_total[:, 0], -1.0)


def _tolerance(states: Tensor) -> float:
    return float(torch.finfo(states.dtype).eps ** 0.75)


def _vote(rows: SoftmaxRows, log_total: Tensor, values: Tensor) -> Tensor:
    """For each cue the value with the most weight; the smallest of equals.

    Patterns are taken in the order of their values, so that each value's weights follow one another
    and one running sum per cue is enough.
    """
    flat = values.reshape(values.shape[0], -1)
    choices, choice = torch.unique(flat, dim=0, return_inverse=True)
    order = choice.argsort(stable=True)
    elected = torch.zeros_like(log_total[:, 0], dtype=torch.int64)
    most = _below(log_total)
    carried, last = torch.zeros_like(most), -1
    for part, weights in rows.weights(log_total, order):
        own = choice[order[part]]
        first = int(own[0])
        sums = weights.new_zeros(weights.shape[0], int(own[-1]) - first + 1).double()
        sums.index_add_(1, own - first, weights.double())
        if first == last:
            sums[:, 0] += carried
        largest, where = sums.max(1)
        better = largest > most
        elected = torch.where(better, where + first, elected)
        most = torch.where(better, largest, most)
        carried, last = sums[:, -1], int(own[-1])
    voted: Tensor = choices[elected]
    return voted
