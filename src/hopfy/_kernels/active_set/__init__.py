r"""SparseMAP by an active-set method that asks only for the best structure (App. C).

The problem is :math:`\max_y \langle\theta_V, y_V\rangle + \langle\theta_F, y_F\rangle -
\tfrac12\|y_V\|^2` over the hull of a set of bit vectors :math:`[y_V; y_F]`. A row keeps a few
vertices, affinely independent in :math:`y_V`, and the weights that are optimal over their hull. Each
round the oracle is asked for the vertex that is best for the gradient
:math:`[\theta_V - y_V; \theta_F]`. Its lead over the current point is the Frank-Wolfe duality gap: if that
is closed the row is done, else the vertex joins, the weights move to the optimum over the enlarged
affine hull, and vertices whose weight would turn negative leave on the way (Wolfe, 1976; Niculae et
al., 2018). No set of vertices comes twice, so the method ends, with the exact answer.

Oracle calls are batched over the rows that are still open, and so is the compiled step between
them. At the end the Jacobian of the weights is known from the active set alone: with the vertices as
columns of :math:`[A; F]` and :math:`G = A^\top A + 1 1^\top`,

.. math:: S = G^{-1} - \frac{G^{-1} 1 1^\top G^{-1}}{1^\top G^{-1} 1}, \qquad
    \frac{\partial [y_V; y_F]}{\partial [\theta_V; \theta_F]} = [A; F]\, S\, [A; F]^\top.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hopfy._runtime.compilation import compiled
from hopfy._runtime.threads import over_rows

__all__ = ["ActiveSet", "Best", "mixed", "reference", "scored", "solve", "vjp"]

# (rows, scores of these rows) -> the best vertices and their factor parts, as int8
Best = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]

_FIRST_SLOTS = 8


class ActiveSet(NamedTuple):
    """A solution: the vertices with their weights, and how far it is from the optimum."""

    vertices: Tensor  # (B, S, n) int8, zero where there is no vertex
    factors: Tensor  # (B, S, f) int8
    weights: Tensor  # (B, S) float64, positive for vertices and zero behind them
    marginals: Tensor  # (B, n) float64
    gap: Tensor  # (B,) float64
    iterations: Tensor  # (B,) int64
    converged: Tensor  # (B,) bool

    @property
    def factor_marginals(self) -> Tensor:
        """(B, f) float64."""
        return mixed(self.weights, self.factors)

    def vjp(self, in_marginals: Tensor, in_factors: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients in the scores and in the factor scores."""
        return vjp(self, in_marginals, in_factors)


def solve(
    scores: Tensor,
    factor_scores: Tensor,
    best: Best,
    *,
    start: tuple[Tensor, Tensor, Tensor],
    tol: float,
    max_steps: int,
) -> ActiveSet:
    """Active sets of scores (B, n) and factor scores (B, f), both float64 on the CPU.

    ``start`` holds feasible vertices (B, S, n), their factor parts (B, S, f) and weights (B, S), the
    first of them with a finite score.
    """
    loops = compiled("active_set.cpu")
    if loops is None:
        return reference(scores, factor_scores, best, start=start, tol=tol, max_steps=max_steps)
    (count, n), f = scores.shape, factor_scores.shape[1]
    most = n + 2  # n + 1 affinely independent vertices and one that knocks
    slots = min(most, max(_FIRST_SLOTS, start[0].shape[1] + 1))
    state = loops.fresh(count, n, f, slots)
    theta, theta_f = scores.contiguous().numpy(), factor_scores.contiguous().numpy()
    iterations = np.zeros(count, np.int64)
    rows = np.arange(count)
    firsts = [part.contiguous().numpy() for part in start]
    over_rows(loops.start, count, count * (n + f) * slots, rows, *firsts, theta, theta_f, state)
    for _ in range(max_steps):
        gradient = torch.from_numpy(theta[rows] - state.marginals[rows])
        found = [part.contiguous().numpy() for part in best(torch.from_numpy(rows), gradient)]
        if slots < most and int(state.size[rows].max()) >= slots:
            slots = min(most, 2 * slots)
            state = loops.grown(state, slots)
        iterations[rows] += 1
        work = rows.size * (n + f + slots) * slots
        over_rows(loops.step, rows.size, work, rows, *found, theta, theta_f, tol, state)
        rows = rows[~state.done[rows]]
        if rows.size == 0:
            break
    return _packed(state, iterations)


