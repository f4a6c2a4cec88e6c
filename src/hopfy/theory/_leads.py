r"""Whether :math:`a^\top x_i - a^\top x_j \ge m / \beta` for all members i and all others j.

The question is about real numbers and is decided in rounds, each for the rows that the one before
left open:

1. one product in the memories' precision, with the classical bound
   :math:`|\mathrm{fl}(a^\top x) - a^\top x| \le \gamma_n \|a\| \|x\|`,
   :math:`\gamma_n = n u / (1 - n u)`, which holds for every order of summation;
2. where the patterns are small whole numbers times a common factor, one exact product for all;
3. otherwise one product in float64, with a bound for each pair;
4. exact products with the rivals that are still open, the strongest first.

So equality is settled too (orthonormal patterns at :math:`\beta = m`), for any number of rivals.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._runtime.precision import full_precision
from hopfy.theory._exact import Lattice, exact_products, lattice
from hopfy.theory._rounding import ceil_float, floor_float, norm_bounds, rounding_bound

__all__ = ["leads"]

# Entries of one block of products, and rivals of one exact product.
_BLOCK = 1 << 22
_EXACT_ROWS = 1 << 10


class _Products(NamedTuple):
    """Computed products (P, N) with their errors: reach (P, 1) times a norm times ``relative``."""

    values: Tensor
    reach: Tensor
    relative: float
    tiny: float
    safe: Tensor

    @property
    def finite(self) -> Tensor:
        """Whether every number of an anchor is finite, (P,)."""
        return self.reach.isfinite().squeeze(-1)

    def slack(self, norms: Tensor) -> Tensor:
        """How far the products with patterns of these norms can be off, (P, 1) or (P, N)."""
        return self.relative * self.reach * norms + self.tiny * (1 + self.reach + norms)


def leads(
    memories: Tensor,
    members: Tensor,
    margin: Fraction,
    betas: Tensor,
    anchors: Tensor | None = None,
) -> Tensor:
    """(P,) booleans for members (P, k) and anchors (P, D), by default the sums of the members.

    ``betas`` (P,) is float64 on the CPU; a row whose beta is not a positive number is not proven.
    """
    if memories.dtype in (torch.float16, torch.bfloat16):
        memories = memories.float()
    rows = members.shape[0]
    proven = torch.zeros(rows, dtype=torch.bool, device=members.device)
    needed = {beta: margin / Fraction(beta) for beta in set(betas.tolist()) if _is_usable(beta)}
    every = [needed.get(beta, Fraction(0)) for beta in betas.tolist()]
    problem = _Problem(memories, members, anchors, every)
    usable = torch.tensor([beta in needed for beta in betas.tolist()], device=members.device)
    usable = usable.nonzero().flatten()
    for part in torch.split(usable, max(1, _BLOCK // max(1, memories.shape[0]))):
        proven[part] = problem.decide(part)
    return proven


def _is_usable(beta: float) -> bool:
    return 0 < beta < float("inf")


class _Problem:
    """The rows of one question, with what all rounds share."""

    def __init__(
        self,
        memories: Tensor,
        members: Tensor,
        anchors: Tensor | None,
        leads: list[Fraction],
    ) -> None:
        self.memories = memories
        self.members = members
        self.anchors = anchors
        self.leads = leads
        self.norms = norm_bounds(memories)

    def decide(self, rows: Tensor) -> Tensor:
        """(P,) booleans for some of the rows, by number."""
        proven, refuted = self._screened(rows)
        left = (~proven & ~refuted).nonzero().flatten()
        if left.numel() and self.anchors is None and self.shared_lattice is not None:
            proven[left] = self._on_lattice(rows[left], self.shared_lattice)
            return proven
        if left.numel():
            rivals, refuted = self._bounded(rows[left])
            near = rivals.any(-1)
            proven[left] = ~near
            for place in (near & ~refuted).nonzero().flatten().tolist():
                open_rivals = rivals[place].nonzero().flatten()
                proven[left[place]] = self._settle(int(rows[left[place]]), open_rivals)
        return proven

    @cached_property
    def wide(self) -> Tensor:
        """The memories in float64."""
        return self.memories.double()

    @cached_property
    def shared_lattice(self) -> Lattice | None:
        """The memories as whole numbers, if they are small ones."""
        return lattice(self.memories, self.members.shape[1])

    def summands(self, row: int) -> Tensor:
        """The patterns (S, D) whose exact sum is the anchor of one row."""
        if self.anchors is not None:
            return self.anchors[row].unsqueeze(0)
        return self.memories[self.members[row]]

    def _products(self, rows: Tensor, memories: Tensor) -> _Products:
        """The anchors with all memories in the precision of ``memories``."""
        members = self.members[rows]
        facts, (_, dimension) = torch.finfo(memories.dtype), memories.shape
        if self.anchors is None:
            size, anchors = members.shape[1], memories[members].sum(1)
            reach = self.norms[members].sum(-1, keepdim=True)
        else:
            size, anchors = 1, self.anchors[rows].to(memories.dtype)
            reach = norm_bounds(self.anchors[rows].double()).unsqueeze(-1)
        # The second term bounds the errors of the float64 operations that follow, ``tiny`` underflow.
        relative = rounding_bound(dimension, size, memories.dtype)
        relative += 8 * torch.finfo(torch.float64).eps
        tiny = 2 * (dimension + size + 2) * facts.tiny
        safe = (reach * self.norms.max() < facts.max / 8).squeeze(-1)  # no sum can overflow
        return _Products(anchors @ memories.T, reach, relative, tiny, safe)

    def _screened(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Which rows one product proves and refutes, by the largest rival and the largest norm."""
        memories = self.memories if full_precision(self.memories) else self.wide
        found, members = self._products(rows, memories), self.members[rows]
        weakest = found.values.gather(1, members).amin(-1).double()
        rival = found.values.scatter(1, members, -torch.inf).amax(-1).double()
        slack = 2 * found.slack(self.norms.max()).squeeze(-1)
        least, most = self._float_leads(rows)
        everyone = members.shape[1] == memories.shape[0]
        proven = ((rival <= weakest - most - slack) & found.safe) | (everyone & found.finite)
        return proven, (rival > weakest - least + slack) & found.safe

    def _bounded(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Rivals (P, N) that float64 cannot exclude, and which rows (P,) it refutes."""
        found, members = self._products(rows, self.wide), self.members[rows]
        products, slack, safe = found.values, found.slack(self.norms), found.safe.unsqueeze(-1)
        inside, inner = products.gather(1, members), slack.gather(1, members)
        least, most = self._float_leads(rows)
        lowest = ((inside - inner).amin(-1) - most).unsqueeze(-1)
        highest = ((inside + inner).amin(-1) - least).unsqueeze(-1)
        outside = torch.ones_like(products, dtype=torch.bool).scatter(1, members, False)
        rivals = outside & ~((products + slack <= lowest) & safe)
        ahead = outside & (products - slack > highest) & safe
        return rivals, ahead.any(-1)

    def _float_leads(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """The needed leads as floats (P,), rounded down and up with room for one subtraction."""
        numbers = [self.leads[row] for row in rows.tolist()]
        floors = {number: floor_float(number) for number in set(numbers)}
        ceilings = {number: ceil_float(number) for number in set(numbers)}
        few = 4 * torch.finfo(torch.float64).eps
        dtype, device = torch.float64, rows.device
        least = torch.tensor([floors[number] for number in numbers], dtype=dtype, device=device)
        most = torch.tensor([ceilings[number] for number in numbers], dtype=dtype, device=device)
        return least * (1 - few), most * (1 + few)

    def _on_lattice(self, rows: Tensor, lattice: Lattice) -> Tensor:
        """The rows decided by one product without rounding."""
        members = self.members[rows]
        products = lattice.whole[members].sum(1) @ lattice.whole.T
        weakest = products.gather(1, members).amin(-1)
        gaps = weakest - products.scatter(1, members, -torch.inf).amax(-1)
        unit = lattice.scale * lattice.scale
        verdicts = [
            Fraction(gap) * unit >= self.leads[row]
            for row, gap in zip(rows.tolist(), gaps.tolist(), strict=True)
        ]
        return torch.tensor(verdicts, dtype=torch.bool, device=rows.device)

    def _settle(self, row: int, rivals: Tensor) -> bool:
        """Exact products of one row with its open rivals, the strongest first."""
        summands, needed = self.summands(row), self.leads[row]
        own = exact_products(summands, self.memories[self.members[row]])
        if own is None:
            return False
        estimate = self.memories[rivals].double() @ summands.double().sum(0)
        order = rivals[estimate.nan_to_num(torch.inf).argsort(descending=True)]
        first, size = 0, 4
        while first < order.numel():
            found = exact_products(summands, self.memories[order[first : first + size]])
            if found is None or min(own) - max(found) < needed:
                return False
            first, size = first + size, _EXACT_ROWS
        return True
