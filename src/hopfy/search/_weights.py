"""Weights of many queries, kept on their support only."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hopfy._kernels import select

__all__ = ["SparseWeights"]


@dataclass(frozen=True)
class SparseWeights:
    """A (rows, columns) matrix in compressed rows: row r owns ``offsets[r]:offsets[r + 1]``.

    ``offsets`` (rows + 1,) and ``indices`` (entries,) are int64 and ``values`` (entries,) float64;
    the indices increase within a row.

    >>> import torch
    >>> weights = SparseWeights.from_dense(torch.tensor([[0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]))
    >>> weights.counts
    tensor([1, 2])
    >>> weights.indices
    tensor([1, 0, 2])
    """

    offsets: Tensor
    indices: Tensor
    values: Tensor
    columns: int

    @classmethod
    def from_dense(cls, weights: Tensor) -> SparseWeights:
        """The non-zero entries of ``weights`` (rows, columns)."""
        row, indices = (weights != 0).nonzero(as_tuple=True)
        counts = torch.bincount(row, minlength=weights.shape[0])
        return cls(_offsets(counts), indices, weights[row, indices].double(), weights.shape[1])

    @classmethod
    def assemble(cls, parts: list[tuple[Tensor, SparseWeights]], columns: int) -> SparseWeights:
        """Join parts whose rows go to the given places, which together are 0 .. rows - 1."""
        if not parts:
            none = torch.zeros(0, dtype=torch.int64)
            return cls(torch.zeros(1, dtype=torch.int64), none, none.double(), columns)
        if len(parts) == 1 and bool((parts[0][0].diff() > 0).all()):
            return parts[0][1]
        order = torch.cat([places for places, _ in parts]).argsort()
        start = torch.cat([part.offsets[:-1] for _, part in parts])
        sizes = torch.tensor([part.indices.numel() for _, part in parts])
        rows = torch.tensor([places.numel() for places, _ in parts])
        start = (start + torch.repeat_interleave(sizes.cumsum(0) - sizes, rows))[order]
        counts = torch.cat([part.counts for _, part in parts])[order]
        offsets = _offsets(counts)
        entries = torch.repeat_interleave(start - offsets[:-1], counts)
        entries += torch.arange(entries.numel())
        indices = torch.cat([part.indices for _, part in parts])[entries]
        values = torch.cat([part.values for _, part in parts])[entries]
        return cls(offsets, indices, values, columns)

    @property
    def rows(self) -> int:
        return self.offsets.numel() - 1

    @property
    def counts(self) -> Tensor:
        """The size of each row's support, shape (rows,)."""
        return self.offsets.diff()

    def dense(self) -> Tensor:
        """The whole matrix (rows, columns), float64."""
        dense = self.values.new_zeros(self.rows, self.columns)
        dense[torch.repeat_interleave(self.counts), self.indices] = self.values
        return dense

    def mix(self, table: Tensor) -> Tensor:
        """``dense() @ table`` for a table (columns, E), touching only rows in the support.

        A row with a single weight of 1 gives that row of the table bit for bit.
        """
        return select.mix(self.offsets, self.indices, self.values, table)


def _offsets(counts: Tensor) -> Tensor:
    return torch.nn.functional.pad(counts.cumsum(0), (1, 0))
