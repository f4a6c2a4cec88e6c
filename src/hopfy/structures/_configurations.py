"""All configurations of a few variables with several values each."""

from __future__ import annotations

import math
from collections.abc import Hashable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hopfy.structures._base import Rows, Structure, flat_rows

__all__ = ["Configurations"]


@dataclass(frozen=True, eq=False)
class Configurations(Structure):
    r"""One value for each of several variables, and a score for every configuration.

    Variable v has :math:`N_v` values. Scores are (..., :math:`\sum_v N_v`), the values of the first
    variable, then those of the second, and so on; a structure has one bit per variable. There are
    :math:`\prod_v N_v` configurations, and the best is found by looking at all of them.

    Args:
        sizes: the number of values :math:`N_v` of each variable.
        table: (:math:`N_1, N_2, \ldots`), the score of each configuration; leading dimensions broadcast
            over the rows. A tensor that requires a gradient gets one. A score of ``-inf`` forbids a
            configuration.

    A value that is masked is not taken. A variable whose values are all masked is not there; then
    the table does not count, as it scores configurations of all variables.

    >>> import torch, hopfy
    >>> table = torch.tensor([[0.0, 1.0], [0.0, 0.0], [2.0, 0.0]])
    >>> colors = hopfy.structures.Configurations((3, 2), table)
    >>> colors.argmax(torch.tensor([0.5, 0.2, 0.0, 0.0, 0.4]))
    tensor([0., 0., 1., 1., 0.])
    """

    sizes: tuple[int, ...]
    table: float | Tensor = 0.0
    family = "configurations"
    has_fixed_mass = True

    def __post_init__(self) -> None:
        sizes = tuple(int(size) for size in self.sizes)
        if not sizes or min(sizes) < 1:
            raise ValueError(
                f"expected Configurations of variables with at least one value each, got {sizes}."
            )
        object.__setattr__(self, "sizes", sizes)

    @property
    def varies_by_row(self) -> bool:
        return isinstance(self.table, Tensor) and self.table.ndim > len(self.sizes)

    @property
    def largest_mass(self) -> float:
        return float(len(self.sizes))

    def scale_factors(self, scale: float | Tensor) -> Structure:
        if isinstance(scale, Tensor):
            scale = scale.reshape(scale.shape[:-1] + (1,) * len(self.sizes))
        return replace(self, table=self.table * scale)

    @property
    def oracle_key(self) -> Hashable:
        return type(self), self.sizes

    def rows(self, scores: Tensor) -> Rows:
        if scores.shape[-1] != sum(self.sizes):
            raise ValueError(
                f"expected {sum(self.sizes)} scores for Configurations of {self.sizes} values, got "
                f"scores of shape {tuple(scores.shape)}."
            )
        table = torch.as_tensor(self.table, dtype=torch.float64, device=scores.device)
        try:
            table = table.expand(*scores.shape[:-1], *self.sizes)
        except RuntimeError:
            raise ValueError(
                f"expected a table of shape {self.sizes} for Configurations, alone or for each row "
                f"of the scores of shape {tuple(scores.shape)}, got shape {tuple(table.shape)}."
            ) from None
        return flat_rows(scores, 1, table)

    def _parts(self, scores: Tensor) -> list[Tensor]:
        """The values (R, N_v) of each variable."""
        return list(torch.split(scores, list(self.sizes), dim=-1))

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        count, total = len(rows.scores), math.prod(self.sizes)
        parts = self._parts(rows.scores)
        there = [(part > -torch.inf).any(-1) for part in parts]
        scored = rows.factor_scores.reshape(count, *self.sizes)
        whole = torch.stack(there).all(0)
        scored = torch.where(whole.reshape(-1, *(1,) * len(self.sizes)), scored, 0.0)
        for place, (part, present) in enumerate(zip(parts, there, strict=True)):
            part = torch.where(present[:, None], part, 0.0)
            shape = [count] + [1] * len(self.sizes)
            shape[place + 1] = self.sizes[place]
            scored = scored + part.reshape(shape)
        flat = scored.reshape(count, total)
        best = flat.argmax(-1)
        found = []
        for size, index, present in zip(
            self.sizes, torch.unravel_index(best, self.sizes), there, strict=True
        ):
            bits = torch.nn.functional.one_hot(index, size)
            found.append(torch.where(present[:, None], bits, 0).to(torch.int8))
        impossible = flat.amax(-1) == -torch.inf
        bits = torch.where(impossible[:, None], -1, torch.cat(found, -1)).to(torch.int8)
        factors = torch.nn.functional.one_hot(best, total) * whole[:, None]
        return bits, factors.to(torch.int8)

    def factor_shape(self, event: torch.Size) -> tuple[int, ...]:  # noqa: ARG002
        return self.sizes

    def factors_of(self, bits: Tensor, rows: Rows) -> Tensor:
        product = bits.new_ones((bits.shape[0], 1))
        for part in self._parts(bits):
            product = (product[:, :, None] * part[:, None, :]).flatten(1)
        return product.to(rows.scores)
