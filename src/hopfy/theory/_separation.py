r"""Separations, stationarity and certified radii of single patterns (Prop. 2).

Nothing of size N x N is ever held: patterns meet each other in blocks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from hopfy._checks import BETA, as_patterns, as_states, check_parameter
from hopfy.omega import Omega, omega_from

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
        The separations (P,) and the rivals (P,). The rival is found in the memories' precision, the
        separation from it is computed in float64. A lone pattern has an infinite separation; a
        duplicate has one of zero or less, whatever beta is.

    >>> import torch
    >>> from hopfy import theory
    >>> theory.separations(torch.tensor([[2.0, 0.0], [1.0, 0.0], [0.0, 3.0]])).value
    tensor([ 2., -1.,  9.], dtype=torch.float64)
    """
    memories, indices = _prepared(memories, indices)
    best = torch.full((indices.numel(),), -math.inf, dtype=memories.dtype, device=memories.device)
    rival = torch.full_like(indices, -1)
    for rows, columns, products in _products(memories, indices):
        top, place = products.max(-1)
        better = top > best[rows]
        best[rows] = torch.where(better, top, best[rows])
        rival[rows] = torch.where(better, place + columns.start, rival[rows])
    own = memories[indices].double()
    gap = (own * (own - memories[rival.clamp_min(0)].double())).sum(-1)
    return Separations(torch.where(rival < 0, math.inf, gap), rival)


def is_stationary(
    memories: Tensor, omega: Omega | str, beta: float, indices: Tensor | None = None
) -> Tensor:
    r"""Whether :math:`\Delta_i \ge m / \beta`, shape (P,) (Prop. 2, first statement).

    If so, the pattern is a fixed point. The converse holds for patterns outside the convex hull of
    the others, and only there: a duplicate, or the centre of a square among its corners, is a fixed
    point (as a mixture) whose separation is zero. With alpha = inf the margin is 0 and ties are
    shared, so equality does not count there.

    This is the plain floating-point comparison; `proves_fixed_point` is the one that cannot err.

    >>> import torch
    >>> from hopfy import theory
    >>> theory.is_stationary(torch.tensor([[2.0, 0.0], [1.0, 0.0]]), "sparsemax", beta=1.0)
    tensor([ True, False])
    """
    needed = lead(omega, beta)
    value = separations(memories, indices).value
    return value > 0 if needed == 0 else value >= needed


def certified_radius(
    memories: Tensor,
    omega: Omega | str,
    beta: float,
    indices: Tensor | None = None,
    *,
    bound: Literal["exact", "paper"] = "exact",
) -> Tensor:
    r"""How far a query may be from each pattern and still recall it in one step, (P,) float64.

    ``bound="paper"`` is Prop. 2: :math:`\epsilon_i = (\Delta_i - m/\beta) / (2M)`. Its proof gives
    more, ``bound="exact"``:

    .. math:: \epsilon_i = \min_{j \ne i} \frac{x_i^\top (x_i - x_j) - m/\beta}{\|x_i - x_j\|},

    the radius of the *largest* ball around the pattern in which every query is mapped to it at
    once; it is never smaller. Negative where the pattern is not proven to be a fixed point (minus
    infinity for duplicates), infinite for a lone pattern.

    >>> import torch
    >>> from hopfy import theory
    >>> theory.certified_radius(torch.eye(2) * 2, "sparsemax", beta=1.0, bound="paper")
    tensor([0.7500, 0.7500], dtype=torch.float64)
    >>> theory.certified_radius(torch.eye(2) * 2, "sparsemax", beta=1.0)
    tensor([1.0607, 1.0607], dtype=torch.float64)
    """
    needed = lead(omega, beta)
    if bound == "paper":
        value = separations(memories, indices).value
        largest = torch.linalg.vector_norm(memories.double(), dim=-1).max()
        radius: Tensor = (value - needed) / (2 * largest)
        return radius
    if bound != "exact":
        raise ValueError(f"expected bound to be 'exact' or 'paper', got {bound!r}.")
    memories, indices = _prepared(memories, indices)
    radius = torch.full((indices.numel(),), math.inf, dtype=torch.float64, device=memories.device)
    rival = torch.full_like(indices, -1)
    memories = memories.double()
    squares = memories.square().sum(-1)
    for rows, columns, products in _products(memories, indices):
        own = squares[indices[rows]].unsqueeze(-1)
        distance = (own + squares[columns] - 2 * products).clamp_min(0).sqrt()
        room = torch.where(products == -math.inf, math.inf, own - products - needed)
        least, place = _ratio(room, distance).min(-1)
        closer = least < radius[rows]
        radius[rows] = torch.where(closer, least, radius[rows])
        rival[rows] = torch.where(closer, place + columns.start, rival[rows])
    # The distance above cancels for close patterns: measure the one that counts anew.
    own = memories[indices]
    apart = own - memories[rival.clamp_min(0)]
    anew = _ratio((own * apart).sum(-1) - needed, torch.linalg.vector_norm(apart, dim=-1))
    return torch.where(rival < 0, math.inf, anew)


def _ratio(room: Tensor, distance: Tensor) -> Tensor:
    """``room / distance``; infinite with the sign of the room (0 counts as room) at distance 0."""
    at_zero = torch.where(room < 0, -math.inf, math.inf).to(room)
    return torch.where(distance == 0, at_zero, torch.where(room == math.inf, room, room / distance))


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
    needed = lead(omega, beta)
    memories = as_patterns(memories)
    flat = as_states(queries, memories).reshape(-1, memories.shape[-1])
    count = memories.shape[0]
    pattern = torch.full((flat.shape[0],), -1, dtype=torch.int64, device=flat.device)
    everyone = torch.arange(flat.shape[0], device=flat.device)
    for rows in torch.split(everyone, max(1, _BLOCK // count)):
        top, place = (flat[rows].double() @ memories.double().T).topk(min(2, count), dim=-1)
        gap = top[:, 0] - top[:, 1] if count > 1 else torch.full_like(top[:, 0], math.inf)
        leads = gap > 0 if needed == 0 else gap >= needed
        pattern[rows] = torch.where(leads, place[:, 0], -1)
    found, back = torch.unique(pattern.clamp_min(0), return_inverse=True)
    stays = is_stationary(memories, omega, beta, found)[back] & (pattern >= 0)
    return OneStep(pattern.reshape(queries.shape[:-1]), stays.reshape(queries.shape[:-1]))


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


def _products(memories: Tensor, indices: Tensor) -> Iterator[tuple[slice, slice, Tensor]]:
    """Inner products of the chosen patterns with all, block by block, -inf with themselves."""
    side = max(1, math.isqrt(_BLOCK))
    for row in range(0, indices.numel(), side):
        rows = slice(row, min(row + side, indices.numel()))
        chosen = memories[indices[rows]]
        for column in range(0, memories.shape[0], side):
            columns = slice(column, min(column + side, memories.shape[0]))
            products = chosen @ memories[columns].T
            own = indices[rows] - column
            inside = ((own >= 0) & (own < products.shape[1])).nonzero().flatten()
            products[inside, own[inside]] = -math.inf
            yield rows, columns, products
