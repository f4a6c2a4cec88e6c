"""Rows over a few threads of our own, as many as `torch.get_num_threads()`."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch

__all__ = ["over_rows"]

# Below this many entries a second thread costs more than it saves.
_WORTH_A_THREAD = 32_768

_pool: ThreadPoolExecutor | None = None
_pool_size = 0


def over_rows(kernel: Callable[..., Any], rows: int, work: int, *arguments: Any) -> list[Any]:
    """Call ``kernel(start, stop, *arguments)`` until every row is covered; return its answers.

    ``work`` estimates the whole cost in entries touched; it decides how many threads take part. The
    calling thread takes a share itself, so nested and concurrent calls cannot wait for each other.
    """
    threads = min(torch.get_num_threads(), rows, work // _WORTH_A_THREAD)
    if threads <= 1:
        return [kernel(0, rows, *arguments)]
    edges = [rows * part // threads for part in range(threads + 1)]
    pool = _shared_pool(threads - 1)
    others = [pool.submit(kernel, start, stop, *arguments) for start, stop in pairwise(edges[1:])]
    own = kernel(edges[0], edges[1], *arguments)
    return [own, *(other.result() for other in others)]


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
