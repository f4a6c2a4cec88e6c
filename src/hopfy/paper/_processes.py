"""Processes that help with a piece of work."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

__all__ = ["helping"]

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
