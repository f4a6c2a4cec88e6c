"""A line on the terminal for work that takes seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from typing import TypeVar

__all__ = ["progress"]

T = TypeVar("T")

_PATIENCE = 2.0


def progress(parts: Sequence[T], what: str) -> Iterator[T]:
    """The parts one by one; after two seconds a terminal shows how far the work has come."""
    begin, shown = time.monotonic(), False
    for done, part in enumerate(parts):
        yield part
        spent = time.monotonic() - begin
        if spent > _PATIENCE and sys.stderr.isatty():
            shown = True
            left = spent / (done + 1) * (len(parts) - done - 1)
            share = (done + 1) / len(parts)
            print(
                f"\r{what}: {share:4.0%}, {left:.0f} s left ", end="", file=sys.stderr, flush=True
            )
    if shown:
        print(file=sys.stderr)
