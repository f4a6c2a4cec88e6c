"""Few memories: all of them are scored in one compiled call, as calls cost more than arithmetic.

Scores, weights and mixtures have the bits of the long way, see `hopfy.search._candidate_search`.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels import select
from hopfy._kernels.select import ALL_ALIVE, Array, Found, Measure, Quick
from hopfy._runtime.compilation import compiled
from hopfy.search._bounds import rounding
from hopfy.search._candidates import by_width
from hopfy.search._prepared import PreparedMap
from hopfy.search._problem import TIES
from hopfy.search._state import State

__all__ = ["FixedUpdate", "Short", "quick_step", "short_of", "short_singles", "short_verdicts"]

_FEW = 1 << 20
"""Multiplications up to which scoring everything exactly is the quickest."""


class Short(NamedTuple):
    """Few memories as arrays; ``most`` queries at a time are worth a single call."""

    rows: Array
    alive: Array
    norms: Array
    memories: int
    most: int


def short_of(state: State, queries: int) -> Short | None:
    """The memories as arrays, if so many queries should be compared with all of them in one call."""
    short: Short | None = state.derived.get("short")
    if short is None:
        short = state.derived["short"] = _made(state)
    return short if 0 < queries <= short.most and compiled("select.cpu_short") is not None else None


def _made(state: State) -> Short:
    memories = state.memories
    if memories.device.type != "cpu" or memories.element_size() == 2 or memories.numel() > _FEW:
        return Short(ALL_ALIVE, ALL_ALIVE, ALL_ALIVE, 0, 0)
    alive = ALL_ALIVE if state.alive is None else state.alive.numpy()
    norms = state.norms.rows(state.stored).numpy()
    return Short(memories.numpy(), alive, norms, len(state), _FEW // memories.numel())


def quick_step(
    short: Short, queries: Tensor, prepared: PreparedMap, beta: float | Tensor
) -> Quick | None:
    """An update of ``queries`` (M, D), in the memories' dtype; weights are float64.

    ``beta`` is a number or (M,) float64. None where the long way has to be taken: weights anywhere,
    or queries that are not finite.
    """
    reach = _reach(short, prepared, beta)
    if reach is None:
        return None
    scales = beta.numpy() if isinstance(beta, Tensor) else _one(beta)
    own = _as_array(queries)
    if prepared.equation is not None:
        lone = prepared.lead is not None
        found = select.threshold_step(
            short.rows, short.alive, own, reach, scales, TIES, prepared.equation, lone
        )
        if found is not None:
            return found
    return _mapped_step(short.rows, short.alive, own, reach, scales, prepared)


class FixedUpdate:
    """`quick_step` for one map and one beta, with all that does not depend on the queries made once."""

    def __init__(
        self, short: Short, dtype: torch.dtype, prepared: PreparedMap, beta: float
    ) -> None:
        self._short, self._dtype, self._equation = short, dtype, prepared.equation
        self._reach, self._scale = _reach(short, prepared, beta), _one(beta)
        self._lone = prepared.lead is not None

    def __call__(self, queries: Tensor) -> Tensor | None:
        """The next states; None where another way has to be taken: for queries that are not plain
        (M, D) tensors on the CPU, too many or not finite, and where a query may be a fixed point.
        """
        if type(queries) is not Tensor or queries.dtype is not self._dtype or queries.requires_grad:
            return None
        short, reach, equation = self._short, self._reach, self._equation
        if reach is None or equation is None or not queries.is_cpu:
            return None
        own = queries.numpy()
        fits = own.ndim == 2 and own.shape[1] == short.rows.shape[1] and own.flags.c_contiguous
        if not fits or not 0 < own.shape[0] <= short.most or compiled("select.cpu_short") is None:
            return None
        found = select.threshold_step(
            short.rows, short.alive, own, reach, self._scale, TIES, equation, self._lone
        )
        return None if found is None or found.doubtful else torch.from_numpy(found.states)


def _mapped_step(
    rows: Array, alive: Array, queries: Array, reach: Array, scales: Array, prepared: PreparedMap
) -> Quick | None:
    """The same with a map that works on whole tensors."""
    rank = 1 if prepared.reach is None else prepared.reach.rank
    found, low, high = select.exact_candidates(
        rows, alive, queries, Measure.INNER, rank, reach, TIES
    )
    if low == 0:
        return None
    if high == 1 and prepared.lead is not None:
        indices = found.indices[:, 0].astype(np.int64)
        offsets, ones = np.arange(indices.size + 1), np.ones(indices.size)
        return Quick(rows[indices], offsets, indices, ones, True, False)
    weights = np.zeros((found.counts.size, high))
    for places, width in by_width(found.counts):
        own = Found(*(each[places] for each in found))
        padded = select.padded_scores(own, scales[places] if scales.size > 1 else scales, width)
        room = min(width, high)
        weights[places, :room] = prepared(torch.from_numpy(padded)).numpy()[:, :room]
    offsets, indices, values, states = select.compressed(found, weights, rows)
    return Quick(states, offsets, indices, values, False, True)


def short_singles(
    short: Short, queries: Tensor, measure: Measure, prepared: PreparedMap, beta: float
) -> Array | None:
    """(M,) the only candidate of each query, if each has just one and the map copies it then."""
    reach = _reach(short, prepared, beta)
    if prepared.lead is None or reach is None:
        return None
    own = _as_array(queries)
    return select.lone_candidates(short.rows, short.alive, own, measure, reach, TIES)


def short_verdicts(short: Short, members: Array, lead: Array) -> Array:
    """1 where the sums of ``members`` (P, k) lead all others by ``lead`` (P,), -1 where not, else 0."""
    relative = 4 * rounding(short.rows.shape[1] + members.shape[1] + 8, torch.float64)
    return select.verdicts(short.rows, short.alive, members, lead, short.norms, relative)


def _reach(short: Short, prepared: PreparedMap, beta: float | Tensor) -> Array | None:
    """How far below the best scores weights can be, (1,) or (M,); None: anywhere."""
    reach = prepared.reach
    if reach is None or reach.rank > short.memories:
        return None
    if isinstance(beta, Tensor):
        far: Array = reach.distance / beta.numpy()
        return far if (far < np.inf).all() else None
    distance = reach.distance / beta
    return _one(distance) if distance < math.inf else None


def _as_array(queries: Tensor) -> Array:
    array: Array = (queries.detach() if queries.requires_grad else queries).contiguous().numpy()
    return array


@lru_cache(maxsize=256)
def _one(number: float) -> Array:
    """(1,) that is never written to."""
    return np.array([number], np.float64)
