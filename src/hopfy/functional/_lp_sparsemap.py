r"""LP-SparseMAP: SparseMAP over factors that share variables, by dual decomposition.

With a copy :math:`u_f` of its variables for every factor the problem is

.. math:: \max_{y, u} \langle\theta, y\rangle - \tfrac12\|y\|^2 + \sum_f \langle\theta_f, u_f^F\rangle
    \quad\text{s.t.}\quad [u_f; u_f^F] \in \mathrm{conv}(\mathcal Y_f),\ u_f = y|_f.

Messages :math:`\nu_f` price the agreement, and an alternating direction method updates them: a factor
solves SparseMAP over its own structures for the scores :math:`y|_f + \nu_f/\rho`, the variables average,
and :math:`\nu_f` moves by :math:`\rho\,(y|_f - u_f)` (Niculae & Martins, 2020). This finds the active
structures of all factors long before it finds the last digits, so those come from one linear
system: weights that are optimal on the active structures, and messages for which these tie.
If the weights are positive and no structure beats the ties, the dual value
:math:`\tfrac12\|\theta - \sum_f \nu_f\|^2 + \sum_f \max_f(\nu_f, \theta_f)` equals the primal one and the
row is done, to the last digit. The same system gives the Jacobian.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.functional._factor_groups import FactorGroup, GraphProblem
from hopfy.functional._joint_set import JointSet, System, collected, selected
from hopfy.functional._reduced_rows import ReducedRows
from hopfy.structures import FactorGraph, Rows

__all__ = ["JointSet", "solve_graph"]

# The linear systems are tried after this many rounds, and then ever more rarely.
_FIRST_TRY = 4
_POSITIVE = -1e-10
# Gaps below this share of the objective are rounding errors.
_ROUNDING = 1e-11


def solve_graph(graph: FactorGraph, rows: Rows, tol: float, max_steps: int) -> JointSet:
    """The joint active set of all rows (float64, on the CPU, no row spoiled).

    Large scores would cost the others their digits, so they are first brought closer to zero in a
    way that can be checked afterward (`ReducedRows`); rows that fail the check are solved as they are.
    """
    count = rows.scores.shape[0]
    if count == 0:
        return GraphProblem(graph, rows).gathered()
    finished: list[tuple[Tensor, JointSet]] = []
    left = torch.arange(count, device="cpu")
    for attempt in (0, 1, 2):
        reduced = ReducedRows.of(rows.take(left), attempt)
        joint = _solve_reduced(graph, reduced, tol, max_steps)
        holds = reduced.holds(joint)
        finished.append((left[holds], selected(joint, holds)))
        left = left[~holds]
        if len(left) == 0:
            break
    return finished[0][1] if len(finished) == 1 else collected(finished, count)


def _solve_reduced(
    graph: FactorGraph, reduced: ReducedRows, tol: float, max_steps: int
) -> JointSet:
    problem = GraphProblem(graph, reduced.rows)
    problem.was_scaled = bool(reduced.shrunk.any())
    if not graph.overlaps:
        return _apart(problem, tol, max_steps)
    return _together(problem, tol, max_steps)


def _apart(problem: GraphProblem, tol: float, max_steps: int) -> JointSet:
    """Factors that share nothing: each is a SparseMAP of its own."""
    count = problem.scores.shape[0]
    one = torch.ones(count, dtype=torch.float64, device="cpu")
    gap, closed = (
        torch.zeros(count, dtype=torch.float64, device="cpu"),
        torch.ones(count, dtype=torch.bool, device="cpu"),
    )
    iterations = torch.zeros(count, dtype=torch.long, device="cpu")
    for group in problem.groups:
        group.solve(group.local(problem.scores), group.repeated(one), tol, max_steps)
        gap = gap + group.gap.clamp_min(0).reshape(count, -1).sum(1)
        closed = closed & group.closed.reshape(count, -1).all(1)
        iterations = torch.maximum(iterations, group.iterations.reshape(count, -1).amax(1))
    joint = problem.gathered()
    return joint._replace(gap=gap, converged=closed, iterations=iterations)


def _together(problem: GraphProblem, tol: float, max_steps: int) -> JointSet:
    """Alternate until the active structures solve the whole problem."""
    count = problem.scores.shape[0]
    degree = problem.layout.degree
    y = problem.clipped()
    rho = torch.ones(count, dtype=torch.float64, device="cpu")
    surplus = (problem.scores - y) / degree.clamp_min(1)
    messages = [group.local(surplus) for group in problem.groups]
    finished: list[tuple[Tensor, JointSet]] = []
    next_try = _FIRST_TRY
    for iteration in range(1, max_steps + 1):
        total, pull, apart = (
            torch.zeros_like(y),
            torch.zeros_like(y),
            torch.zeros(len(y), device="cpu").double(),
        )
        copies = []
        for group, message in zip(problem.groups, messages, strict=True):
            per_factor = group.repeated(rho)
            copy = group.solve(group.local(y) + message / per_factor, per_factor)
            copies.append(copy)
            _scatter(group, copy, total)
            _scatter(group, message, pull)
        before = y
        y = (problem.scores - pull + rho[:, None] * total) / (1 + rho[:, None] * degree)
        y = torch.where(problem.layout.free | ~problem.present, problem.clipped(), y)
        for i, group in enumerate(problem.groups):
            off = group.local(y) - copies[i]
            messages[i] = messages[i] + group.repeated(rho) * off
            apart += off.square().reshape(len(y), -1).sum(1)
        if iteration >= next_try or iteration == max_steps:
            next_try = iteration + max(_FIRST_TRY, iteration // 4)
            joint = _polished(problem, messages, tol)._replace(
                iterations=torch.full((len(y),), iteration, device="cpu")
            )
            done = joint.converged | (iteration == max_steps)
            finished.append((problem.index[done], selected(joint, done)))
            left = (~done).nonzero()[:, 0]
            if len(left) == 0:
                break
            if len(left) < len(y):
                messages = [_of_rows(m, len(y), left) for m in messages]
                problem.keep(left)
                y, before, rho, apart = y[left], before[left], rho[left], apart[left]
        rho = _balanced(rho, apart.sqrt(), ((y - before).square() * degree).sum(1).sqrt())
    return collected(finished, count)


def _scatter(group: FactorGroup, values: Tensor, onto: Tensor) -> None:
    """Add what the factors of a group say about their variables."""
    onto.index_add_(1, group.variables.flatten(), values.reshape(onto.shape[0], -1))


def _of_rows(local: Tensor, count: int, which: Tensor) -> Tensor:
    """What belongs to some of the ``count`` rows, of values (B * G, n_f)."""
    size = local.shape[0] // count
    return local.reshape(count, size, -1)[which].reshape(len(which) * size, -1)


def _balanced(rho: Tensor, apart: Tensor, moved: Tensor) -> Tensor:
    """A larger step price where factors disagree more than the variables move, and conversely."""
    up, down = apart > 10 * rho * moved, rho * moved > 10 * apart
    return torch.where(up, rho * 2, torch.where(down, rho / 2, rho)).clamp(1e-4, 1e6)


def _polished(problem: GraphProblem, messages: list[Tensor], tol: float) -> JointSet:
    """Solve exactly on the active structures, and measure the gap with messages that fit them."""
    joint = problem.gathered()
    system = System.of(joint)
    terms = joint.factors.double()
    scores = torch.einsum("bsn,bn->bs", system.averages, problem.scores)
    scores = scores + torch.einsum("bsf,bf->bs", terms, problem.factor_scores)
    inverse = torch.linalg.pinv(system.constraints, rtol=1e-9)
    base = inverse @ system.wanted
    drift = scores - torch.einsum(
        "bsn,bn->bs", system.averages, torch.einsum("bsn,bs->bn", system.averages, base)
    )
    weights = base + torch.einsum("bst,bt->bs", system.sensitivity, drift)
    agree = (system.constraints @ weights[..., None])[..., 0] - system.wanted
    positive = (weights >= _POSITIVE).all(1) & (agree.abs() <= 1e-9).all(1)
    # A structure whose exact weight is zero was a passing guess: it need not tie with the others.
    exact = torch.where(weights > -_POSITIVE, weights, 0.0)
    mended = torch.where(positive[:, None], exact, joint.weights)
    joint = joint._replace(weights=mended)
    joint = joint._replace(marginals=problem.mixed(joint))
    y = joint.marginals
    fitted = _fitted(problem, joint, y, messages)
    linear = (problem.scores * y).sum(1)
    linear = linear + torch.einsum("bs,bsf,bf->b", mended, terms, problem.factor_scores)
    primal = linear - y.square().sum(1) / 2
    gap = _dual(problem, fitted) - primal
    size = 1 + primal.abs() + (problem.scores.abs() * y).sum(1)
    closed = positive & (gap <= tol + _ROUNDING * size)
    apart = agree.abs().amax(1) if agree.shape[1] else gap * 0
    joint = joint._replace(gap=torch.where(positive, gap, gap.abs() + apart), converged=closed)
    if problem.was_scaled:
        lead = _linear_dual(problem, joint, fitted) - linear
        joint = joint._replace(scalable=closed & (lead.abs() <= _ROUNDING * size))
    return joint


def _dual(problem: GraphProblem, messages: list[Tensor]) -> Tensor:
    """An upper bound on the objective (B,)."""
    y = problem.scores.clone()
    value = torch.zeros(len(y), dtype=torch.float64, device="cpu")
    for group, message in zip(problem.groups, messages, strict=True):
        pull = torch.zeros_like(y)
        _scatter(group, message, pull)
        y = y - pull
        value = value + group.best(message).reshape(len(y), -1).sum(1)
    covered = torch.where(problem.present & ~problem.layout.free, y, 0.0).square().sum(1) / 2
    free = problem.clipped()
    alone = torch.where(problem.layout.free, problem.scores * free - free.square() / 2, 0.0)
    return value + covered + alone.sum(1)


def _linear_dual(problem: GraphProblem, joint: JointSet, messages: list[Tensor]) -> Tensor:
    r"""An upper bound (B,) on the objective without its regularizer; infinite if none was found.

    If it is reached, the solution is optimal for the scores alone, hence for all their multiples
    above one: the gradient's cone of optimality contains both summands of
    :math:`c\,\theta - y = (c - 1)\,\theta + (\theta - y)`.
    """
    y, degree = joint.marginals, problem.layout.degree.clamp_min(1)
    shares = [
        message + group.local(y / degree)
        for group, message in zip(problem.groups, messages, strict=True)
    ]
    fitted = _fitted(problem, joint, torch.zeros_like(y), shares)
    pull = torch.zeros_like(y)
    value = torch.where(problem.layout.free, problem.scores.clamp_min(0), 0.0).sum(1)
    for group, message in zip(problem.groups, fitted, strict=True):
        _scatter(group, message, pull)
        value = value + group.best(message).reshape(len(y), -1).sum(1)
    held = problem.present & ~problem.layout.free
    short = torch.where(held, (problem.scores - pull).abs(), 0.0).amax(1)
    return torch.where(short <= _ROUNDING * (1 + problem.scores.abs().amax(1)), value, torch.inf)


def _fitted(
    problem: GraphProblem, joint: JointSet, slack: Tensor, messages: list[Tensor]
) -> list[Tensor]:
    """The messages next to the given ones for which the active structures of each factor tie.

    They sum to the scores less ``slack`` (B, n): the marginals, or zero for the linear problem.
    Unknown are a correction for each factor's copy of each variable, and the value of each factor.
    """
    count, n = problem.scores.shape
    bits, terms = joint.vertices.double(), joint.factors.double()
    cover, degree = joint.cover, joint.cover.sum(0)
    factor, variable = cover.nonzero().unbind(1)
    here = (joint.weights > 0).double()
    mine = torch.nn.functional.one_hot(joint.owner, cover.shape[0]).double()  # (S, F)
    wide = torch.zeros(count, cover.shape[0], n, dtype=torch.float64, device="cpu")
    for group, message in zip(problem.groups, messages, strict=True):
        for g, member in enumerate(group.members):
            local = message[g :: len(group.members)]
            wide[:, member, group.variables[g]] = local
    ties = torch.cat([mine[:, factor] * bits[:, :, variable], -mine.expand(count, -1, -1)], 2)
    ties = ties * here[..., None]
    value = torch.einsum("bsn,bsn->bs", bits, wide[:, joint.owner])
    value = value + torch.einsum("bsf,bf->bs", terms, problem.factor_scores)
    # Measured from each factor's mean, so that the least correction is near the given messages.
    value = (value - (value * joint.weights) @ mine @ mine.mT) * here
    held = problem.present & (degree > 0)
    sums = torch.nn.functional.one_hot(variable, n).mT.double() * held[..., None]
    sums = torch.cat([sums, sums.new_zeros(count, n, cover.shape[0])], 2)
    short = torch.where(held, problem.scores - slack - wide.sum(1), 0.0)
    system, wanted = torch.cat([ties, sums], 1), torch.cat([-value, short], 1)
    found = (torch.linalg.pinv(system, rtol=1e-11) @ wanted[..., None])[..., 0]
    wide[:, factor, variable] += found[:, : len(factor)]
    fitted = []
    for group in problem.groups:
        rows = torch.stack(
            [wide[:, m][:, group.variables[g]] for g, m in enumerate(group.members)], 1
        )
        fitted.append(rows.flatten(0, 1))
    return fitted
