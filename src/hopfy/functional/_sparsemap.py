"""SparseMAP over any structure."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from torch import Tensor

from hopfy._checks import as_dim, as_mask, as_scores
from hopfy._kernels import active_set, sequential
from hopfy._kernels.active_set import ActiveSet
from hopfy._renamed import renamed_arguments
from hopfy._runtime.dispatch import transforms_are_active
from hopfy._warnings import ConvergenceWarning
from hopfy.functional._lp_sparsemap import JointSet, solve_graph
from hopfy.functional._sequential import sequential_ksubsets
from hopfy.functional._solution import SparseMAPSolution
from hopfy.structures import (
    Rows,
    SequentialKSubsets,
    Structure,
)

__all__ = ["sequential_marginals", "sparsemap", "sparsemap_solution"]

TOL = 1e-12
MAX_STEPS = 1000


@renamed_arguments(max_iter="max_steps")
def sparsemap(
    scores: Tensor,
    structure: Structure,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    tol: float = TOL,
    max_steps: int = MAX_STEPS,
    start: SparseMAPSolution | None = None,
) -> Tensor:
    r"""Marginals of the few structures that share the best regularized score (Eq. 12):

    .. math:: \arg\max_{y \in \mathrm{conv}(\mathcal Y)}
        \langle\theta_V, y_V\rangle + \langle\theta_F, y_F\rangle - \tfrac12\|y_V\|^2.

    The higher-order scores :math:`\theta_F`, if any, belong to the structure (for instance
    ``Chain(transition)``); they and the scores receive exact gradients, through the implicit
    Jacobian of the active set. At ties, where another active set gives the same marginals, the
    Jacobian is that of the set that was found: finite, but not the only one.

    Args:
        scores: (..., *event), where the structure says how many trailing dimensions one problem has.
        structure: which structures there are, such as `hopfy.structures.KSubsets`, ``Tree`` or your
            own `hopfy.structures.Oracle`.
        dim: the dimension of one problem, for structures that have one.
        mask: True where an entry may be selected; broadcasts to the scores. An entry that is masked,
            one with score -inf and one that is not there are the same; a row with nothing to select
            gives zeros.
        tol: the duality gap at which a row is done. `KSubsets`, `AtMostK`, `SequentialKSubsets` and
            `Chain` have exact solvers of their own and ask for none of these three.
        max_steps: the most oracle calls per row; a `hopfy.ConvergenceWarning` tells when it was reached.
        start: an earlier solution for scores of the same shape, to start from; a factor graph always
            starts afresh.

    Returns:
        Weights with the shape and dtype of the scores.

    >>> import torch, hopfy
    >>> from hopfy import functional as F
    >>> F.sparsemap(torch.tensor([3.0, 1.0, 0.5, -1.0]), hopfy.structures.KSubsets(2))
    tensor([1.0000, 0.7500, 0.2500, 0.0000])
    >>> F.sparsemap(torch.tensor([[2.0, 1.4], [1.5, 1.0]]), hopfy.structures.Matching())
    tensor([[0.5250, 0.4750],
            [0.4750, 0.5250]])
    """
    _check_solver(structure, tol, max_steps, start)
    solved = structure.solve(scores, mask, dim=dim)
    if solved is not None:
        return solved
    solution = sparsemap_solution(
        scores, structure, dim=dim, mask=mask, tol=tol, max_steps=max_steps, start=start
    )
    return solution.marginals


def sequential_marginals(scores: Tensor, structure: SequentialKSubsets) -> tuple[Tensor, Tensor]:
    """Marginals (..., N), differentiable in the scores, and those of the edge tables, constant.

    The compiled solver knows how likely both ends of an edge are on; the table follows.
    """
    y = sequential_ksubsets(scores, structure.budget, structure.transition)
    rows = structure.rows(scores.detach()).detached()
    present = rows.scores > -torch.inf
    both = present[:, 1:] & present[:, :-1]
    tables = rows.factor_scores.reshape(*both.shape, 4)
    none, second, first, last = torch.where(both[..., None], tables, 0.0).unbind(-1)
    unary = rows.scores + torch.nn.functional.pad(first - none, (0, 1))
    unary = unary + torch.nn.functional.pad(second - none, (1, 0))
    edges = last - first - second + none
    on = sequential.solve_details(unary, rows.data[0], edges).pairs
    weights = y.detach().double().cpu().reshape(rows.scores.shape)
    left, right = weights[:, :-1], weights[:, 1:]
    marginals = torch.stack([1 - left - right + on, right - on, left - on, on], -1)
    marginals = torch.where(both[..., None], marginals.clamp_min(0), 0.0)
    return y, marginals.reshape(*rows.batch, both.shape[1], 2, 2).to(y)


@renamed_arguments(max_iter="max_steps")
def sparsemap_solution(
    scores: Tensor,
    structure: Structure,
    *,
    dim: int = -1,
    mask: Tensor | None = None,
    tol: float = TOL,
    max_steps: int = MAX_STEPS,
    start: SparseMAPSolution | None = None,
) -> SparseMAPSolution:
    """Solve as `sparsemap` does, always by the active-set method, and return all that it found.

    >>> import torch, hopfy
    >>> from hopfy import functional as F
    >>> scores = torch.tensor([3.0, 1.0, 0.5, -1.0])
    >>> solution = F.sparsemap_solution(scores, hopfy.structures.KSubsets(2))
    >>> solution.vertices.int()
    tensor([[1, 1, 0, 0],
            [1, 0, 1, 0]], dtype=torch.int32)
    >>> solution.vertex_weights
    tensor([0.7500, 0.2500])
    >>> print(solution.status)
    the duality gap is closed to the tolerance in every row.
    """
    _check_solver(structure, tol, max_steps, start)
    if transforms_are_active():
        raise ValueError(
            f"expected plain tensors for sparsemap over {type(structure).__name__}, got some inside "
            "a torch.func transform; it is batched over leading dimensions and differentiable by "
            "autograd already."
        )
    scores = as_scores(scores)
    dim = as_dim(dim, scores.ndim)
    moved = structure.event_dims == 1 and dim != scores.ndim - 1
    if structure.event_dims > 1 and dim != scores.ndim - 1:
        raise ValueError(
            f"expected dim=-1 for {type(structure).__name__}, whose problems take the last "
            f"{structure.event_dims} dimensions, got dim={dim}."
        )
    if mask is not None:
        scores = scores.masked_fill(~as_mask(mask, scores), -torch.inf)
    if moved:
        scores = scores.movedim(dim, -1)
    solution = _solve(scores, structure, tol, max_steps, start)
    if moved:
        parts = vars(solution) | {"marginals": solution.marginals.movedim(-1, dim)}
        solution = SparseMAPSolution(**parts)
    return solution


def _check_solver(
    structure: object, tol: float, max_steps: int, start: SparseMAPSolution | None
) -> None:
    if not isinstance(structure, Structure):
        raise TypeError(f"expected a structure such as KSubsets(k), got {structure!r}.")
    if not tol >= 0:
        raise ValueError(f"expected tol >= 0, got {tol}.")
    if not isinstance(max_steps, int) or max_steps < 1:
        raise ValueError(f"expected max_steps to be a positive integer, got {max_steps!r}.")
    if start is not None and not isinstance(start, SparseMAPSolution):
        raise TypeError(
            f"expected start to be the result of sparsemap_solution, got {type(start).__name__}."
        )


def _solve(
    scores: Tensor,
    structure: Structure,
    tol: float,
    max_steps: int,
    start: SparseMAPSolution | None,
) -> SparseMAPSolution:
    event = scores.shape[scores.ndim - structure.event_dims :]
    rows = structure.rows(scores)
    whole = torch.cat([rows.scores.flatten(1), rows.factor_scores], 1).detach()
    spoiled = whole.isnan().any(1) | (whole == torch.inf).any(1)
    live = (rows.scores.detach() > -torch.inf).flatten(1).any(1) & ~spoiled
    which = live.nonzero()[:, 0]
    # Dividing by the curvature leaves the plain problem with Omega = 1/2 |y|^2.
    theta = rows.scores.flatten(1)[which] / structure.curvature
    theta_f = rows.factor_scores[which] / structure.curvature
    problem = rows.detached().take(which.cpu())
    problem = problem._replace(
        scores=theta.detach().cpu().reshape(len(theta), *event),
        factor_scores=theta_f.detach().cpu(),
    )
    found: ActiveSet | JointSet
    if structure.is_factor_graph:
        found = solve_graph(structure, problem, tol, max_steps)  # type: ignore[arg-type]
    else:
        warm = None if start is None else _warm(start, structure, rows, which.cpu())
        found = _active_sets(structure, problem, tol, max_steps, warm)
    _warn(structure, problem, found, max_steps)
    marginals, factor_marginals = _Attached.apply(theta, theta_f, found)  # type: ignore[no-untyped-call]
    return _assembled(scores, structure, rows, spoiled, which, found, marginals, factor_marginals)


def _warm(
    start: SparseMAPSolution, structure: Structure, rows: Rows, which: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The vertices, factor bits and weights of an earlier solution, for the rows to solve."""
    event = rows.scores.shape[1:]
    shape = (*rows.batch, *event)
    if start.marginals.shape != shape:
        raise ValueError(
            f"expected a start for scores of shape {tuple(shape)}, got one for "
            f"{tuple(start.marginals.shape)}."
        )
    key, data = start.made_by
    same = key == structure.oracle_key and len(data) == len(rows.data)
    if not same or not all(map(torch.equal, data, rows.data)):
        raise ValueError(
            f"expected a start from the same structures as {type(structure).__name__} here, got one "
            "from others (another kind, or another parameter such as k)."
        )
    count, slots = rows.scores.shape[0], start.vertex_weights.shape[-1]
    weights = start.vertex_weights.detach().cpu().double().reshape(count, slots)
    vertices = start.vertices.cpu().reshape(count, slots, event.numel())
    factors = start.factor_vertices.cpu().reshape(count, slots, rows.factor_scores.shape[1])
    return vertices[which].to(torch.int8), factors[which].to(torch.int8), weights[which]


