r"""Upper bounds from a few principal directions.

With the memories' mean c, an orthonormal basis V of r directions, :math:`x' = x - c`,
:math:`p_x = V^\top x'` and the norm :math:`\rho_x` of what V leaves of x',

.. math:: q^\top x = c^\top q + c^\top x' + p_q^\top p_x + \text{rest}, \qquad
          |\text{rest}| \le \rho_q \rho_x

(Cauchy-Schwarz). So :math:`[p_q, 1, \rho_q]^\top [p_x, c^\top x', \rho_x]` and a constant per
query bound the score by a product of r + 2 terms instead of D. Any center and any orthonormal basis
give valid bounds; the mean and the leading directions give tight ones, which is why rows may be
added later without touching either.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from hopfy._growing import Growing
from hopfy.search._bounds import Left, block_maxima, rounding

__all__ = ["Frame", "Principal", "leading_frame"]

_SAMPLE = 8192
_CHUNK = 2048


class Frame(NamedTuple):
    """A center (D,) and an orthonormal basis (D, R), both float64, leading directions first."""

    center: Tensor
    basis: Tensor

    def coordinates(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Centered rows (n, D), their coordinates (n, R), and the sizes that errors scale with."""
        wide = rows.double()
        centered = wide - self.center
        return centered, centered @ self.basis, wide.norm(dim=1) + self.center.norm()


def leading_frame(memories: Tensor, directions: int) -> Frame:
    """The mean and about the leading principal directions, from an even sample of the memories.

    Subspace iteration with a fixed start: the result is the same at every call.
    """
    step = max(1, memories.shape[0] // _SAMPLE)
    sample = memories[::step]
    center = sample.double().mean(0)
    sample = sample.double() - center
    # At unit scale no product overflows, and float32 is precise enough: any basis is valid.
    sample = (sample / sample.abs().max().clamp_min(torch.finfo(torch.float64).tiny)).float()
    width = min(memories.shape[1], directions + 16)
    generator = torch.Generator("cpu").manual_seed(0)
    basis = torch.randn(
        memories.shape[1], width, generator=generator, dtype=sample.dtype, device="cpu"
    )
    for _ in range(4):
        basis = torch.linalg.qr(sample.mT @ (sample @ basis)).Q
    rotation = torch.linalg.svd(sample @ basis, full_matrices=False).Vh.mT
    orthonormal = torch.linalg.qr((basis @ rotation).double()).Q
    return Frame(center, orthonormal[:, :directions].contiguous())


def _rest(centered: Tensor, coordinates: Tensor, sizes: Tensor) -> Tensor:
    """An upper bound on the norm of what the coordinates leave out, rounding included."""
    square = centered.square().sum(1) - coordinates.square().sum(1)
    error = rounding(8 * centered.shape[1], torch.float64) * sizes.square()
    return (square.clamp_min(0) + error).sqrt()


def _describe(rows: Tensor, frame: Frame, coarse: int) -> list[Tensor]:
    """The memories' side: coarse and fine bounds, and the sizes that rounding errors scale with."""
    centered, p, sizes = frame.coordinates(rows)
    bias = centered @ frame.center
    rest = _rest(centered, p[:, :coarse], sizes)
    fine_rest = _rest(centered, p, sizes)
    first = torch.column_stack([p[:, :coarse], bias, rest])
    fine = torch.column_stack([p[:, coarse:], fine_rest, rest])
    scales = torch.column_stack([p.norm(dim=1), bias.abs(), rest, sizes])
    return [first.float(), fine.float(), scales.float()]


class Principal:
    """Bounds from ``coarse`` directions for all memories, from the whole frame for survivors."""

    def __init__(self, stores: list[Growing], count: int, frame: Frame, coarse: int) -> None:
        self.frame, self.coarse = frame, coarse
        self._stores, self._count = stores, count
        self._right, self.fine, sizes = (store.rows(count) for store in stores)
        # They were rounded to float32; the error terms that they enter are generous.
        self._sizes = block_maxima(sizes).double()

    @classmethod
    def of(cls, memories: Tensor, frame: Frame, coarse: int) -> Principal:
        """The bounds of ``memories`` in a frame, ``coarse`` of its directions for the first."""
        coarse = min(coarse, frame.basis.shape[1])  # few memories span few directions
        tables = _described(memories, frame, coarse)
        return cls([Growing(table) for table in tables], memories.shape[0], frame, coarse)

    def extended(self, rows: Tensor) -> Principal:
        """The same with more memories at the end, in the same frame."""
        tables = _described(rows, self.frame, self.coarse)
        stores = [
            store.plus(self._count, rows.shape[0], [table])
            for store, table in zip(self._stores, tables, strict=True)
        ]
        return Principal(stores, self._count + rows.shape[0], self.frame, self.coarse)

    def taken(self, kept: Tensor) -> Principal:
        """The same for these memories only, in this order."""
        stores = [Growing(store.rows(self._count)[kept]) for store in self._stores]
        return Principal(stores, kept.numel(), self.frame, self.coarse)

    def right(self, first: int, stop: int) -> Tensor:
        return self._right[first:stop]

    def left(self, queries: Tensor) -> Left:
        centered, p, sizes = self.frame.coordinates(queries)
        rest = _rest(centered, p[:, : self.coarse], sizes)
        fine_rest = _rest(centered, p, sizes)
        ones = torch.ones_like(rest)
        vectors = torch.column_stack([p[:, : self.coarse], ones, rest])
        fine = torch.column_stack([p[:, self.coarse :], fine_rest, -rest])
        # Both bounds are float32 sums of these magnitudes; a dozen roundings surround them.
        single = rounding(p.shape[1] + 12, torch.float32)
        double = rounding(8 * centered.shape[1], torch.float64)
        scales = torch.stack([single * p.norm(dim=1), single * ones, 4 * single * rest])
        slack = self._sizes[:, :3] @ scales + double * self._sizes[:, 3:] * sizes
        slack += queries @ self.frame.center + 1e-30
        safe = slack.isfinite().all(0) & (sizes * self._sizes[:, 3].max() < 1e36)
        return Left(vectors.float(), slack, fine.float(), safe)


def _described(rows: Tensor, frame: Frame, coarse: int) -> list[Tensor]:
    count, directions = rows.shape[0], frame.basis.shape[1]
    widths = (coarse + 2, directions - coarse + 2, 4)
    tables = [torch.empty(count, width, dtype=torch.float32, device="cpu") for width in widths]
    for start in range(0, count, _CHUNK):
        chunk = slice(start, start + _CHUNK)
        for table, part in zip(tables, _describe(rows[chunk], frame, coarse), strict=True):
            table[chunk] = part
    return tables
