"""The rows of a factor graph: their scores, and their factors grouped by oracle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._kernels import active_set
from hopfy._kernels.active_set import ActiveSet
from hopfy.functional._joint_set import JointSet
from hopfy.structures import FactorGraph, Rows, Structure

__all__ = ["FactorGroup", "GraphProblem"]

_INNER_ITERATIONS = 500
_INNER_TOL = 1e-13


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


class FactorGroup:
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


class GraphProblem:
    """Scores and groups of the rows that are still open."""

    def __init__(self, graph: FactorGraph, rows: Rows) -> None:
        parts = graph.parts(rows)
        self.present = rows.scores > -torch.inf
        self.scores = torch.where(self.present, rows.scores, 0.0)
        self.factor_scores = torch.where(rows.factor_scores > -torch.inf, rows.factor_scores, 0.0)
        members: dict[Hashable, list[int]] = defaultdict(list)
        for f, factor in enumerate(graph.factors):
            members[factor.structure.oracle_key, factor.shape].append(f)
        self.groups = [FactorGroup(graph, every, parts) for every in members.values()]
        cover = torch.zeros(
            len(graph.factors), rows.scores.shape[1], dtype=torch.bool, device="cpu"
        )
        for f, factor in enumerate(graph.factors):
            cover[f, list(factor.variables)] = True
        self.layout = Layout(cover)
        sizes = [part.factor_scores.shape[1] for part in parts]
        self.offsets = torch.tensor([0, *sizes], device="cpu").cumsum(0)
        self.index = torch.arange(rows.scores.shape[0], device="cpu")
        self.was_scaled = False  # whether some rows must be solved for larger scores, too

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
