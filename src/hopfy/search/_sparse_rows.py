"""Weights of many queries, kept on their support only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hopfy._kernels import select

__all__ = ["SparseRows"]


@dataclass(frozen=True)
class SparseRows:
    """A (rows, columns) matrix in compressed rows: row r owns ``offsets[r]:offsets[r + 1]``.

    ``offsets`` (rows + 1,) and ``indices`` (entries,) are int64, ``values`` (entries,) floating.
    The indices increase within a row, so equal matrices have equal fields.

    >>> import torch
    >>> rows = SparseRows.from_dense(torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]))
    >>> rows.counts
    tensor([1, 2])
    >>> rows.row(1)
    (tensor([0, 2]), tensor([0.5000, 0.5000]))
    """

    offsets: Tensor
    indices: Tensor
    values: Tensor
    columns: int

    @classmethod
    def from_dense(cls, weights: Tensor) -> SparseRows:
        """The non-zero entries of ``weights`` (rows, columns); gradients flow to them."""
        row, indices = (weights.detach() != 0).nonzero(as_tuple=True)
        counts = torch.bincount(row, minlength=weights.shape[0])
        return cls(_offsets(counts), indices, weights[row, indices], weights.shape[1])

    @classmethod
    def empty(cls, rows: int, columns: int, values: Tensor) -> SparseRows:
        """A matrix of zeros, with values in the dtype and on the device of ``values``."""
        none = torch.zeros(rows + 1, dtype=torch.int64, device=values.device)
        return cls(none, none[:0], values.new_zeros(0), columns)

    @classmethod
    def of_arrays(cls, offsets: Any, indices: Any, values: Any, columns: int) -> SparseRows:
        """From NumPy arrays, which are not copied."""
        return cls(
            torch.from_numpy(offsets), torch.from_numpy(indices), torch.from_numpy(values), columns
        )

    @classmethod
    def assemble(cls, parts: Sequence[tuple[Tensor, SparseRows]]) -> SparseRows:
        """Join parts whose rows go to the given places, which together are 0 .. rows - 1."""
        if len(parts) == 1 and bool((parts[0][0].diff() > 0).all()):
            return parts[0][1]
        if any(part.values.requires_grad for _, part in parts):
            order = torch.cat([places for places, _ in parts]).argsort()
            return cls.stack([part for _, part in parts]).take(order)
        like = parts[0][1]
        counts = like.offsets.new_empty(sum(part.rows for _, part in parts))
        for places, part in parts:
            counts[places] = part.counts
        offsets = _offsets(counts)
        indices = like.indices.new_empty(int(offsets[-1]))
        values = like.values.new_empty(indices.numel())
        for places, part in parts:
            target = part._placed(offsets, places)
            indices[target], values[target] = part.indices, part.values
        return cls(offsets, indices, values, like.columns)

    def _placed(self, offsets: Tensor, places: Tensor) -> Tensor | slice:
        """Where the entries go if the rows go to ``places`` of a matrix with these ``offsets``."""
        first = offsets[places]
        if bool((places.diff() == 1).all()) and first.numel():
            return slice(int(first[0]), int(first[0]) + self.indices.numel())
        shift = torch.repeat_interleave(first - self.offsets[:-1], self.counts)
        return shift.add_(torch.arange(shift.numel(), device=shift.device))

    @classmethod
    def stack(cls, parts: Sequence[SparseRows]) -> SparseRows:
        """One matrix below the other."""
        if len(parts) == 1:
            return parts[0]
        counts = torch.cat([part.counts for part in parts])
        indices = torch.cat([part.indices for part in parts])
        values = torch.cat([part.values for part in parts])
        return cls(_offsets(counts), indices, values, parts[0].columns)

    @property
    def rows(self) -> int:
        return self.offsets.numel() - 1

    @property
    def counts(self) -> Tensor:
        """How many entries each row has, shape (rows,)."""
        return self.offsets.diff()

    @property
    def row_of_entry(self) -> Tensor:
        return torch.repeat_interleave(self.counts)

    @property
    def is_one_hot(self) -> Tensor:
        """Which rows are one entry of weight 1, (rows,)."""
        if not self.values.numel():
            return torch.zeros_like(self.counts, dtype=torch.bool)
        first = self.offsets[:-1].clamp_max(self.values.numel() - 1)
        return (self.counts == 1) & (self.values.detach()[first] == 1)

    def row(self, r: int) -> tuple[Tensor, Tensor]:
        """The indices and the values of one row."""
        part = slice(int(self.offsets[r]), int(self.offsets[r + 1]))
        return self.indices[part], self.values[part]

    def take(self, rows: Tensor) -> SparseRows:
        """These rows, in this order."""
        counts = self.counts[rows]
        offsets = _offsets(counts)
        first = torch.repeat_interleave(self.offsets[rows] - offsets[:-1], counts)
        entries = first + torch.arange(first.numel(), device=first.device)
        return SparseRows(offsets, self.indices[entries], self.values[entries], self.columns)

    def without(self, rows: Tensor) -> SparseRows:
        """The same with these rows (rows,), booleans, empty."""
        kept = ~torch.repeat_interleave(rows, self.counts)
        offsets = _offsets(torch.where(rows, 0, self.counts))
        return SparseRows(offsets, self.indices[kept], self.values[kept], self.columns)

    def nonzero(self) -> SparseRows:
        """The same without entries of value zero."""
        return self.kept(self.values.detach() != 0)

    def kept(self, kept: Tensor) -> SparseRows:
        """Only the entries where ``kept`` (entries,) is True."""
        counts = torch.bincount(self.row_of_entry[kept], minlength=self.rows)
        return SparseRows(_offsets(counts), self.indices[kept], self.values[kept], self.columns)

    def with_values(self, values: Tensor) -> SparseRows:
        """Other values on the same support."""
        return SparseRows(self.offsets, self.indices, values, self.columns)

    def to(self, dtype: torch.dtype) -> SparseRows:
        """The same with values of another dtype."""
        return SparseRows(self.offsets, self.indices, self.values.to(dtype), self.columns)

    def dense(self) -> Tensor:
        """The whole matrix (rows, columns)."""
        zeros = self.values.new_zeros(self.rows, self.columns)
        return zeros.index_put((self.row_of_entry, self.indices), self.values)

    def to_sparse(self) -> Tensor:
        """The same as a sparse (coordinate) tensor of torch."""
        places = torch.stack((self.row_of_entry, self.indices))
        return torch.sparse_coo_tensor(
            places, self.values, (self.rows, self.columns), check_invariants=True
        ).coalesce()

    def matmul(self, table: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """``dense() @ table`` for a table (columns, E); touches only its rows in the support.

        Without gradients, sums run in float64 and are rounded once to ``dtype`` (the table's),
        with no scratch memory. A row with one entry of weight 1 gives that row of the table bit for bit.
        """
        if torch.is_grad_enabled() and (self.values.requires_grad or table.requires_grad):
            products = self.values.unsqueeze(-1) * table[self.indices]
            zeros = products.new_zeros(self.rows, table.shape[-1])
            return zeros.index_add(0, self.row_of_entry, products)
        values, table = self.values.detach(), table.detach()
        return select.mix(self.offsets, self.indices, values, table.contiguous(), dtype)


def _offsets(counts: Tensor) -> Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))
