"""Where each id is stored: a table of all ids that drafts share, and the changes of each draft."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Places"]

# Changes that a fork copies; with more of them the shared table is copied once instead.
_MOST_CHANGES = 4096


class Places:
    """The rows of ids, with forks that cost as much as what has changed lately.

    >>> places = Places({7: 0, 9: 1})
    >>> draft = places.fork()
    >>> draft.pop(7)
    0
    >>> draft.put([(8, 2)])
    >>> 7 in places, 8 in places, 7 in draft, draft.get(8)
    (True, False, False, 2)
    """

    def __init__(self, table: dict[int, int]) -> None:
        self._table = table
        self._shared = False
        self._changes: dict[int, int | None] = {}  # None: removed

    def fork(self) -> Places:
        """The same places; changes of the one are not seen by the other."""
        self._shared = True
        twin = Places(self._table)
        twin._shared, twin._changes = True, dict(self._changes)
        return twin

    def get(self, one: int) -> int | None:
        """The row of an id, None where it is not stored."""
        if one in self._changes:
            return self._changes[one]
        return self._table.get(one)

    def __contains__(self, one: int) -> bool:
        return self.get(one) is not None

    def put(self, places: Iterable[tuple[int, int]]) -> None:
        """Store ids with their rows."""
        self._own()
        (self._changes if self._shared else self._table).update(places)

    def pop(self, one: int) -> int:
        """Forget an id that is stored, and return its row."""
        row = self.get(one)
        if row is None:
            raise KeyError(one)
        self._own()
        if self._shared:
            self._changes[one] = None
        else:
            del self._table[one]
        return row

    def _own(self) -> None:
        """Before a change: take a table of one's own if many changes have gathered."""
        if not self._shared or len(self._changes) < _MOST_CHANGES:
            return
        table = self._table | {}
        for one, row in self._changes.items():
            if row is None:
                table.pop(one, None)
            else:
                table[one] = row
        self._table, self._changes, self._shared = table, {}, False
