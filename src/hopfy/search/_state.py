"""What an index holds at one moment; never changed, only replaced."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy._checks import finite_norms
from hopfy._growing import Growing
from hopfy._kernels.select import Measure
from hopfy._runtime.compilation import compiled
from hopfy._runtime.precision import outside_autocast
from hopfy.search._bounds import BLOCK, Partial, Plain, block_maxima, rounding
from hopfy.search._plan import planned_bounds, principal_bounds
from hopfy.search._principal import Principal, leading_frame
from hopfy.search._problem import TIES, Problem
from hopfy.search._shared import SharedBounds
from hopfy.search._sweep import Rows

__all__ = ["ProvenLeads", "State"]

_GUARDED_QUERIES, _GUARDED_MEMORIES = 16, 4096
_CROWDED = 2
"""Rows are dropped for good when so many times more are stored than are alive."""


class _Bias(NamedTuple):
    """What a Euclidean score adds to the inner product with (q, lift): see `State.euclidean`."""

    values: Tensor
    error: Tensor
    lift: float


class ProvenLeads(NamedTuple):
    """For each memory the largest lead that was proven and the smallest that was refuted."""

    proven: Tensor
    refuted: Tensor


@dataclass(frozen=True, eq=False)
class State:
    """Memories (N, W) and what was derived from them.

    Attributes:
        memories: float16, bfloat16, float32 or float64, contiguous.
        norms: (N,) float64.
        principal: bounds from principal directions, or None.
        plain: bounds from the whole product.
        alive: (N,) uint8, 0 where a memory was removed; None: all are there.
        numbers: (N,) the increasing numbers that users know the memories by; None: 0 .. N - 1.
        next_number: the number of the next memory.
        directions: as the user asked for.
        planned_for: how many memories there were when the directions were chosen.
        lifted: whether the last coordinate is no part of the pattern (see `hopfy.memory`).
        shared: bounds that this state and those that it was extended to make once for all of them.
        derived: what was made of these when it was first needed.
    """

    memories: Tensor
    norms: Growing
    principal: Principal | None
    plain: Plain
    alive: Tensor | None
    numbers: Tensor | None
    next_number: int
    directions: int | None
    planned_for: int
    lifted: bool
    shared: SharedBounds = field(default_factory=SharedBounds)
    derived: dict[str, Any] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, memories: Tensor, directions: int | None, lifted: bool) -> State:
        norms = finite_norms(memories)
        count = memories.shape[0]
        usable = memories.device.type == "cpu" and compiled("select.cpu") is not None
        return cls(
            memories=memories,
            norms=Growing(norms),
            principal=_plan(memories, directions) if usable and count else None,
            plain=_plain(memories, norms),
            alive=None,
            numbers=None,
            next_number=count,
            directions=directions,
            planned_for=count,
            lifted=lifted,
        )

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "derived": {}, "shared": None, "_lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state | {"shared": SharedBounds(), "_lock": threading.Lock()})

    def __len__(self) -> int:
        """How many memories are alive."""
        return self.stored if self.alive is None else int(self.alive.sum())

    @property
    def stored(self) -> int:
        """How many rows there are, removed ones included."""
        return self.memories.shape[0]

    @property
    def size(self) -> int:
        """The number of coordinates of a pattern."""
        return self.memories.shape[1] - self.lifted

    @property
    def rows(self) -> Rows:
        return Rows(self.memories, self.alive)

    @property
    def is_compiled(self) -> bool:
        return self.memories.device.type == "cpu" and compiled("select.cpu") is not None

    # ------------------------------------------------------------------ growing and shrinking

    def extended(self, memories: Tensor) -> State:
        """For ``memories`` whose first rows are the present ones, at the cost of the new rows.

        Center and directions stay, as any give valid bounds; they are chosen anew when the number
        of memories has doubled.
        """
        count, new = self.stored, memories.shape[0] - self.stored
        numbers = self.numbers
        if numbers is not None:
            more = torch.arange(self.next_number, self.next_number + new, device="cpu")
            numbers = torch.cat([numbers, more])
        alive = self.alive
        if alive is not None:
            alive = torch.cat([alive, alive.new_ones(new)])
        if memories.shape[0] >= 2 * max(1, self.planned_for) or not count:
            fresh = State.of(memories, self.directions, self.lifted)
            return replace(fresh, alive=alive, numbers=numbers, next_number=self.next_number + new)
        rows = memories[count:]
        norms = self.norms.plus(count, new, [finite_norms(rows, first=count)] if new else [])
        principal = self.principal
        if principal is not None and new:
            principal = principal.extended(rows)
        same_buffer = memories.data_ptr() == self.memories.data_ptr()
        return replace(
            self,
            memories=memories,
            norms=norms,
            principal=principal,
            plain=_plain(memories, norms.rows(memories.shape[0])),
            alive=alive,
            numbers=numbers,
            next_number=self.next_number + new,
            shared=self.shared if same_buffer else self.shared.moved(count),
            derived=self._extended_bias(memories, norms),
            _lock=threading.Lock(),
        )

    def _extended_bias(self, memories: Tensor, norms: Growing) -> dict[str, Any]:
        """What a Euclidean score adds, if it was asked for before, at the cost of the new rows."""
        before: _Bias | None = self.derived.get("euclidean")
        if before is None or memories.shape[0] == self.stored:
            return {} if before is None else {"euclidean": before}
        first = self.stored - self.stored % BLOCK  # the last block was not full
        squares = norms.rows(memories.shape[0])[first:].square()
        more = _bias_of(memories[first:], squares, before.lift, self.lifted)
        values = torch.cat([before.values[:first], more.values])
        error = torch.cat([before.error[: first // BLOCK], more.error])
        return {"euclidean": _Bias(values, error, before.lift)}

    def without(self, places: Tensor) -> State:
        """The same with the memories at ``places`` gone; their rows stay where they are."""
        alive = self.memories.new_ones(self.stored, dtype=torch.uint8)
        alive = alive if self.alive is None else self.alive.clone()
        alive[places] = 0
        with self._lock:
            derived = {key: made for key, made in self.derived.items() if key != "short"}
        if "leads" in derived:  # without some rivals a lead can only be larger
            proven = derived["leads"].proven.clone()
            derived["leads"] = ProvenLeads(proven, torch.full_like(proven, torch.inf))
        return replace(self, alive=alive, derived=derived, _lock=threading.Lock())

    def restricted(self, kept: Tensor, memories: Tensor | None = None) -> State:
        """Only the rows ``kept``, increasing; ``memories`` are ``self.memories[kept]`` if given."""
        memories = self.memories[kept] if memories is None else memories
        norms = self.norms.rows(self.stored)[kept]
        numbers = kept if self.numbers is None else self.numbers[kept]
        alive = None if self.alive is None else self.alive[kept]
        return replace(
            self,
            memories=memories,
            norms=Growing(norms),
            principal=None if self.principal is None else self.principal.taken(kept),
            plain=_plain(memories, norms),
            alive=None if alive is None or bool(alive.all()) else alive,
            numbers=numbers,
            shared=self.shared.taken(self.memories, kept),
            derived={},
            _lock=threading.Lock(),
        )

    def planned(self) -> State:
        """The same with directions chosen from the memories, if they were not yet."""
        if self.directions is None or not self.is_compiled or not self.stored:
            return self
        principal = self.shared.get("plan", self.memories, lambda: _plan(self.memories, None))
        with self._lock:
            derived = {key: made for key, made in self.derived.items() if key != "euclidean"}
        return replace(
            self,
            principal=principal,
            directions=None,
            planned_for=self.stored,
            derived=derived,
            _lock=threading.Lock(),
        )

    def renumbered(self) -> State:
        """The same with rows counted from 0."""
        return replace(self, numbers=None, next_number=self.stored, _lock=threading.Lock())

    def tidy(self) -> State:
        """Without removed rows, if they have become many."""
        if self.alive is None or self.stored < _CROWDED * max(1, len(self)):
            return self
        return self.restricted(self.alive.nonzero().flatten())

    # ------------------------------------------------------------------ what is looked for

    def inner(self, queries: Tensor, rank: int, reach: Tensor, nudge: float = TIES) -> Problem:
        """The best inner products of ``queries`` (M, W), float64."""
        return Problem(
            queries, queries, None, None, None, None, Measure.INNER, rank, reach,
            _no_floors(queries), nudge,
        )  # fmt: skip

    def euclidean(self, queries: Tensor, rank: int, reach: Tensor, nudge: float = TIES) -> Problem:
        r"""The nearest patterns of ``queries`` (M, D), float64: scores :math:`-\|q - x\|^2 / 2`.

        For lifted rows :math:`(x, l)` and any t the score is
        :math:`(q, t)^\top (x, l) - t l - \|x\|^2 / 2 - \|q\|^2 / 2`; t near the usual lift keeps
        the query near the rows, which makes bounds from principal directions tight.
        """
        bias = self._euclidean_bias()
        bounded = (
            torch.nn.functional.pad(queries, (0, 1), value=bias.lift) if self.lifted else queries
        )
        reach_of_rows = float(self.norms.rows(self.stored).max())
        size = (bounded.norm(dim=1) + reach_of_rows).square()
        constant = rounding(8 * self.memories.shape[1] + 64, torch.float64) * size
        constant -= queries.square().sum(1) / 2
        return Problem(
            queries, bounded, constant, None, bias.values, bias.error, Measure.EUCLIDEAN, rank,
            reach, _no_floors(queries), nudge,
        )  # fmt: skip

    def partial(self, queries: Tensor, known: Tensor, rank: int, reach: Tensor) -> Problem:
        """The best scores of ``queries`` (M, W), zero where not ``known`` (M, W) or (1, W)."""
        bias = error = constant = None
        if known.shape[0] == 1:
            bias = self._half_squares(~known[0])
            error = 4 * torch.finfo(torch.float32).eps * block_maxima(bias.unsqueeze(1)).squeeze(1)
            error += rounding(self.memories.shape[1], torch.float64) * self.largest_norm**2
            constant = torch.zeros_like(reach)
            bias = bias.float()
        return Problem(
            queries, queries, constant, known, bias, error, Measure.PARTIAL, rank, reach,
            _no_floors(queries), TIES,
        )  # fmt: skip

    def partial_bounds(self, known: Tensor) -> Partial:
        """Bounds for queries that know different coordinates each."""
        norms = block_maxima(self.norms.rows(self.stored).unsqueeze(1)).squeeze(1)
        return Partial(self.memories, norms, known)

    @property
    def largest_norm(self) -> float:
        """Of the memories that are alive."""
        norms = self.norms.rows(self.stored)
        if self.alive is not None:
            norms = norms * self.alive
        return float(norms.max())

    def _half_squares(self, coordinates: Tensor) -> Tensor:
        chosen = coordinates.nonzero().flatten()
        halves = torch.empty(self.stored, dtype=torch.float64, device="cpu")
        for start in range(0, self.stored, 1024):
            part = self.memories[start : start + 1024, chosen].double()
            halves[start : start + 1024] = part.square().sum(1) / 2
        return halves

    def _euclidean_bias(self) -> _Bias:
        with self._lock:
            if "euclidean" not in self.derived:
                self.derived["euclidean"] = self._make_bias()
            bias: _Bias = self.derived["euclidean"]
            return bias

    def proven_leads(self) -> ProvenLeads:
        """(N,) float64 each, at first minus and plus infinity."""
        with self._lock:
            if "leads" not in self.derived:
                none = torch.full((self.stored,), torch.inf, dtype=torch.float64, device="cpu")
                self.derived["leads"] = ProvenLeads(-none, none)
            leads: ProvenLeads = self.derived["leads"]
            return leads

    def principal_for(self, problem: Problem) -> Principal | None:
        """The principal directions that may help with a problem.

        Where the spectrum is flat they do not help to find the best score. They still rule out what
        is far below a floor that is known from the start, as for queries that are stored patterns.
        """
        if self.principal is not None or self.directions is not None:
            return self.principal
        rows = problem.queries.shape[0]
        if rows < _GUARDED_QUERIES or self.stored < _GUARDED_MEMORIES or self.size < 32:
            return None
        if not bool((problem.floors > -torch.inf).all()):
            return None
        with self._lock:
            return self.shared.get("guard", self.memories, self._make_guard)

    def _make_guard(self) -> Principal:
        with outside_autocast(self.memories):
            frame = leading_frame(self.memories, (3 * self.size) // 8)
            return Principal.of(self.memories, frame, frame.basis.shape[1])

    def _make_bias(self) -> _Bias:
        lift = 0.0
        if self.lifted and self.principal is not None:
            lift = float(self.principal.frame.center[-1])
        squares = self.norms.rows(self.stored).square()
        return _bias_of(self.memories, squares, lift, self.lifted)


def _bias_of(memories: Tensor, squares: Tensor, lift: float, lifted: bool) -> _Bias:
    """Of rows with these squared norms (N,), float64, of which the first begins a block."""
    bias = squares / -2
    if lifted:
        heights = memories[:, -1].double()
        bias = heights.square().sub_(squares).div_(2) - lift * heights
    single, double = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps
    error = 4 * single * bias.abs() + 32 * double * (squares + abs(lift) * squares.sqrt())
    return _Bias(bias.float(), block_maxima(error.unsqueeze(1)).squeeze(1), lift)


def _no_floors(queries: Tensor) -> Tensor:
    return torch.full((queries.shape[0],), -torch.inf, dtype=torch.float64, device="cpu")


def _plain(memories: Tensor, norms: Tensor) -> Plain:
    largest = block_maxima(norms.unsqueeze(1)).squeeze(1) if norms.numel() else norms
    return Plain(memories, largest)


def _plan(memories: Tensor, directions: int | None) -> Principal | None:
    with outside_autocast(memories):
        if directions is None:
            return planned_bounds(memories)
        return principal_bounds(memories, directions) if directions else None
