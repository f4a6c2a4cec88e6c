r"""The pattern that limits another one, with rounding on the safe side.

Both quantities of Prop. 2 are a least value over all other patterns j,

.. math:: \Delta_i = \min_j x_i^\top (x_i - x_j), \qquad
          \epsilon_i = \min_j \frac{x_i^\top (x_i - x_j) - m/\beta}{\|x_i - x_j\|}.

One float64 product brackets the value of every pair. The pairs that may be the least are then measured
again from compensated sums (`gaps_below`), and rounded down. Nothing of size N x N is ever held.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._runtime.rounding import gamma
from hopfy.theory._exact import exact_products
from hopfy.theory._rounding import floor_float, norm_bounds

__all__ = ["LimitingPattern", "RadiusLimit", "SeparationLimit", "gaps_below", "one_below"]

# Candidates of one pattern that are worth a second look, and numbers of one block of pairs.
_CANDIDATES = 256
_PAIRS = 1 << 20
# Pairs of one block that cancel so far that their difference is worth exact arithmetic.
_EXACT_PAIRS = 1 << 10


class _Block(NamedTuple):
    """Brackets (p, n) of the values of patterns ``rows`` with patterns ``columns``."""

    rows: slice
    columns: slice
    low: Tensor
    high: Tensor


class LimitingPattern(ABC):
    """The least value over all others for the patterns ``indices`` (P,) of memories (N, D) float64."""

    def __init__(self, memories: Tensor, indices: Tensor) -> None:
        self.memories = memories
        self.indices = indices
        self.norms = norm_bounds(memories)
        self.squares = memories.square().sum(-1)
        facts = torch.finfo(torch.float64)
        terms = memories.shape[1] + 8
        largest = self.norms.max() if self.norms.numel() else self.norms.new_zeros(())
        self.slack = 4 * gamma(terms, torch.float64) * self.norms * largest + 8 * terms * facts.tiny
        self.safe = self.norms * largest < facts.max / 16

    @abstractmethod
    def bracket(self, own: Tensor, columns: slice, products: Tensor) -> tuple[Tensor, Tensor]:
        """Lower and upper bounds (p, n) of the values of the patterns ``own`` (p,), by number."""

    @abstractmethod
    def below(self, own: Tensor, rivals: Tensor) -> Tensor:
        """Tight lower bounds of the values of pairs, by number, (R,)."""

    def limits(self, block: int) -> tuple[Tensor, Tensor]:
        """The least values (P,), rounded down, and the patterns that limit them (-1: none)."""
        count = self.indices.numel()
        infinite = torch.full((count,), math.inf, dtype=torch.float64, device=self.indices.device)
        first, second, least = infinite, infinite.clone(), infinite.clone()
        rival = torch.full_like(self.indices, -1)
        for part in self._blocks(torch.arange(count, device=self.indices.device), block):
            low, place = part.low.min(-1)
            other = part.low.scatter(1, place.unsqueeze(-1), math.inf).amin(-1)
            rows = part.rows
            second[rows] = torch.minimum(
                torch.minimum(second[rows], other), torch.maximum(first[rows], low)
            )
            closer = low < first[rows]
            rival[rows] = torch.where(closer, place + part.columns.start, rival[rows])
            first[rows] = torch.minimum(first[rows], low)
            least[rows] = torch.minimum(least[rows], part.high.amin(-1))
        return self._refined(first, second, least, rival, block)

    def _refined(
        self, first: Tensor, second: Tensor, least: Tensor, rival: Tensor, block: int
    ) -> tuple[Tensor, Tensor]:
        """Measure the candidates of each pattern again, one or several."""
        clear = (second > least) & (rival >= 0)
        rows, rivals = [clear.nonzero().flatten()], [rival[clear]]
        shared = (~clear & (rival >= 0)).nonzero().flatten()
        crowded = torch.zeros_like(clear)
        for part in self._blocks(shared, block, whole=True):
            own = shared[part.rows]
            candidates = part.low <= least[own].unsqueeze(-1)
            many = candidates.sum(-1) > _CANDIDATES
            crowded[own[many]] = True
            row, column = (candidates & ~many.unsqueeze(-1)).nonzero(as_tuple=True)
            rows.append(own[row])
            rivals.append(column)
        row, column = torch.cat(rows), torch.cat(rivals)
        size = max(1, _PAIRS // max(1, self.memories.shape[1]))
        parts = zip(torch.split(row, size), torch.split(column, size), strict=True)
        found = torch.cat([self.below(self.indices[some], others) for some, others in parts])
        value = torch.where(crowded, first, math.inf).scatter_reduce(0, row, found, "amin")
        reached = found == value[row]
        beyond = torch.where(crowded, rival, self.memories.shape[0])
        limiting = beyond.scatter_reduce(0, row[reached], column[reached], "amin")
        return value, torch.where(rival < 0, rival, limiting)

    def _blocks(self, chosen: Tensor, block: int, *, whole: bool = False) -> Iterator[_Block]:
        """Brackets of the chosen patterns with all others, infinite for a pattern with itself."""
        count = self.memories.shape[0]
        width = count if whole else max(1, math.isqrt(block))
        height = max(1, block // max(1, width))
        for row in range(0, chosen.numel(), height):
            rows = slice(row, min(row + height, chosen.numel()))
            own = self.indices[chosen[rows]]
            for column in range(0, count, width):
                columns = slice(column, min(column + width, count))
                products = self.memories[own] @ self.memories[columns].T
                low, high = self.bracket(own, columns, products)
                unsafe = ~self.safe[own].unsqueeze(-1)
                low = torch.where(unsafe | low.isnan(), -math.inf, low)
                high = torch.where(unsafe | high.isnan(), math.inf, high)
                itself = own.unsqueeze(-1) == torch.arange(
                    columns.start, columns.stop, device=own.device
                )
                yield _Block(
                    rows,
                    columns,
                    low.masked_fill(itself, math.inf),
                    high.masked_fill(itself, math.inf),
                )


class SeparationLimit(LimitingPattern):
    r""":math:`x_i^\top (x_i - x_j)`."""

    def bracket(self, own: Tensor, columns: slice, products: Tensor) -> tuple[Tensor, Tensor]:  # noqa: ARG002
        gap = self.squares[own].unsqueeze(-1) - products
        slack = self.slack[own].unsqueeze(-1)
        return gap - slack, gap + slack

    def below(self, own: Tensor, rivals: Tensor) -> Tensor:
        return gaps_below(self.memories[own], self.memories[rivals])


class RadiusLimit(LimitingPattern):
    r""":math:`(x_i^\top (x_i - x_j) - m/\beta) / \|x_i - x_j\|`, given the lead :math:`m/\beta`."""

    def __init__(self, memories: Tensor, indices: Tensor, needed: float) -> None:
        super().__init__(memories, indices)
        self.needed = needed

    def bracket(self, own: Tensor, columns: slice, products: Tensor) -> tuple[Tensor, Tensor]:
        square, slack = self.squares[own].unsqueeze(-1), self.slack[own].unsqueeze(-1)
        slack = slack + 4 * torch.finfo(torch.float64).eps * self.needed
        room = square - products - self.needed
        distance = square + self.squares[columns] - 2 * products
        error = 4 * (self.slack[own].unsqueeze(-1) + self.slack[columns])
        near = (distance - error).clamp_min(0).sqrt() * (1 - 1e-15)
        far = (distance + error).clamp_min(0).sqrt() * (1 + 1e-15)
        return _ratio_below(room - slack, near, far), -_ratio_below(-room - slack, near, far)

    def below(self, own: Tensor, rivals: Tensor) -> Tensor:
        mine, other = self.memories[own], self.memories[rivals]
        gaps = gaps_below(mine, other)
        room = gaps - self.needed
        room = torch.where(room + self.needed == gaps, room, one_below(room))
        room = torch.where(gaps == -math.inf, -math.inf, room)
        same = (mine == other).all(-1)
        far = norm_bounds(mine - other)
        # The difference and the bound on its norm are this close to the true distance.
        near = far * (1 - 4 * gamma(mine.shape[1] + 16, torch.float64))
        far = far * (1 + torch.finfo(torch.float64).eps)
        ratio = _ratio_below(room, near, far)
        alike = torch.where(room < 0, -math.inf, math.inf)
        return torch.where(same, alike, torch.where(ratio == 0, 0.0, one_below(ratio)))


def _ratio_below(room: Tensor, near: Tensor, far: Tensor) -> Tensor:
    """At most ``room`` over any distance between ``near`` and ``far``."""
    ratio = room / torch.where(room < 0, near, far)
    return torch.where(room == 0, torch.where(far > 0, 0.0, -math.inf), ratio)


def gaps_below(own: Tensor, rivals: Tensor) -> Tensor:
    r""":math:`x^\top (x - y)` for pairs of rows (R, D) float64, rounded down; exact if no sum rounds.

    Products are split into a rounded product and its error (Dekker), and all terms are added in
    pairs with the errors of the additions (Knuth), so that what is lost is of the order
    :math:`u^2`; pairs that cancel to less than that are subtracted exactly.
    """
    facts = torch.finfo(torch.float64)
    first, first_error = _two_products(own, own)
    second, second_error = _two_products(own, -rivals)
    terms = torch.cat((first, second, first_error, second_error), 1)
    total, lost, size = _sum_in_pairs(terms)
    # Products of numbers this small have errors that float64 cannot hold.
    small = (terms[:, : 2 * own.shape[1]].abs() < 2.0**-900).any(-1) & (
        (own != 0) & ((own.abs() < 2.0**-450) | (rivals.abs() < 2.0**-450) & (rivals != 0))
    ).any(-1)
    bound = 2 * gamma(terms.shape[1] + 8, torch.float64) * size
    bound = bound + torch.where(small, 8.0 * terms.shape[1] * facts.tiny, 0.0)
    rounded = total + (lost - bound)
    value = torch.where(bound == 0, total, one_below(rounded))
    largest = torch.maximum(own.abs().amax(-1), rivals.abs().amax(-1)) if own.shape[1] else total
    value = torch.where((largest < 2.0**500) & value.isfinite(), value, -math.inf)
    alike = (own == rivals).all(-1)
    loose = ~alike & (bound > 0) & ~(bound <= value.abs() * (facts.eps / 2))
    for row in loose.nonzero().flatten().tolist()[:_EXACT_PAIRS]:
        value[row] = _exact_gap(own[row], rivals[row], value[row])
    return torch.where(alike, 0.0, value)


def _exact_gap(own: Tensor, rival: Tensor, otherwise: Tensor) -> Tensor | float:
    products = exact_products(own.unsqueeze(0), torch.stack((own, rival)))
    return otherwise if products is None else floor_float(products[0] - products[1])


def _two_products(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The rounded product and its error; their sum is the exact product."""
    product = a * b
    a_high, a_low = _halves(a)
    b_high, b_low = _halves(b)
    error = ((a_high * b_high - product) + a_high * b_low + a_low * b_high) + a_low * b_low
    return product, error


def _halves(a: Tensor) -> tuple[Tensor, Tensor]:
    """Two numbers of 26 bits whose sum is the number (Veltkamp)."""
    scaled = a * 134217729.0
    high = scaled - (scaled - a)
    return high, a - high


def _sum_in_pairs(terms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The sum (R,), the sum of the errors of its additions, and the sum of their sizes."""
    lost = torch.zeros(terms.shape[0], dtype=terms.dtype, device=terms.device)
    size = lost.clone()
    while terms.shape[1] > 1:
        if terms.shape[1] % 2:
            terms = torch.nn.functional.pad(terms, (0, 1))
        a, b = terms.chunk(2, dim=1)
        total = a + b
        part = total - a
        error = (a - (total - part)) + (b - part)
        lost = lost + error.sum(-1)
        size = size + error.abs().sum(-1)
        terms = total
    total = terms[:, 0] if terms.shape[1] else lost
    return total, lost, size


def one_below(values: Tensor) -> Tensor:
    """The next float below each number."""
    return torch.nextafter(values, torch.full_like(values, -math.inf))
