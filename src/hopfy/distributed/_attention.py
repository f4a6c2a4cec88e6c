r"""Attention to memories that are spread over processes: :math:`\hat y_\Omega(\beta Q X^\top) V`.

Every process holds all queries and its own columns of the scores. Softmax merges by log-sum-exp.
Maps whose parts can be merged (`Omega.merges_by_support`) send the scores of their own supports and
solve one small problem per query; all others send all scores. Gradients follow the rules of
`hopfy.distributed._collectives`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from hopfy._facts import Reach
from hopfy.distributed._collectives import for_shards, gathered, summed
from hopfy.distributed._group import Group
from hopfy.distributed._shard import Layout
from hopfy.omega import Omega

__all__ = ["Memories", "attend", "scaled_gradient"]


class Memories(NamedTuple):
    """Keys (heads, n, D) and values (heads, n, E) of this process, and who holds what."""

    keys: Tensor
    values: Tensor
    layout: Layout
    group: Group


def attend(
    queries: Tensor,
    memories: Memories,
    omega: Omega | nn.Module,
    mask: Tensor | None,
    dropout: float,
    need_weights: bool,
) -> tuple[Tensor, Tensor | None]:
    """What scaled queries (..., heads, M, D) retrieve, (..., heads, M, E), on all processes.

    ``mask`` (..., heads, M, n) is that of this process's memories. The weights (..., heads, M, N), if
    needed, are those of all memories, before dropout.
    """
    asked = omega if isinstance(omega, Omega) else getattr(omega, "omega", None)
    known = isinstance(asked, Omega) and asked.event_dims == 1
    if need_weights or not known:
        return _by_all_scores(queries, memories, omega, mask, dropout)
    assert isinstance(asked, Omega)
    if asked.is_softmax and dropout == 0:
        return _by_log_sum_exp(queries, memories, mask), None
    if asked.is_softmax or not asked.merges_by_support:
        return _by_all_scores(queries, memories, omega, mask, dropout)[0], None
    return _by_candidates(queries, memories, asked, mask, dropout), None


# ------------------------------------------------------------------ all scores


def _by_all_scores(
    queries: Tensor,
    memories: Memories,
    omega: Omega | nn.Module,
    mask: Tensor | None,
    dropout: float,
) -> tuple[Tensor, Tensor]:
    layout, group = memories.layout, memories.group
    own = for_shards(queries, group) @ memories.keys.mT
    scores = _along_columns(own, group)
    allowed = None
    if mask is not None:
        parts = group.gather(lambda: [mask.expand(own.shape).movedim(-1, 0).contiguous()])
        allowed = torch.cat([part[0] for part in parts]).movedim(0, -1)
    weights = omega(scores, allowed)
    mine = for_shards(weights, group)[..., layout.first : layout.stop]
    return summed(_dropped(mine, dropout) @ memories.values, group), weights


def _along_columns(own: Tensor, group: Group) -> Tensor:
    """The columns (..., n) of all processes side by side."""
    return gathered(own.movedim(-1, 0).contiguous(), group).movedim(0, -1)


def _dropped(weights: Tensor, dropout: float) -> Tensor:
    """Each process drops among its own memories, so that no two draw for the same one."""
    return nn.functional.dropout(weights, dropout) if dropout else weights


# ------------------------------------------------------------------ softmax


def _by_log_sum_exp(queries: Tensor, memories: Memories, mask: Tensor | None) -> Tensor:
    group = memories.group
    scores = for_shards(queries, group) @ memories.keys.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    lowest = scores.new_full((*scores.shape[:-1], 1), -torch.inf)
    top = group.maximum(lambda: torch.cat([scores.detach(), lowest], -1).amax(-1, keepdim=True))
    grown = (scores - torch.where(top.isfinite(), top, 0.0)).exp()
    total = summed(torch.cat([grown @ memories.values, grown.sum(-1, keepdim=True)], -1), group)
    mass = total[..., -1:]
    return torch.where(mass > 0, total[..., :-1] / torch.where(mass > 0, mass, 1.0), 0.0)


# ------------------------------------------------------------------ candidates


class _Candidates(NamedTuple):
    """Entries of a score matrix (rows, N) that may have a weight, by row and by id.

    ``slot`` is an entry's place in its row; ``own`` are the entries of this process, whose local
    columns are ``column``.
    """

    row: Tensor
    slot: Tensor
    own: Tensor
    column: Tensor
    back: Tensor
    width: int


def _by_candidates(
    queries: Tensor, memories: Memories, omega: Omega, mask: Tensor | None, dropout: float
) -> Tensor:
    group, heads, size = memories.group, *queries.shape[-3:-1]
    found = _candidates(queries, memories, omega, mask)
    shared = for_shards(queries, group).reshape(-1, queries.shape[-1])
    row = found.row[found.own]
    head = row // size % heads
    mine = (shared[row] * memories.keys[_head_of(memories.keys, head), found.column]).sum(-1)
    scores = gathered(mine, group)[found.back]
    shape = (*queries.shape[:-1], found.width)
    rows = queries.shape[:-1].numel()
    padded = scores.new_full((rows, found.width), -torch.inf)
    padded = padded.index_put((found.row, found.slot), scores)
    there = torch.zeros_like(padded, dtype=torch.bool)
    there[found.row, found.slot] = True
    filled = there.sum(-1).reshape(*queries.shape[:-1], 1)
    weights = omega.clip(filled.clamp_min(1))(padded.reshape(shape), there.reshape(shape))
    entries = for_shards(weights.reshape(rows, -1)[found.row, found.slot], group)[found.own]
    values = memories.values[_head_of(memories.values, head), found.column]
    partial = values.new_zeros(rows, values.shape[-1])
    partial = partial.index_add(0, row, _dropped(entries, dropout).unsqueeze(-1) * values)
    return summed(partial, group).reshape(*queries.shape[:-1], values.shape[-1])


def _head_of(table: Tensor, head: Tensor) -> Tensor:
    """The head of each entry; one head of memories may serve all."""
    return head if table.shape[0] > 1 else torch.zeros_like(head)


@torch.no_grad()
def _candidates(
    queries: Tensor, memories: Memories, omega: Omega, mask: Tensor | None
) -> _Candidates:
    """What may have a weight on all memories, equal on all processes."""
    layout, group = memories.layout, memories.group
    scores = group.together(lambda: _own_scores(queries, memories, mask))
    reach = None if omega.varies_by_row else omega.reach(1.0)
    floor = None if reach is None else _floor(scores, reach, group)

    def send() -> list[Tensor]:
        if floor is not None:
            inside = scores.isfinite() & (scores >= floor)
        elif scores.shape[-1]:
            inside = _own_support(scores, queries.shape[:-1], omega)
        else:
            inside = torch.zeros_like(scores, dtype=torch.bool)
        row, column = inside.nonzero(as_tuple=True)
        return [row, layout.ids(column)]

    parts = group.gather(send)
    row = torch.cat([part[0] for part in parts])
    ids = torch.cat([part[1] for part in parts])
    back = row.argsort(stable=True)  # ids increase from rank to rank
    row, ids = row[back], ids[back]
    rows = queries.shape[:-1].numel()
    counts = torch.bincount(row, minlength=rows)
    starts = counts.cumsum(0) - counts
    slot = torch.arange(len(row), device=row.device) - starts[row]
    own = layout.is_own(ids)
    width = max(1, int(counts.max())) if rows else 1
    return _Candidates(row, slot, own, layout.places(ids[own]), back, width)


def _own_scores(queries: Tensor, memories: Memories, mask: Tensor | None) -> Tensor:
    """(rows, n), minus infinity where a memory may not be selected."""
    scores = queries @ memories.keys.mT
    if mask is not None:
        scores = scores.masked_fill(~mask, -torch.inf)
    return scores.reshape(scores.shape[:-1].numel(), scores.shape[-1])


def _floor(scores: Tensor, reach: Reach, group: Group) -> Tensor:
    """Scores below it (rows, 1) have no weight, wherever they are; -inf where there are few."""
    rank = reach.rank
    lowest = scores.new_full((len(scores), rank), -torch.inf)
    top = torch.cat([scores, lowest], 1).topk(rank, 1).values
    if rank == 1:
        best = group.maximum(lambda: top)
    else:
        parts = group.gather(lambda: [top.T.contiguous()])
        best = torch.cat([part[0] for part in parts]).T.topk(rank, 1).values[:, -1:]
    # Scores are computed again, in another order of summation, when they are sent.
    slack = 64 * torch.finfo(scores.dtype).eps * (best.abs() + reach.distance)
    return torch.where(best.isfinite(), best - reach.distance - slack, -torch.inf)


def _own_support(scores: Tensor, shape: torch.Size, omega: Omega) -> Tensor:
    """The support (rows, n) among this process's memories: it holds that among all."""
    allowed = scores.isfinite().reshape(*shape, scores.shape[-1])
    counts = allowed.sum(-1, keepdim=True).clamp_min(1)
    weights = omega.clip(counts)(scores.reshape(allowed.shape), allowed)
    return (weights != 0).reshape(scores.shape)


def scaled_gradient(tensor: Tensor, factor: float) -> Tensor:
    """The same tensor, whose gradient is multiplied by ``factor``."""
    return _ScaledGradient.apply(tensor, factor)  # type: ignore[no-untyped-call, no-any-return]


class _ScaledGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, factor: float) -> Tensor:
        ctx.factor = factor
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return cotangent * ctx.factor, None
