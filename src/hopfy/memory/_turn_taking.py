"""Recalls and changes beside each other: neither may starve the other."""

from __future__ import annotations

import threading

__all__ = ["Turns"]

# A change waits at most so many seconds for recalls that are under way.
_PATIENCE = 1e-3


class Turns:
    """Counts the recalls under way; a change lets them finish, for a bounded time.

    Recalls work on snapshots and never wait for a change. But a thread that changes a memory without
    a pause takes the interpreter from those that recall at each of their many short steps.

    >>> turns = Turns()
    >>> with turns:
    ...     turns.let_recalls_finish()  # goes on after a millisecond
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle = threading.Event()
        self._idle.set()
        self._recalls = 0

    def __enter__(self) -> None:
        """A recall begins."""
        with self._lock:
            self._recalls += 1
            self._idle.clear()

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._recalls -= 1
            if not self._recalls:
                self._idle.set()

    def let_recalls_finish(self) -> None:
        """To be called before a change, without holding a lock that a recall may need."""
        self._idle.wait(_PATIENCE)
