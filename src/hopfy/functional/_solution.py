"""What the SparseMAP solvers return besides the marginals."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum

from torch import Tensor

from hopfy._renamed import renamed_attributes

__all__ = ["SparseMAPSolution", "SparseMAPStatus"]


class SparseMAPStatus(str, Enum):
    """How a solve ended; each value is the message to show."""

    CONVERGED = "the duality gap is closed to the tolerance in every row."
    MAX_STEPS = (
        "the maximum number of steps was reached before the duality gap was closed in every row; "
        "raise max_steps or tol, or start from this solution."
    )

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True, eq=False)
class SparseMAPSolution:
    """Marginals, and the few structures that they are a mixture of.

    With scores (..., *event):

    Attributes:
        marginals: (..., *event), differentiable.
        factor_marginals: (..., *factor) of the higher-order terms, differentiable; size 0 if there are
            none.
        vertices: (..., S, *event) bits, the active structures, the heaviest first. Rows with fewer
            than the S of the fullest row end with zeros. For a `FactorGraph` with factors that share
            variables these are the local structures of its factors, embedded in all variables.
        factor_vertices: (..., S, *factor) bits.
        vertex_weights: (..., S), positive for the active structures and zero after them.
        gap: (...) duality gap, an upper bound on what the objective is short of its maximum.
        steps: (...) oracle calls.
        converged: (...) whether the gap is closed to the tolerance.
        made_by: what tells the structures from others; a start must come from the same ones.
    """

    marginals: Tensor
    factor_marginals: Tensor
    vertices: Tensor
    factor_vertices: Tensor
    vertex_weights: Tensor
    gap: Tensor
    steps: Tensor
    converged: Tensor
    made_by: tuple[Hashable, tuple[Tensor, ...]] = field(repr=False)

    __getattr__ = renamed_attributes(iterations="steps")

    @property
    def status(self) -> SparseMAPStatus:
        """How the solve ended, for all rows together; ``converged`` tells them apart."""
        return (
            SparseMAPStatus.CONVERGED if bool(self.converged.all()) else SparseMAPStatus.MAX_STEPS
        )

    @property
    def support_size(self) -> Tensor:
        """(...) how many structures are active: at most one more than there are entries.

        In a factor graph that holds for each factor.
        """
        return (self.vertex_weights > 0).sum(-1)
