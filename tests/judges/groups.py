"""What a `Group` promises, run by every process."""

from __future__ import annotations

import os
import random
import signal
import time
from typing import Any

import torch

from hopfy.distributed import DistributedError, ShardedHopfieldNetwork, ShardedMemory
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


def quarrels(rank: int, size: int, seed: int) -> list[str]:
    """Random calls in which some process does something else; nobody hangs, all can go on.

    What all draw from ``seed`` is what the processes should do; ``own`` is what one does instead.
    """
    shared, own = random.Random(seed), random.Random(1000 * seed + rank)
    generator = torch.Generator().manual_seed(seed)
    memories = torch.randn(4 * size, 5, generator=generator)
    part = memories[rank::size].clone()
    network = ShardedHopfieldNetwork(part, "sparsemax", 1.5, timeout=30)
    memory = ShardedMemory(beta=1.0, timeout=30)
    memory.add(memories[:3])
    heard = []
    for _ in range(25):
        guilty = shared.randrange(-1, size)  # -1: nobody
        call = shared.choice(_CALLS)
        other = own.choice([*_CALLS, "nothing"]) if rank == guilty else call
        queries = torch.randn(2, 5, generator=generator)
        if rank == guilty:
            queries = _spoiled(queries, own)
        before = len(memory)
        seen = _seen(lambda: _do(other, queries, network, memory))  # noqa: B023
        heard.append(seen[0])
        # Whoever failed, or did nothing, meets the others again.
        ok = _seen(lambda: memory._group.together(lambda: None))
        _seen(lambda: network._group.together(lambda: None))
        if other == "nothing" or ok[0] not in ("nothing",):
            heard.append(ok[0])
        assert guilty >= 0 or seen[0] == "nothing", seen
        assert abs(len(memory) - before) <= 2
    return heard


_CALLS = ["update", "retrieve", "energy", "support", "add", "recall", "neighbors", "ids", "batch"]


def _spoiled(queries: torch.Tensor, draw: random.Random) -> Any:
    return draw.choice(
        [
            queries + 1,
            queries[:, :3],
            queries.double(),
            queries[:1],
            queries * torch.nan,
            "text",
            None,
        ]
    )


def _do(call: str, queries: Any, network: ShardedHopfieldNetwork, memory: ShardedMemory) -> Any:
    if call == "nothing":
        return None
    if call == "batch":
        with memory.batch():
            memory.add(queries)
            memory.recall(queries)
        return None
    if call == "ids":
        return memory.ids
    owner = network if call in ("update", "retrieve", "energy", "support") else memory
    return getattr(owner, call)(queries)


__all__ = ["DistributedError", "joins_by_tree", "joins_that_fail", "quarrels"]
