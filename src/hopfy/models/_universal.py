"""Universal Hopfield networks: similarity, separation and projection, each chosen on its own."""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from typing import Literal

import torch
from torch import Tensor

from hopfy._checks import BETA, as_patterns, as_states, check_parameter
from hopfy.network import checked_values, widened
from hopfy.omega import Omega, omega_from
from hopfy.states import Ball

__all__ = ["Similarity", "UniversalNetwork", "universal"]

Similarity = Literal["dot", "cosine", "euclidean", "manhattan"]


def _cosine(queries: Tensor, patterns: Tensor) -> Tensor:
    direction = Ball(1.0)  # of vectors of any length
    return direction(queries) @ direction(patterns).mT


def _euclidean(queries: Tensor, patterns: Tensor) -> Tensor:
    # By differences, not by products, whose rounding would move patterns far from the origin.
    return -torch.cdist(queries, patterns, compute_mode="donot_use_mm_for_euclid_dist")


_SIMILARITIES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dot": lambda queries, patterns: queries @ patterns.mT,
    "cosine": _cosine,
    "euclidean": _euclidean,
    "manhattan": lambda queries, patterns: -torch.cdist(queries, patterns, p=1.0),
}


class UniversalNetwork:
    r"""One step of recall in three parts (Millidge et al., 2022):
    :math:`z = P\, \mathrm{sep}(\beta\, \mathrm{sim}(X, q))`.

    `similarity` compares a query with every pattern, `separation` makes the best ones stand out, and
    `projection` holds what is read out for each pattern. With the dot product it is the update of
    `hopfy.HopfieldNetwork`; the other similarities have no energy of that form, so they have no
    certificates.

    Attributes:
        patterns: (N, D).
        similarity_name: ``"dot"``, ``"cosine"`` (0 for a zero vector), ``"euclidean"`` or
            ``"manhattan"`` (distances with a minus sign: the nearest is the most similar).
        separation: an `Omega`: it maps similarities to weights.
        projection: (N, E), by default the patterns.
    """

    def __init__(
        self,
        patterns: Tensor,
        similarity: Similarity = "dot",
        separation: Omega | str = "softmax",
        beta: float | Tensor = 1.0,
        projection: Tensor | None = None,
    ) -> None:
        self.patterns = as_patterns(patterns, "patterns")
        if not isinstance(similarity, str) or similarity not in _SIMILARITIES:
            near = get_close_matches(str(similarity).lower(), _SIMILARITIES, n=1)
            hint = f'; did you mean "{near[0]}"' if near else ""
            known = ", ".join(f'"{name}"' for name in _SIMILARITIES)
            raise ValueError(f"expected a similarity among {known}, got {similarity!r}{hint}.")
        check_parameter(beta, BETA)
        self.similarity_name, self.beta = similarity, beta
        self.separation = omega_from(separation)
        self.projection = self.patterns
        if projection is not None:
            self.projection = checked_values(projection, self.patterns, "projection")

    def similarity(self, queries: Tensor) -> Tensor:
        """How similar queries (..., M, D), or one (D,), are to every pattern: (..., M, N)."""
        return self._similarity(queries).to(self.patterns.dtype)

    def weights(self, queries: Tensor) -> Tensor:
        """The separated similarities (..., M, N)."""
        return self._weights(queries).to(self.patterns.dtype)

    def update(self, queries: Tensor) -> Tensor:
        """One step: the projection (..., M, E) of the weights."""
        return (self._weights(queries) @ widened(self.projection)).to(self.patterns.dtype)

    def retrieve(self, queries: Tensor, max_steps: int = 1) -> Tensor:
        """So many steps; the next one starts from what the last one found."""
        if isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
            raise ValueError(f"expected max_steps of at least 1, got {max_steps!r}.")
        if max_steps > 1 and self.projection.shape != self.patterns.shape:
            raise ValueError(
                "expected a projection shaped like the patterns for more than one step, got "
                f"{tuple(self.projection.shape)}; use max_steps=1."
            )
        for _ in range(max_steps):
            queries = self.update(queries)
        return queries

    def _similarity(self, queries: Tensor) -> Tensor:
        queries = as_states(queries, self.patterns)
        rows = widened(queries.unsqueeze(0) if queries.ndim == 1 else queries)
        found = _SIMILARITIES[self.similarity_name](rows, widened(self.patterns))
        return found.squeeze(0) if queries.ndim == 1 else found

    def _weights(self, queries: Tensor) -> Tensor:
        similarity, beta = self._similarity(queries), self.beta
        if isinstance(beta, Tensor) and beta.ndim:
            beta = beta.unsqueeze(-1)
        return self.separation(beta * similarity)

    def __repr__(self) -> str:
        return (
            f"UniversalNetwork({tuple(self.patterns.shape)}, similarity={self.similarity_name!r}, "
            f"separation={self.separation}, beta={self.beta})"
        )


def universal(
    patterns: Tensor,
    similarity: Similarity = "dot",
    separation: Omega | str = "softmax",
    beta: float | Tensor = 1.0,
    projection: Tensor | None = None,
) -> UniversalNetwork:
    r"""Millidge et al. (2022): :math:`z = P\, \mathrm{sep}(\beta\, \mathrm{sim}(X, q))`.

    Args:
        patterns: (N, D).
        similarity: ``"dot"``, ``"cosine"``, ``"euclidean"`` or ``"manhattan"``.
        separation: an omega or its name; ``"inf-entmax"`` takes the best pattern alone.
        beta: inverse temperature of the separation; a tensor broadcasts over the queries (..., M).
        projection: (N, E), what to read out; by default the patterns.

    >>> import torch, hopfy
    >>> patterns = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    >>> net = hopfy.models.universal(patterns, "manhattan", "sparsemax")
    >>> net.similarity(torch.tensor([1.0, 0.0]))
    tensor([-1., -6.])
    >>> net.update(torch.tensor([1.0, 0.0]))
    tensor([0., 0.])
    """
    return UniversalNetwork(patterns, similarity, separation, beta, projection)
