"""What a `Group` promises, run by every process."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

import hopfy
from hopfy.distributed import DisagreementError, ShardedHopfieldNetwork, ShardedMemory
from hopfy.distributed._group import Group
from judges.broken import _seen
from judges.sharded import memories_of, part, queries_of, shares


def joins_by_tree(rank: int, size: int) -> None:
    """A tree gives what an all-gather gives, whatever the processes have."""
    draw = random.Random(rank)
    for turn in range(6):
        group = Group(None, 60, torch.device("cpu"))
        group.tree_above = 0 if turn % 2 else 1 << 60
        own = [torch.full((draw.randrange(4), 2), rank), torch.arange(float(rank * (turn > 1)))]
        group.small = 0 if turn < 3 else 2048
        tree, _ = group.joined(lambda own=own: own, _end_to_end)  # type: ignore[misc]
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


def _two_networks(
    rank: int, size: int
) -> list[tuple[ShardedHopfieldNetwork, Callable[[torch.Tensor], torch.Tensor]]]:
    """Networks that differ in their memories only, and their judges."""
    counts = shares(size, "even")
    return [
        (
            ShardedHopfieldNetwork(part(whole, rank, counts), "sparsemax", 0.7, timeout=60),
            hopfy.HopfieldNetwork(whole, "sparsemax", 0.7).update,
        )
        for whole in (memories_of(), -memories_of())
    ]


def objects_in_another_order(rank: int, size: int) -> None:
    """Equal calls of different networks meet: an error on all, and no wrong answer."""
    networks, queries = _two_networks(rank, size), queries_of(memories_of())
    for network, _ in reversed(networks) if rank == size - 1 else networks:
        name, text = _seen(lambda network=network: network.update(queries))  # type: ignore[misc]
        if size > 1:
            assert name == "DisagreementError", name
            assert "object" in text
    for network, judge in networks:
        torch.testing.assert_close(network.update(queries), judge(queries))


def threads_that_call(rank: int, size: int) -> None:
    """Calls of two threads do not mix: each is answered rightly or is an error on all processes."""
    networks, queries = _two_networks(rank, size), queries_of(memories_of())
    failures: list[BaseException] = []

    def ask(network: ShardedHopfieldNetwork, judge: Callable[..., torch.Tensor]) -> None:
        for _ in range(6):
            try:
                torch.testing.assert_close(network.update(queries), judge(queries))
            except DisagreementError:
                pass  # the threads of another process came in another order
            except BaseException as failure:
                failures.append(failure)

    threads = [threading.Thread(target=ask, args=pair) for pair in networks]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(100)
    assert not failures, failures
    for network, judge in networks:
        torch.testing.assert_close(network.update(queries), judge(queries))


def made_differently(rank: int, size: int) -> dict[str, tuple[str, str]]:
    """What all see when the last process makes something else; all can go on afterward."""
    guilty, mine = rank == size - 1, part(memories_of(), rank, shares(size, "even"))
    seen = {
        "another class": _seen(
            lambda: (
                ShardedMemory("sparsemax", 1.0, timeout=60)
                if guilty
                else ShardedHopfieldNetwork(mine, timeout=60)
            )
        ),
        "another limit": _seen(
            lambda: ShardedHopfieldNetwork(mine, timeout=60, gather_limit=1 << (20 + guilty))
        ),
        "a bad timeout": _seen(lambda: ShardedHopfieldNetwork(mine, timeout=-1 if guilty else 60)),
    }
    if not guilty:  # a call that one process skips, because its own code failed before
        seen["a call more"] = _seen(lambda: ShardedHopfieldNetwork(mine, timeout=60))
    network = _seen(lambda: ShardedHopfieldNetwork(mine, "1.5-entmax", timeout=60))
    if guilty:
        seen["a call more"] = network
        network = _seen(lambda: ShardedHopfieldNetwork(mine, "1.5-entmax", timeout=60))
    assert network[0] == "nothing", network
    return seen


def data_that_is_never_sent(rank: int, size: int, timeout: float) -> tuple[str, str, str, float]:
    """A process runs out of memory after it has announced what it will send."""
    group = Group(None, timeout, torch.device("cpu"))
    other = Group(None, timeout, torch.device("cpu"))
    group.small = 0  # the message does not fit into a header
    begun = time.monotonic()

    def call() -> None:
        with group.call():
            group.gather(lambda: [torch.arange(20 * rank + 5)])

    if rank == 1:
        with mock.patch.object(torch.nn.functional, "pad", _no_memory):
            seen = _seen(call)
    else:
        seen = _seen(call)
    again = _seen(lambda: other.together(lambda: None))
    return (*seen, again[0], time.monotonic() - begun)


_real_pad = torch.nn.functional.pad


def _no_memory(tensor: torch.Tensor, room: Any, *rest: Any) -> torch.Tensor:
    if room[1] > 7:  # not the few bytes that fill a word
        raise MemoryError("no memory left for the message")
    return _real_pad(tensor, room, *rest)
