"""Exact updates and searches over many memories, without the score matrix."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

import numpy as np
import torch
from torch import Tensor

from hopfy._checks import as_memories, as_positive, as_queries
from hopfy._growing import Growing
from hopfy._kernels.select import Array, Measure, Quick
from hopfy.omega import Omega
from hopfy.search._budget import SCRATCH
from hopfy.search._prepared import PreparedMap
from hopfy.search._searches import (
    best,
    inside,
    near,
    numbers_of,
    rivals,
    separations,
    verdicts,
)
from hopfy.search._short import FixedUpdate, quick_step, short_of, short_singles
from hopfy.search._sparse_rows import SparseRows
from hopfy.search._state import ProvenLeads, State
from hopfy.search._two_pass import Agreement
from hopfy.search._updates import Metric, Stepped, numbered, parts, step, steps, weights

__all__ = ["ExactIndex", "Metric", "Top", "Update"]


class Update(NamedTuple):
    """What one update gives for M queries.

    Attributes:
        states: (M, D), the next states, in the memories' dtype (halves: float32).
        weights: on their support, float64, or None for softmax, whose weights are all positive.
    """

    states: Tensor
    weights: SparseRows | None


class Top(NamedTuple):
    """The k best memories of M queries: ``scores`` (M, k) float64, best first, and ``indices``.

    Under ``"euclidean"`` the scores are distances, the smallest first.
    """

    scores: Tensor
    indices: Tensor


class ExactIndex:
    r"""Exact search and Hopfield updates :math:`q \leftarrow X^\top \hat y(\beta X q)` at scale.

    **Guarantee.** Every answer is that of the scores :math:`x_j^\top q` (or
    :math:`-\frac12 \|x_j - q\|^2`) of the stored numbers, computed in float64 in one fixed order of
    summation. What is left out was ruled out by an upper bound that counts rounding. So an answer
    depends on the stored memories and the query alone: not on the batch, the threads, the bounds,
    or what was asked before.

    Memories and queries are taken in blocks; memory use does not grow with N times M.

    Args:
        memories: (N, D) float16, bfloat16, float32 or float64, stored as they are. A tensor is
            copied, so that later changes to it cannot make the index wrong; a NumPy memory map is
            read in place.
        directions: principal directions whose bounds rule memories out before they are scored in
            full; None chooses from the memories, 0 scores all of them.
        scratch: bytes that a search may use beyond its answer (about).

    >>> import torch, hopfy
    >>> index = ExactIndex(torch.eye(3))
    >>> update = index.update(torch.tensor([[0.9, 0.2, 0.0]]), hopfy.Tsallis(2.0), beta=2.0)
    >>> update.states
    tensor([[1., 0., 0.]])
    >>> index.top(torch.tensor([[0.25, 0.5, 0.0]]), k=2).indices
    tensor([[1, 0]])
    >>> index.add(torch.tensor([[0.0, 2.0, 0.0]]))
    tensor([3])
    >>> index.remove([1])
    >>> index.top(torch.tensor([0.25, 0.5, 0.0])).indices
    tensor([3])
    """

    def __init__(
        self,
        memories: Tensor | Array,
        directions: int | None = None,
        *,
        scratch: int = SCRATCH,
    ) -> None:
        mapped = isinstance(memories, np.ndarray) and (
            isinstance(memories, np.memmap) or not memories.flags.writeable
        )
        rows = as_memories(memories)
        if not mapped and _shares_memory(rows, memories):
            rows = rows.clone()
        self._start(rows, directions, scratch, lifted=False)

    @classmethod
    def over(
        cls,
        memories: Tensor,
        directions: int | None = None,
        *,
        scratch: int = SCRATCH,
        lifted: bool = False,
    ) -> ExactIndex:
        """An index of rows that the caller promises never to change; they are not copied.

        With ``lifted`` the last coordinate counts in inner products and not in distances.
        """
        index = cls.__new__(cls)
        index._start(as_memories(memories), directions, scratch, lifted)
        return index

    def _start(self, rows: Tensor, directions: int | None, scratch: int, lifted: bool) -> None:
        if directions is not None and (
            not isinstance(directions, int) or isinstance(directions, bool) or directions < 0
        ):
            raise ValueError(f"expected directions to be None or at least 0, got {directions!r}.")
        self.scratch = int(as_positive(scratch, "scratch"))
        self._state = State.of(rows, directions, lifted)
        self._buffer: Growing | None = None

    # ------------------------------------------------------------------ what is stored

    def __len__(self) -> int:
        return len(self._state)

    def __repr__(self) -> str:
        shape = (len(self), self._state.memories.shape[1])
        return f"ExactIndex(memories of shape {shape}, directions={self.directions})"

    @property
    def memories(self) -> Tensor:
        """The stored rows, removed ones included until the index is tidied up; do not change."""
        return self._state.memories

    @property
    def numbers(self) -> Tensor:
        """The numbers of the memories that are there, increasing."""
        state = self._state
        numbers = numbers_of(state)
        return numbers.clone() if state.alive is None else numbers[state.alive > 0]

    @property
    def living(self) -> Tensor | None:
        """The stored rows that were not removed, increasing; None: all of them."""
        alive = self._state.alive
        return None if alive is None else alive.nonzero().flatten()

    @property
    def largest_norm(self) -> float:
        """The largest norm of a stored row."""
        return self._state.largest_norm

    @property
    def directions(self) -> int:
        """Principal directions that rule memories out; 0 where the plain product is as good."""
        principal = self._state.principal
        return 0 if principal is None else principal.coarse

    @property
    def chooses_directions(self) -> bool:
        """Whether the directions are chosen from the memories (``directions=None``)."""
        return self._state.directions is None

    def add(self, memories: Tensor) -> Tensor:
        """Store more memories (M, D) and return their numbers.

        The cost is that of the new rows; now and then (when the number has doubled) the principal
        directions are chosen anew.
        """
        state = self._state
        rows = as_memories(memories, like=state.memories)
        if self._buffer is None:
            self._buffer = Growing(state.memories)
        self._buffer = self._buffer.plus(state.stored, rows.shape[0], [rows])
        self._state = state.extended(self._buffer.rows(state.stored + rows.shape[0]))
        return torch.arange(state.next_number, self._state.next_number, device="cpu")

    def remove(self, numbers: Any) -> None:
        """Forget memories by their numbers; the others keep theirs. KeyError if one is not there.

        The cost does not depend on the memories' length: rows are only marked, and dropped when
        most of them are marked.
        """
        state = self._state
        wanted = torch.as_tensor(numbers, dtype=torch.int64, device="cpu").flatten()
        known = numbers_of(state)
        places = torch.searchsorted(known, wanted).clamp_max(max(0, state.stored - 1))
        found = known[places] == wanted if known.numel() else torch.zeros_like(wanted).bool()
        if state.alive is not None and known.numel():
            found &= state.alive[places] > 0
        if not bool(found.all()):
            missing = wanted[~found][:5].tolist()
            raise KeyError(f"expected numbers of stored memories, got {missing}; nothing removed.")
        tidy = state.without(places).tidy()
        if tidy.stored != state.stored:
            self._buffer = None
        self._state = tidy

    def copy(self) -> ExactIndex:
        """An index of the same memories that grows and shrinks on its own; nothing is copied."""
        return self._with(self._state)

    def with_scratch(self, scratch: int) -> ExactIndex:
        """The same index with another limit on the bytes that a search may use."""
        index = self.copy()
        index.scratch = int(as_positive(scratch, "scratch"))
        return index

    def extended(self, memories: Tensor) -> ExactIndex:
        """An index of ``memories``, whose first rows are the present ones, unchanged.

        The cost is that of the new rows. This index stays as it is.

        >>> index = ExactIndex(torch.eye(3)[:2])
        >>> len(index.extended(torch.eye(3)))
        3
        """
        memories = as_memories(memories)
        state = self._state
        if memories.shape[0] < state.stored or memories.shape[1:] != state.memories.shape[1:]:
            raise ValueError(
                f"expected the {tuple(state.memories.shape)} memories with rows added, "
                f"got shape {tuple(memories.shape)}."
            )
        return self._with(state.extended(memories))

    def planned(self) -> ExactIndex:
        """The same index with directions chosen from its memories, as by ``directions=None``.

        Indexes that were `extended` from one another choose once.
        """
        return self._with(self._state.planned())

    def without(self, places: Tensor) -> ExactIndex:
        """The same index with the rows at ``places`` gone; the others keep their places."""
        return self._with(self._state.without(places))

    def restricted(self, kept: Tensor, memories: Tensor | None = None) -> ExactIndex:
        """An index of the rows at ``kept`` only, in that order, counted from 0.

        ``memories``, if given, must be ``index.memories[kept]``; otherwise they are copied here.

        >>> ExactIndex(torch.eye(3)).restricted(torch.tensor([2, 0])).memories
        tensor([[0., 0., 1.],
                [1., 0., 0.]])
        """
        taken = None if memories is None else as_memories(memories)
        return self._with(self._state.restricted(kept, taken).renumbered())

    def _with(self, state: State) -> ExactIndex:
        index = ExactIndex.__new__(ExactIndex)
        index.scratch, index._state, index._buffer = self.scratch, state, self._buffer
        return index

    # ------------------------------------------------------------------ updates

    def update(self, queries: Tensor, omega: Omega, beta: float | Tensor = 1.0) -> Update:
        r"""The next states of ``queries`` (M, D) and their weights (Eq. 9).

        ``beta`` is a number or (M,). A query with NaN or infinite entries gives a state of NaN and
        an empty support.
        """
        return self.step(queries, PreparedMap.of(omega), beta)

    @torch.no_grad()
    def step(self, queries: Tensor, prepared: PreparedMap, beta: float | Tensor) -> Update:
        """`update` for an omega whose facts are known."""
        return Update(*step(self._state, queries, prepared, beta, self.scratch))

    @torch.no_grad()
    def steps(
        self, queries: Tensor, prepared: PreparedMap, beta: float | Tensor
    ) -> Iterator[Stepped]:
        """`step` for a map with zeros, a part of the queries at a time, each within ``scratch``.

        >>> import torch, hopfy
        >>> from hopfy.search import ExactIndex, PreparedMap
        >>> index = ExactIndex(torch.eye(3))
        >>> prepared = PreparedMap.of(hopfy.Tsallis(2.0))
        >>> [part.states for part in index.steps(torch.tensor([[0.9, 0.2, 0.0]]), prepared, 2.0)]
        [tensor([[1., 0., 0.]])]
        """
        yield from steps(self._state, queries, prepared, beta, self.scratch)

    def quick(self, queries: Tensor, prepared: PreparedMap, beta: float | Tensor) -> Quick | None:
        """`step` as arrays, for few memories and ``queries`` (M, D) in their dtype, not checked again.

        ``beta`` is a number or (M,) float64. None where the other way has to be taken.
        """
        state = self._state
        short = short_of(state, queries.shape[0])
        if short is None or state.numbers is not None:
            return None
        return quick_step(short, queries, prepared, beta)

    def fixed_update(self, prepared: PreparedMap, beta: float) -> FixedUpdate | None:
        """Updates of few queries at one beta, for few memories, which must not be added to meanwhile.

        None where there are too many memories, or where some were removed.
        """
        state = self._state
        short = short_of(state, 1)
        if short is None or state.alive is not None or state.numbers is not None:
            return None
        return FixedUpdate(short, state.memories.dtype, prepared, beta)

    @torch.no_grad()
    def weights(
        self,
        queries: Tensor,
        omega: Omega,
        beta: float | Tensor = 1.0,
        *,
        metric: Metric = "inner",
    ) -> SparseRows:
        r"""The weights :math:`\hat y(\beta s)` of the scores s, in float64, on their support.

        For ``"euclidean"`` the scores are :math:`-\frac12 \|q - x_j\|^2`.
        """
        state = self._state
        queries = _checked(state, queries, metric)
        found = weights(state, queries, PreparedMap.of(omega), beta, metric, self.scratch)
        return numbered(state, found)

    def parts(
        self,
        queries: Tensor,
        prepared: PreparedMap,
        beta: float | Tensor = 1.0,
        *,
        metric: Metric = "inner",
        mask: Tensor | None = None,
    ) -> Iterator[tuple[Tensor, SparseRows]]:
        """Places among the queries and their weights (columns: stored rows), a part at a time.

        Queries with NaN or infinite entries are left out. A part holds at most about ``scratch``
        bytes, so that a mixture of many memories can be read out part by part. ``mask`` (M, D) or
        (1, D) marks the coordinates that a query contains; of the others, where it must hold zeros,
        half of the memory's square counts.
        """
        return parts(self._state, queries, prepared, beta, metric, mask, self.scratch)

    def singles(
        self, queries: Tensor, prepared: PreparedMap, beta: float, *, metric: Metric = "inner"
    ) -> Tensor | None:
        """(M,) the stored row that is the only one with weight, if it is so for all queries.

        None where it is not so, and where the memories are too many to find out in one call.
        """
        short = short_of(self._state, queries.shape[0])
        if short is None:
            return None
        measure = Measure.EUCLIDEAN if metric == "euclidean" else Measure.INNER
        found = short_singles(short, queries, measure, prepared, beta)
        return None if found is None else torch.from_numpy(found)

    # ------------------------------------------------------------------ searches

    @torch.no_grad()
    def top(self, queries: Tensor, k: int = 1, *, metric: Metric = "inner") -> Top:
        """The ``k`` best memories for each query (M, D), or for one query (D,), best first.

        Of equal scores the memory with the smaller number counts. A query with NaN or infinite
        entries gets scores of NaN.
        """
        state = self._state
        flat = _checked(state, queries, metric)
        if not isinstance(k, int) or not 0 < k <= len(state):
            raise ValueError(f"expected k from 1 to the {len(state)} memories, got {k!r}.")
        scores, numbers = best(state, flat, k, metric, self.scratch)
        shape = (*queries.shape[:-1], k)
        return Top(scores.reshape(shape), numbers.reshape(shape))

    @torch.no_grad()
    def within(
        self, queries: Tensor, limit: float | Tensor, *, metric: Metric = "inner"
    ) -> SparseRows:
        """All memories with a score of at least ``limit``, or a distance of at most ``limit``.

        ``limit`` is a number or (M,). The values are scores, or distances, in float64.

        >>> index = ExactIndex(torch.tensor([[0.0], [1.0], [5.0]]))
        >>> index.within(torch.tensor([[0.5]]), 1.0, metric="euclidean").row(0)
        (tensor([0, 1]), tensor([0.5000, 0.5000], dtype=torch.float64))
        """
        state = self._state
        flat = _checked(state, queries, metric)
        limits = torch.as_tensor(limit, dtype=torch.float64, device="cpu").expand(flat.shape[0])
        if bool(limits.isnan().any()):
            raise ValueError(f"expected limit to be a number, got {limit!r}.")
        return inside(state, flat, limits, metric, self.scratch)

    @torch.no_grad()
    def near_best(
        self,
        queries: Tensor,
        reach: float | Tensor,
        rank: int = 1,
        *,
        metric: Metric = "inner",
        mask: Tensor | None = None,
        agree: Agreement | None = None,
    ) -> SparseRows:
        """All memories whose score is above the ``rank``-th best one minus ``reach``.

        What trails by exactly ``reach`` is there too, and what is within rounding of it: the reach
        is widened by 1e-12 of the best score. The values are scores in float64. ``mask`` (M, D) or
        (1, D) marks the coordinates that a query contains, as in `parts`.

        ``agree``, for an index that holds a part of a larger set, is called once with the best scores
        of all queries here, (M, rank) and best first, and returns the rank-th best ones (M,) of the
        whole set, which then count. A search with it keeps about N / 4 bytes of each query.
        """
        state = self._state
        flat = _checked(state, queries, metric)
        distance = torch.as_tensor(reach, dtype=torch.float64, device="cpu").expand(flat.shape[0])
        return near(state, flat, distance, rank, metric, mask, self.scratch, agree)

    @torch.no_grad()
    def rivals(self, members: Tensor, lead: Tensor) -> tuple[SparseRows, Tensor]:
        r"""Memories that may come within ``lead`` (P,) of the sets ``members`` (P, k) of rows.

        A set stands for the query :math:`a = \sum_s x_s` of its members. Returned are, for each set,
        all memories outside whose score may exceed the weakest member's minus the lead, with the
        amount :math:`s_j - (\min_s s_s - \text{lead})` in float64, and a bound (P,) on the
        rounding errors of these amounts. A set without rivals is an exact fixed point where the lead
        is :math:`m / \beta` (Props. 2 and 5).

        >>> index = ExactIndex(torch.eye(3))
        >>> lead = torch.tensor([0.5, 1.5], dtype=torch.float64)
        >>> index.rivals(torch.tensor([[0], [1]]), lead)[0].counts
        tensor([0, 2])
        """
        return rivals(self._state, members, lead, self.scratch)

    @torch.no_grad()
    def verdicts(self, members: Tensor, lead: Tensor) -> Tensor:
        """(P,) int8: 1 where a set has no `rivals`, -1 where it certainly has, 0 where float64 cannot tell.

        >>> index = ExactIndex(torch.eye(3))
        >>> lead = torch.tensor([0.5, 1.5, 1.0], dtype=torch.float64)
        >>> index.verdicts(torch.tensor([[0], [1], [2]]), lead)
        tensor([ 1, -1,  0], dtype=torch.int8)
        """
        return verdicts(self._state, members, lead, self.scratch)

    def proven_leads(self) -> ProvenLeads:
        """What is known about the leads of single memories; whoever proves something adds to it."""
        return self._state.proven_leads()

    @torch.no_grad()
    def separations(self, kept: Tensor) -> Tensor:
        r""":math:`\Delta_i = x_i^\top x_i - \max_{j \ne i} x_i^\top x_j` (Def. 2) of some memories.

        For those at rows ``kept`` (P,), in float64; infinite where there is only one memory.
        Pattern i is a fixed point if :math:`\Delta_i \ge m / \beta` (Prop. 2).

        >>> ExactIndex(2 * torch.eye(3)).separations(torch.tensor([0, 2]))
        tensor([4., 4.], dtype=torch.float64)
        """
        return separations(self._state, kept, self.scratch)


def _checked(state: State, queries: Tensor, metric: Metric) -> Tensor:
    if metric not in get_args(Metric):
        raise ValueError(f"expected metric to be one of {get_args(Metric)}, got {metric!r}.")
    if isinstance(queries, Tensor) and queries.ndim == 1:
        queries = queries.unsqueeze(0)
    if metric == "euclidean" and state.lifted:
        return as_queries(queries, state.memories[:, :-1])
    return as_queries(queries, state.memories)


def _shares_memory(rows: Tensor, memories: object) -> bool:
    if isinstance(memories, np.ndarray):
        return bool(rows.data_ptr() == memories.ctypes.data)
    return isinstance(memories, Tensor) and rows.data_ptr() == memories.data_ptr()
