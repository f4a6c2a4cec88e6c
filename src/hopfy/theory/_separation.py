r"""Separations, stationarity and certified radii of single patterns (Prop. 2).

Nothing of size N x N is ever held: patterns meet each other in blocks.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hopfy._checks import BETA, as_patterns, as_states, check_parameter
from hopfy._runtime.precision import outside_autocast
from hopfy._runtime.rounding import gamma
from hopfy.omega import Omega, omega_from
from hopfy.theory._leads import leads
from hopfy.theory._limits import RadiusLimit, SeparationLimit, one_below
from hopfy.theory._proof import proves_fixed_point
from hopfy.theory._rounding import ceil_float, norm_bounds, rounding_bound

__all__ = [
    "OneStep",
    "Separations",
    "certified_radius",
    "is_stationary",
    "lead",
    "one_step",
    "separations",
]

_BLOCK = 1 << 22


class Separations(NamedTuple):
    """The separation of each pattern, float64, and the pattern that limits it (-1: none)."""

    value: Tensor
    rival: Tensor


class OneStep(NamedTuple):
    """Where one update takes each query: the pattern (-1: none exactly) and whether it stays."""

    pattern: Tensor
    stays: Tensor


def lead(omega: Omega | str, beta: float) -> float:
    r"""The lead in similarity that makes retrieval exact, :math:`m / \beta` (Def. 1).

    It is infinite for softmax, which has no margin.

    >>> from hopfy import theory
    >>> theory.lead("1.5-entmax", beta=4.0)
    0.5
    """
    check_parameter(beta, BETA)
    omega = omega_from(omega)
    if omega.largest_mass != 1:
        raise TypeError(
            f"expected a regularizer on the simplex, got {omega}; for associations of patterns use "
            "association_separation and structured_radius."
        )
    return omega.margin / beta


def separations(memories: Tensor, indices: Tensor | None = None) -> Separations:
    r""":math:`\Delta_i = x_i^\top x_i - \max_{j \ne i} x_i^\top x_j`, the separation from the data.

    Args:
        memories: (N, D).
        indices: (P,) which patterns to ask about; by default all.

    Returns:
        The separations (P,) and the rivals (P,). The separation is the exact one of the real numbers
        that the stored floats stand for, rounded *down* to float64: it is never too large, so a
        ``beta`` chosen from it is not too small. (Where more than 256 patterns compete within
        rounding errors it is a lower bound that is off by a rounding error.) A lone pattern has an
        infinite separation; a duplicate has one of zero or less, whatever beta is.

    >>> import torch
    >>> from hopfy import theory
    >>> theory.separations(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])).value
    tensor([ 2., -1.,  9.], dtype=torch.float64)
    """
    memories, indices = _prepared(memories, indices)
    with torch.no_grad(), outside_autocast(memories):
        return Separations(*SeparationLimit(memories.double(), indices).limits(_BLOCK))


def is_stationary(
    memories: Tensor, omega: Omega | str, beta: float, indices: Tensor | None = None
) -> Tensor:
    r"""Whether :math:`\Delta_i \ge m / \beta`, shape (P,) (Prop. 2, first statement).

    If so, the pattern is a fixed point. The converse holds for patterns outside the convex hull of
    the others, and only there: a duplicate, or the center of a square among its corners, is a fixed
    point (as a mixture) whose separation is zero. With alpha = inf the margin is 0 and ties are
    shared, so equality does not count there.

    It is decided like a certificate: never wrong where it says yes, and equality counts.

    >>> import torch
    >>> from hopfy import theory
    >>> theory.is_stationary(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), "sparsemax", beta=1.0)
    tensor([ True, False])
    """
    needed = _needed(omega, beta)
    omega = omega_from(omega)
    if omega.exact_margin(1) is not None:
        memories, indices = _prepared(memories, indices)
        return proves_fixed_point(memories, indices.unsqueeze(-1), omega, beta)
    value = separations(memories, indices).value
    return value > 0 if needed == 0 else value >= needed


def _needed(omega: Omega | str, beta: float) -> float:
    """The lead m / beta, rounded up."""
    near = lead(omega, beta)
    margin = omega_from(omega).exact_margin(1)
    if margin is not None:
        return ceil_float(margin / Fraction(float(beta)))
    return near * (1 + 4 * torch.finfo(torch.float64).eps)


def certified_radius(
    memories: Tensor,
    omega: Omega | str,
    beta: float,
    indices: Tensor | None = None,
    *,
    bound: Literal["exact", "paper"] = "exact",
) -> Tensor:
    r"""How far a query may be from each pattern and still recall it in one step, (P,) float64.

    ``bound="paper"`` is Prop. 2: :math:`\epsilon_i = (\Delta_i - m/\beta) / (2M)`. Its proof (Eq. 24)
    gives more, ``bound="exact"``:

    .. math:: \epsilon_i = \min_{j \ne i} \frac{x_i^\top (x_i - x_j) - m/\beta}{\|x_i - x_j\|},

    the radius of the *largest* ball around the pattern in which every query is mapped to it at
    once; it is never smaller. Negative where the pattern is not proven to be a fixed point (minus
    infinity for duplicates), infinite for a lone pattern. Both are rounded down: a radius is never
    larger than the formula with real numbers.

    >>> import torch
    >>> from hopfy import theory
    >>> theory.certified_radius(torch.eye(2) * 2, "sparsemax", beta=1.0, bound="paper")
    tensor([0.7500, 0.7500], dtype=torch.float64)
    >>> theory.certified_radius(torch.eye(2) * 2, "sparsemax", beta=1.0)
    tensor([1.0607, 1.0607], dtype=torch.float64)
    """
    if bound not in ("exact", "paper"):
        raise ValueError(f"expected bound to be 'exact' or 'paper', got {bound!r}.")
    needed = _needed(omega, beta)
    memories, indices = _prepared(memories, indices)
    with torch.no_grad(), outside_autocast(memories):
        if bound == "paper":
            return _paper_radius(memories, indices, needed)
        if needed == math.inf:
            alone = math.inf if memories.shape[0] == 1 else -math.inf
            return torch.full_like(indices, alone, dtype=torch.float64)
        radius, _ = RadiusLimit(memories.double(), indices, needed).limits(_BLOCK)
        fixed = is_stationary(memories, omega, beta, indices)
        return torch.where(fixed, radius.clamp_min(0), radius)


def _paper_radius(memories: Tensor, indices: Tensor, needed: float) -> Tensor:
    room = separations(memories, indices).value - needed
    largest = norm_bounds(memories.double()).max()
    # The bound on the norm is this close to the norm; a negative room is divided by less.
    smallest = largest * (1 - 2 * gamma(memories.shape[1] + 16, torch.float64))
    divisor = 2 * torch.where(room < 0, smallest, largest)
    radius = torch.where(room.isinf(), room, room / divisor)
    return torch.where((room == 0) | room.isinf(), radius, one_below(one_below(radius)))


def one_step(queries: Tensor, memories: Tensor, omega: Omega | str, beta: float) -> OneStep:
    r"""Which pattern each query becomes in one update, and whether it stays there (Prop. 2).

    A query with :math:`q^\top (x_i - x_j) \ge m/\beta` for all j is mapped to :math:`x_i` exactly.
    The paper concludes that the dynamics *converge* to :math:`x_i` in one iteration. That needs
    :math:`\Delta_i \ge m/\beta` as well: with patterns 1 and 0.9, sparsemax and beta = 1, the query
    100 is mapped to 1, which the next update leaves. ``stays`` tells the two cases apart.

    >>> import torch
    >>> from hopfy import theory
    >>> patterns = torch.tensor([[1.0], [0.9]])
    >>> theory.one_step(torch.tensor([[100.0]]), patterns, "sparsemax", beta=1.0)
    OneStep(pattern=tensor([0]), stays=tensor([False]))
    """
    omega = omega_from(omega)
    memories = as_patterns(memories).detach()
    flat = as_states(queries, memories).detach().reshape(-1, memories.shape[-1])
    with torch.no_grad(), outside_autocast(memories):
        pattern = _leaders(flat, memories, omega, beta)
    found, back = torch.unique(pattern.clamp_min(0), return_inverse=True)
    stays = is_stationary(memories, omega, beta, found)[back] & (pattern >= 0)
    return OneStep(pattern.reshape(queries.shape[:-1]), stays.reshape(queries.shape[:-1]))


def _leaders(queries: Tensor, memories: Tensor, omega: Omega, beta: float) -> Tensor:
    """The pattern that leads all others by m / beta at each query (Q,), -1 where none is proven to."""
    needed, margin, count = _needed(omega, beta), omega.exact_margin(1), memories.shape[0]
    pattern = torch.full((queries.shape[0],), -1, dtype=torch.int64, device=queries.device)
    wide, largest = memories.double(), norm_bounds(memories).max()
    everyone = torch.arange(queries.shape[0], device=queries.device)
    for rows in torch.split(everyone, max(1, _BLOCK // count)):
        part = queries[rows]
        top, place = (part.double() @ wide.T).topk(min(2, count), dim=-1)
        if margin is not None:
            betas = torch.full((len(rows),), float(beta), dtype=torch.float64, device="cpu")
            ahead = leads(memories, place[:, :1], margin, betas, part)
        else:
            gap = top[:, 0] - top[:, 1] if count > 1 else torch.full_like(top[:, 0], math.inf)
            slack = 4 * rounding_bound(memories.shape[1], 1, torch.float64) * norm_bounds(part)
            gap = gap - slack * largest
            ahead = gap > 0 if needed == 0 else gap >= needed
        pattern[rows] = torch.where(ahead, place[:, 0], -1)
    return pattern


def _prepared(memories: Tensor, indices: Tensor | None) -> tuple[Tensor, Tensor]:
    memories = as_patterns(memories).detach()
    if memories.ndim != 2:
        raise ValueError(f"expected memories of shape (N, D), got shape {tuple(memories.shape)}.")
    if memories.dtype in (torch.float16, torch.bfloat16):
        memories = memories.float()
    if indices is None:
        indices = torch.arange(memories.shape[0], device=memories.device)
    if indices.ndim != 1 or indices.dtype is not torch.int64:
        raise TypeError(
            f"expected indices to be a 1-d int64 tensor, got {indices.dtype} of shape "
            f"{tuple(indices.shape)}."
        )
    return memories, indices