def _active_sets(
    structure: Structure,
    problem: Rows,
    tol: float,
    max_steps: int,
    warm: tuple[Tensor, Tensor, Tensor] | None,
) -> ActiveSet:
    shape, theta = problem.scores.shape[1:], problem.scores.flatten(1)

    def best(rows: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        bits, factors = structure.oracle(problem.take(rows, scores.reshape(len(scores), *shape)))
        return bits.flatten(1), factors

    if theta.shape[0] == 0:
        empty = theta.new_zeros((0, 1, theta.shape[1]), dtype=torch.int8)
        nothing = theta.new_zeros((0, 1, problem.factor_scores.shape[1]), dtype=torch.int8)
        none = theta.new_zeros(0)
        whole = none.long(), none.bool()
        return ActiveSet(empty, nothing, theta.new_zeros((0, 1)), theta, none, *whole)
    bits, factors = structure.feasible(
        problem, best(torch.arange(theta.shape[0], device="cpu"), theta)
    )
    cold = bits[:, None], factors[:, None], theta.new_ones((theta.shape[0], 1))
    begin = cold if warm is None else _mended(warm, cold, theta, problem.factor_scores)
    found = active_set.solve(
        theta, problem.factor_scores, best, start=begin, tol=tol, max_steps=max_steps
    )
    _check_oracle(structure, problem, found.gap)
    return found


def _check_oracle(structure: Structure, problem: Rows, gap: Tensor) -> None:
    """A negative gap says that the oracle's answer is worse than the mixture it should beat."""
    scores = problem.scores.flatten(1)
    size = torch.where(scores > -torch.inf, scores.abs(), 0.0).amax(1)
    wrong = gap < -1e-6 * (1 + size)
    if bool(wrong.any()):
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"expected the oracle of {type(structure).__name__} to find the best structure, got one "
            f"that scores {-float(gap[row]):.3g} less than the current mixture in {problem.name(row)}."
        )


