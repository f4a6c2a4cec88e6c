"""`AssociativeMemory`: patterns in, exact recalls out, on disk or not."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hopfy._files.tensors import StoredFile
from hopfy._renamed import renamed_arguments
from hopfy._runtime.precision import outside_autocast
from hopfy._runtime.threads import one_thread_if_crowded
from hopfy.memory._arrays import (
    ArrayLike,
    as_count,
    as_ids,
    as_mask,
    as_queries,
    check_finite,
    in_kind_of,
)
from hopfy.memory._budget import RecallBudget
from hopfy.memory._dynamics import Engine
from hopfy.memory._entries import Chunk, Entry, Neighbors, chunks_of, value_at
from hopfy.memory._equal_lengths import squared_lengths
from hopfy.memory._estimator import Estimator
from hopfy.memory._guarantee import Guarantee, guarantee
from hopfy.memory._ordered import Ordered
from hopfy.memory._persistence import Persistence
from hopfy.memory._recall import Collector, Recall, certain_recall
from hopfy.memory._settings import Compare, Settings
from hopfy.memory._store import Snapshot, Store
from hopfy.memory._streamed import Streamed
from hopfy.memory._values import described_values
from hopfy.memory._writer import Writer
from hopfy.network import HopfieldNetwork
from hopfy.omega import Omega
from hopfy.search import ExactIndex, PreparedMap

__all__ = ["AssociativeMemory", "Chunk", "Entry", "Neighbors"]

_SCRATCH = 256 << 20


class AssociativeMemory(Persistence, Estimator, Ordered):
    r"""Patterns that are recalled from damaged or incomplete cues, with a proof where there is one.

    A `HopfieldNetwork` does the recalling. The memory adds what a person needs around it: patterns
    that come and go, values that belong to them, a beta that fits them, cues with missing
    coordinates, files. It may be used from many threads: each recall sees one state of the memory.

    Args:
        omega: a regularizer on the simplex (`Tsallis`, `Norm`, `Shannon`) or its name. Sparse ones
            recall stored patterns exactly.
        beta: the inverse temperature. ``"auto"`` chooses it from the separations of the stored
            patterns so that every pattern that can be certified is, and follows them as they
            change; `explain` says how. It compares all pairs of patterns once (N² D / 2
            multiplications, only the new ones after an `add`): give a number for millions.
        compare: ``"distance"`` (default): cues are compared with patterns by Euclidean distance.
            One extra coordinate lifts all patterns to the same length, so that every pattern stored
            once can be certified. ``"dot"``: the network of the paper on the patterns as they are;
            patterns that are shorter than a similar one can never be certified. For angles, scale
            patterns and cues to unit length.
        device: where the patterns live.
        scratch: bytes that a recall may use beyond its answer (about).

    >>> import numpy as np, hopfy
    >>> memory = hopfy.AssociativeMemory()
    >>> memory.add(np.array([[1.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 2.0]]), values=np.array([7, 8]))
    array([0, 1])
    >>> answer = memory.recall(np.array([0.1, 0.0, 0.8, 2.1]))
    >>> answer
    Recall of 1 query, 1 certified
      1 x one stored pattern, exactly
    >>> answer.patterns, int(answer.values)
    (array([0., 0., 1., 2.]), 8)
    >>> half = np.array([True, True, False, False])
    >>> memory.recall(np.array([1.0, 1.0, 0.0, 0.0]), mask=half).describe(0)
    'pattern 0, exactly, certified.'
    """

    def __init__(
        self,
        omega: Omega | str = "sparsemax",
        beta: float | str = "auto",
        *,
        compare: Compare = "distance",
        device: torch.device | str = "cpu",
        scratch: int = _SCRATCH,
    ) -> None:
        self._budget = RecallBudget(as_count(scratch, "scratch (bytes)"))
        self._given: dict[str, Any] = {
            "omega": omega, "beta": beta, "compare": compare, "device": device, "scratch": scratch
        }  # fmt: skip
        settings = Settings.checked(omega, beta, compare)
        self._writer = Writer(settings, torch.device(device))
        self._file: StoredFile | None = None

    # ------------------------------------------------------------------ what is stored

    def add(
        self, patterns: ArrayLike, values: ArrayLike | None = None, ids: ArrayLike | None = None
    ) -> Any:
        """Store patterns (M, D), or one (D,); returns their ids, in the patterns' kind.

        Args:
            patterns: finite numbers; the first call fixes D and the dtype (float64 stays, all else
                becomes float32).
            values: what to read out with the patterns, for all patterns or for none: (M, ...)
                numbers, M texts, dates or records that JSON can hold, or one value for all.
            ids: integers >= 0 that are not in use; counted on by default, never used twice.
        """
        self._check_writable()
        new = self._writer.add(patterns, values, None if ids is None else as_ids(ids))
        return in_kind_of(new.clone(), patterns)

    def remove(self, ids: ArrayLike) -> None:
        """Forget the patterns with these ids; an unknown id is a KeyError and removes nothing."""
        self._check_writable()
        self._writer.remove(as_ids(ids))

    def update(
        self, ids: ArrayLike, patterns: ArrayLike | None = None, values: ArrayLike | None = None
    ) -> None:
        """Give stored ids other patterns, other values, or both; they count as the newest then."""
        self._check_writable()
        if patterns is None and values is None:
            raise ValueError("expected patterns or values to store for the ids, got neither.")
        self._writer.replace(as_ids(ids), patterns, values)

    def batch(self) -> AbstractContextManager[None]:
        """Changes inside ``with memory.batch():`` become visible together, or not at all.

        Other threads that write wait; recalls go on and see the memory as it was before.

        >>> import torch, hopfy
        >>> memory = hopfy.AssociativeMemory(beta=1.0)
        >>> try:
        ...     with memory.batch():
        ...         _ = memory.add(torch.eye(2))
        ...         memory.remove([7])
        ... except KeyError:
        ...     print(len(memory))
        0
        """
        self._check_writable()
        return self._writer.batch()

    def fit(self, patterns: ArrayLike, values: ArrayLike | None = None) -> AssociativeMemory:
        """Replace everything by these patterns and values, as scikit-learn's ``fit``."""
        self._file = None
        self._writer.clear(patterns, values)
        return self

    def get(self, one: int) -> Entry:
        """The pattern with this id and its value; ``memory[id]`` is the same."""
        try:
            number = operator.index(one)
        except TypeError:
            raise TypeError(f"expected an id, got {one!r}.") from None
        store = self._store
        if store is None:
            raise KeyError(f"expected an id that is stored, got {number} (the memory is empty).")
        place, contents = store.place_of(number)
        return Entry(number, contents.patterns[place].clone(), value_at(contents, place))

    def __getitem__(self, one: int) -> Entry:
        return self.get(one)

    def __iter__(self) -> Iterator[int]:
        """The ids, oldest first."""
        return iter(self.ids.tolist())

    def __len__(self) -> int:
        store = self._store
        return 0 if store is None else len(store)

    def __contains__(self, one: object) -> bool:
        store = self._store
        try:
            return store is not None and store.holds(operator.index(one))  # type: ignore[arg-type]
        except TypeError:
            return False

    @property
    def ids(self) -> Tensor:
        """The ids of all patterns, oldest first."""
        store = self._store
        if store is None:
            return torch.zeros(0, dtype=torch.int64, device="cpu")
        return store.snapshot().contents.ids.clone()

    def chunks(self, size: int = 1024) -> Iterator[Chunk]:
        """Copies of what is stored, ``size`` patterns at a time, from one state of the memory."""
        size = as_count(size, "size")
        store = self._store
        contents = None if store is None else store.snapshot().contents
        return iter(()) if contents is None else chunks_of(contents, size)

    # ------------------------------------------------------------------ recall

    @renamed_arguments(known="mask")
    def recall(
        self, queries: ArrayLike, mask: ArrayLike | None = None, *, max_steps: int = 50
    ) -> Recall:
        """The stored patterns that the cues lead to.

        Args:
            queries: cues (..., D). Of a NumPy masked array, what is not masked is known.
            mask: booleans that broadcast to the queries: True where the cue really contains the
                coordinate. The others are ignored (they may be NaN) and filled in.
            max_steps: the largest number of updates.

        A cue of zeros is a cue like any other: under ``"distance"`` it leads to the patterns
        nearest to the origin, under ``"dot"`` all patterns score alike and it leads to their mean.
        """
        max_steps = as_count(max_steps, "max_steps")
        with self._writer.turns:
            return self._recall(queries, mask, max_steps)

    def _recall(self, queries: ArrayLike, mask: ArrayLike | None, max_steps: int) -> Recall:
        snapshot = self._snapshot_for_recall()
        contents = snapshot.contents
        if isinstance(queries, np.ma.MaskedArray):
            seen = ~np.ma.getmaskarray(queries)
            mask = seen if mask is None else seen & np.asarray(mask)
            queries = queries.data
        cues = as_queries(queries, contents.patterns.shape[1], contents.rows.dtype)
        cues = cues.to(contents.rows.device)
        known = as_mask(mask, cues)
        engine = self._engine(snapshot, cues.shape[:-1].numel(), max_steps)
        flat = cues.reshape(cues.shape[:-1].numel(), cues.shape[-1])
        flat_known = None if known is None else known.reshape(flat.shape)
        _check_cues(flat, flat_known, self._reach(snapshot) * float(engine.network.beta))
        found = engine.certain(flat) if flat_known is None else None
        if found is not None:
            return certain_recall(contents, found, cues.shape[:-1], queries)
        collector = Collector(engine, flat, contents.codec)
        with torch.no_grad(), one_thread_if_crowded(), outside_autocast(flat):
            if engine.omega.is_softmax:
                self._stream(snapshot, engine, flat, flat_known, collector)
            else:
                for piece in engine.pieces(flat, flat_known):
                    collector.take(piece)
        return collector.answer(cues.shape[:-1], queries)

    def _stream(
        self,
        snapshot: Snapshot,
        engine: Engine,
        cues: Tensor,
        known: Tensor | None,
        collector: Collector,
    ) -> None:
        beta, budget = float(engine.network.beta), engine.budget
        streamed = Streamed(engine.contents, snapshot.alive, beta, budget, engine.max_steps)
        for mixture in streamed.mixtures(cues, known):
            collector.take_mixture(mixture, streamed)

    @renamed_arguments(known="mask")
    def predict(self, queries: ArrayLike, mask: ArrayLike | None = None) -> Any:
        """The recalled values, or the recalled patterns where no values are stored."""
        answer = self.recall(queries, mask)
        return answer.patterns if answer.values is None else answer.values

    def neighbors(self, queries: ArrayLike, k: int = 1) -> Neighbors:
        """The ``k`` stored patterns nearest to each query (..., D), or with the largest products.

        Exact for the stored numbers; of equal ones the pattern stored first counts.

        >>> import numpy as np, hopfy
        >>> memory = hopfy.AssociativeMemory().fit(np.array([[0.0], [1.0], [5.0]]))
        >>> memory.neighbors(np.array([0.75]), k=2)
        Neighbors(ids=array([1, 0]), scores=array([0.25, 0.75]))
        """
        snapshot = self._snapshot_for_recall()
        contents = snapshot.contents
        cues = as_queries(queries, contents.patterns.shape[1], contents.rows.dtype).cpu()
        flat = cues.reshape(cues.shape[:-1].numel(), cues.shape[-1])
        _check_cues(flat, None, self._reach(snapshot))
        k = as_count(k, "k", len(snapshot))
        metric = "inner" if contents.radius is None else "euclidean"
        with self._writer.turns:
            index = snapshot.index(flat.shape[0]).with_scratch(self._budget.scratch)
            top = index.top(flat, k, metric=metric)  # type: ignore[arg-type]
        shape = (*cues.shape[:-1], k)
        ids = contents.ids[top.indices].reshape(shape)
        return Neighbors(in_kind_of(ids, queries), in_kind_of(top.scores.reshape(shape), queries))

    @property
    def network(self) -> HopfieldNetwork:
        """The network behind the recall; under ``"distance"`` its last coordinate is the lift."""
        return self._network(self._filled_snapshot())

    # ------------------------------------------------------------------ guarantees

    @property
    def beta(self) -> float:
        """The inverse temperature in force."""
        return self._beta(self._filled_snapshot())

    @property
    def uncertifiable(self) -> list[int]:
        """The ids of patterns that no beta makes exact: duplicates and dominated patterns."""
        snapshot = self._filled_snapshot()
        hopeless = self._guarantee(snapshot).hopeless
        found: list[int] = snapshot.contents.ids[hopeless].tolist()
        return found

    def explain(self) -> str:
        """Why beta is what it is, and which patterns can be certified.

        >>> import torch, hopfy
        >>> memory = hopfy.AssociativeMemory(compare="dot")
        >>> memory.add(torch.tensor([[2.0, 0.0], [0.0, 2.0], [0.0, 1.0]]))
        tensor([0, 1, 2])
        >>> print(memory.explain())
        3 patterns of 2 coordinates, compared by inner product.
        Pattern i is recalled exactly if and only if its separation Delta_i is at least m / beta,
        where m = 1 is the margin of omega (Prop. 2).
        The smallest positive separation is 2 (pattern 1 against pattern 2), so
        beta = 2 m / Delta = 1: half of the separation covers the margin, the other half is room
        for noise in the cue.
        2 of 3 patterns are fixed points.
        Pattern 2 can never be certified: stored twice, dominated by a longer pattern, or closer to
        another than torch.float32 can tell.
        """
        snapshot = self._filled_snapshot()
        return self._guarantee(snapshot).explain(snapshot.contents)

    def describe(self) -> str:
        """What is stored, how it is compared and where it lives, in a few lines."""
        lines = [repr(self)]
        store = self._store
        if store is not None and len(store):
            contents = store.contents
            size, dtype = (
                contents.patterns.shape[1],
                str(contents.rows.dtype).removeprefix("torch."),
            )
            megabytes = contents.rows.numel() * contents.rows.element_size() / 2**20
            lines.append(f"{size} coordinates each, {dtype}, {megabytes:.1f} MB.")
            lines += described_values(contents.codec, contents.values)
        if self._writer.journal is not None:
            size = self._writer.journal.size
            lines.append(f"Lives in {str(self._writer.path)!r}, {size} bytes in its journal.")
        if self._file is not None:
            lines.append(f"Mapped from {str(self._file.path)!r}; it cannot be changed.")
        return "\n".join(lines)

    def __repr__(self) -> str:
        settings = self._settings
        beta = "'auto'" if settings.beta is None else f"{settings.beta:g}"
        return (
            f"AssociativeMemory({len(self)} patterns, omega={settings.omega}, beta={beta}, "
            f"compare={settings.compare!r})"
        )

    # ------------------------------------------------------------------ inside

    def _check_writable(self) -> None:
        if self._file is not None:
            raise ValueError(
                "expected a memory that can change, but this one was opened with mmap=True; "
                "load it with mmap=False."
            )

    @property
    def _settings(self) -> Settings:
        return self._writer.settings

    @property
    def _store(self) -> Store | None:
        return self._writer.store

    def __getstate__(self) -> dict[str, Any]:
        store = self._store
        contents = None if store is None else store.snapshot().contents
        if contents is not None:
            values = None if contents.values is None else contents.values.clone()
            contents = contents._replace(
                rows=contents.rows.clone(), ids=contents.ids.clone(), values=values, mapped=False
            )
        next_id = 0 if store is None else store.next_id
        return {"given": self._given, "contents": contents, "next_id": next_id}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["given"])  # type: ignore[misc]
        if state["contents"] is not None:
            self._writer.store = Store(state["contents"], state["next_id"])

    def _filled_snapshot(self) -> Snapshot:
        store = self._store
        snapshot = None if store is None else store.snapshot()
        if snapshot is None or len(snapshot) == 0:
            raise ValueError("expected a memory with patterns, got an empty one; add some first.")
        return snapshot

    def _snapshot_for_recall(self) -> Snapshot:
        """A state that need not be compacted, where a search is all that looks at its rows."""
        store = self._store
        if store is None or store.contents.rows.device.type != "cpu" or not len(store):
            return self._filled_snapshot()
        return store.snapshot_for_recall(with_separations=self._settings.beta is None)

    def _guarantee(self, snapshot: Snapshot) -> Guarantee:
        return snapshot.derived(
            "guarantee", lambda: guarantee(snapshot, self._settings.omega, self._settings.beta)
        )

    def _beta(self, snapshot: Snapshot) -> float:
        given = self._settings.beta
        return self._guarantee(snapshot).beta if given is None else given

    def _reach(self, snapshot: Snapshot) -> float:
        """The length of the longest row."""
        if snapshot.contents.rows.device.type == "cpu":
            return snapshot.derived("reach", lambda: snapshot.index(0).largest_norm)
        rows = snapshot.contents.rows
        return snapshot.derived("reach", lambda: math.sqrt(float(squared_lengths(rows).max())))

    def _network(self, snapshot: Snapshot) -> HopfieldNetwork:
        return snapshot.derived("network", lambda: self._make_network(snapshot))

    def _make_network(self, snapshot: Snapshot) -> HopfieldNetwork:
        omega, beta = self._settings.omega, self._beta(snapshot)
        if snapshot.contents.rows.device.type != "cpu":
            return HopfieldNetwork(snapshot.contents.rows, omega, beta)
        return self._network_over(snapshot.index(0), beta)

    def _network_over(self, index: ExactIndex, beta: float) -> HopfieldNetwork:
        index = index.with_scratch(self._budget.search)
        return HopfieldNetwork.over(index, self._settings.omega, beta)

    def _engine(self, snapshot: Snapshot, queries: int, max_steps: int) -> Engine:
        network = self._network(snapshot)
        index = None
        if snapshot.contents.rows.device.type == "cpu" and not network.omega.is_softmax:
            before = snapshot.index_so_far
            index = snapshot.index(queries)
            if index is not before:  # with a plan now
                network = self._network_over(index, float(network.beta))
                snapshot.derive_again("network", network)
            index = index.with_scratch(self._budget.search)
        prepared = snapshot.derived("prepared", lambda: PreparedMap.of(network.omega))
        return Engine(snapshot.contents, network, index, self._budget, max_steps, prepared)


def _check_cues(cues: Tensor, known: Tensor | None, reach: float) -> None:
    """Finite where they are known, and short enough for scores of up to ``reach`` times them."""
    seen = cues if known is None else cues.masked_fill(~known, 0.0)
    if not seen.shape[0]:
        return
    longest = float(torch.linalg.vector_norm(seen, dim=-1, dtype=torch.float64).max())
    if longest * reach * cues.shape[1] <= torch.finfo(cues.dtype).max / 16:
        return
    try:
        check_finite(seen, "queries")
    except ValueError as error:
        hint = "" if known is not None else " `recall` fills them in with mask=~isnan(queries)."
        raise ValueError(f"{error}{hint}") from None
    raise ValueError(f"expected queries whose scores fit {cues.dtype}, got longer ones.")
