"""Changes of a memory: checked, recorded if there is a journal, then published at once."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from hopfy.memory._arrays import ArrayLike, as_patterns, as_values
from hopfy.memory._journal import Change, Journal
from hopfy.memory._settings import Settings
from hopfy.memory._store import Contents, Store
from hopfy.memory._turn_taking import Turns
from hopfy.memory._values import Codec, codec_for

__all__ = ["Writer"]


class Writer:
    """The one who changes a memory's store; readers take `store` and never wait."""

    def __init__(self, settings: Settings, device: torch.device) -> None:
        self.settings, self.device = settings, device
        self.store: Store | None = None
        self.journal: Journal | None = None
        self.path: Path | None = None
        self.generation = 0
        self.recorded: tuple[Codec, int] | None = None
        self.turns = Turns()
        self._lock = threading.RLock()
        self._draft: Store | None = None
        self._open_batch = False
        self._changes: list[Change] = []

    # ------------------------------------------------------------------ changes

    def add(self, patterns: ArrayLike, values: ArrayLike | None, ids: Tensor | None) -> Tensor:
        with self._lock:
            with self.turns.change():
                store = self._current()
                contents = None if store is None else store.contents
                rows = self._rows(patterns, contents)
                codec = self._codec(values, contents)
                stored = self._values(values, rows.shape[0], contents, codec)
                if store is None:
                    store = self._empty(rows, stored, codec)
                draft = self._draft_of(store)
                new = draft.add(rows, stored, ids)
            self._record(draft, {"op": "add", "ids": new, "patterns": rows, "values": stored})
            return new

    def keep_next_id(self, next_id: int) -> None:
        """Count on from an id that was reached elsewhere."""
        if self.store is not None:
            self.store.next_id = max(self.store.next_id, next_id)

    def remove(self, ids: Tensor) -> None:
        with self._lock:
            with self.turns.change():
                draft = self._draft_of(self._filled(ids))
                draft.remove(ids)
            self._record(draft, {"op": "remove", "ids": ids})

    def replace(self, ids: Tensor, patterns: ArrayLike | None, values: ArrayLike | None) -> None:
        """Other patterns, values or both for these ids."""
        with self._lock:
            with self.turns.change():
                store = self._filled(ids)
                contents, places = store.contents, store.places_of(ids)
                if patterns is None:
                    rows = contents.patterns[places.to(contents.rows.device)]
                else:
                    rows = self._rows(patterns, contents)
                if rows.shape[0] != ids.numel():
                    raise ValueError(
                        f"expected one pattern for each of the {ids.numel()} ids, "
                        f"got {rows.shape[0]}."
                    )
                stored = None if contents.values is None else contents.values[places]
                if values is not None:
                    stored = self._values(values, ids.numel(), contents, contents.codec)
                draft = self._draft_of(store)
                draft.replace(ids, rows, stored)
            self._record(draft, {"op": "replace", "ids": ids, "patterns": rows, "values": stored})

    def _filled(self, ids: Tensor) -> Store:
        """The present store; these ids are looked for in it."""
        store = self._current()
        if store is None:
            raise KeyError(f"expected ids that are stored, got {ids[:5].tolist()} (empty).")
        return store

    def clear(self, patterns: ArrayLike, values: ArrayLike | None) -> None:
        """Forget everything and store these patterns instead."""
        with self.batch():
            before, self._draft = self._draft, None
            self._changes.append({"op": "clear"})
            try:
                self.add(patterns, values, None)
            except BaseException:
                self._draft = before
                self._changes.pop()
                raise

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Changes inside become visible together at the end, or not at all."""
        with self._lock:
            if self._open_batch:
                yield
                return
            self._open_batch, self._changes = True, []
            self._draft = None if self.store is None else self.store.fork()
            try:
                yield
                if self._changes:
                    self._append(self._draft, self._changes)
                    self.store = self._draft
            finally:
                self._open_batch, self._draft, self._changes = False, None, []

    def _current(self) -> Store | None:
        return self._draft if self._open_batch else self.store

    def _draft_of(self, store: Store) -> Store:
        """A store to change: the present one, where nothing is recorded or taken back."""
        return store if self.journal is None and not self._open_batch else store.fork()

    def _record(self, draft: Store, change: Change) -> None:
        """Publish a change that was made; it is in the journal first, if there is one."""
        if self._open_batch:
            self._draft = draft
            self._changes.append(change)
            return
        self._append(draft, [change])
        self.store = draft

    def _append(self, draft: Store | None, changes: list[Change]) -> None:
        if self.journal is None:
            return
        codec = None if draft is None else draft.contents.codec
        if codec is not None:
            # A batch that was taken back may have left words that no record holds yet.
            words = codec.entries[self._words_recorded(codec) :]
            first = next(c for c in changes if c["op"] != "clear")
            changes = [
                {**c, "words": words, "kind": codec.kind} if c is first else c for c in changes
            ]
        self.journal.append(changes)
        if codec is not None:
            self.recorded = (codec, len(codec.entries))

    def _words_recorded(self, codec: Codec) -> int:
        return self.recorded[1] if self.recorded is not None and self.recorded[0] is codec else 0

    # ------------------------------------------------------------------ what was recorded

    def replay(self, changes: list[Change]) -> None:
        """Apply recorded changes, without recording them again."""
        for change in changes:
            values, words = change.get("values"), change.get("words")
            if change["op"] == "clear":
                self.store = None
                continue
            if change["op"] == "remove":
                if self.store is not None:
                    self.store.remove(change["ids"])
                continue
            rows = change["patterns"].to(self.device)
            codec = None if self.store is None else self.store.contents.codec
            if words is not None:
                codec = codec or Codec(change["kind"])
                codec.learn(words)
                self.recorded = (codec, len(codec.entries))
            stored = None if values is None else values.to(self.device)
            if self.store is None:
                self.store = self._empty(rows, stored, codec)
            if change["op"] == "add":
                self.store.add(rows, stored, change["ids"])
            else:
                self.store.replace(change["ids"], rows, stored)

    # ------------------------------------------------------------------ checks

    def _rows(self, patterns: ArrayLike, contents: Contents | None) -> Tensor:
        dim = None if contents is None else contents.patterns.shape[1]
        dtype = None if contents is None else contents.rows.dtype
        return as_patterns(patterns, dim, dtype).to(self.device)

    def _values(
        self, values: ArrayLike | None, count: int, contents: Contents | None, codec: Codec | None
    ) -> Tensor | None:
        """The values as stored, (count, ...)."""
        if contents is not None and (values is None) != (contents.values is None):
            stored = "without" if contents.values is None else "with"
            raise ValueError(
                f"expected patterns {stored} values, as all that are stored; "
                "give values for all patterns or for none."
            )
        if values is None:
            return None
        if codec is not None:
            return _codes(codec, values, count).to(self.device)
        like = None if contents is None else contents.values
        return as_values(values, count, like).to(self.device)

    def _codec(self, values: ArrayLike | None, contents: Contents | None) -> Codec | None:
        kind = None if values is None else codec_for(values)
        if contents is None:
            return None if kind is None else Codec(kind)
        if contents.codec is None and kind is not None and contents.values is not None:
            raise TypeError(
                f"expected values of dtype {contents.values.dtype}, as stored, got {kind} values."
            )
        return contents.codec

    def _empty(self, rows: Tensor, values: Tensor | None, codec: Codec | None) -> Store:
        lift = self.settings.compare == "distance"
        return Store(
            Contents(
                rows.new_empty(0, rows.shape[1] + lift),
                torch.zeros(0, dtype=torch.int64, device="cpu"),
                None if values is None else values.new_empty(0, *values.shape[1:]),
                0.0 if lift else None,
                codec,
            )
        )


def _codes(codec: Codec, values: ArrayLike, count: int) -> Tensor:
    """Codes (count,): one value for each pattern, or one for all."""
    if isinstance(values, str | bytes | dict) or np.ndim(values) == 0:
        one = values.item() if isinstance(values, np.ndarray) else values
        return codec.encoded([one]).expand(count)
    plain = isinstance(values, list | tuple) or codec.kind == "record"
    listed = list(values) if plain else list(np.asarray(values).reshape(-1))
    listed = [v.item() if isinstance(v, np.str_ | np.bytes_) else v for v in listed]
    if len(listed) != count:
        raise ValueError(f"expected one value for each of the {count} patterns, got {len(listed)}.")
    return codec.encoded(listed)
