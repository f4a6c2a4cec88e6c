"""Processes that help with a piece of work, and the memory of this one."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["helping", "keeping_memory"]

# Parameters of glibc's mallopt, what they are by default, and what keeps freed memory: no mappings of
# their own for large blocks, and nothing given back from the top of the heap.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4
_BY_DEFAULT = {_TRIM_THRESHOLD: 1 << 17, _TOP_PAD: 1 << 17, _MMAP_MAX: 1 << 16}
_KEEPING = {_TRIM_THRESHOLD: 2**31 - 1, _TOP_PAD: 1 << 26, _MMAP_MAX: 0}

# Seconds that a helper may need to notice that all is done.
_LEAVING = 10.0


@contextmanager
def helping(count: int, work: Callable[..., None], arguments: tuple[Any, ...]) -> Iterator[None]:
    """While the block runs, ``count`` other processes do ``work(*arguments)``.

    They use one thread each, as this process does meanwhile: threads that wait for each other are
    slower than processes that do not. Afterward none of them is left, however the block ends.
    """
    if count == 0:
        yield
        return
    context = multiprocessing.get_context("spawn")
    helpers = [
        context.Process(target=_quietly, args=(work, arguments), daemon=True) for _ in range(count)
    ]
    for helper in helpers:
        helper.start()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    patience = 0.0
    try:
        yield
        patience = _LEAVING
    finally:
        torch.set_num_threads(threads)
        for helper in helpers:
            helper.join(patience)
            if helper.is_alive():
                helper.terminate()
                helper.join()


def _quietly(work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    """A helper ends silently at Ctrl-C: the main process prints the message."""
    torch.set_num_threads(1)
    try:
        work(*arguments)
    except KeyboardInterrupt:
        return


@contextmanager
def keeping_memory() -> Iterator[None]:
    """While the block runs, freed memory stays with this process, where the C library is glibc.

    Otherwise glibc returns the memory of every large tensor to the system when the tensor is freed, and
    each training step takes new pages: two fifths of the time of an LSTM's step on 32 texts of 700 words.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is None:
        yield
        return
    for parameter, value in _KEEPING.items():
        mallopt(parameter, value)
    try:
        yield
    finally:
        for parameter, value in _BY_DEFAULT.items():
            mallopt(parameter, value)
        ctypes.CDLL(None).malloc_trim(0)
