"""The associative memory a person uses."""

from __future__ import annotations

import math
import operator
import os
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from hopfy._files.tensors import StoredFile
from hopfy.memory._arrays import (
    ArrayLike,
    as_ids,
    as_known,
    as_patterns,
    as_queries,
    as_values,
    check_finite,
    in_kind_of,
)
from hopfy.memory._files import open_store, save_snapshot, verify_rows, write_chunks
from hopfy.memory._fill import fill
from hopfy.memory._guarantee import Guarantee, guarantee
from hopfy.memory._lift import squared_lengths
from hopfy.memory._recall import Found, Recall
from hopfy.memory._settings import Compare, Settings
from hopfy.memory._store import Contents, Snapshot, Store
from hopfy.network import HopfieldNetwork
from hopfy.omega import Omega
from hopfy.search import SparseRows

__all__ = ["AssociativeMemory", "Chunk"]

# Scores held at once during a recall.
_BLOCK = 1 << 24


class Chunk(NamedTuple):
    """Some stored patterns: ids (M,), patterns (M, D) and values (M, ...) or None."""

    ids: Tensor
    patterns: Tensor
    values: Tensor | None


class AssociativeMemory:
    r"""Patterns that are recalled from damaged or incomplete cues, with a proof where there is one.

    A `HopfieldNetwork` does the recalling. The memory adds what a person needs around it: patterns
    that come and go, values that belong to them, a beta that fits them, cues with missing
    coordinates, files. It may be used from many threads: each recall sees one state of the memory.

    Args:
        omega: a regulariser on the simplex (`Tsallis`, `Norm`, `Shannon`) or its name. Sparse ones
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
    >>> memory.recall(np.array([1.0, 1.0, 0.0, 0.0]), known=half).describe(0)
    'pattern 0, exactly, certified.'
    """

    def __init__(
        self,
        omega: Omega | str = "sparsemax",
        beta: float | str = "auto",
        *,
        compare: Compare = "distance",
        device: torch.device | str = "cpu",
    ) -> None:
        self._settings = Settings.checked(omega, beta, compare)
        self._device = torch.device(device)
        self._writing = threading.Lock()
        self._store: Store | None = None
        self._file: StoredFile | None = None

    # ------------------------------------------------------------------ what is stored

    def add(
        self, patterns: ArrayLike, values: ArrayLike | None = None, ids: ArrayLike | None = None
    ) -> Any:
        """Store patterns (M, D), or one (D,); returns their ids, in the patterns' kind.

        Args:
            patterns: finite numbers; the first call fixes D and the dtype (float64 stays, all else
                becomes float32).
            values: (M, ...) numbers to read out with the patterns, for all patterns or for none.
            ids: integers >= 0 that are not in use; counted on by default, never used twice.
        """
        with self._writing:
            self._check_writable()
            store = self._store
            contents = None if store is None else store.contents
            dim = None if contents is None else contents.patterns.shape[1]
            dtype = None if contents is None else contents.rows.dtype
            rows = as_patterns(patterns, dim, dtype).to(self._device)
            given = self._checked_values(values, rows.shape[0], contents)
            wanted = None if ids is None else as_ids(ids)
            if store is None:
                store = self._empty_store(rows, given)
            new = store.add(rows, given, wanted)
            self._store = store
        return in_kind_of(new.clone(), patterns)

    def remove(self, ids: ArrayLike) -> None:
        """Forget the patterns with these ids; an unknown id is a KeyError and removes nothing."""
        wanted = as_ids(ids)
        with self._writing:
            self._check_writable()
            if self._store is None:
                raise KeyError(f"expected ids that are stored, got {wanted[:5].tolist()} (empty).")
            self._store.remove(wanted)

    def fit(self, patterns: ArrayLike, values: ArrayLike | None = None) -> AssociativeMemory:
        """Replace everything by these patterns and values, as scikit-learn's ``fit``."""
        fresh = AssociativeMemory(device=self._device)
        fresh._settings = self._settings
        fresh.add(patterns, values)
        with self._writing:
            self._store, self._file = fresh._store, None
        return self

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
            return torch.zeros(0, dtype=torch.int64)
        return store.snapshot().contents.ids.clone()

    def chunks(self, size: int = 1024) -> Iterator[Chunk]:
        """Copies of what is stored, ``size`` patterns at a time, from one state of the memory."""
        if not isinstance(size, int) or size < 1:
            raise ValueError(f"expected size to be an integer >= 1, got {size!r}.")
        store = self._store
        contents = None if store is None else store.snapshot().contents
        return iter(()) if contents is None else _chunks(contents, size)

    # ------------------------------------------------------------------ recall

    def recall(
        self, queries: ArrayLike, known: ArrayLike | None = None, *, max_steps: int = 50
    ) -> Recall:
        """The stored patterns that the cues lead to.

        Args:
            queries: cues (..., D).
            known: booleans that broadcast to the queries: True where the cue really contains the
                coordinate. The others are ignored (they may be NaN) and filled in.
            max_steps: the largest number of updates.

        A cue of zeros is a cue like any other: under ``"distance"`` it leads to the patterns
        nearest to the origin, under ``"dot"`` all patterns score alike and it leads to their mean.
        """
        snapshot = self._filled_snapshot()
        contents = snapshot.contents
        cues = as_queries(queries, contents.patterns.shape[1], contents.rows.dtype)
        cues = cues.to(contents.rows.device)
        mask = as_known(known, cues)
        network = self._network(snapshot)
        flat = cues.reshape(-1, cues.shape[-1])
        flat_mask = None if mask is None else mask.reshape(flat.shape)
        _check_cues(flat, flat_mask, self._reach(snapshot) * float(network.beta))
        size = max(1, _BLOCK // len(snapshot))
        parts = []
        with torch.no_grad():
            for start in range(0, flat.shape[0], size):
                part = slice(start, start + size)
                own = None if flat_mask is None else flat_mask[part]
                parts.append(_find(flat[part], own, network, contents, max_steps))
        found = _joined(parts, contents.rows)
        return found.answer(contents, cues, queries)

    def predict(self, queries: ArrayLike, known: ArrayLike | None = None) -> Any:
        """The recalled values, or the recalled patterns where no values are stored."""
        answer = self.recall(queries, known)
        return answer.patterns if answer.values is None else answer.values

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
        beta = 2 m / Delta = 1: half of the separation pays for the margin, the other half is room
        for noise in the cue.
        2 of 3 patterns are fixed points.
        Pattern 2 can never be certified: stored twice, dominated by a longer pattern, or closer to
        another than torch.float32 can tell.
        """
        snapshot = self._filled_snapshot()
        return self._guarantee(snapshot).explain(snapshot.contents)

    # ------------------------------------------------------------------ files

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write everything to one file, atomically: after a crash it is the old one or the new one.

        The file is in the safetensors format, with the settings as JSON in its header and checksums
        of everything. Recalls may go on meanwhile.
        """
        store = self._store
        snapshot = None if store is None else store.snapshot()
        # Read after the snapshot, so that no id of it can be taken again.
        next_id = 0 if store is None else store.next_id
        save_snapshot(path, self._settings, snapshot, next_id)

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        mmap: bool = False,
        device: torch.device | str = "cpu",
    ) -> AssociativeMemory:
        """Read a memory that `save` wrote.

        Every byte is compared with its checksum. With ``mmap`` the patterns and values stay on
        disk, may be larger than the machine's memory, cannot be changed, and are compared with
        their checksums only by `verify`.
        """
        opened = open_store(path, mmap, torch.device(device))
        memory = cls(device="cpu" if mmap else device)
        memory._settings, memory._store, memory._file = opened
        return memory

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        patterns: ArrayLike,
        values: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        *,
        omega: Omega | str = "sparsemax",
        beta: float | str = "auto",
        compare: Compare = "distance",
    ) -> AssociativeMemory:
        """Write patterns that need not fit in memory to a file and open it with ``mmap``.

        ``patterns`` (N, D) and ``values`` are anything with a shape and slices: `numpy.memmap`, an
        HDF5 data set, a tensor.
        """
        write_chunks(path, Settings.checked(omega, beta, compare), patterns, values, ids)
        return cls.load(path, mmap=True)

    def verify(self) -> None:
        """Compare every byte of a memory-mapped file with its checksum (ValueError if it fails)."""
        if self._file is not None:
            verify_rows(self._file)

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

    def _checked_values(
        self, values: ArrayLike | None, count: int, contents: Contents | None
    ) -> Tensor | None:
        if contents is not None and (values is None) != (contents.values is None):
            stored = "without" if contents.values is None else "with"
            raise ValueError(
                f"expected patterns {stored} values, as all that are stored; "
                "give values for all patterns or for none."
            )
        if values is None:
            return None
        like = None if contents is None else contents.values
        return as_values(values, count, like).to(self._device)

    def _empty_store(self, rows: Tensor, values: Tensor | None) -> Store:
        lift = self._settings.compare == "distance"
        empty = Contents(
            rows.new_empty(0, rows.shape[1] + lift),
            torch.zeros(0, dtype=torch.int64),
            None if values is None else values.new_empty(0, *values.shape[1:]),
            0.0 if lift else None,
        )
        return Store(empty)

    def _filled_snapshot(self) -> Snapshot:
        store = self._store
        snapshot = None if store is None else store.snapshot()
        if snapshot is None or len(snapshot) == 0:
            raise ValueError("expected a memory with patterns, got an empty one; add some first.")
        return snapshot

    def _guarantee(self, snapshot: Snapshot) -> Guarantee:
        return snapshot.derived(
            "guarantee", lambda: guarantee(snapshot, self._settings.omega, self._settings.beta)
        )

    def _beta(self, snapshot: Snapshot) -> float:
        given = self._settings.beta
        return self._guarantee(snapshot).beta if given is None else given

    def _reach(self, snapshot: Snapshot) -> float:
        """The length of the longest row."""
        rows = snapshot.contents.rows
        return snapshot.derived("reach", lambda: math.sqrt(float(squared_lengths(rows).max())))

    def _network(self, snapshot: Snapshot) -> HopfieldNetwork:
        return snapshot.derived(
            "network",
            lambda: HopfieldNetwork(
                snapshot.contents.rows, self._settings.omega, self._beta(snapshot)
            ),
        )


