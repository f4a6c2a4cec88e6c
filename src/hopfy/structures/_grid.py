"""Structures of several dimensions over a flat list of items."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from hopfy._checks import masked
from hopfy._facts import IndexTarget
from hopfy.structures._base import Rows, Structure

__all__ = ["Grid"]


@dataclass(frozen=True, eq=False)
class Grid(Structure):
    r"""A structure of several dimensions whose entries are N items laid out row by row.

    Networks and layers have one dimension of memories, while `Matching`, `Tree` and `Chain` score a
    grid. ``Grid(Matching(), (3, 4))`` is the same set of structures over :math:`N = 3 \cdot 4` items:
    item :math:`4 i + j` stands for the pair (i, j).

    Args:
        structure: whose ``event_dims`` are the dimensions of the grid.
        shape: the grid; its product is the number of items.

    >>> import torch, hopfy
    >>> from hopfy.structures import Grid, Matching
    >>> pairs = Grid(Matching(), (2, 2))
    >>> hopfy.functional.sparsemap(torch.tensor([2.0, 0.0, 0.0, 1.0]), pairs)
    tensor([1., 0., 0., 1.])
    """

    structure: Structure
    shape: tuple[int, ...]
    family = "grid"

    def __post_init__(self) -> None:
        if not isinstance(self.structure, Structure):
            raise TypeError(f"expected a Grid of a structure, got {self.structure!r}.")
        object.__setattr__(self, "shape", tuple(int(size) for size in self.shape))
        if len(self.shape) != self.structure.event_dims or min(self.shape) < 1:
            raise ValueError(
                f"expected a shape of {self.structure.event_dims} positive sizes for "
                f"{type(self.structure).__name__}, got {self.shape}."
            )

    @classmethod
    def _decoded(cls, key: str, value: Any) -> Any:
        return Structure.from_spec(value) if key == "structure" else super()._decoded(key, value)

    @property
    def curvature(self) -> float:  # type: ignore[override]
        return self.structure.curvature

    @property
    def margin(self) -> float:
        return self.structure.margin

    @property
    def has_factors(self) -> bool:
        return self.structure.has_factors

    @property
    def varies_by_row(self) -> bool:
        return self.structure.varies_by_row

    @property
    def has_fixed_mass(self) -> bool:
        return self.structure.has_fixed_mass

    @property
    def largest_mass(self) -> float | Tensor | None:
        return self.structure.largest_mass

    @property
    def oracle_key(self) -> Hashable:
        return type(self), self.shape, self.structure.oracle_key

    def unfolded(self, flat: Tensor) -> Tensor:
        """Items (..., N) as the grid (..., *shape)."""
        size = torch.Size(self.shape).numel()
        if flat.shape[-1] != size:
            raise ValueError(
                f"expected {size} items for a grid of shape {self.shape}, got {flat.shape[-1]}; the "
                "memories of a network are laid out row by row."
            )
        return _unflattened(flat, self.shape)

    def rows(self, scores: Tensor) -> Rows:
        inner = self.structure.rows(self.unfolded(scores))
        return inner._replace(scores=inner.scores.flatten(1))

    def _inner(self, rows: Rows) -> Rows:
        return rows._replace(scores=_unflattened(rows.scores, self.shape))

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        bits, factors = self.structure.oracle(self._inner(rows))
        return bits.flatten(1), factors

    def factor_shape(self, event: torch.Size) -> tuple[int, ...] | None:  # noqa: ARG002
        return self.structure.factor_shape(torch.Size(self.shape))

    def factors_of(self, bits: Tensor, rows: Rows) -> Tensor:
        return self.structure.factors_of(_unflattened(bits, self.shape), self._inner(rows))

    def slope(self, weights: Tensor) -> Tensor:
        return self.structure.slope(weights)

    def regularizer(self, weights: Tensor) -> Tensor:
        return self.structure.regularizer(self.unfolded(weights))

    def solve(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor | None:
        solved = self.structure.solve(self.unfolded(masked(scores, mask).movedim(dim, -1)))
        return None if solved is None else solved.flatten(-len(self.shape)).movedim(-1, dim)

    def scale_factors(self, scale: float | Tensor) -> Structure:
        return replace(self, structure=self.structure.scale_factors(scale))

    def marginals(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        marginals, factors = self.structure.marginals(self.unfolded(scores))
        return marginals.flatten(-len(self.shape)), factors

    def violation(self, weights: Tensor, present: Tensor) -> Tensor:
        return self.structure.violation(self.unfolded(weights), self.unfolded(present))

    def target_from(self, indices: Tensor, scores: Tensor, ignore_index: int) -> IndexTarget:
        grid = self.unfolded(scores)
        found = self.structure.target_from(indices, grid, ignore_index)
        present = found.present
        if present is not None:
            present = present.expand(grid.shape).flatten(-len(self.shape))
        return IndexTarget(found.weights.flatten(-len(self.shape)), present)


def _unflattened(flat: Tensor, shape: tuple[int, ...]) -> Tensor:
    return flat.reshape(*flat.shape[:-1], *shape)
