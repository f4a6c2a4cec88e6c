"""A tree in place of an all-gather: pairs of processes join what they have, until one has it all.

In an all-gather every process receives the part of every other one, padded to the largest. In a tree
a process receives what one other has joined so far, in each of log2 P rounds, and the last one sends
the whole to all. Joining is associative, so the answer is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

if TYPE_CHECKING:
    from hopfy.distributed._group import Group

__all__ = ["Join", "joined_by_tree"]

Join = Callable[[Sequence[Sequence[Tensor]]], list[Tensor]]
"""From the tensors of several processes, in the order of the ranks, to those of all of them."""


def joined_by_tree(group: Group, handle: Any, own: Sequence[Tensor], join: Join) -> list[Tensor]:
    """What ``join`` makes of the tensors of all processes, on all of them.

    ``handle`` is the process group. A process whose join fails sends nothing but that news up, and all
    processes raise once it has come down again.
    """
    rank, size, failure = group.rank, group.size, None
    tensors, step = list(own), 1
    while step < size and rank % (2 * step) == 0:
        if rank + step < size:
            theirs = _received(group, handle, rank + step, own)
            try:
                tensors = [] if theirs is None or failure else join([tensors, theirs])
            except Exception as error:
                failure = error
            failure = failure or (_NEWS if theirs is None else None)
        step *= 2
    if rank:
        _send(group, handle, rank - step, None if failure else tensors)
    whole = _from_the_root(group, handle, own, None if failure else tensors)

    def result() -> list[Tensor]:
        if failure is not None and failure is not _NEWS:
            raise failure
        return [] if whole is None else whole

    return group.together(result)


_SLOTS = 8
_NEWS = RuntimeError("expected all processes to join their parts, got a failure on another one.")


def _sizes(tensors: Sequence[Tensor] | None) -> Tensor:
    """The lengths of up to eight tensors; -1 where there are none, because of a failure."""
    sizes = torch.full((_SLOTS,), -1)
    for place, tensor in enumerate(tensors or ()):
        sizes[place] = len(tensor)
    return sizes


def _send(group: Group, handle: Any, to: int, tensors: Sequence[Tensor] | None) -> None:
    sizes = group.moved(_sizes(tensors))
    group.run(lambda: dist.isend(sizes, group=handle, group_dst=to))
    if tensors is not None:
        raw = group.packed(tensors)
        if raw.numel():
            group.run(lambda: dist.isend(raw, group=handle, group_dst=to))
            group.count(raw.numel(), 0)


def _received(
    group: Group, handle: Any, source: int, like: Sequence[Tensor]
) -> list[Tensor] | None:
    sizes = group.moved(torch.empty(_SLOTS, dtype=torch.int64))
    group.run(lambda: dist.irecv(sizes, group=handle, group_src=source))
    counts = sizes.cpu().tolist()[: len(like)]
    if counts[0] < 0:
        return None
    buffer = group.room(like, counts)
    if buffer.numel():
        group.run(lambda: dist.irecv(buffer, group=handle, group_src=source))
        group.count(0, buffer.numel())
    return group.unpacked(buffer, like, counts)


def _from_the_root(
    group: Group, handle: Any, like: Sequence[Tensor], tensors: Sequence[Tensor] | None
) -> list[Tensor] | None:
    """What the first process has in the end; None: a failure."""
    root = group.rank == 0
    sizes = group.moved(_sizes(tensors if root else None))
    group.run(lambda: dist.broadcast(sizes, group=handle, group_src=0, async_op=True))
    counts = sizes.cpu().tolist()[: len(like)]
    if counts[0] < 0:
        return None
    buffer = group.packed(tensors) if root and tensors is not None else group.room(like, counts)
    if buffer.numel():
        group.run(lambda: dist.broadcast(buffer, group=handle, group_src=0, async_op=True))
        group.count(buffer.numel() if root else 0, 0 if root else buffer.numel())
    return list(tensors) if root and tensors is not None else group.unpacked(buffer, like, counts)
