"""Bounds that are made once for rows that only grow."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from hopfy.search._principal import Principal

__all__ = ["SharedBounds"]


class SharedBounds:
    """Bounds by name for the rows of one buffer, of as many of them as were asked for.

    Choosing directions costs many searches. Where rows are added all the time, a state is replaced
    before its directions are chosen, so these are not part of one state: center and directions are
    valid for any rows, and the next state takes them over at the cost of its new rows.

    All who share bounds hold the first rows of the same buffer, some of them more than others.
    """

    def __init__(self) -> None:
        self._made: dict[str, tuple[int, Principal | None]] = {}

    def get(
        self, name: str, rows: Tensor, make: Callable[[], Principal | None]
    ) -> Principal | None:
        """The bounds of these rows, None where bounds do not pay."""
        before = self._made.get(name)
        if before is not None and before[0] > rows.shape[0]:
            return make()
        bounds = make() if before is None else _for_all(*before, rows)
        self._made[name] = (rows.shape[0], bounds)
        return bounds

    def moved(self, rows: int) -> SharedBounds:
        """For a buffer of its own that begins with the first ``rows`` of this one."""
        return self._changed(lambda count, made: (count, made) if count <= rows else None)

    def taken(self, rows: Tensor, kept: Tensor) -> SharedBounds:
        """For a buffer that holds ``rows[kept]``."""

        def take(count: int, made: Principal | None) -> tuple[int, Principal | None] | None:
            if count > rows.shape[0]:
                return None
            bounds = _for_all(count, made, rows)
            return kept.numel(), None if bounds is None else bounds.taken(kept)

        return self._changed(take)

    def _changed(
        self, change: Callable[[int, Principal | None], tuple[int, Principal | None] | None]
    ) -> SharedBounds:
        changed = SharedBounds()
        found = {name: change(*made) for name, made in list(self._made.items())}
        changed._made = {name: made for name, made in found.items() if made is not None}
        return changed


def _for_all(count: int, made: Principal | None, rows: Tensor) -> Principal | None:
    """Bounds of the first ``count`` rows, extended to all of them."""
    return made if made is None or count == rows.shape[0] else made.extended(rows[count:])