def _chunks(contents: Contents, size: int) -> Iterator[Chunk]:
    for start in range(0, contents.rows.shape[0], size):
        part = slice(start, start + size)
        values = None if contents.values is None else contents.values[part].clone()
        yield Chunk(contents.ids[part].clone(), contents.patterns[part].clone(), values)


def _check_cues(cues: Tensor, known: Tensor | None, reach: float) -> None:
    """Finite where they are known, and short enough for scores of up to ``reach`` times them."""
    seen = cues if known is None else cues.masked_fill(~known, 0.0)
    try:
        check_finite(seen, "queries")
    except ValueError as error:
        hint = "" if known is not None else " Or pass known=~isnan(queries) to fill them in."
        raise ValueError(f"{error}{hint}") from None
    if not seen.shape[0]:
        return
    longest = float(torch.linalg.vector_norm(seen, dim=-1, dtype=torch.float64).max())
    if longest * reach * cues.shape[1] > torch.finfo(cues.dtype).max / 16:
        raise ValueError(f"expected queries whose scores fit {cues.dtype}, got longer ones.")


def _find(
    cues: Tensor, known: Tensor | None, network: HopfieldNetwork, contents: Contents, max_steps: int
) -> Found:
    incomplete = cues.new_zeros(cues.shape[0]).bool() if known is None else ~known.all(-1)
    if contents.radius is not None:
        # The cue says nothing about the lift.
        known = torch.ones_like(cues, dtype=torch.bool) if known is None else known
        cues = torch.nn.functional.pad(cues, (0, 1))
        known = torch.nn.functional.pad(known, (0, 1), value=False)
    if known is None:
        return _retrieved(network, cues, max_steps)
    filled = fill(cues, known, network, max_steps, incomplete)
    mixed = incomplete & (filled.weights.counts > 1)
    if not bool(mixed.any()):
        return _retrieved(network, filled.states, max_steps)
    released, held = (~mixed).nonzero().flatten(), mixed.nonzero().flatten()
    found = _retrieved(network, filled.states[released], max_steps)
    return found.with_mixtures(released, filled.weights.take(held), held, filled.settled[held])


def _retrieved(network: HopfieldNetwork, states: Tensor, max_steps: int) -> Found:
    result = network.retrieve(states, max_steps=max_steps)
    weights = result.support
    if weights is None and states.shape[0]:
        weights = SparseRows.from_dense(result.weights)
    if weights is None:
        return _nothing(network.memories)
    return Found(weights, result.certified, tuple(result.kind), result.steps)


def _nothing(rows: Tensor) -> Found:
    zero = torch.zeros(0, dtype=torch.int64, device=rows.device)
    nothing = SparseRows(zero.new_zeros(1), zero, rows.new_zeros(0), rows.shape[0])
    return Found(nothing, zero.bool(), (), zero)


def _joined(parts: list[Found], rows: Tensor) -> Found:
    if not parts:
        return _nothing(rows)
    return Found(
        SparseRows.stack([part.weights for part in parts]),
        torch.cat([part.certified for part in parts]),
        tuple(kind for part in parts for kind in part.kinds),
        torch.cat([part.steps for part in parts]),
    )
