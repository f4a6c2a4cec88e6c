"""SparseMAP over chains, differentiable in the scores and the transitions."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from hopfy._kernels import chain as kernel
from hopfy._runtime.dispatch import is_compiling, transforms_are_active
from hopfy._warnings import ConvergenceWarning

__all__ = ["chain_marginals"]

_TOL, _MAX_ITER = 1e-12, 10_000


def chain_marginals(
    scores: Tensor, transition: Tensor, *, with_pairs: bool = False
) -> tuple[Tensor, Tensor | None] | None:
    """Marginals (R, N, S) of scores (R, N, S), and those (R, N - 1, S, S) of pairs if wanted.

    ``transition`` is (R or 1, N - 1 or 1, S, S). None where the compiled solver cannot serve: without
    numba, for empty problems, inside transforms, and if a row has no feasible path.
    """
    if not kernel.is_available() or transforms_are_active() or is_compiling():
        return None
    if scores.numel() == 0 or scores.shape[1] < 2:
        return None
    theta, table = scores.double(), transition.double()
    solution = _solved(theta, table)
    if solution is None:
        return None
    y, pairs = _Chain.apply(theta, table, solution, with_pairs)  # type: ignore[no-untyped-call]
    return y, pairs if with_pairs else None


def _solved(theta: Tensor, table: Tensor) -> kernel.Solution | None:
    """The solution of all rows; those with NaN or infinity (or nothing to select) are NaN (zeros)."""
    plain = _plain(theta)
    tables = _plain(table)
    bad_tables = tables.isnan() | (tables == torch.inf)
    spoiled = (plain.isnan() | (plain == torch.inf)).flatten(1).any(1)
    if bool(bad_tables.any()):
        spoiled = spoiled | bad_tables.flatten(1).any(1).expand(len(spoiled))
        tables = tables.masked_fill(bad_tables, 0.0)
    if bool(spoiled.any()):
        # A row that is not there has no segments, so its gradients are zero.
        plain = plain.masked_fill(spoiled[:, None, None], -torch.inf)
    solution = kernel.solve(plain, tables, _TOL, _MAX_ITER)
    if bool((solution.ended == 2).any()):
        return None
    if bool((solution.ended == 1).any()):
        _warn(solution)
    if bool(spoiled.any()):
        solution.y[spoiled] = torch.nan
    return solution


def _warn(solution: kernel.Solution) -> None:
    rows = (solution.ended == 1).nonzero()[:, 0]
    worst = int(rows[solution.gap[rows].argmax()])
    warnings.warn(
        f"SparseMAP over Chain took more than {_MAX_ITER} searches for a segment in {len(rows)} of "
        f"{len(solution.gap)} rows; the largest duality gap is {float(solution.gap[worst]):.3g}, in "
        f"row {worst}.",
        ConvergenceWarning,
        stacklevel=6,
    )


def _plain(tensor: Tensor) -> Tensor:
    return tensor.detach().to("cpu", torch.float64).contiguous()


def _product(
    solution: kernel.Solution, cotangent: Tensor, in_pairs: Tensor | None, rows: int, edges: int
) -> tuple[Tensor, Tensor]:
    """The Jacobian times cotangents; pairs leave as (``rows``, ``edges``, S, S)."""
    states = solution.y.shape[-1]
    entering = torch.empty(1, 0, states, states, device="cpu") if in_pairs is None else in_pairs
    by_scores, by_pairs = kernel.product(solution, _plain(cotangent), _plain(entering), edges)
    if rows == 1:
        by_pairs = by_pairs.sum(0, keepdim=True)
    return by_scores.to(cotangent.device), by_pairs.to(cotangent.device)


class _Chain(torch.autograd.Function):
    """A solution as a function of scores and transitions: its paths are constants of the Jacobian."""

    @staticmethod
    def forward(
        ctx: Any, theta: Tensor, table: Tensor, solution: kernel.Solution, with_pairs: bool
    ) -> Any:
        ctx.solution, ctx.table_shape = solution, table.shape[:2]
        ctx.set_materialize_grads(False)
        found = kernel.pairs(solution) if with_pairs else theta.new_empty(0)
        # A copy, since the solution stays alive for the backward pass.
        return solution.y.to(theta.device, copy=True), found.to(theta.device)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor | None, in_pairs: Tensor | None) -> Any:
        if cotangent is None and in_pairs is None:
            return None, None, None, None
        if cotangent is None:
            cotangent = torch.zeros_like(ctx.solution.y)
        rows, edges = ctx.table_shape if ctx.needs_input_grad[1] else (0, 0)
        if torch.is_grad_enabled():
            found = _Product.apply(cotangent, in_pairs, ctx.solution, rows, edges)  # type: ignore[no-untyped-call]
        else:
            found = _product(ctx.solution, cotangent, in_pairs, rows, edges)
        return found[0], found[1] if edges else None, None, None


class _Product(torch.autograd.Function):
    """The product with the Jacobian, which is symmetric: its own derivative, transposed."""

    @staticmethod
    def forward(
        ctx: Any,
        cotangent: Tensor,
        in_pairs: Tensor | None,
        solution: kernel.Solution,
        rows: int,
        edges: int,
    ) -> tuple[Tensor, Tensor]:
        ctx.solution = solution
        ctx.entered = None if in_pairs is None else in_pairs.shape[:2]
        ctx.edges = edges
        return _product(solution, cotangent, in_pairs, rows, edges)

    @staticmethod
    def backward(ctx: Any, tangent: Tensor, table_tangent: Tensor) -> Any:
        rows, edges = ctx.entered or (0, 0)
        along = table_tangent if ctx.edges else None
        found = _Product.apply(tangent, along, ctx.solution, rows, edges)  # type: ignore[no-untyped-call]
        return found[0], found[1] if edges else None, None, None, None
