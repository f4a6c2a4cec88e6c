r"""Proofs of exact retrieval that rounding cannot spoil (Props. 2 and 5).

A set S of patterns is recalled exactly when :math:`a = \sum_{s \in S} x_s` satisfies

.. math:: a^\top (x_i - x_j) \ge m / \beta \qquad \forall i \in S,\ j \notin S,

with :math:`S = \{i\}` for the maps onto the simplex (then it is :math:`\Delta_i \ge m/\beta`) and
:math:`|S| = k` for k-subsets, where it is the KKT condition of a k-hot answer. The inequality is
about the real numbers that the stored floats stand for, so it is decided in three rounds, each for
what the one before left open:

1. one product in the memories' precision, with the classical bound
   :math:`|\mathrm{fl}(a^\top x) - a^\top x| \le \gamma_n \|a\| \|x\|`,
   :math:`\gamma_n = n u / (1 - n u)`, which holds for every order of summation;
2. the few rivals left in float64, with the same bound;
3. rational arithmetic, which also settles equality (orthonormal patterns at :math:`\beta = m`).

Structures in general have their own condition, see `hopfy.theory._structure_proof`.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from hopfy.omega import Omega
from hopfy.theory._rounding import norm_bounds, rounding_bound
from hopfy.theory._structure_proof import proves_structure

__all__ = ["exact_margin", "proves_fixed_point"]

# Entries of one block of products, and pairs that are worth rational arithmetic.
_BLOCK = 1 << 24
_EXACT_PAIRS = 64


def exact_margin(omega: Omega, size: int = 1) -> Fraction | None:
    """The lead that makes an answer of ``size`` ones exact, as a rational number.

    None where there is no such lead, or none known in closed form: softmax, a size that the
    structure does not have, parameters that vary between rows, alpha = inf (ties are shared).
    """
    return omega.exact_margin(size)


def proves_fixed_point(
    memories: Tensor, members: Tensor, omega: Omega, beta: float | Tensor
) -> Tensor:
    r"""Which sets of patterns are proven to be exact fixed points.

    Args:
        memories: (N, D).
        members: (P, k) indices, different within a row; k = 1 asks about single patterns.
        omega: the regulariser; its margin must be known exactly, otherwise nothing is proven.
        beta: one number, or (P,).

    Returns:
        (P,) booleans. True means that :math:`\sum_{s} x_s` over the row's members is a fixed point
        of Eq. 9 in exact arithmetic; False means only that no proof was found.

    >>> import torch, hopfy
    >>> patterns = torch.eye(3)  # Delta = 1, exactly the margin at beta = 1
    >>> proves_fixed_point(patterns, torch.tensor([[0], [2]]), hopfy.Tsallis(2.0), beta=1.0)
    tensor([True, True])
    >>> proves_fixed_point(patterns, torch.tensor([[0]]), hopfy.Tsallis(2.0), beta=0.99)
    tensor([False])
    """
    rows, size = members.shape
    margin = exact_margin(omega, size)
    if margin is None and omega.structures is not None:
        return proves_structure(memories, members, omega.structures, beta)
    proven = torch.zeros(rows, dtype=torch.bool, device=members.device)
    if margin is None or rows == 0:
        return proven
    memories = memories.detach()
    if memories.dtype in (torch.float16, torch.bfloat16):
        memories = memories.float()
    betas = torch.as_tensor(beta, dtype=torch.float64, device="cpu").detach().expand(rows)
    lead = float(margin) / betas * (1 + 4 * torch.finfo(torch.float64).eps)
    norms = norm_bounds(memories)
    block = max(1, _BLOCK // memories.shape[0])
    for start in range(0, rows, block):
        part = slice(start, min(start + block, rows))
        open_rows = _first_round(memories, norms, members[part], lead[part].to(members.device))
        proven[part] = ~open_rows.any(-1)
        for row in open_rows.any(-1).nonzero().flatten().tolist():
            if not bool(lead[start + row].isfinite()):
                continue
            rivals = open_rows[row].nonzero().flatten()
            beta_row = Fraction(float(betas[start + row]))
            proven[start + row] = _settle(
                memories, norms, members[start + row], rivals, margin / beta_row
            )
    return proven


def _first_round(memories: Tensor, norms: Tensor, members: Tensor, lead: Tensor) -> Tensor:
    """(P, N) booleans: patterns outside each set that may come within ``lead`` of its members."""
    size, dimension = members.shape[1], memories.shape[1]
    if torch.get_float32_matmul_precision() != "highest":  # products may use fewer bits
        memories = memories.double()
    anchors = memories[members].sum(1)
    products = anchors @ memories.T
    terms = dimension + size + 2
    tiny = terms * torch.finfo(memories.dtype).tiny
    reach = norms[members].sum(-1, keepdim=True)
    slack = rounding_bound(dimension, size, memories.dtype) * reach * norms.max() + tiny
    weakest = products.gather(1, members).amin(-1, keepdim=True).double() - slack
    bound = weakest - lead.unsqueeze(-1) - slack
    # One float64 subtraction and one addition round by far less than this.
    bound = bound - 4 * torch.finfo(torch.float64).eps * (weakest.abs() + lead.unsqueeze(-1))
    open_rows = ~(products <= bound)  # not `>`: overflow and NaN stay open
    return open_rows.scatter(1, members, False)


def _settle(
    memories: Tensor, norms: Tensor, members: Tensor, rivals: Tensor, lead: Fraction
) -> bool:
    """Decide one set against the rivals of the first round, in float64 and then exactly."""
    inside, outside = memories[members].double(), memories[rivals].double()
    anchor = inside.sum(0)
    dimension, size = memories.shape[1], members.numel()
    terms = dimension + size + 2
    reach = float(norms[members].sum()) * float(norms.max())
    slack = (
        2 * rounding_bound(dimension, size, torch.float64) * reach
        + terms * torch.finfo(torch.float64).tiny
    )
    low, high = inside @ anchor, outside @ anchor
    gaps = low.unsqueeze(1) - high - float(lead)
    rounding = 4 * torch.finfo(torch.float64).eps * (2 * reach + float(lead))
    if bool((gaps < -slack - rounding).any()):  # refuted
        return False
    close = (~(gaps >= slack + rounding)).nonzero()
    if close.shape[0] == 0:
        return True
    if close.shape[0] > _EXACT_PAIRS:
        return False
    exact_anchor = [sum(column) for column in zip(*_fractions(inside), strict=True)]
    return all(
        sum(a * (x - y) for a, x, y in zip(exact_anchor, *_fractions(pair), strict=True)) >= lead
        for pair in (torch.stack((inside[i], outside[j])) for i, j in close.tolist())
    )


def _fractions(rows: Tensor) -> list[list[Fraction]]:
    return [[Fraction(value) for value in row] for row in rows.tolist()]
