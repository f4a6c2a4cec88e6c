"""What a sharded memory does by means of adding, removing and recalling."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from hopfy.distributed._group import collective
from hopfy.distributed._inputs import QueryLayout, digest
from hopfy.distributed._memory_state import MemoryState, Stored
from hopfy.memory import Recall
from hopfy.memory.parts import (
    ArrayLike,
    Codec,
    Contents,
    Estimator,
    Guarantee,
    as_ids,
    described_values,
)

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["MemoryChanges"]


class MemoryChanges(MemoryState):
    """Changes that are made together, other patterns for known ids, predictions and texts."""

    _open_batch: bool = False

    if TYPE_CHECKING:

        def add(
            self,
            patterns: ArrayLike,
            values: ArrayLike | None = None,
            ids: ArrayLike | None = None,
            *,
            layout: QueryLayout = "replicated",
        ) -> Any: ...

        def remove(self, ids: ArrayLike) -> None: ...

        def recall(
            self,
            queries: ArrayLike,
            mask: ArrayLike | None = None,
            *,
            max_steps: int = 50,
            layout: QueryLayout = "replicated",
        ) -> Recall: ...

    # ------------------------------------------------------------------ changes

    @contextmanager
    def batch(self) -> Iterator[None]:
        """Changes inside ``with memory.batch():`` are kept on all processes, or on none.

        All processes enter and leave it together. An error on one of them, in a call or between two
        calls, is an error on all, and the memory holds what it held before on each.

        >>> import torch
        >>> from hopfy.distributed import ShardedMemory
        >>> memory = ShardedMemory(beta=1.0)
        >>> try:
        ...     with memory.batch():
        ...         _ = memory.add(torch.eye(2))
        ...         memory.remove([7])
        ... except KeyError:
        ...     print(len(memory))
        0
        """
        if self._open_batch:
            yield
            return
        before, codec = self._stored, self._codec
        words = None if codec is None else Codec(codec.kind, list(codec.entries))
        self._open_batch = True
        try:
            yield
            self._group.together(lambda: None)
        except BaseException as error:
            self._stored, self._codec = before, words
            if isinstance(error, Exception):
                self._group.announce(error)
            raise
        finally:
            self._open_batch = False

    def update(
        self, ids: ArrayLike, patterns: ArrayLike | None = None, values: ArrayLike | None = None
    ) -> None:
        """Give stored ids other patterns, other values, or both; they count as the newest then.

        All processes pass the same. The patterns go to the emptiest processes, as in `add`.
        """
        with self.batch():
            if patterns is None and values is None:
                raise ValueError("expected patterns or values to store for the ids, got neither.")
            wanted, old_patterns, old_values = self._entries(ids)
            rows = old_patterns if patterns is None else patterns
            kept = old_values if values is None else values
            self.remove(wanted)
            self.add(rows, kept, wanted)

    @collective
    def _entries(self, ids: ArrayLike) -> tuple[Tensor, Tensor, Any]:
        """Checked ids, and the patterns and values that they have now, on all processes."""

        def check() -> tuple[Tensor, dict[str, int]]:
            numbers = as_ids(ids)
            if len(set(numbers.tolist())) < numbers.numel():
                raise ValueError("expected ids that are different, got some of them twice.")
            return numbers, {"ids": digest(numbers)}

        wanted = self._group.agree(check)
        places = self._places_of(wanted)
        held = self._filled().held
        tables = [held.ids, held.patterns, *([] if held.values is None else [held.values])]
        parts = self._group.gather(lambda: [table[places] for table in tables])
        found, patterns, *values = (torch.cat(column) for column in zip(*parts, strict=True))
        order = found.argsort()[wanted.argsort().argsort()]
        stored: Any = values[0][order] if values else None
        if stored is not None and self._codec is not None:
            stored = [self._codec.value(int(code)) for code in stored]
        return wanted, patterns[order], stored

    def fit(self, patterns: ArrayLike, values: ArrayLike | None = None) -> Self:
        """Replace everything by these patterns and values, the same on all processes."""
        with self.batch():
            self._stored, self._codec = None, None
            self.add(patterns, values)
        return self

    # ------------------------------------------------------------------ answers

    def __contains__(self, one: object) -> bool:
        """Whether an id is stored, on whichever process; all processes ask together."""
        return self._holds(one)

    @collective
    def _holds(self, one: object) -> bool:
        try:
            number = operator.index(one)  # type: ignore[arg-type]
        except TypeError:
            number = -1
        wanted = self._group.agree(lambda: (torch.tensor([number]), {"id": digest(number)}))
        here = torch.zeros(1, dtype=torch.bool)
        if self._stored is not None:
            here, _ = self._stored.held.places_of(wanted)
        return bool(self._group.maximum(lambda: here.to(torch.uint8)).bool())

    def predict(
        self,
        queries: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        layout: QueryLayout = "replicated",
    ) -> Any:
        """The recalled values, or the recalled patterns where no values are stored."""
        answer = self.recall(queries, mask, layout=layout)
        return answer.patterns if answer.values is None else answer.values

    def score(self, queries: ArrayLike, values: ArrayLike) -> float:
        """How well `predict` agrees: accuracy for labels, R² for floating values."""
        return Estimator.score(cast(Any, self), queries, values)

    # ------------------------------------------------------------------ texts

    @collective
    def explain(self) -> str:
        """Why beta is what it is, and which patterns can be certified: for all processes' patterns.

        Three numbers of every pattern are brought to every process, up to ``gather_limit`` bytes.
        """
        stored = self._filled()
        needed = 32 * stored.total
        if needed > self._gather_limit:
            raise ValueError(
                f"expected up to {self._gather_limit:.2g} bytes, got {stored.total} patterns, whose "
                f"separations have {needed:.2g} bytes. Raise gather_limit."
            )
        beta = self._beta(stored)
        stored = self._separated(self._filled())
        return self._guaranteed(stored, beta)

    def _guaranteed(self, stored: Stored, beta: float) -> str:
        held, known = stored.held, stored.separations
        hopeless = self._hopeless(stored)
        parts = self._group.gather(
            lambda: [held.numbers, held.ids, known.delta, known.rival, hopeless]
        )
        columns = [torch.cat(column) for column in zip(*parts, strict=True)]
        numbers, order = columns[0].sort()
        ids, delta, rival, lost = (column[order] for column in columns[1:])
        rows = torch.searchsorted(numbers, rival).clamp_max(len(numbers) - 1)
        settings = self._settings
        promise = Guarantee(
            settings.omega.margin, beta, settings.beta is None, delta, rows, lost.bool()
        )
        shape = held.rows.new_empty(1).expand(stored.total, held.rows.shape[1])
        return promise.explain(Contents(shape, ids, None, held.radius))

    def describe(self) -> str:
        """What is stored, here and elsewhere, in a few lines."""
        lines = [repr(self)]
        stored = self._stored
        if stored is not None and stored.total:
            held = stored.held
            dtype = str(held.rows.dtype).removeprefix("torch.")
            size = held.rows.shape[1] * held.rows.element_size() / 2**20
            lines.append(
                f"{held.patterns.shape[1]} coordinates each, {dtype}, {size * len(held):.1f} of "
                f"{size * stored.total:.1f} MB on this process."
            )
            lines.append(f"Patterns by rank: {', '.join(map(str, stored.counts))}.")
            lines += described_values(self._codec, held.values)
        return "\n".join(lines)
