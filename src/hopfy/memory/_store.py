"""Patterns, ids and values that grow, behind snapshots that never change.

Writers take a lock and publish a new `Snapshot`; readers work on the snapshot they were given and
see one consistent state, whatever happens meanwhile.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from hopfy._growing import Growing
from hopfy.memory._blocks import light_blocks
from hopfy.memory._equal_lengths import lifted, radius_for, squared_lengths
from hopfy.memory._places import Places
from hopfy.memory._separations import Separations
from hopfy.memory._values import Codec
from hopfy.search import ExactIndex

__all__ = ["Contents", "Snapshot", "Store"]

T = TypeVar("T")

# With fewer patterns a plan of principal directions does not pay.
_MANY = 4096

_LARGEST_ID = 1 << 62

# Rows are moved together when so many times the removed ones are more than all.
_CROWDED = 4


class Contents(NamedTuple):
    """What is stored: network rows (N, W), ids (N,), values (N, ...) or None.

    ``radius`` is None if the rows are the patterns themselves (W = D), otherwise the rows carry one
    more coordinate that lifts them to the sphere of that radius (W = D + 1). With a ``codec`` the
    values are codes of texts or records. ``mapped`` rows live in a file: tables of their size must
    not be made in memory.
    """

    rows: Tensor
    ids: Tensor
    values: Tensor | None
    radius: float | None
    codec: Codec | None = None
    mapped: bool = False

    @property
    def patterns(self) -> Tensor:
        return self.rows if self.radius is None else self.rows[:, :-1]


class Snapshot:
    """One state of the store, and what has been derived from it so far."""

    def __init__(
        self,
        contents: Contents,
        inherited: Separations,
        index: ExactIndex | None = None,
        queries_seen: int = 0,
    ) -> None:
        self.contents = contents
        self._separations = inherited
        self._index = index
        self.queries_seen = queries_seen
        self._derived: dict[str, Any] = {}
        self._lock = threading.RLock()

    def __len__(self) -> int:
        return self.contents.rows.shape[0]

    @property
    def alive(self) -> Tensor | None:
        """(N,) booleans, False where a row was removed; None: all are there."""
        return None

    def separations(self) -> Separations:
        """The separations of all rows; computed once, from those of the states before."""
        with self._lock:
            done = self._separations
            if not self.has_separations:
                index = None if self.contents.rows.device.type != "cpu" else self.index(_MANY)
                self._separations = done.extended(self.contents.rows, index)
            return self._separations

    def index(self, queries: int) -> ExactIndex:
        """An index of the rows, for so many more queries; it plans when there are enough of them.

        Queries of the states before count, and their plan goes on. What an index answers does not
        depend on the plan.
        """
        rows = self.contents.rows
        with self._lock:
            self.queries_seen += queries
            if self._index is None:
                lifted = self.contents.radius is not None
                self._index = ExactIndex.over(rows, 0, lifted=lifted)
            many = rows.shape[0] >= _MANY and not self.contents.mapped
            if many and not self._index.chooses_directions and self.queries_seen >= rows.shape[1]:
                self._index = self._index.planned()
            return self._index

    @property
    def index_so_far(self) -> ExactIndex | None:
        return self._index

    def derived(self, name: str, make: Callable[[], T]) -> T:
        """What ``make`` gives for this snapshot, made once."""
        with self._lock:
            if name not in self._derived:
                self._derived[name] = make()
            return self._derived[name]  # type: ignore[no-any-return]

    def derive_again(self, name: str, made: Any) -> None:
        """Put something better in the place of what was derived before."""
        with self._lock:
            self._derived[name] = made

    @property
    def has_separations(self) -> bool:
        """Whether the separations of all rows are known."""
        known = self._separations.delta
        return known.numel() == len(self) and not bool(known.isnan().any())

    @property
    def separations_so_far(self) -> Separations:
        return self._separations


class ThinnedSnapshot(Snapshot):
    """A state from which some rows are gone: they stay where they are, and no search finds them.

    For recalls only: files need a compacted state. ``before`` is the same with fewer rows gone.
    """

    def __init__(self, base: Snapshot, gone: Tensor, before: ThinnedSnapshot | None = None) -> None:
        super().__init__(base.contents, Separations.none())
        self._base, self._gone = base, gone
        self._thinned: ExactIndex | None = None
        known = None if before is None else before.separations_so_far
        self._known = known if known is not None and known.delta.numel() else None

    def __len__(self) -> int:
        return super().__len__() - self._gone.numel()

    @property
    def alive(self) -> Tensor | None:
        def make() -> Tensor:
            alive = torch.ones(self.contents.rows.shape[0], dtype=torch.bool, device="cpu")
            alive[self._gone] = False
            return alive

        return self.derived("alive", make)

    def separations(self) -> Separations:
        """At the places of all rows; of those that are gone infinite."""
        with self._lock:
            if not self._separations.delta.numel():
                known = self._base.separations() if self._known is None else self._known
                self._separations = known.without(self._gone, self.index(0))
            return self._separations

    def index(self, queries: int) -> ExactIndex:
        whole = self._base.index(queries)
        with self._lock:
            if self._index is None or self._thinned is not whole:
                self._thinned, self._index = whole, whole.without(self._gone)
            return self._index


class _Live(NamedTuple):
    """The published snapshot and the buffers behind it; replaced in one assignment."""

    snapshot: Snapshot
    rows: Growing
    ids: Growing
    values: Growing | None
    removed: set[int]

    @classmethod
    def of(
        cls,
        contents: Contents,
        separations: Separations,
        index: ExactIndex | None = None,
        queries_seen: int = 0,
    ) -> _Live:
        values = None if contents.values is None else Growing(contents.values)
        snapshot = Snapshot(contents, separations, index, queries_seen)
        return cls(snapshot, Growing(contents.rows), Growing(contents.ids), values, set())


class Store:
    """The one writer of snapshots.

    Removed rows are only noted. A recall works on a `ThinnedSnapshot`; what looks at all rows, and
    a recall when many rows are gone, compacts them first.
    """

    def __init__(
        self, contents: Contents, next_id: int = 0, separations: Separations | None = None
    ) -> None:
        self.next_id = next_id
        self._lock = threading.RLock()
        self._place: Places | None = None
        self._live = _Live.of(contents, separations or Separations.none())
        self._thin: tuple[Snapshot, int, ThinnedSnapshot] | None = None

    @property
    def contents(self) -> Contents:
        """The contents with removed rows still in place: for shapes and dtypes."""
        return self._live.snapshot.contents

    def __len__(self) -> int:
        with self._lock:
            return len(self._live.snapshot) - len(self._live.removed)

    def snapshot(self) -> Snapshot:
        live = self._live
        if not live.removed:
            return live.snapshot
        with self._lock:
            self._compact()
            return self._live.snapshot

    def snapshot_for_recall(self, with_separations: bool = False) -> Snapshot:
        """One state for searches; its contents may hold rows that were removed, see `ThinnedSnapshot`.

        The cost does not depend on the length of the rows. Separations follow removals; those of rows
        that were added are computed on a compacted state, where they are kept for good.
        """
        live = self._live
        if not live.removed:
            return live.snapshot
        with self._lock:
            live = self._live
            count = len(live.removed)
            crowded = _CROWDED * count > len(live.snapshot) or live.snapshot.contents.mapped
            if crowded or (with_separations and not live.snapshot.has_separations):
                self._compact()
                return self._live.snapshot
            thin = self._thin
            if thin is None or thin[0] is not live.snapshot or thin[1] != count:
                gone = torch.tensor(sorted(live.removed), dtype=torch.int64, device="cpu")
                before = thin[2] if thin is not None and thin[0] is live.snapshot else None
                state = ThinnedSnapshot(live.snapshot, gone, before)
                thin = self._thin = (live.snapshot, count, state)
            return thin[2]

    def add(self, patterns: Tensor, values: Tensor | None, ids: Tensor | None) -> Tensor:
        """Append checked patterns; returns their ids."""
        with self._lock:
            new = self._new_ids(ids, patterns.shape[0])
            try:
                self._append(patterns, values, new)
            except BaseException:
                self._place = None  # it may be ahead of what was published
                raise
            return new

    def remove(self, ids: Tensor) -> None:
        """Forget these ids; all of them must be there."""
        with self._lock:
            places = self._places()
            wanted = ids.tolist()
            missing = [one for one in wanted if one not in places]
            if missing:
                raise KeyError(
                    f"expected ids that are stored, got {missing[:5]} "
                    f"({len(missing)} unknown); nothing was removed."
                )
            for one in set(wanted):
                self._live.removed.add(places.pop(one))

    def replace(self, ids: Tensor, patterns: Tensor, values: Tensor | None) -> None:
        """Other patterns and values for these ids; they count as the newest from now on."""
        with self._lock:
            old = self.places_of(ids)
            if len(set(ids.tolist())) < ids.numel():
                raise ValueError("expected ids that are different, got some of them twice.")
            self._append(patterns, values, ids, old.tolist())

    def place_of(self, one: int) -> tuple[int, Contents]:
        """The row of an id and the contents that it is a row of; a KeyError if it is not there."""
        with self._lock:
            row = self._places().get(one)
            if row is None:
                raise KeyError(f"expected an id that is stored, got {one}.")
            return row, self.contents

    def places_of(self, ids: Tensor) -> Tensor:
        """The rows of these ids; a KeyError if one of them is not there."""
        with self._lock:
            places = self._places()
            rows = [places.get(one) for one in ids.tolist()]
            missing = [one for one, row in zip(ids.tolist(), rows, strict=True) if row is None]
            if missing:
                raise KeyError(
                    f"expected ids that are stored, got {missing[:5]} ({len(missing)} unknown)."
                )
            return torch.tensor(rows, dtype=torch.int64, device="cpu")

    def fork(self) -> Store:
        """A store of the same rows that can be changed without effect on this one."""
        with self._lock:
            twin = Store.__new__(Store)
            twin.next_id, twin._lock = self.next_id, threading.RLock()
            twin._place = None if self._place is None else self._place.fork()
            twin._thin = self._thin
            twin._live = self._live._replace(removed=set(self._live.removed))
            return twin

    def holds(self, one: int) -> bool:
        with self._lock:
            return one in self._places()

    def _append(
        self, patterns: Tensor, values: Tensor | None, ids: Tensor, replaced: Sequence[int] = ()
    ) -> None:
        """Store patterns behind the others; the rows that they replace go at the same moment."""
        live, before = self._live, self._live.snapshot.contents
        used, count = before.rows.shape[0], patterns.shape[0]
        known = live.snapshot.separations_so_far
        rows, radius = live.rows, before.radius
        new_rows = light_blocks(patterns)
        if radius is not None:
            lengths = squared_lengths(patterns)
            radius = radius_for(lengths, radius)
            new_rows = _lifted_blocks(patterns, lengths, radius)
            if radius != before.radius:
                # A larger sphere moves every row: a new buffer, as readers hold the old one.
                rows, known = Growing(before.rows[:0]), Separations.none()
                old = before.patterns
                rows = rows.plus(0, used, _lifted_blocks(old, squared_lengths(old), radius))
        total = used + count
        rows, numbers = rows.plus(used, count, new_rows), live.ids.plus(used, count, (ids,))
        kept = live.values
        if kept is not None and values is not None:
            kept = kept.plus(used, count, (values,))
        stored = Contents(
            rows.rows(total),
            numbers.rows(total),
            None if kept is None else kept.rows(total),
            radius,
            before.codec,
        )
        index = live.snapshot.index_so_far
        if index is not None:
            index = index.extended(stored.rows) if radius == before.radius else None
        if self._place is not None:
            self._place.put(zip(ids.tolist(), range(used, used + count), strict=True))
        self.next_id = max(self.next_id, int(ids.max()) + 1) if count else self.next_id
        snapshot = Snapshot(stored, known, index, live.snapshot.queries_seen)
        live.removed.update(replaced)  # who sees this already waits for the lock
        self._live = live._replace(snapshot=snapshot, rows=rows, ids=numbers, values=kept)

    def _new_ids(self, ids: Tensor | None, count: int) -> Tensor:
        if ids is None:
            return torch.arange(self.next_id, self.next_id + count, device="cpu")
        if ids.numel() != count:
            raise ValueError(
                f"expected one id for each of the {count} patterns, got {ids.numel()}."
            )
        wanted = ids.tolist()
        outside = [one for one in wanted if not 0 <= one < _LARGEST_ID]
        if outside:
            raise ValueError(f"expected ids from 0 to 2**62 - 1, got {outside[0]}.")
        places = self._places()
        again = [one for one, times in Counter(wanted).items() if times > 1 or one in places]
        if again:
            raise ValueError(
                f"expected new ids, each once, got {again[:5]} again; "
                "remove the patterns that have them first."
            )
        return ids

    def _places(self) -> Places:
        """Where each id is; made when first needed, as ids given by us need no look-up."""
        if self._place is None:
            rows = enumerate(self.contents.ids.tolist())
            gone = self._live.removed
            self._place = Places({one: row for row, one in rows if row not in gone})
        return self._place

    def _compact(self) -> None:
        if not self._live.removed:
            return
        before = self.contents
        keep = torch.ones(before.rows.shape[0], dtype=torch.bool, device="cpu")
        keep[list(self._live.removed)] = False
        there = keep.to(before.rows.device)
        values = None if before.values is None else before.values[there]
        contents = Contents(
            before.rows[there], before.ids[keep], values, before.radius, before.codec
        )
        known = self._live.snapshot.separations_so_far
        self._place = None
        index = self._live.snapshot.index_so_far
        if index is not None:
            kept = keep.nonzero().flatten()
            index = index.restricted(kept, contents.rows) if kept.numel() else None
        known = known.kept(keep[: known.delta.numel()])
        self._live = _Live.of(contents, known, index, self._live.snapshot.queries_seen)


def _lifted_blocks(patterns: Tensor, lengths: Tensor, radius: float) -> Iterator[Tensor]:
    start = 0
    for block in light_blocks(patterns):
        yield lifted(block, lengths[start : start + block.shape[0]], radius)
        start += block.shape[0]
