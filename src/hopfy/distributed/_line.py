"""What all objects on one process group share.

Collectives of a process group are matched by their order alone. So exchanges are counted over all
objects that use the group, one call runs at a time, and what breaks the group breaks it for all.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

__all__ = ["Line", "line_of"]


class Line:
    """The exchanges of one process group in this process.

    Attributes:
        lock: held during a call, so that calls of several threads do not mix.
        exchanges: how many exchanges have begun.
        objects: the highest number of an object that was made on the group.
        lost: why the group cannot be used any more; None while it can.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.exchanges, self.objects = 0, 0
        self.lost: str | None = None


_lines: weakref.WeakKeyDictionary[Any, Line] = weakref.WeakKeyDictionary()


def line_of(process_group: Any) -> Line:
    """The line of a process group; None stands for one process alone."""
    return Line() if process_group is None else _lines.setdefault(process_group, Line())
