"""What the SparseMAP solvers return besides the marginals."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from torch import Tensor

__all__ = ["SparseMAPSolution", "Status"]


class Status(str, Enum):
    """How a solve ended; each value is the sentence to show."""

    CONVERGED = "the duality gap is closed to the tolerance in every row."
    OUT_OF_ITERATIONS = (
        "the maximum number of iterations was reached before the duality gap was closed in every row; "
        "raise max_iter or tol, or start from this solution."
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
        iterations: (...) oracle calls.
        converged: (...) whether the gap is closed to the tolerance.
    """

    marginals: Tensor
    factor_marginals: Tensor
    vertices: Tensor
    factor_vertices: Tensor
    vertex_weights: Tensor
    gap: Tensor
    iterations: Tensor
    converged: Tensor

    @property
    def status(self) -> Status:
        """The sentence about the solve as a whole."""
        return Status.CONVERGED if bool(self.converged.all()) else Status.OUT_OF_ITERATIONS

    @property
    def support_size(self) -> Tensor:
        """(...) how many structures are active: at most one more than there are entries."""
        return (self.vertex_weights > 0).sum(-1)
