"""The active structures of a factor graph, and the linear system that their weights solve."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

__all__ = ["JointSet", "System", "collected", "selected"]


class JointSet(NamedTuple):
    """The active structures of all factors, one factor after the other."""

    vertices: Tensor  # (B, S, n) int8, zero outside the factor's variables
    factors: Tensor  # (B, S, f) int8, zero outside the factor's own terms
    weights: Tensor  # (B, S) float64: those of one factor sum to one
    marginals: Tensor  # (B, n) float64
    gap: Tensor  # (B,)
    iterations: Tensor  # (B,)
    converged: Tensor  # (B,)
    scalable: Tensor  # (B,) bool: known to stay optimal if all scores grow by one factor
    owner: Tensor  # (S,) long: the factor of a slot
    cover: Tensor  # (F, n) bool

    @property
    def factor_marginals(self) -> Tensor:
        """(B, f) float64."""
        return torch.einsum("bs,bsf->bf", self.weights, self.factors.double())

    def vjp(self, in_marginals: Tensor, in_factors: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients in the scores and in the factor scores, by the implicit Jacobian."""
        system = System.of(self)
        along = torch.einsum("bsn,bn->bs", system.averages, in_marginals)
        along = along + torch.einsum("bsf,bf->bs", self.factors.double(), in_factors)
        change = torch.einsum("bst,bt->bs", system.sensitivity, along)
        inside = (self.marginals > 0) & (self.marginals < 1) & ~self.cover.any(0)
        in_scores = torch.einsum("bsn,bs->bn", system.averages, change)
        in_scores = in_scores + torch.where(inside, in_marginals, 0.0)
        return in_scores, torch.einsum("bsf,bs->bf", self.factors.double(), change)


class System(NamedTuple):
    """Weights p of the active structures: each factor's sum to one, and all factors agree."""

    averages: Tensor  # (B, S, n): y = averages' p, the mean of the factors that hold a variable
    constraints: Tensor  # (B, K, S): constraints p = wanted
    wanted: Tensor  # (K,)
    sensitivity: Tensor  # (B, S, S): change of p for a change of the structures' scores

    @staticmethod
    def of(joint: JointSet) -> System:
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
        return System(averages, constraints, wanted, sensitivity)


def selected(joint: JointSet, which: Tensor) -> JointSet:
    shared = {"owner": joint.owner, "cover": joint.cover}
    parts = {name: part[which] for name, part in joint._asdict().items() if name not in shared}
    return JointSet(**parts, **shared)


def collected(finished: list[tuple[Tensor, JointSet]], count: int) -> JointSet:
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
        for name in ("marginals", "gap", "iterations", "converged", "scalable"):
            getattr(whole, name)[index] = getattr(joint, name)
    return whole