def _packed(state: Any, iterations: NDArray[np.int64]) -> ActiveSet:
    """Active vertices first, in the order of their weight, and no more slots than used."""
    weights = torch.from_numpy(state.weights)
    order = torch.from_numpy(state.order)
    size = torch.from_numpy(state.size)
    active = torch.arange(order.shape[1], device="cpu") < size[:, None]
    live = torch.zeros_like(weights).scatter_(1, order, active.to(weights.dtype))
    weights, slots = (weights * live).sort(dim=1, descending=True, stable=True)
    widest = max(int(size.max()), 1) if size.numel() else 1
    weights, slots = weights[:, :widest].contiguous(), slots[:, :widest, None]
    here = (weights > 0).to(torch.int8)[..., None]
    vertices = torch.from_numpy(state.vertices)
    factors = torch.from_numpy(state.factors)
    return ActiveSet(
        vertices=torch.take_along_dim(vertices, slots, 1) * here,
        factors=torch.take_along_dim(factors, slots, 1) * here,
        weights=weights,
        marginals=torch.from_numpy(state.marginals),
        gap=torch.from_numpy(state.gap),
        iterations=torch.from_numpy(iterations),
        converged=torch.from_numpy(state.done),
    )


def reference(
    scores: Tensor,
    factor_scores: Tensor,
    best: Best,
    *,
    start: tuple[Tensor, Tensor, Tensor],
    tol: float,
    max_steps: int,
) -> ActiveSet:
    """The same in plain torch, one row after the other."""
    answers = []
    for row in range(scores.shape[0]):
        index = torch.tensor([row], device="cpu")
        first = _Row(scores[row], factor_scores[row], [part[row] for part in start])
        answers.append(_solve_row(first, partial(best, index), tol, max_steps))
    widest = max((len(row.weights) for row, *_ in answers), default=1)
    empty = (
        scores.new_zeros(0),
        torch.zeros(0, dtype=torch.long, device="cpu"),
        torch.zeros(0, dtype=torch.bool, device="cpu"),
    )
    gap, iterations, converged = (
        map(torch.tensor, zip(*(rest for _, *rest in answers), strict=True)) if answers else empty
    )

    def padded(part: Tensor) -> Tensor:
        extra = part.new_zeros((widest - part.shape[0], *part.shape[1:]))
        return torch.cat([part, extra])

    def stacked(name: str, like: Tensor) -> Tensor:
        parts = [padded(getattr(row, name)) for row, *_ in answers]
        return torch.stack(parts) if parts else like.new_zeros((0, 1, *like.shape[1:]))

    vertices = stacked("vertices", scores.to(torch.int8))
    weights = stacked("weights", scores[:, 0] if scores.shape[1] else scores.sum(1))
    return ActiveSet(
        vertices=vertices,
        factors=stacked("factors", factor_scores.to(torch.int8)),
        weights=weights,
        marginals=torch.einsum("bs,bsn->bn", weights, vertices.double()),
        gap=gap.double(),
        iterations=iterations,
        converged=converged,
    )


class _Row:
    """The active set of one row, readable: every optimum is a fresh least-squares solve."""

    def __init__(self, scores: Tensor, factor_scores: Tensor, start: list[Tensor]) -> None:
        self.scores, self.factor_scores = scores, factor_scores
        self.vertices, self.factors, self.weights = start
        self.keep(self.weights > 0)
        self.to_optimum()

    def keep(self, which: Tensor) -> None:
        self.vertices, self.factors = self.vertices[which], self.factors[which]
        self.weights = self.weights[which] / self.weights[which].sum()

    def values(self) -> Tensor:
        """Scores of the vertices; a forbidden entry counts only where it is selected."""
        unary = torch.where(self.vertices > 0, self.scores, 0.0).sum(-1)
        return unary + torch.where(self.factors > 0, self.factor_scores, 0.0).sum(-1)

    def to_optimum(self) -> None:
        while True:
            A = self.vertices.double()
            G, linear = A @ A.T + 1, self.values()
            S = _sensitivity(G)
            uniform = torch.full_like(linear, 1 / len(linear))
            answer = uniform + S @ (linear - A @ (A.T @ uniform))
            slope = linear - A @ (A.T @ answer)
            slope = slope - slope.mean()
            if bool(slope.abs().max() > 1e-9 * (1 + linear.abs().max())):
                answer = self.weights + slope * 1e9  # linear along a dependent direction
            low = answer <= 1e-13
            if not bool(low.any()):
                self.weights = answer
                return
            ratios = torch.where(low, self.weights / (self.weights - answer), torch.inf)
            step = ratios.min()
            self.weights = self.weights + step * (answer - self.weights)
            self.keep(torch.arange(len(ratios), device="cpu") != ratios.argmin())


