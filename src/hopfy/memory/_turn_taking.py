"""Recalls and changes beside each other: neither may starve the other."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["Turns"]


class Turns:
    """Recalls and changes take turns, as far as they are short.

    Recalls work on snapshots, so nothing is wrong if they overlap with changes. But both are made of
    many short steps, and threads that pass the interpreter to each other at every one of them take
    many times as long. So a change waits for the recalls under way, and recalls that come meanwhile
    wait for it: each at most as long as one thread keeps the interpreter from another anyway
    (`sys.getswitchinterval`, 5 ms). A recall does not wait for a change that has turned out to be long.

    >>> turns = Turns()
    >>> with turns:  # a recall
    ...     with turns.change():  # goes on after five milliseconds
    ...         pass
    """

    def __init__(self) -> None:
        self._news = threading.Condition(threading.Lock())
        self.recalls = 0
        self.changes = 0
        self._waiting = 0
        self._past_changes = 0
        self._is_long = False

    def __enter__(self) -> None:
        """A recall begins."""
        with self._news:
            if not self.changes or self._is_long or not self._let_in():
                self.recalls += 1

    def _let_in(self) -> bool:
        """Whether the change ended in time; it has counted the recall then."""
        past = self._past_changes
        self._waiting += 1
        if self._waited(lambda: self._past_changes > past):
            return True
        self._waiting -= 1
        self._is_long = True
        return False

    def __exit__(self, *_: object) -> None:
        with self._news:
            self.recalls -= 1
            if self.changes and not self.recalls:
                self._news.notify_all()

    @contextmanager
    def change(self) -> Iterator[None]:
        """A change; its thread must not hold a lock that a recall may need."""
        with self._news:
            self.changes += 1
            if self.recalls:
                self._waited(lambda: not self.recalls)
        try:
            yield
        finally:
            with self._news:
                self.changes -= 1
                self._past_changes += 1
                # Those who wait come before the next change.
                self.recalls += self._waiting
                self._waiting, self._is_long = 0, False
                self._news.notify_all()

    def _waited(self, until: Callable[[], bool]) -> bool:
        """Whether it came true before the patience was over."""
        return self._news.wait_for(until, sys.getswitchinterval())
