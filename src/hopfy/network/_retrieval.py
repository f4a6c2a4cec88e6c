"""What a retrieval found, query by query."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

import torch
from torch import Tensor

from hopfy.search import SparseRows

__all__ = ["Kind", "Retrieval", "Status"]


class Status(Enum):
    """How a retrieval ended; the values are the messages to show."""

    EXACT = "every state is a fixed point, proven by the margin"
    SETTLED = "every state is a fixed point, up to the tolerance"
    MAX_STEPS = (
        "the maximum number of steps was reached before every state settled; raise max_steps or tol"
    )
    NOT_FINITE = "some state is not finite; look for NaN or infinity in its query"


class Kind(Enum):
    """What one query ended at; the values are the words to show."""

    PATTERN = "one stored pattern, exactly"
    ASSOCIATION = "a sum of stored patterns, exactly"
    METASTABLE = "a mixture of stored patterns"
    MOVING = "not converged"


@dataclass(frozen=True, eq=False, repr=False)
class Retrieval:
    """The result of `HopfieldNetwork.retrieve`; rows are the queries, ``queries.shape[:-1]``.

    Attributes:
        state: (..., D), the final states.
        steps: (...) int64, updates that led to each state.
        converged: (...) whether the state is a fixed point, proven or up to the tolerance.
        certified: (...) whether Prop. 2 (Prop. 5 for structures) proves, rounding included, that
            the recalled pattern (or sum of patterns) is an exact fixed point of the update. A
            certified pattern is returned bit for bit, after finitely many steps; of a sum of
            patterns the rounded sum is returned.
        pattern: (...) int64, the index of the pattern that was recalled exactly, else -1.
        size: (...) int64, how many patterns take part: those with weight > 0; for maps without
            zeros (softmax) those with weight > 0.01, which may be none, and -1 if the weights
            were streamed and not kept.
        support: the positive weights that produced the states, in compressed rows (the queries in
            row-major order); None for maps without zeros.
        readout: (..., E), the same weights applied to the network's values; None without values.
        energies: (T + 1, ...), the energy before the first step and after each; None unless asked
            for. A query that has settled keeps its energy.
    """

    state: Tensor
    steps: Tensor
    converged: Tensor
    certified: Tensor
    pattern: Tensor
    size: Tensor
    support: SparseRows | None
    readout: Tensor | None = None
    energies: Tensor | None = None
    _exact: Tensor = field(default_factory=lambda: torch.empty(0))
    _dense: Tensor | None = None

    @property
    def weights(self) -> Tensor:
        """(..., N), the weights that produced the states, zeros included."""
        rows = tuple(self.steps.shape)
        if self._dense is not None:
            return self._dense.reshape(*rows, -1)
        if self.support is None:
            raise ValueError(
                "expected weights that were kept, but this retrieval streamed over the memories; "
                "compute them with network.weights(retrieval.state)."
            )
        return self.support.dense().reshape(*rows, self.support.columns)

    @property
    def status(self) -> Status:
        """How the retrieval ended, for all queries together; ``converged`` tells them apart."""
        if not bool(self.state.detach().isfinite().all()):
            return Status.NOT_FINITE
        if not bool(self.converged.all()):
            return Status.MAX_STEPS
        return Status.EXACT if bool(self.certified.all()) else Status.SETTLED

    @property
    def kind(self) -> list[Kind]:
        """What each query ended at, in row-major order."""
        rows = zip(self.converged.flatten().tolist(), self._exact.flatten().tolist(),
                   self.size.flatten().tolist(), strict=True)  # fmt: skip
        return [_kind(converged, exact, size) for converged, exact, size in rows]

    def describe(self, query: int) -> str:
        """One line about one query (counted in row-major order)."""
        kind = self.kind[query]
        size, steps = int(self.size.flatten()[query]), int(self.steps.flatten()[query])
        if kind is Kind.PATTERN:
            what = f"pattern {int(self.pattern.flatten()[query])} exactly"
        elif kind is Kind.ASSOCIATION:
            what = f"the sum of patterns {self._members(query)} exactly"
        elif kind is Kind.METASTABLE:
            what = f"a mixture of {size} pattern{'s' * (size != 1)}"
        else:
            what = "not converged"
        proof = ", certified" if bool(self.certified.flatten()[query]) else ""
        return f"{what}, after {steps} step{'s' * (steps != 1)}{proof}"

    def _members(self, query: int) -> list[int]:
        return self.support.row(query)[0].tolist() if self.support is not None else []

    def __repr__(self) -> str:
        kinds = self.kind
        queries = "query" if len(kinds) == 1 else "queries"
        lines = [f"Retrieval of {len(kinds)} {queries}: {self.status.value}"]
        for kind in Kind:
            chosen = [row for row, found in enumerate(kinds) if found is kind]
            if chosen:
                lines.append(f"  {len(chosen)} x {kind.value}{self._remark(kind, chosen)}")
        if kinds:
            lines.append(f"  steps: {int(self.steps.min())} to {int(self.steps.max())}")
        return "\n".join(lines)

    def _remark(self, kind: Kind, chosen: list[int]) -> str:
        if kind is Kind.MOVING:
            return ""
        if kind is Kind.METASTABLE:
            sizes = self.size.flatten()[chosen]
            return f" (of {int(sizes.min())} to {int(sizes.max())} patterns)"
        return f" ({int(self.certified.flatten()[chosen].sum())} certified)"


def _kind(converged: bool, exact: bool, size: int) -> Kind:
    if not converged:
        return Kind.MOVING
    if not exact:
        return Kind.METASTABLE
    return Kind.PATTERN if size == 1 else Kind.ASSOCIATION