def _solve_row(
    row: _Row, best: Callable[[Tensor], tuple[Tensor, Tensor]], tol: float, max_steps: int
) -> tuple[_Row, float, int, bool]:
    gap = float("inf")
    for iteration in range(1, max_steps + 1):
        y = row.weights @ row.vertices.double()
        vertex, factor = best((row.scores - y)[None])
        current = row.weights @ (row.values() - row.vertices.double() @ y)
        row.vertices = torch.cat([row.vertices, vertex])
        row.factors = torch.cat([row.factors, factor])
        lead = row.values()[-1] - vertex[0].double() @ y
        gap = float(lead - current)
        if gap <= tol + 1e-13 * float(1 + lead.abs()):
            row.vertices, row.factors = row.vertices[:-1], row.factors[:-1]
            return row, gap, iteration, True
        row.weights = torch.cat([row.weights, row.weights.new_zeros(1)])
        row.to_optimum()
    return row, gap, max_steps, False


def _solved(gram: Tensor, right: Tensor) -> Tensor:
    """``gram^-1 right``; by a pseudo-inverse if rounding makes a matrix look singular."""
    factor, failed = torch.linalg.cholesky_ex(gram)
    if bool((failed > 0).any()):
        inverse: Tensor = torch.linalg.pinv(gram, hermitian=True, rtol=1e-12)
        return inverse @ right
    return torch.cholesky_solve(right, factor)


def _sensitivity(gram: Tensor) -> Tensor:
    """S of the module's docstring; a pseudo-inverse where the vertices are dependent."""
    inverse: Tensor = torch.linalg.pinv(gram, hermitian=True, rtol=1e-12)
    ones = inverse.sum(-1, keepdim=True)
    return inverse - ones * ones.mT / ones.sum(-2, keepdim=True)


def vjp(solution: ActiveSet, in_marginals: Tensor, in_factors: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients in the scores and the factor scores: the symmetric Jacobian times the cotangents.

    Differentiable torch operations, so that derivatives of any order follow.
    """
    A = solution.vertices.to(in_marginals.dtype)
    here = (solution.weights > 0).to(A.dtype)
    # An empty slot is its own block: it neither takes part nor makes the matrix singular.
    gram = A @ A.mT + here[:, :, None] * here[:, None, :] + torch.diag_embed(1 - here)
    along = torch.einsum("bsn,bn->bs", A, in_marginals)
    along = (along + scored(solution.factors, in_factors)) * here
    ones, change = _solved(gram, torch.stack([here, along], -1)).unbind(-1)
    total = (ones * here).sum(-1, keepdim=True)
    change = change - ones * (change * here).sum(-1, keepdim=True) / total.clamp_min(1e-300)
    change = change * here
    return torch.einsum("bsn,bs->bn", A, change), mixed(change, solution.factors)


def scored(bits: Tensor, scores: Tensor) -> Tensor:
    """Scores (B, S) of bits (B, S, f) by scores (B, f), one slot after the other.

    Factor bits can be many times as many as the entries: all of them as floats might not fit.
    """
    if bits.shape[2] == 0:
        return scores.new_zeros(bits.shape[:2])
    return torch.stack([(bits[:, s] * scores).sum(-1) for s in range(bits.shape[1])], 1)


def mixed(weights: Tensor, bits: Tensor) -> Tensor:
    """The mixture (B, f) of bits (B, S, f) with weights (B, S), one slot after the other."""
    total = weights.new_zeros((bits.shape[0], bits.shape[2]))
    for s in range(bits.shape[1] if bits.shape[2] else 0):
        total = total + weights[:, s, None] * bits[:, s]
    return total
