r"""Exact recall of associations, sums of several patterns (Props. 4 and 5).

Two facts about the paper's statements, both shown by tests:

* For k-subsets, Prop. 5 asks for :math:`\Delta \ge k/\beta`. Much less is enough, and necessary
  for the weights to be the association's own: :math:`\Delta \ge 1/\beta`. The proof bounds every
  :math:`\|y_i - y_j\|^2 / 2` by the largest, k, while a structure that differs by t exchanges is
  also t times as well separated.
* With scores on the factors (a transition score in sequential k-subsets) the separation has to
  count them: :math:`\Delta` as the paper defines it sees the patterns only, and a strong transition
  moves the best structure elsewhere whatever :math:`\Delta` is. `association_separation` counts them
  if it is given the structure, and with it Prop. 5 holds.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from hopfy._checks import BETA, as_patterns, check_parameter
from hopfy.structures import Structure
from hopfy.theory._proof import check_members
from hopfy.theory._structure_limits import StructureLimits

__all__ = [
    "association_radius",
    "association_separation",
    "has_structured_margin",
    "ksubsets_diameter",
    "sequential_ksubsets_diameter",
    "structured_radius",
]


def ksubsets_diameter(k: int) -> int:
    r"""The largest :math:`\|y_i - y_j\|^2` between two k-subsets: 2k (if there are 2k patterns)."""
    return 2 * k


def sequential_ksubsets_diameter(k: int) -> int:
    r"""The largest :math:`\|y_i - y_j\|^2` between two sequential k-subsets: 12k.

    They differ in at most 2k variables; each is written with two bits and decides four bits of its
    two factors.
    """
    return 12 * k


def association_separation(
    memories: Tensor, members: Tensor, structure: Structure | None = None, *, beta: float = 1.0
) -> Tensor:
    r""":math:`\Delta = a^\top a - \max_{j} a^\top X^\top y_j` of sums of k patterns, (P,) float64.

    :math:`a = \sum_s x_s` over the members S of a row. Among k-subsets, the default, the next after
    the best exchanges the weakest member for the strongest outsider, so
    :math:`\Delta = \min_{i \in S, j \notin S} a^\top (x_i - x_j)`; if S is not the best k-subset for
    its own sum, :math:`\Delta < 0`.

    With a structure the maximum runs over its other members, and scores :math:`\theta_F` on their
    factors count,

    .. math:: \Delta = \min_{z \ne y} a^\top X^\top (y - z) + \theta_F^\top (y_F - z_F) / \beta,

    rounded down, so that it is never too large. Each bit is excluded (and, if structures differ in
    size, included) in turn, so it takes up to N runs of the oracle.

    Args:
        memories: (N, D).
        members: (P, k) indices, different within a row.
        structure: over N items, such as ``Grid(Matching(), (3, 4))``; by default all k-subsets.
        beta: the inverse temperature; it matters only where there are factor scores.

    >>> import torch
    >>> from hopfy import theory
    >>> from hopfy.structures import SequentialKSubsets
    >>> pair = torch.tensor([[0, 1]])
    >>> theory.association_separation(torch.eye(4) * 2, pair)
    tensor([4.], dtype=torch.float64)
    >>> neighbors = SequentialKSubsets(2, transition=3.0)  # {1, 2} shares a member and the reward
    >>> theory.association_separation(torch.eye(4) * 2, pair, neighbors)
    tensor([4.0000], dtype=torch.float64)
    >>> theory.association_separation(torch.eye(4) * 2, torch.tensor([[0, 2]]), neighbors)
    tensor([1.0000], dtype=torch.float64)
    """
    if structure is not None:
        check_parameter(beta, BETA)
        return _structures(memories, members, structure).separation(members.cpu(), float(beta))
    inside, outside, _ = _sides(memories, members)
    exchange = inside.amin(-1) - outside.amax(-1)
    everyone = outside.scatter(1, members, inside)
    best = everyone.topk(members.shape[1], dim=-1).values.sum(-1)
    return torch.where(exchange >= 0, exchange, inside.sum(-1) - best)


def structured_radius(
    memories: Tensor,
    separation: Tensor,
    beta: float,
    squared_diameter: float,
    *,
    margin: float = 1.0,
) -> Tensor:
    r"""The radius of Prop. 5 (Eq. 31) for structures with separation :math:`\Delta` and margin m:

    .. math:: \epsilon = \frac{\Delta - m D^2 / (2\beta)}{\min\{\sigma_{\max}(X) D,\ M D^2\}}.

    ``squared_diameter`` is :math:`D^2`: `ksubsets_diameter`, `sequential_ksubsets_diameter`, or the
    largest Hamming distance in another set of structures. The margin is 1 where all structures have as
    many bits, as the paper assumes, and 2 for any other set (``structure.margin``). With factor
    scores use the separation that counts them (`association_separation` with a structure). If the
    radius is zero or more, the association is a fixed point, and every query that close to it recalls
    it in one step. Negative: nothing is claimed.

    >>> import torch
    >>> from hopfy import theory
    >>> separation = theory.association_separation(torch.eye(4) * 2, torch.tensor([[0, 1]]))
    >>> theory.structured_radius(torch.eye(4) * 2, separation, 1.0, theory.ksubsets_diameter(2))
    tensor([0.5000], dtype=torch.float64)
    """
    memories = as_patterns(memories).detach().double()
    spectral = torch.linalg.matrix_norm(memories, 2)
    largest = torch.linalg.vector_norm(memories, dim=-1).max()
    steepness = torch.minimum(spectral * math.sqrt(squared_diameter), largest * squared_diameter)
    return (separation.double() - margin * squared_diameter / (2 * beta)) / steepness


def association_radius(
    memories: Tensor, members: Tensor, beta: float, structure: Structure | None = None
) -> Tensor:
    r"""The largest ball around sums of k patterns that k-subsets map to them at once, (P,) float64.

    .. math:: \epsilon = \min_{i \in S, j \notin S}
              \frac{a^\top (x_i - x_j) - 1/\beta}{\|x_i - x_j\|},

    the tight counterpart of `structured_radius`; negative where the sum is not proven to be a fixed
    point. With k = 1 it is `certified_radius` of sparsemax.

    With a structure it is the largest :math:`\epsilon` for which every structure z that differs from
    y trails it by :math:`\epsilon \sum_b \|x_b\|` over the bits in which they differ: more than a
    query at that distance can change. Whether it holds for one :math:`\epsilon` is one run of the
    oracle, with factor scores counted and rounding accounted for as in `proves_fixed_point`; the
    largest is found by bisection. Minus infinity where the sum is not proven to be a fixed point.

    >>> import torch
    >>> from hopfy import theory
    >>> theory.association_radius(torch.eye(4) * 2, torch.tensor([[0, 1]]), beta=1.0)
    tensor([1.0607], dtype=torch.float64)
    """
    if structure is not None:
        check_parameter(beta, BETA)
        return _structures(memories, members, structure).radius(members.cpu(), float(beta))
    inside, outside, memories = _sides(memories, members)
    room = inside.unsqueeze(-1) - outside.unsqueeze(1) - 1 / beta
    distance = torch.cdist(memories[members], memories.expand(len(members), -1, -1))
    ratio = torch.where(distance > 0, room / distance, torch.where(room < 0, -math.inf, math.inf))
    ratio = torch.where(outside.unsqueeze(1) == -math.inf, math.inf, ratio)
    return ratio.amin((-2, -1))


def has_structured_margin(
    scores: Tensor, structures: Tensor, chosen: int, margin: float = 1.0
) -> Tensor:
    r"""Whether :math:`\theta^\top y \ge \theta^\top y' + \frac m2\|y - y'\|^2` for all y' (Def. 3).

    By Prop. 4, with m = 1, SparseMAP then answers exactly y, for any set of binary structures on a
    sphere. ``structures`` (S, L) lists the set, ``scores`` is (..., L).

    >>> import torch
    >>> from hopfy import theory
    >>> pairs = torch.tensor([[1.0, 1, 0], [1, 0, 1], [0, 1, 1]])
    >>> theory.has_structured_margin(torch.tensor([3.0, 1.0, 0.0]), pairs, chosen=0)
    tensor(True)
    """
    best = structures[chosen]
    distances = (structures - best).square().sum(-1)
    return (scores @ (best - structures).mT >= margin / 2 * distances).all(-1)


def _sides(memories: Tensor, members: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Scores of the sums with their members (P, k) and with the others (P, N), -inf for members."""
    memories = as_patterns(memories).detach().double()
    check_members(members)
    scores = memories[members].sum(1) @ memories.T
    return scores.gather(1, members), scores.scatter(1, members, -math.inf), memories


def _structures(memories: Tensor, members: Tensor, structure: Structure) -> StructureLimits:
    check_members(members)
    if structure.varies_by_row:
        raise TypeError(
            f"expected a structure with the same parameters for all rows, got {structure}: each row "
            "is another problem with limits of its own; ask for each with a structure of its "
            "parameters alone."
        )
    if not structure.has_exact_oracle or structure.event_dims > 1:
        raise TypeError(
            "expected one set of structures over N items with an exact oracle, got "
            f"{structure}; lay a structure of two dimensions out with structures.Grid."
        )
    return StructureLimits(as_patterns(memories), structure)
