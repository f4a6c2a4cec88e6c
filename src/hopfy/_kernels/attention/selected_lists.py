"""What rows of attention select, as lists: made, multiplied with values, differentiated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hopfy._kernels.attention.cpu_plan import KINDS, Selected, Support
from hopfy._runtime.threads import over_rows

__all__ = ["compacted", "drop", "edges_of", "gather", "list_gradients"]


def compacted(
    kernels: Any, found: Selected, generator: torch.Generator | None = None, dropout: float = 0.0
) -> Support:
    """The selected entries of a block, without the room that they did not need."""
    scores, counts, columns = found
    edges = edges_of(counts)
    chosen = int(edges[-1])
    weights, kept_columns = scores.new_empty(chosen), columns.new_empty(chosen)
    arrays = (x.numpy() for x in (scores, columns, edges, weights, kept_columns))
    over_rows(kernels.compact, scores.shape[0], chosen, *arrays)
    kept = drop(weights, generator, dropout) if dropout else weights.new_empty(0)
    return Support(weights, kept_columns, edges, kept)


def edges_of(counts: Tensor) -> Tensor:
    """Where the list of each row begins and the last one ends."""
    edges = torch.zeros(counts.numel() + 1, dtype=torch.int64)
    torch.cumsum(counts, 0, out=edges[1:])
    return edges


def drop(weights: Tensor, generator: torch.Generator | None, dropout: float) -> Tensor:
    """0 or 1 / (1 - dropout) for each weight, drawn."""
    kept = torch.empty_like(weights, memory_format=torch.contiguous_format)
    kept.bernoulli_(1 - dropout, generator=generator)
    return kept.mul_(1 / (1 - dropout)) if dropout < 1 else kept


def gather(kernels: Any, part: Support, values: Tensor, output: Tensor, first: int) -> None:
    """Rows of the output from ``first`` on: the selected values, by their weights."""
    weights = part.weights * part.kept if part.kept.numel() else part.weights
    arrays = (x.numpy() for x in (weights, part.columns, part.edges, values, output))
    work = weights.numel() * values.shape[2]
    over_rows(kernels.gather, part.edges.numel() - 1, work, *arrays, first)


def list_gradients(
    state: Any,
    support: Support | None,
    inputs: tuple[Tensor, Tensor, Tensor],
    cotangent: Tensor,
    wanted: bool,
) -> tuple[tuple[Tensor, Tensor, Tensor], Tensor]:
    """Gradients of the inputs and, if wanted, of the parameter of each row (G, R), in float64.

    ``state`` has the kernels, the family, its ``alpha`` and ``steep``, and the scale. Without lists
    all gradients are zeros.
    """
    queries, keys, values = inputs
    gradients = torch.zeros_like(queries), torch.zeros_like(keys), torch.zeros_like(values)
    in_parameter = torch.zeros(queries.shape[:2] if wanted else (0,), dtype=torch.float64)
    if support is None:
        return gradients, in_parameter
    over_rows(
        state.kernels.backward,
        queries.shape[0],
        support.weights.numel() * values.shape[2] * 4,
        *(part.numpy() for part in support),
        tuple(x.numpy() for x in inputs),
        cotangent.numpy(),
        tuple(x.numpy() for x in gradients),
        state.alpha,
        in_parameter.view(-1).numpy(),
        KINDS[state.family.kind],
        queries.numpy().dtype.type(state.scale),
        True if wanted else state.steep,
    )
    return gradients, in_parameter
