r"""Attention that never holds all its weights: scores by blocks, then the selected entries only.

For each block of queries the scores :math:`Q X^\top` go into one small reused buffer; the map keeps
the few entries it selects, and :math:`Y V`, and the whole backward pass, touch only these. For
queries and memories of length N this keeps :math:`O(N \cdot \text{support})` numbers in place of
:math:`O(N^2)`.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy._runtime.compilation import compiled, runs_compiled
from hopfy._runtime.threads import over_rows

__all__ = ["Family", "Support", "backward", "entmax_family", "forward", "normmax_family"]

# Entries of scores in flight: 4 MB of float32 stay in a shared cache.
_BLOCK = 1 << 20
# Above this share of selected entries, dense products are faster.
_SPARSE = 0.25


class Family(NamedTuple):
    """A map by its threshold equation; see `hopfy._kernels.threshold.reference`."""

    margin: float
    gamma: float
    exponent: float
    alpha: float
    norm: bool


def entmax_family(alpha: float) -> Family:
    """Alpha-entmax, 1 < alpha <= 2."""
    return Family(1 / (alpha - 1), 1 / (alpha - 1), 1 / (alpha - 1), alpha, norm=False)


def normmax_family(alpha: float) -> Family:
    """Alpha-normmax, 1 < alpha < inf."""
    return Family(1.0, alpha / (alpha - 1), 1 / (alpha - 1), alpha, norm=True)


class Support(NamedTuple):
    """The selected entries of all rows, one after the other: row r is ``edges[r]:edges[r + 1]``."""

    weights: Tensor
    columns: Tensor
    edges: Tensor
    kept: Tensor  # 0 or 1 / (1 - dropout) for each weight; empty without dropout


def forward(
    queries: Tensor,
    memories: Tensor,
    values: Tensor,
    forbidden: Tensor | None,
    family: Family,
    dropout: float = 0.0,
) -> tuple[Tensor, Support] | None:
    """Output (G, M, E) of contiguous queries (G, M, D), memories (G, N, D), values (G, N, E).

    ``forbidden`` is True where nothing may be selected, and broadcasts to (G, M, N). The answer is
    None where the compiled loops cannot run, where scores could overflow, or where the first block
    of queries selects so much that dense products are faster.
    """
    kernels = compiled("attention.cpu") if runs_compiled(queries) else None
    if kernels is None or not _finite_scores(queries, memories):
        return None
    groups, rows, _ = queries.shape
    count = memories.shape[1]
    output = queries.new_empty(groups, rows, values.shape[2])
    parts: list[tuple[Tensor, ...]] = []
    counts = torch.empty(groups * rows, dtype=torch.int64)
    blocks = _blocks(groups, rows, count)
    largest = max((g.stop - g.start) * (m.stop - m.start) for g, m in blocks)
    buffer = queries.new_empty(largest, count)
    columns = torch.empty(largest, count, dtype=torch.int32)
    # Typed, or a float32 row would be computed in float64.
    equation = [buffer.numpy().dtype.type(number) for number in family[:3]]
    for g, m in blocks:
        size = (g.stop - g.start) * (m.stop - m.start)
        scores = buffer[:size]
        block = scores.view(g.stop - g.start, m.stop - m.start, count)
        torch.bmm(queries[g, m], memories[g].mT, out=block)
        if forbidden is not None:
            block.masked_fill_(_part(forbidden, g, m), -torch.inf)
        first = g.start * rows + m.start
        here = counts[first : first + size]
        arrays = scores.numpy(), columns.numpy(), here.numpy()
        over_rows(kernels.select, size, size * count, *arrays, *equation)
        chosen = int(here.sum())
        if first == 0 and chosen > _SPARSE * size * count:
            return None
        part = _compacted(kernels, scores, columns, here, dropout)
        _gather(kernels, part, values, output, first)
        parts.append((part.weights, part.columns, part.kept))
    weights, chosen_columns, kept = (torch.cat(part) for part in zip(*parts, strict=True))
    return output, Support(weights, chosen_columns, _edges(counts), kept)


def backward(
    support: Support,
    queries: Tensor,
    memories: Tensor,
    values: Tensor,
    cotangent: Tensor,
    family: Family,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of queries, memories and values; all tensors contiguous, as in `forward`."""
    kernels: Any = compiled("attention.cpu")
    inputs = queries, memories, values
    gradients = tuple(torch.zeros_like(x) for x in inputs)
    work = support.weights.numel() * values.shape[2] * 4
    over_rows(
        kernels.backward,
        queries.shape[0],
        work,
        *(part.numpy() for part in support),
        tuple(x.numpy() for x in inputs),
        cotangent.numpy(),
        tuple(x.numpy() for x in gradients),
        family.alpha,
        family.norm,
    )
    return gradients  # type: ignore[return-value]


def _finite_scores(queries: Tensor, memories: Tensor) -> bool:
    """Whether no score can be NaN or infinite; false for NaN inputs."""
    if not queries.numel() or not memories.numel():
        return False
    largest = torch.linalg.vector_norm(queries, math.inf) * torch.linalg.vector_norm(
        memories, math.inf
    )
    return bool(largest * queries.shape[2] < torch.finfo(queries.dtype).max / 4)


def _blocks(groups: int, rows: int, count: int) -> list[tuple[slice, slice]]:
    """Whole groups together while they fit into a block, else parts of one group."""
    if rows * count >= _BLOCK:
        step = max(1, _BLOCK // count)
        return [
            (slice(g, g + 1), slice(m, min(m + step, rows)))
            for g in range(groups)
            for m in range(0, rows, step)
        ]
    step = max(1, _BLOCK // (rows * count))
    return [(slice(g, min(g + step, groups)), slice(0, rows)) for g in range(0, groups, step)]


def _part(forbidden: Tensor, g: slice, m: slice) -> Tensor:
    part = forbidden if forbidden.shape[0] == 1 else forbidden[g]
    return part if part.shape[1] == 1 else part[:, m]


def _edges(counts: Tensor) -> Tensor:
    edges = torch.zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=edges[1:])
    return edges


def _compacted(
    kernels: Any, scores: Tensor, columns: Tensor, counts: Tensor, dropout: float
) -> Support:
    """The selected entries of a block, without the room that they did not need."""
    edges = _edges(counts)
    chosen = int(edges[-1])
    weights, kept_columns = scores.new_empty(chosen), columns.new_empty(chosen)
    arrays = (x.numpy() for x in (scores, columns, edges, weights, kept_columns))
    over_rows(kernels.compact, scores.shape[0], chosen, *arrays)
    kept = scores.new_empty(chosen if dropout else 0)
    kept.bernoulli_(1 - dropout).mul_(1 / (1 - dropout))
    return Support(weights, kept_columns, edges, kept)


def _gather(kernels: Any, part: Support, values: Tensor, output: Tensor, first: int) -> None:
    weights = part.weights * part.kept if part.kept.numel() else part.weights
    arrays = (x.numpy() for x in (weights, part.columns, part.edges, values, output))
    work = weights.numel() * values.shape[2]
    over_rows(kernels.gather, part.edges.numel() - 1, work, *arrays, first)
