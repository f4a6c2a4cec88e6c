"""The map on candidates only."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from hopfy._kernels.select import Array, Found
from hopfy.omega import Omega
from hopfy.search._prepared import PreparedMap
from hopfy.search._sparse_rows import SparseRows

__all__ = [
    "best_first",
    "by_width",
    "in_slices",
    "padded_weights",
    "rows_of",
    "weights_of",
    "weights_on",
]

_NARROWEST = 8


def in_slices(rows: Array, counts: Array, limit: int) -> Iterator[Array]:
    """Successive ``rows`` with about ``limit`` candidates together, or one row with more."""
    if not rows.size:
        return
    ends = counts[rows].cumsum()
    yield from np.split(rows, np.flatnonzero(np.diff((ends - 1) // limit)) + 1)


def weights_of(
    found: Found, rows: Array, prepared: PreparedMap, beta: float | Tensor, columns: int
) -> SparseRows:
    """The map on the candidates of ``rows``, as if every other score were minus infinity.

    ``beta`` is a number, or one for each of the rows. The weights are float64.
    """
    counts = found.counts[rows]
    if rows.size and counts.max() == 1 and prepared.lead is not None:
        # Alone within the margin (Prop. 2).
        alone = found.indices[rows, 0].astype(np.int64)
        return SparseRows.of_arrays(np.arange(rows.size + 1), alone, np.ones(rows.size), columns)
    parts = []
    for places, width in by_width(counts):
        chosen, own = rows[places], _some(beta, places)
        weights = padded_weights(found, chosen, width, prepared, own)
        indices = np.zeros((chosen.size, width), np.int64)
        room = min(width, found.indices.shape[1])
        indices[:, :room] = found.indices[chosen, :room]
        here = weights > 0
        offsets = np.concatenate([[0], here.sum(1).cumsum()])
        part = SparseRows.of_arrays(offsets, indices[here], weights[here], columns)
        parts.append((torch.from_numpy(places), part))
    if not parts:
        return SparseRows.empty(0, columns, torch.empty(0, dtype=torch.float64, device="cpu"))
    return SparseRows.assemble(parts)


def _some(beta: float | Tensor, places: Array) -> float | Tensor:
    if not isinstance(beta, Tensor) or beta.ndim == 0:
        return beta
    return beta[torch.from_numpy(places)].unsqueeze(1)


def by_width(counts: Array) -> list[tuple[Array, int]]:
    """Rows with about as many candidates, and the width they are padded to.

    The width depends on the row's own count alone (a power of two), so that a row's weights do not
    depend on the other rows of the batch.
    """
    widths = 1 << np.ceil(np.log2(np.maximum(counts, 1))).astype(np.int64)
    widths = np.where(counts <= 1, 1, np.maximum(widths, _NARROWEST))
    return [(np.flatnonzero(widths == width), int(width)) for width in np.unique(widths)]


def padded_weights(
    found: Found, rows: Array, width: int, prepared: PreparedMap, beta: float | Tensor
) -> Array:
    """Weights (rows, width) of candidates in order of their index, zeros behind them.

    Scores are taken from the row's best one, which changes no weight and keeps all digits.
    """
    scores = np.full((rows.size, width), -np.inf)
    room = min(width, found.scores.shape[1])
    inside = np.arange(room) < found.counts[rows][:, None]
    scores[:, :room] = np.where(inside, found.scores[rows, :room], -np.inf)
    scores -= scores.max(1, keepdims=True)
    weights: Array = prepared(torch.from_numpy(scores) * beta).numpy()
    return weights


def best_first(found: Found, rows: Array, k: int) -> tuple[Tensor, Tensor]:
    """The k best candidates of ``rows``, best first; of equal scores the first stored counts."""
    width = int(found.counts[rows].max()) if rows.size else k
    inside = torch.from_numpy(np.arange(width) < found.counts[rows][:, None])
    scores = torch.from_numpy(found.scores[rows, :width])
    indices = torch.from_numpy(found.indices[rows, :width].astype(np.int64))
    scores = torch.where(inside, scores, -torch.inf)
    scores, order = scores.sort(dim=1, descending=True, stable=True)
    return scores[:, :k], indices.gather(1, order)[:, :k]


def rows_of(found: Found, rows: Array, columns: int) -> SparseRows:
    """All candidates of ``rows`` with their scores."""
    counts = found.counts[rows]
    inside = np.arange(int(counts.max()) if rows.size else 0) < counts[:, None]
    width = inside.shape[1]
    offsets = np.concatenate([[0], counts.cumsum()])
    indices = found.indices[rows, :width][inside].astype(np.int64)
    scores = found.scores[rows, :width][inside]
    return SparseRows.of_arrays(offsets, indices, scores, columns)


def weights_on(scores: SparseRows, omega: Omega, beta: Tensor | None = None) -> SparseRows:
    """``omega`` on the entries of each row of beta times ``scores``, as if others were minus infinity.

    The entries must contain the support; ``beta`` is (rows,). The weights are those that an
    `ExactIndex` gives for the same candidates, bit for bit, and differentiable in the scores, in
    beta and in the tensors of ``omega``.

    >>> import hopfy
    >>> rows = SparseRows.from_dense(torch.tensor([[2.0, 0.5, 1.5]], dtype=torch.float64))
    >>> weights_on(rows, hopfy.Tsallis(2.0)).row(0)
    (tensor([0, 2]), tensor([0.7500, 0.2500], dtype=torch.float64))
    """
    if (
        not torch.is_grad_enabled()
        and not omega.varies_by_row
        and scores.values.device.type == "cpu"
    ):
        return _quick_weights_on(scores, omega, beta)
    counts, row = scores.counts, scores.row_of_entry
    slot = torch.arange(row.numel(), device=row.device) - scores.offsets[row]
    theta = scores.values
    if omega.has_fixed_mass:  # a common shift changes no weight and keeps all digits
        lowest = theta.detach().new_full((scores.rows,), -torch.inf)
        theta = theta - lowest.scatter_reduce(0, row, theta.detach(), "amax")[row]
    if beta is not None:
        theta = theta * beta[row]
    values = torch.zeros_like(theta)
    for places, width in by_width(counts.cpu().numpy()):
        rows = torch.from_numpy(places).to(counts.device)
        rows = rows[counts[rows] > 0]
        number = torch.full_like(counts, -1)
        number[rows] = torch.arange(rows.numel(), device=rows.device)
        entries = (number[row] >= 0).nonzero().squeeze(1)
        where = (number[row[entries]], slot[entries])
        padded = theta.new_full((rows.numel(), width), -torch.inf).index_put(where, theta[entries])
        values = values.index_put((entries,), omega(padded)[where])
    return scores.with_values(values).nonzero()


def _quick_weights_on(scores: SparseRows, omega: Omega, beta: Tensor | None) -> SparseRows:
    """The same with arrays, which cost less than tensors where no gradient is wanted."""
    prepared = PreparedMap.of(omega)
    counts = scores.counts.numpy()
    theta = scores.values.detach().numpy()
    if theta.size and omega.has_fixed_mass:
        filled = scores.offsets.numpy()[:-1][counts > 0]
        tops = np.maximum.reduceat(theta, filled)
        theta = theta - np.repeat(tops, counts[counts > 0])
    if beta is not None:
        theta = theta * np.repeat(beta.detach().numpy(), counts)
    values = np.zeros_like(theta)
    for places, width in by_width(counts):
        rows = places[counts[places] > 0]
        if not rows.size:
            continue
        own = np.zeros(counts.size, bool)
        own[rows] = True
        entries = np.repeat(own, counts)
        inside = np.arange(width) < counts[rows][:, None]
        padded = np.full((rows.size, width), -np.inf)
        padded[inside] = theta[entries]
        values[entries] = prepared(torch.from_numpy(padded)).numpy()[inside]
    return scores.with_values(torch.from_numpy(values)).nonzero()
