"""Whether principal directions pay for a set of memories, and how many.

The cost of a search is estimated from a trial: stored patterns look for their best neighbors,
and the share of memories that bounds from r directions cannot rule out is counted on a sample.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.search._bounds import BLOCK, widened
from hopfy.search._principal import Frame, Principal, leading_frame

__all__ = ["budget_for", "planned_bounds", "principal_bounds"]

_LEAST_MEMORIES = 4096
_LEAST_DIRECTIONS = 8
_MOST_DIRECTIONS = 96
_QUERIES = 32
_NEIGHBORS = 10
_SAMPLE = 4096

# Costs in multiply-adds of a large product: looking at a bound, a second bound (a cache miss and a
# short product), and an exact score (a cold row, and float64 sums at a fraction of the speed).
_LOOK = 10
_SECOND = 4000
_EXACT_FIXED, _EXACT_TERM = 2000, 12
# A search meets more survivors than one that knows the best score from the start.
_UNCERTAINTY = 4.0
# A plan must promise this much of the plain product's cost, or less.
_WORTHWHILE = 0.6


def planned_bounds(memories: Tensor) -> Principal | None:
    """Bounds with as many directions as pay best, or None where the plain product is as good."""
    count, size = memories.shape
    most = min(_MOST_DIRECTIONS, size // 4)
    if count < _LEAST_MEMORIES or most < _LEAST_DIRECTIONS:
        return None
    frame = leading_frame(memories, most)
    coarse = _best_split(memories, frame)
    return None if coarse is None else Principal.of(memories, frame, coarse)


def principal_bounds(memories: Tensor, directions: int) -> Principal:
    """Bounds from exactly so many directions, and twice as many for survivors."""
    directions = min(directions, memories.shape[1])
    frame = leading_frame(memories, min(2 * directions, memories.shape[1]))
    return Principal.of(memories, frame, directions)


def budget_for(memories: Tensor) -> int:
    """Second bounds that cost about twice as much as the plain product of one query."""
    count, size = memories.shape
    return max(64, 2 * count * size // _SECOND)


def _best_split(memories: Tensor, frame: Frame) -> int | None:
    """How many of the frame's directions the first bound should use; None if it does not pay."""
    size, most = memories.shape[1], frame.basis.shape[1]
    options = [r for r in (8, 16, 24, 32, 48, 64, 96) if r < most]
    survivors = _survivors(memories, frame, [*options, most])
    exact = _EXACT_FIXED + _EXACT_TERM * size
    last = _UNCERTAINTY * survivors[-1] * exact
    costs = [
        r + 2 + _LOOK + _UNCERTAINTY * share * _SECOND + last
        for r, share in zip(options, survivors[:-1], strict=True)
    ]
    if not costs or min(costs) > _WORTHWHILE * (size + _LOOK):
        return None
    return options[costs.index(min(costs))]


def _survivors(memories: Tensor, frame: Frame, options: list[int]) -> list[float]:
    """The share of memories that r directions cannot rule out, for each r."""
    queries = widened(_spread(memories, _QUERIES))
    floor = _last_neighbor(memories, queries).double()
    centered, p, _ = frame.coordinates(queries)
    sample, p_sample, _ = frame.coordinates(_spread(memories, _SAMPLE))
    constant = (queries.double() @ frame.center).unsqueeze(1) + sample @ frame.center
    shares = []
    for r in options:
        rest, rest_sample = _rest(centered, p[:, :r]), _rest(sample, p_sample[:, :r])
        upper = p[:, :r] @ p_sample[:, :r].mT + rest.unsqueeze(1) * rest_sample + constant
        shares.append(float((upper > floor.unsqueeze(1)).double().mean()))
    return shares


def _rest(centered: Tensor, coordinates: Tensor) -> Tensor:
    return (centered.square().sum(1) - coordinates.square().sum(1)).clamp_min(0).sqrt()


def _spread(memories: Tensor, rows: int) -> Tensor:
    return memories[:: max(1, memories.shape[0] // rows)][:rows]


def _last_neighbor(memories: Tensor, queries: Tensor) -> Tensor:
    best = queries.new_full((queries.shape[0], _NEIGHBORS), -torch.inf)
    for start in range(0, memories.shape[0], BLOCK):
        block = widened(memories[start : start + BLOCK])
        scores = torch.cat([best, queries @ block.mT], 1)
        best = scores.topk(_NEIGHBORS, dim=1).values
    return best[:, -1]
