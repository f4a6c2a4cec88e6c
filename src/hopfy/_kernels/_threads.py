"""Rows over a few threads of our own, as many as `torch.get_num_threads()`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

import torch

__all__ = ["over_rows"]

# Below this many entries a second thread costs more than it saves.
_WORTH_A_THREAD = 32_768
# Pieces per thread: torch's own threads keep spinning for a while after their work, so one of ours
# may get only half a core, and the others should not wait for it.
_PIECES = 6

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def over_rows(kernel: Callable[..., Any], rows: int, work: int, *arguments: Any) -> list[Any]:
    """Call ``kernel(start, stop, *arguments)`` until every row is covered; return its answers.

    ``work`` estimates the whole cost in entries touched; it decides how many threads take part. The
    calling thread takes pieces itself, and never waits for a thread that has not begun, so nested
    and concurrent calls cannot block each other.
    """
    threads = min(torch.get_num_threads(), rows, work // _WORTH_A_THREAD)
    if threads <= 1:
        return [kernel(0, rows, *arguments)]
    pieces = min(rows, threads * _PIECES)
    edges = [rows * piece // pieces for piece in range(pieces + 1)]
    tickets = count()  # taking the next number is atomic

    def drain() -> list[Any]:
        answers = []
        while (piece := next(tickets)) < pieces:
            answers.append(kernel(edges[piece], edges[piece + 1], *arguments))
        return answers

    pool = _shared_pool(threads - 1)
    helpers = [pool.submit(drain) for _ in range(threads - 1)]
    answers = drain()
    for helper in helpers:
        if not helper.cancel():
            answers += helper.result()
    return answers


def _shared_pool(size: int) -> ThreadPoolExecutor:
    global _pool, _pool_size
    if _pool is None or _pool_size < size:
        # An outgrown pool finishes what it has and is collected with its last caller.
        _pool, _pool_size = ThreadPoolExecutor(size, thread_name_prefix="hopfy"), size
    return _pool


def _forget_pool() -> None:
    global _pool, _pool_size
    _pool, _pool_size = None, 0


# A forked child inherits the object but none of its threads.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)
