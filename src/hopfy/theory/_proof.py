r"""Proofs of exact retrieval that rounding cannot invalidate (Props. 2 and 5).

A set S of patterns is recalled exactly when :math:`a = \sum_{s \in S} x_s` satisfies

.. math:: a^\top (x_i - x_j) \ge m / \beta \qquad \forall i \in S,\ j \notin S,

with :math:`S = \{i\}` for the maps onto the simplex (then it is :math:`\Delta_i \ge m/\beta`) and
:math:`|S| = k` for k-subsets, where it is the KKT condition of a k-hot answer. The inequality is
about the real numbers that the stored floats stand for, so it is decided in rounds, each for what
the one before left open (`hopfy.theory._leads`). Structures in general have their own condition, see
`hopfy.theory._structure_proof`.
"""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from hopfy._runtime.precision import outside_autocast
from hopfy.omega import Omega
from hopfy.theory._leads import leads
from hopfy.theory._structure_proof import proves_structure

__all__ = ["exact_margin", "proves_fixed_point"]


def exact_margin(omega: Omega, size: int = 1) -> Fraction | None:
    """The lead that makes an answer of ``size`` ones exact, as a rational number.

    None where there is no such lead, or none known in closed form: softmax, a size that the
    structure does not have, parameters that vary between rows, alpha = inf (ties are shared).
    """
    return omega.exact_margin(size)


def proves_fixed_point(
    memories: Tensor, members: Tensor, omega: Omega, beta: float | Tensor
) -> Tensor:
    r"""Which sets of patterns are proven to be exact fixed points (Def. 2).

    Args:
        memories: (N, D).
        members: (P, k) indices, different within a row; k = 1 asks about single patterns.
        omega: the regularizer. Its margin must be known exactly, or it must be the SparseMAP of
            structures with an exact oracle; otherwise nothing is proven.
        beta: one number, or (P,).

    Returns:
        (P,) booleans. True means that :math:`\sum_{s} x_s` over the row's members is a fixed point
        of Eq. 9 in exact arithmetic; False means only that no proof was found. Autocast and torch's
        switches for coarser products change nothing.

    >>> import torch, hopfy
    >>> patterns = torch.eye(3)  # Delta = 1, exactly the margin at beta = 1
    >>> proves_fixed_point(patterns, torch.tensor([[0], [2]]), hopfy.Tsallis(2.0), beta=1.0)
    tensor([True, True])
    >>> proves_fixed_point(patterns, torch.tensor([[0]]), hopfy.Tsallis(2.0), beta=0.99)
    tensor([False])
    """
    check_members(members)
    rows, size = members.shape
    betas = torch.as_tensor(beta, dtype=torch.float64, device="cpu").detach().expand(rows)
    margin, structure = exact_margin(omega, size), omega.structures
    memories = memories.detach()
    with torch.no_grad(), outside_autocast(memories):
        if rows and margin is not None:
            return leads(memories, members, margin, betas)
        if rows and structure is not None:
            return proves_structure(memories, members, structure, betas)
    return torch.zeros(rows, dtype=torch.bool, device=members.device)


def check_members(members: Tensor) -> None:
    """Raise a TypeError or ValueError unless members are index lists (P, k) without repetitions."""
    if members.ndim != 2 or members.dtype is not torch.int64:
        raise TypeError(
            f"expected members to be an int64 tensor (P, k), got {members.dtype} of shape "
            f"{tuple(members.shape)}."
        )
    if members.shape[1] > 1 and bool((members.sort(-1).values.diff(dim=-1) == 0).any()):
        raise ValueError("expected different members within a row, got an index twice in one row.")
