"""What a `Group` promises, run by every process."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import torch

from hopfy.distributed._group import Group
from judges.broken import _seen


def joins_by_tree(rank: int, size: int) -> None:
    """A tree gives what an all-gather gives, whatever the processes have."""
    draw = random.Random(rank)
    for turn in range(6):
        group = Group(None, 60, torch.device("cpu"))
        group.tree_above = 0 if turn % 2 else 1 << 60
        own = [torch.full((draw.randrange(4), 2), rank), torch.arange(float(rank * (turn > 1)))]
        tree = group.joined(lambda own=own: own, _end_to_end)  # type: ignore[misc]
        parts = group.gather(lambda own=own: own)  # type: ignore[misc]
        for ours, wanted in zip(tree, _end_to_end(parts), strict=True):
            assert ours.dtype == wanted.dtype
            assert torch.equal(ours, wanted)


def _end_to_end(parts: Any) -> list[torch.Tensor]:
    return [torch.cat(column) for column in zip(*parts, strict=True)]


def joins_that_fail(rank: int, size: int, how: str) -> tuple[str, str, float]:
    """A process with something to join fails while it does, or dies."""
    group = Group(None, 5, torch.device("cpu"))
    group.tree_above = 0

    def join(parts: Any) -> list[torch.Tensor]:
        if (rank == 0 and how == "raises") or (rank == 2 and how == "raises below"):
            raise MemoryError("no memory left to join")
        if rank == 2 and how == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        return _end_to_end(parts)

    begun = time.monotonic()
    seen = _seen(lambda: group.joined(lambda: [torch.arange(rank + 1)], join))
    return (*seen, time.monotonic() - begun)
