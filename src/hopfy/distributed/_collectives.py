r"""Differentiable exchanges, for computations that are replicated after them.

All processes compute the same loss from what they exchange, so each of them holds the whole
cotangent of a replicated tensor. Then

==============  ==========================  ===================================================
function        forward                     backward
==============  ==========================  ===================================================
`for_shards`    identity                    sum over the processes: each used it for its shard
`gathered`      concatenation               this process's own part
`summed`        sum over the processes      identity
`own_rows`      this process's own part     concatenation: every process has its own loss
==============  ==========================  ===================================================

Gradients of shards are those of the whole memory; gradients of replicated inputs (queries, beta,
alpha) are complete and equal on all processes. Each backward is made of the same functions, so
second derivatives exist.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from hopfy.distributed._group import Group

__all__ = ["for_shards", "gathered", "own_rows", "summed"]


def for_shards(tensor: Tensor, group: Group) -> Tensor:
    """A replicated tensor that each process uses for its own shard."""
    return tensor if group.size == 1 else _ForShards.apply(tensor, group)  # type: ignore[no-untyped-call]


def summed(tensor: Tensor, group: Group) -> Tensor:
    """The sum of one tensor per process, replicated."""
    return tensor if group.size == 1 else _Summed.apply(tensor, group)  # type: ignore[no-untyped-call]


def gathered(tensor: Tensor, group: Group) -> Tensor:
    """The rows of all processes one after the other, replicated."""
    return tensor if group.size == 1 else _Gathered.apply(tensor, group)  # type: ignore[no-untyped-call]


def own_rows(tensor: Tensor, first: int, stop: int, group: Group) -> Tensor:
    """The rows ``first .. stop`` of a replicated tensor; the other rows belong to other losses."""
    if group.size == 1:
        return tensor
    return _OwnRows.apply(tensor, first, stop, group)  # type: ignore[no-any-return, no-untyped-call]


class _ForShards(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return summed(cotangent, ctx.group), None


class _Summed(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        ctx.group = group
        return group.total(lambda: tensor)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return for_shards(cotangent, ctx.group), None


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: Group) -> Tensor:
        parts = [part[0] for part in group.gather(lambda: [tensor])]
        ctx.group = group
        ctx.first = sum(len(part) for part in parts[: group.rank])
        ctx.stop = ctx.first + len(tensor)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return own_rows(cotangent, ctx.first, ctx.stop, ctx.group), None


class _OwnRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, first: int, stop: int, group: Group) -> Tensor:
        ctx.group = group
        return tensor[first:stop].clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        return gathered(cotangent, ctx.group), None, None, None