def _mended(
    warm: tuple[Tensor, Tensor, Tensor],
    cold: tuple[Tensor, Tensor, Tensor],
    scores: Tensor,
    factor_scores: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """Start cold where the earlier structures are none, or not allowed any more."""
    vertices, factors, weights = warm
    barred = ((vertices > 0) & (scores == -torch.inf)[:, None]).any(-1)
    if factors.shape[-1]:
        barred = barred | ((factors > 0) & (factor_scores == -torch.inf)[:, None]).any(-1)
    usable = ~(barred & (weights > 0)).any(-1) & (weights[:, 0] > 0)

    def pick(earlier: Tensor, fresh: Tensor) -> Tensor:
        padding = fresh.new_zeros((fresh.shape[0], earlier.shape[1] - 1, *fresh.shape[2:]))
        padded = torch.cat([fresh, padding], 1)
        return torch.where(usable.view(-1, *(1,) * (earlier.ndim - 1)), earlier, padded)

    return pick(vertices, cold[0]), pick(factors, cold[1]), pick(weights, cold[2])


def _warn(structure: Structure, problem: Rows, found: ActiveSet | JointSet, max_steps: int) -> None:
    if found.converged.numel() and not bool(found.converged.all()):
        open_rows = (~found.converged).nonzero()[:, 0]
        worst = int(open_rows[found.gap[open_rows].argmax()])
        warnings.warn(
            f"SparseMAP over {type(structure).__name__} reached max_steps={max_steps} in "
            f"{len(open_rows)} of {len(found.gap)} rows; the largest duality gap is "
            f"{float(found.gap[worst]) * structure.curvature:.3g}, in {problem.name(worst)}. Raise "
            "max_steps or tol, or start from an earlier solution.",
            ConvergenceWarning,
            stacklevel=5,
        )


def _assembled(
    scores: Tensor,
    structure: Structure,
    rows: Rows,
    spoiled: Tensor,
    which: Tensor,
    found: ActiveSet | JointSet,
    marginals: Tensor,
    factor_marginals: Tensor,
) -> SparseMAPSolution:
    """Solved rows among those with nothing to select (zeros) and those with NaN (NaN)."""
    batch = rows.batch
    event = scores.shape[len(batch) :]
    factor_shape = structure.factor_shape(event)
    if factor_shape is None:
        factor_shape = (rows.factor_scores.shape[1],)
    blank = torch.where(spoiled, torch.nan, 0.0)[:, None]

    def spread(part: Tensor, shape: tuple[int, ...], empty: Tensor) -> Tensor:
        part = part.to(scores.device)
        flat = part.reshape(part.shape[0], part.shape[1:].numel())
        full = empty.to(part.dtype).expand(spoiled.shape[0], flat.shape[1])
        return full.index_copy(0, which, flat).reshape((*batch, *shape))

    slots = found.weights.shape[1]
    zero = torch.zeros_like(blank)
    return SparseMAPSolution(
        marginals=spread(marginals, event, blank).to(scores.dtype),
        factor_marginals=spread(factor_marginals, factor_shape, blank).to(scores.dtype),
        vertices=spread(found.vertices, (slots, *event), zero).bool(),
        factor_vertices=spread(found.factors, (slots, *factor_shape), zero).bool(),
        vertex_weights=spread(found.weights, (slots,), zero).to(scores.dtype),
        gap=spread(found.gap.clamp_min(0) * structure.curvature, (), zero),
        steps=spread(found.iterations, (), zero),
        converged=spread(found.converged, (), torch.ones_like(zero)),
        made_by=(structure.oracle_key, rows.data),
    )


class _Attached(torch.autograd.Function):
    """A solution as a function of its scores: the vertices are constants of the Jacobian."""

    @staticmethod
    def forward(ctx: Any, theta: Tensor, theta_f: Tensor, found: ActiveSet | JointSet) -> Any:
        ctx.found = found
        return found.marginals.to(theta.device), found.factor_marginals.to(theta_f.device)

    @staticmethod
    def backward(ctx: Any, in_marginals: Tensor, in_factors: Tensor) -> Any:
        device = in_marginals.device
        found = type(ctx.found)(*(part.to(device) for part in ctx.found))
        return *found.vjp(in_marginals, in_factors), None
