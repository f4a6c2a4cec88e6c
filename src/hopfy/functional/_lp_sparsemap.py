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

from collections import defaultdict
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._kernels import active_set
from hopfy._kernels.active_set import ActiveSet
from hopfy.structures import FactorGraph, Rows, Structure

__all__ = ["JointSet", "solve_graph"]

_INNER_ITERATIONS = 500
_INNER_TOL = 1e-13
# The linear systems are tried after this many rounds, and then ever more rarely.
_FIRST_TRY = 4
_POSITIVE = -1e-10
# How far above their typical size scores may be, and the size from which all are scaled down.
_WITHIN = 100.0
_SHRINK = 1e8
_EXACTLY = 1e-13


class Layout(NamedTuple):
    """Which factor covers which variable."""

    cover: Tensor  # (F, n) bool

    @property
    def degree(self) -> Tensor:
        """(n,) in how many factors a variable is."""
        return self.cover.sum(0)

    @property
    def free(self) -> Tensor:
        """(n,) bool: in no factor."""
        return self.degree == 0


class JointSet(NamedTuple):
    """The active structures of all factors, one factor after the other."""

    vertices: Tensor  # (B, S, n) int8, zero outside the factor's variables
    factors: Tensor  # (B, S, f) int8, zero outside the factor's own terms
    weights: Tensor  # (B, S) float64: those of one factor sum to one
    marginals: Tensor  # (B, n) float64
    gap: Tensor  # (B,)
    iterations: Tensor  # (B,)
    converged: Tensor  # (B,)
    owner: Tensor  # (S,) long: the factor of a slot
    cover: Tensor  # (F, n) bool

    @property
    def factor_marginals(self) -> Tensor:
        """(B, f) float64."""
        return torch.einsum("bs,bsf->bf", self.weights, self.factors.double())

    def vjp(self, in_marginals: Tensor, in_factors: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients in the scores and in the factor scores, by the implicit Jacobian."""
        system = _System.of(self)
        along = torch.einsum("bsn,bn->bs", system.averages, in_marginals)
        along = along + torch.einsum("bsf,bf->bs", self.factors.double(), in_factors)
        change = torch.einsum("bst,bt->bs", system.sensitivity, along)
        inside = (self.marginals > 0) & (self.marginals < 1) & ~self.cover.any(0)
        in_scores = torch.einsum("bsn,bs->bn", system.averages, change)
        in_scores = in_scores + torch.where(inside, in_marginals, 0.0)
        return in_scores, torch.einsum("bsf,bs->bf", self.factors.double(), change)


class _System(NamedTuple):
    """Weights p of the active structures: each factor's sum to one, and all factors agree."""

    averages: Tensor  # (B, S, n): y = averages' p, the mean of the factors that hold a variable
    constraints: Tensor  # (B, K, S): constraints p = wanted
    wanted: Tensor  # (K,)
    sensitivity: Tensor  # (B, S, S): change of p for a change of the structures' scores

    @staticmethod
    def of(joint: JointSet) -> _System:
        degree, count = joint.cover.sum(0), joint.cover.shape[0]
        A = joint.vertices.double()
        here = (joint.weights > 0).double()
        mine = torch.nn.functional.one_hot(joint.owner, max(count, 1)).mT[:count].double()
        averages = A / degree.clamp_min(1) * here[..., None]
        factor, variable = (joint.cover & (degree > 1)).nonzero().unbind(1)
        copies = mine[factor] * A[:, :, variable].mT - averages[:, :, variable].mT
        sums = mine.expand(A.shape[0], *mine.shape)
        constraints = torch.cat([sums, copies], 1) * here[:, None]
        wanted = torch.cat([A.new_ones(count), A.new_zeros(len(factor))])
        # Directions that keep all constraints; slots without a structure do not move.
        keep = torch.diag_embed(here) - torch.linalg.pinv(constraints, rtol=1e-9) @ constraints
        curvature = keep @ averages @ averages.mT @ keep
        curvature = (curvature + curvature.mT) / 2
        # An absolute threshold: where nothing can move, rounding must not be inverted.
        sensitivity = torch.linalg.pinv(curvature, hermitian=True, atol=1e-9, rtol=1e-9)
        return _System(averages, constraints, wanted, sensitivity)


class _Group:
    """Factors that share an oracle, solved together: row b * G + g is factor g of row b."""

    def __init__(self, graph: FactorGraph, members: list[int], rows: list[Rows]) -> None:
        self.structure: Structure = graph.factors[members[0]].structure
        self.members = members
        self.variables = torch.tensor([graph.factors[m].variables for m in members], device="cpu")
        self.shape = graph.factors[members[0]].shape
        parts = [rows[m] for m in members]

        def stack(tensors: list[Tensor]) -> Tensor:
            return torch.stack(tensors, 1).flatten(0, 1)

        self.rows = Rows(
            stack([part.scores.flatten(1) for part in parts]),
            stack([part.factor_scores for part in parts]),
            tuple(stack(list(data)) for data in zip(*(part.data for part in parts), strict=True)),
            stack([part.place for part in parts]),
            parts[0].batch,
        )
        count, slots = self.rows.scores.shape[0], 1
        self.vertices = torch.zeros(
            count, slots, self.rows.scores.shape[1], dtype=torch.int8, device="cpu"
        )
        self.factors = torch.zeros(
            count, slots, self.rows.factor_scores.shape[1], dtype=torch.int8, device="cpu"
        )
        self.weights = torch.ones(count, slots, dtype=torch.float64, device="cpu")
        self.alive = (self.rows.scores > -torch.inf).any(1)
        self.gap = torch.zeros(count, dtype=torch.float64, device="cpu")
        self.iterations = torch.zeros(count, dtype=torch.long, device="cpu")
        self.closed = torch.ones(count, dtype=torch.bool, device="cpu")
        if bool(self.alive.any()):
            which = self.alive.nonzero()[:, 0]
            first = self.oracle(which, self.rows.scores[which], self.rows.factor_scores[which])
            start = self.structure.feasible(self._shaped(which), first)
            self.vertices[which, 0], self.factors[which, 0] = start[0].flatten(1), start[1]

    def _shaped(self, which: Tensor) -> Rows:
        rows = self.rows.take(which)
        return rows._replace(scores=rows.scores.reshape(-1, *self.shape))

    def oracle(self, which: Tensor, scores: Tensor, scored: Tensor) -> tuple[Tensor, Tensor]:
        rows = self.rows.take(which, scores.reshape(-1, *self.shape))
        bits, factors = self.structure.oracle(rows._replace(factor_scores=scored))
        return bits.flatten(1), factors

    def keep(self, rows: Tensor) -> None:
        """Go on with some rows of the batch only."""
        size = len(self.members)
        which = (rows[:, None] * size + torch.arange(size, device="cpu")).flatten()
        self.rows = self.rows.take(which)
        self.vertices, self.factors = self.vertices[which], self.factors[which]
        self.weights, self.alive = self.weights[which], self.alive[which]
        self.gap, self.closed = self.gap[which], self.closed[which]
        self.iterations = self.iterations[which]

    def local(self, whole: Tensor) -> Tensor:
        """(B, n) -> (B * G, n_f): what the factors see of the variables."""
        return whole[:, self.variables].flatten(0, 1)

    def repeated(self, per_row: Tensor) -> Tensor:
        """(B,) -> (B * G, 1)."""
        return per_row.repeat_interleave(len(self.members))[:, None]

    def solve(
        self,
        scores: Tensor,
        rho: Tensor,
        tol: float = _INNER_TOL,
        max_steps: int = _INNER_ITERATIONS,
    ) -> Tensor:
        """SparseMAP of every factor from where it was; returns its marginals (B * G, n_f)."""
        marginals = torch.zeros_like(scores)
        which = self.alive.nonzero()[:, 0]
        if len(which) == 0:
            return marginals
        scores = torch.where(self.rows.scores > -torch.inf, scores, -torch.inf)[which]
        scored = (self.rows.factor_scores / rho)[which]
        found = active_set.solve(
            scores,
            scored,
            lambda rows, gradient: self.oracle(which[rows], gradient, scored[rows]),
            start=(self.vertices[which], self.factors[which], self.weights[which]),
            tol=tol,
            max_steps=max_steps,
        )
        self._store(which, found)
        marginals[which] = found.marginals
        return marginals

    def _store(self, which: Tensor, found: ActiveSet) -> None:
        count, slots = self.weights.shape[0], found.weights.shape[1]
        vertices = torch.zeros(count, slots, self.vertices.shape[2], dtype=torch.int8, device="cpu")
        factors = torch.zeros(count, slots, self.factors.shape[2], dtype=torch.int8, device="cpu")
        weights = torch.zeros(count, slots, dtype=torch.float64, device="cpu")
        weights[:, 0] = 1
        vertices[which], factors[which] = found.vertices, found.factors
        weights[which] = found.weights
        self.gap[which], self.closed[which] = found.gap, found.converged
        self.iterations[which] = found.iterations
        self.vertices, self.factors, self.weights = vertices, factors, weights

    def best(self, messages: Tensor) -> Tensor:
        """The value of the best structure (B * G,) for the messages as scores."""
        value = messages.new_zeros(messages.shape[0])
        which = self.alive.nonzero()[:, 0]
        if len(which) == 0:
            return value
        open_scores = torch.where(self.rows.scores > -torch.inf, messages, -torch.inf)[which]
        scored = self.rows.factor_scores[which]
        bits, factors = self.oracle(which, open_scores, scored)
        unary = torch.where(bits > 0, open_scores, 0.0).sum(1)
        value[which] = unary + torch.where(factors > 0, scored, 0.0).sum(1)
        return value


class _Problem:
    """Scores and groups of the rows that are still open."""

    def __init__(self, graph: FactorGraph, rows: Rows) -> None:
        parts = graph.parts(rows)
        self.present = rows.scores > -torch.inf
        self.scores = torch.where(self.present, rows.scores, 0.0)
        self.factor_scores = torch.where(rows.factor_scores > -torch.inf, rows.factor_scores, 0.0)
        members: dict[Hashable, list[int]] = defaultdict(list)
        for f, factor in enumerate(graph.factors):
            members[factor.structure.oracle_key, factor.shape].append(f)
        self.groups = [_Group(graph, every, parts) for every in members.values()]
        cover = torch.zeros(
            len(graph.factors), rows.scores.shape[1], dtype=torch.bool, device="cpu"
        )
        for f, factor in enumerate(graph.factors):
            cover[f, list(factor.variables)] = True
        self.layout = Layout(cover)
        sizes = [part.factor_scores.shape[1] for part in parts]
        self.offsets = torch.tensor([0, *sizes], device="cpu").cumsum(0)
        self.index = torch.arange(rows.scores.shape[0], device="cpu")

    def keep(self, which: Tensor) -> None:
        for group in self.groups:
            group.keep(which)
        self.scores, self.factor_scores = self.scores[which], self.factor_scores[which]
        self.present, self.index = self.present[which], self.index[which]

    def clipped(self) -> Tensor:
        """What free bits would be."""
        return torch.where(self.present, self.scores.clamp(0, 1), 0.0)

    def gathered(self) -> JointSet:
        """The active structures of all groups side by side, in all variables."""
        count, n = self.scores.shape
        f = int(self.offsets[-1])
        vertices, factors, weights, owner = [], [], [], []
        for group in self.groups:
            size = len(group.members)
            for g, member in enumerate(group.members):
                local = group.vertices[g::size]
                slots = local.shape[1]
                wide = torch.zeros(count, slots, n, dtype=torch.int8, device="cpu")
                wide[:, :, group.variables[g]] = local
                terms = torch.zeros(count, slots, f, dtype=torch.int8, device="cpu")
                here = slice(int(self.offsets[member]), int(self.offsets[member + 1]))
                terms[:, :, here] = group.factors[g::size]
                vertices.append(wide)
                factors.append(terms)
                weights.append(group.weights[g::size])
                owner.extend([member] * slots)
        nothing = torch.zeros(count, 0, dtype=torch.float64, device="cpu")
        joint = JointSet(
            torch.cat([torch.zeros(count, 0, n, dtype=torch.int8, device="cpu"), *vertices], 1),
            torch.cat([torch.zeros(count, 0, f, dtype=torch.int8, device="cpu"), *factors], 1),
            torch.cat([nothing, *weights], 1),
            self.clipped(),
            torch.full((count,), torch.inf, dtype=torch.float64, device="cpu"),
            torch.zeros(count, dtype=torch.long, device="cpu"),
            torch.zeros(count, dtype=torch.bool, device="cpu"),
            torch.tensor(owner, dtype=torch.long, device="cpu"),
            self.layout.cover,
        )
        return joint._replace(marginals=self.mixed(joint))

    def mixed(self, joint: JointSet) -> Tensor:
        """Marginals from the weights: the mean over the factors that hold a variable."""
        mean = torch.einsum("bs,bsn->bn", joint.weights, joint.vertices.double())
        mean = mean / self.layout.degree.clamp_min(1)
        return torch.where(self.layout.free, self.clipped(), mean)


def solve_graph(graph: FactorGraph, rows: Rows, tol: float, max_steps: int) -> JointSet:
    """The joint active set of all rows (float64, on the CPU, no row spoiled).

    Large scores would cost the others their digits, so they are first brought closer to zero in a
    way that can be checked afterward (`_Tamed`); rows that fail the check are solved as they are.
    """
    count = rows.scores.shape[0]
    if count == 0:
        return _Problem(graph, rows).gathered()
    finished: list[tuple[Tensor, JointSet]] = []
    left = torch.arange(count, device="cpu")
    for attempt in (0, 1, 2):
        tamed = _Tamed.of(rows.take(left), attempt)
        joint = _solve_tamed(graph, tamed.rows, tol, max_steps)
        holds = tamed.holds(joint)
        finished.append((left[holds], _select(joint, holds)))
        left = left[~holds]
        if len(left) == 0:
            break
    return finished[0][1] if len(finished) == 1 else _collected(finished, count)


def _solve_tamed(graph: FactorGraph, rows: Rows, tol: float, max_steps: int) -> JointSet:
    problem = _Problem(graph, rows)
    if not graph.overlaps:
        return _apart(problem, tol, max_steps)
    return _together(problem, tol, max_steps)


class _Tamed(NamedTuple):
    r"""Rows whose large scores are replaced by smaller ones, and what makes that harmless.

    Raising a negative score leaves the solution alone if its entry is 0 there: for all y,
    :math:`f_\theta(y) \le f_{\theta'}(y) \le f_{\theta'}(y^*) = f_\theta(y^*)`. The same holds for
    lowering a positive score whose entry is 1. And a solution of zeros and ones stays optimal if
    all scores grow by the same factor.
    """

    rows: Rows
    low: Tensor  # (B, n + f) bool: raised, so the entry must be 0
    high: Tensor  # (B, n + f) bool: lowered, so the entry must be 1
    shrunk: Tensor  # (B,) bool: multiplied by a factor below 1, so all entries must be 0 or 1

    @staticmethod
    def of(rows: Rows, attempt: int) -> _Tamed:
        """Scores within some multiple of their typical size; as they are in the last attempt."""
        whole = torch.cat([rows.scores, rows.factor_scores], 1)
        present = whole > -torch.inf
        size = torch.where(present, whole.abs(), 0.0)
        n = rows.scores.shape[1]
        # Padding may be most of a row: what is typical shows first in the smallest scores.
        share = (0.0, 0.5, torch.inf)[attempt]
        typical = torch.maximum(_quantile(size[:, :n], share), _quantile(size[:, n:], share))
        limit = _WITHIN * (1 + typical)
        low, high = present & (whole < -limit), whole > limit
        whole = torch.where(present, whole.clamp(-limit, limit), whole)
        most = torch.where(present, whole.abs(), 0.0).amax(1, keepdim=True)
        shrunk = (most > _SHRINK) & (attempt < 2)
        whole = torch.where(shrunk & present, whole * (_WITHIN / most.clamp_min(1)), whole)
        tamed = rows._replace(scores=whole[:, :n], factor_scores=whole[:, n:])
        return _Tamed(tamed, low, high, shrunk[:, 0])

    def holds(self, joint: JointSet) -> Tensor:
        """(B,) bool: whether the solution solves the original rows as well."""
        if not bool((self.low | self.high).any() | self.shrunk.any()):
            return torch.ones(len(self.shrunk), dtype=torch.bool, device="cpu")
        y = torch.cat([joint.marginals, joint.factor_marginals], 1)
        zero, one = y <= _EXACTLY, y >= 1 - _EXACTLY
        holds = (~self.low | zero).all(1) & (~self.high | one).all(1)
        binary = (zero | one)[:, : joint.marginals.shape[1]].all(1)
        return holds & (~self.shrunk | binary)


def _quantile(size: Tensor, share: float) -> Tensor:
    """The quantile (B, 1) of the sizes that are not zero; 0 if there are none."""
    if share > 1:
        return size.new_full((size.shape[0], 1), torch.inf)
    count = (size > 0).sum(1, keepdim=True)
    ordered = torch.where(size > 0, size, torch.inf).sort(1).values
    ordered = torch.nn.functional.pad(ordered, (0, 1), value=torch.inf)
    found = ordered.gather(1, ((count - 1).clamp_min(0) * share).long())
    return torch.where(count > 0, found, 0.0)


def _apart(problem: _Problem, tol: float, max_steps: int) -> JointSet:
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


def _together(problem: _Problem, tol: float, max_steps: int) -> JointSet:
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
            finished.append((problem.index[done], _select(joint, done)))
            left = (~done).nonzero()[:, 0]
            if len(left) == 0:
                break
            if len(left) < len(y):
                messages = [_of_rows(m, len(y), left) for m in messages]
                problem.keep(left)
                y, before, rho, apart = y[left], before[left], rho[left], apart[left]
        rho = _balanced(rho, apart.sqrt(), ((y - before).square() * degree).sum(1).sqrt())
    return _collected(finished, count)


def _scatter(group: _Group, values: Tensor, onto: Tensor) -> None:
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


def _polished(problem: _Problem, messages: list[Tensor], tol: float) -> JointSet:
    """Solve exactly on the active structures, and measure the gap with messages that fit them."""
    joint = problem.gathered()
    system = _System.of(joint)
    bits, terms = joint.vertices.double(), joint.factors.double()
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
    fitted = _fitted(problem, joint, bits, terms, messages)
    primal = (problem.scores * y - y.square() / 2).sum(1)
    primal = primal + torch.einsum("bs,bsf,bf->b", mended, terms, problem.factor_scores)
    gap = _dual(problem, fitted) - primal
    size = 1 + primal.abs() + (problem.scores.abs() * y).sum(1)
    closed = positive & (gap <= tol + 1e-11 * size)
    apart = agree.abs().amax(1) if agree.shape[1] else gap * 0
    return joint._replace(gap=torch.where(positive, gap, gap.abs() + apart), converged=closed)


def _dual(problem: _Problem, messages: list[Tensor]) -> Tensor:
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


def _fitted(
    problem: _Problem, joint: JointSet, bits: Tensor, terms: Tensor, messages: list[Tensor]
) -> list[Tensor]:
    """The messages next to the given ones for which the active structures of each factor tie.

    Unknown are a correction for each factor's copy of each variable, and the value of each factor.
    """
    count, n = problem.scores.shape
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
    short = torch.where(held, problem.scores - joint.marginals - wide.sum(1), 0.0)
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


def _select(joint: JointSet, which: Tensor) -> JointSet:
    shared = {"owner": joint.owner, "cover": joint.cover}
    parts = {name: part[which] for name, part in joint._asdict().items() if name not in shared}
    return JointSet(**parts, **shared)


def _collected(finished: list[tuple[Tensor, JointSet]], count: int) -> JointSet:
    """Rows that ended at different times, in their order, in as many slots as all need."""
    factors = finished[0][1].cover.shape[0]
    room = torch.zeros(factors, dtype=torch.long, device="cpu")
    for _, joint in finished:
        room = torch.maximum(room, torch.bincount(joint.owner, minlength=factors))
    begin = room.cumsum(0) - room
    first = finished[0][1]
    slots = int(room.sum())
    whole = JointSet(
        torch.zeros(count, slots, first.vertices.shape[2], dtype=torch.int8, device="cpu"),
        torch.zeros(count, slots, first.factors.shape[2], dtype=torch.int8, device="cpu"),
        torch.zeros(count, slots, dtype=torch.float64, device="cpu"),
        torch.zeros(count, first.marginals.shape[1], dtype=torch.float64, device="cpu"),
        torch.zeros(count, dtype=torch.float64, device="cpu"),
        torch.zeros(count, dtype=torch.long, device="cpu"),
        torch.zeros(count, dtype=torch.bool, device="cpu"),
        torch.repeat_interleave(torch.arange(factors, device="cpu"), room),
        first.cover,
    )
    for index, joint in finished:
        seen = torch.zeros(factors, dtype=torch.long, device="cpu")
        place = []
        for owner in joint.owner.tolist():
            place.append(int(begin[owner] + seen[owner]))
            seen[owner] += 1
        at = torch.tensor(place, dtype=torch.long, device="cpu")
        for name in ("vertices", "factors", "weights"):
            getattr(whole, name)[index[:, None], at] = getattr(joint, name)
        for name in ("marginals", "gap", "iterations", "converged"):
            getattr(whole, name)[index] = getattr(joint, name)
    return whole
