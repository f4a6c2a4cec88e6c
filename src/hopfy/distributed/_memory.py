"""An associative memory whose patterns are spread over processes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hopfy.distributed._engine import Engine
from hopfy.distributed._group import Group, collective
from hopfy.distributed._inputs import QueryLayout, check_layout, digest
from hopfy.distributed._memory_changes import MemoryChanges
from hopfy.distributed._memory_files import load_shards, save_shards
from hopfy.distributed._memory_state import Stored
from hopfy.distributed._new_patterns import offered
from hopfy.distributed._recall import Recaller, check_fetch
from hopfy.distributed._shard import Shard
from hopfy.distributed._stored_patterns import StoredPatterns
from hopfy.distributed._transport import Traffic
from hopfy.memory import AssociativeMemory, Recall
from hopfy.memory.parts import (
    ArrayLike,
    Codec,
    Collector,
    Compare,
    Contents,
    Entry,
    Neighbors,
    Piece,
    RecallBudget,
    Settings,
    as_ids,
    as_mask,
    as_queries,
    check_cues,
    in_kind_of,
    memory_of,
)
from hopfy.memory.parts import Engine as Readout
from hopfy.omega import Omega
from hopfy.search import Metric, SparseRows

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

__all__ = ["ShardedMemory"]


class ShardedMemory(MemoryChanges):
    r"""A `hopfy.AssociativeMemory` whose patterns are spread over the processes of a mesh.

    Every process creates it with the same settings, and all processes make the same calls in the
    same order. Answers are those of one memory with all patterns: the same ids, patterns, values and
    certificates, whatever the number of processes.

    Args:
        omega: a regularizer on the simplex or its name, equal on all processes. Softmax and maps
            that cannot be merged recall from a copy of all patterns, up to ``gather_limit`` bytes.
        beta: the inverse temperature, or ``"auto"``: chosen from the separations of all patterns
            (all pairs are compared once; the work is shared by the processes).
        mesh: a `DeviceMesh` with one dimension; None: all processes of the default group, or this
            process alone if there is none.
        compare: ``"distance"`` or ``"dot"``, as in `hopfy.AssociativeMemory`.
        timeout: seconds to wait for other processes before a `LostProcessError`.
        gather_limit: bytes of patterns that a recall may bring to every process.

    >>> import torch
    >>> from hopfy.distributed import ShardedMemory
    >>> memory = ShardedMemory(beta=2.0)  # one process
    >>> memory.add(torch.eye(3), values=["a", "b", "c"])
    tensor([0, 1, 2])
    >>> memory.recall(torch.tensor([0.1, 0.9, 0.0])).describe(0)
    'pattern 1, exactly, certified.'
    >>> memory
    ShardedMemory(3 of 3 patterns on rank 0 of 1, omega=Tsallis(alpha=2.0), beta=2, compare='distance')
    """

    def __init__(
        self,
        omega: Omega | str = "sparsemax",
        beta: float | str = "auto",
        mesh: DeviceMesh | None = None,
        *,
        compare: Compare = "distance",
        timeout: float = 300.0,
        gather_limit: int = 1 << 30,
    ) -> None:
        self._group = Group(mesh, timeout, torch.device("cpu"), type(self).__name__)

        def check() -> tuple[Settings, Mapping[str, int]]:
            settings = Settings.checked(omega, beta, compare)
            return settings, {
                "omega": digest(settings.omega),
                "beta": digest(settings.beta),
                "compare": digest(settings.compare),
                "gather_limit": int(gather_limit),
            }

        self._settings = self._group.agree(check)
        self._gather_limit = int(gather_limit)
        self._stored: Stored | None = None
        self._codec: Codec | None = None
        self._engine_of: tuple[StoredPatterns, Engine] | None = None
        self._beta_of: tuple[StoredPatterns, float] | None = None

    # ------------------------------------------------------------------ what is stored

    @collective
    def add(
        self,
        patterns: ArrayLike,
        values: ArrayLike | None = None,
        ids: ArrayLike | None = None,
        *,
        layout: QueryLayout = "replicated",
    ) -> Any:
        """Store patterns (M, D), or one (D,); returns their ids, in the patterns' kind.

        Args:
            patterns, values, ids: as in `hopfy.AssociativeMemory.add`; ids count on all processes.
            layout: ``"replicated"``: all processes pass the same patterns, and each pattern goes to
                the emptiest process. ``"sharded"``: each process passes its own (possibly none, of
                shape (0, D)) and keeps them, so that no pattern is sent; it gets the ids of its own.
                They count as stored in the order of the ranks.
        """
        before = self._stored
        held = None if before is None else before.held
        counts = [0] * self._group.size if before is None else before.counts
        offer = offered((patterns, values, ids), layout, held, self._codec, counts, self._group)
        new = self._new_ids(offer)
        radius = self._radius_with(offer)
        after = self._group.together(lambda: self._with(offer, new, radius))
        sizes = self._gathered_counts(after)
        if offer.codec is not None:
            self._codec = self._codec or Codec(offer.codec.kind)
            self._codec.learn(offer.codec.entries)
        self._stored = replace(after, counts=sizes)
        return in_kind_of(new[offer.answer], patterns)

    @collective
    def remove(self, ids: ArrayLike) -> None:
        """Forget the patterns with these ids (the same on all processes), wherever they are.

        An unknown id is a KeyError on all processes and removes nothing.
        """
        wanted = self._group.agree(lambda: _with_digest(as_ids(ids), "ids"))
        places = self._places_of(wanted)
        stored = self._stored
        if stored is None or not wanted.numel():
            return
        held = stored.held
        lost = self._group.gather(lambda: [held.numbers[places]])
        gone = torch.cat([part[0] for part in lost])

        def without() -> Stored:
            smaller = held.without(places)
            keep = torch.ones(held.stored, dtype=torch.bool)
            keep[places] = False
            known = stored.separations.kept(keep, gone)
            return replace(stored, held=smaller, separations=known)

        after = self._group.together(without)
        counts = [
            before - len(torch.unique(part[0]))
            for before, part in zip(stored.counts, lost, strict=True)
        ]
        self._stored = replace(after, counts=counts)

    @collective
    def get(self, one: int) -> Entry:
        """The pattern with this id and its value, on all processes; ``memory[id]`` is the same."""
        wanted = self._group.agree(lambda: _with_digest(as_ids([one]), "id"))
        place = self._places_of(wanted)
        held = self._filled().held
        tables = [held.patterns, *([] if held.values is None else [held.values])]
        parts = self._group.gather(lambda: [table[place] for table in tables])
        pattern, *values = (torch.cat(column)[0] for column in zip(*parts, strict=True))
        value: Any = values[0] if values else None
        if value is not None and self._codec is not None:
            value = self._codec.value(int(value))
        elif value is not None and not value.ndim:
            value = value.item()
        return Entry(int(wanted[0]), pattern, value)

    def __getitem__(self, one: int) -> Entry:
        return self.get(one)

    def __len__(self) -> int:
        """The number of patterns on all processes."""
        return 0 if self._stored is None else self._stored.total

    @property
    def counts(self) -> list[int]:
        """How many patterns each process holds, by rank."""
        return [0] * self._group.size if self._stored is None else list(self._stored.counts)

    @property
    def ids(self) -> Tensor:
        """The ids of all patterns, oldest first; all processes ask together."""
        return self._all_ids()

    @collective
    def _all_ids(self) -> Tensor:
        if self._stored is None:
            return torch.zeros(0, dtype=torch.int64)
        held = self._stored.held
        parts = self._group.gather(lambda: [held.numbers, held.ids])
        numbers, ids = (torch.cat(column) for column in zip(*parts, strict=True))
        return ids[numbers.argsort()]

    @property
    def traffic(self) -> Traffic:
        """What this process has exchanged since the memory was made (a copy)."""
        return self._group.traffic.copy()

    def __repr__(self) -> str:
        settings, rank = self._settings, self._group.rank
        beta = "'auto'" if settings.beta is None else f"{settings.beta:g}"
        return (
            f"ShardedMemory({self.counts[rank]} of {len(self)} patterns on rank {rank} of "
            f"{self._group.size}, omega={settings.omega}, beta={beta}, "
            f"compare={settings.compare!r})"
        )

    # ------------------------------------------------------------------ recall

    @collective
    def recall(
        self,
        queries: ArrayLike,
        mask: ArrayLike | None = None,
        *,
        max_steps: int = 50,
        layout: QueryLayout = "replicated",
    ) -> Recall:
        """The stored patterns that the cues lead to; see `hopfy.AssociativeMemory.recall`.

        Cues are replicated (all processes pass the same and get all answers) or sharded (each
        process passes its own and gets their answers).
        """
        stored = self._filled()
        question = queries.data if isinstance(queries, np.ma.MaskedArray) else queries
        cues, known = self._cues(queries, mask, layout, stored, max_steps)
        flat, flat_known, own = self._everyone(cues, known, layout)
        if not self._merges:
            memory = self._gathered(stored)
            return memory.recall(
                in_kind_of(cues, question),
                None if known is None else in_kind_of(known, question),
                max_steps=max_steps,
            )
        beta, engine = self._beta(stored), self._engine(stored)
        norm = self._largest_norm(stored)
        self._group.together(lambda: check_cues(flat, flat_known, norm * beta))
        with torch.no_grad():
            recaller = Recaller(engine, stored.held.radius, beta, norm, max_steps)
            pieces = list(recaller.pieces(flat, flat_known))
            small, contents = self._contents_of(pieces, engine, stored)
        collector = Collector(_readout(contents, max_steps), flat[own], self._codec)
        for piece in small:
            inside = (piece.places >= own.start) & (piece.places < own.stop)
            collector.take(_part_of(piece, inside, own.start))
        return collector.answer(cues.shape[:-1], question)

    @collective
    def neighbors(
        self, queries: ArrayLike, k: int = 1, *, layout: QueryLayout = "replicated"
    ) -> Neighbors:
        """The ``k`` patterns nearest to each query (..., D), or with the largest products.

        Exact; of equal ones the pattern stored first counts, on whichever process it is.
        """
        stored = self._filled()
        cues, _ = self._cues(queries, None, layout, stored, k)
        if isinstance(k, bool) or not isinstance(k, int) or not 0 < k <= stored.total:
            raise ValueError(f"expected k from 1 to the {stored.total} patterns, got {k!r}.")
        flat, _, own = self._everyone(cues, None, layout)
        norm = self._largest_norm(stored)
        self._group.together(lambda: check_cues(flat, None, norm))
        parts = self._group.gather(lambda: _best_of(self._shard(stored), stored.held, flat, k))
        scores, numbers, ids = (torch.cat(column, 0).T for column in zip(*parts, strict=True))
        order = numbers.argsort(dim=1, stable=True)
        order = order.gather(1, (-scores).gather(1, order).argsort(dim=1, stable=True))[:, :k]
        scores, ids = scores.gather(1, order)[own], ids.gather(1, order)[own]
        if stored.held.radius is not None:
            scores = (-2 * scores).clamp_min(0).sqrt()
        shape = (*cues.shape[:-1], k)
        return Neighbors(
            in_kind_of(ids.reshape(shape), queries), in_kind_of(scores.reshape(shape), queries)
        )

    # ------------------------------------------------------------------ guarantees

    @property
    def beta(self) -> float:
        """The inverse temperature in force; all processes ask together."""
        return self._shared_beta()

    @collective
    def _shared_beta(self) -> float:
        return self._beta(self._filled())

    @property
    def uncertifiable(self) -> list[int]:
        """The ids of patterns that no beta makes exact, oldest first; all processes ask together."""
        return self._hopeless_ids()

    @collective
    def _hopeless_ids(self) -> list[int]:
        stored = self._separated(self._filled())
        held, hopeless = stored.held, self._hopeless(stored)
        parts = self._group.gather(lambda: [held.numbers[hopeless], held.ids[hopeless]])
        numbers, ids = (torch.cat(column) for column in zip(*parts, strict=True))
        found: list[int] = ids[numbers.argsort()].tolist()
        return found

    # ------------------------------------------------------------------ files

    @collective
    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write one checked safetensors file per process and a manifest into ``folder``.

        All processes must see the same folder. The manifest is written last, atomically: after a
        crash the folder holds the old memory or the new one.
        """
        self._group.agree(lambda: _with_digest(os.fspath(folder), "folder"))
        save_shards(folder, self._settings, self._stored, self._codec, self._group)

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike[str],
        mesh: DeviceMesh | None = None,
        *,
        timeout: float = 300.0,
        gather_limit: int = 1 << 30,
    ) -> ShardedMemory:
        """Read what `save` wrote, on any number of processes; the patterns are shared out evenly.

        Every byte is compared with its checksum once, each process reads its part.
        """
        group = Group(mesh, timeout, torch.device("cpu"), f"{cls.__name__}.load")
        with group.call():
            settings, stored, codec = load_shards(folder, group)
        beta: float | str = "auto" if settings.beta is None else settings.beta
        memory = cls(
            settings.omega, beta, mesh, compare=settings.compare, timeout=timeout,
            gather_limit=gather_limit,
        )  # fmt: skip
        memory._stored, memory._codec = stored, codec
        return memory

    # ------------------------------------------------------------------ inside

    @property
    def _merges(self) -> bool:
        omega = self._settings.omega
        mergeable = omega.merges_by_support and not omega.varies_by_row
        return mergeable and not omega.is_softmax and omega.event_dims == 1

    def _cues(
        self,
        queries: ArrayLike,
        known: ArrayLike | None,
        layout: QueryLayout,
        stored: Stored,
        option: int,
    ) -> tuple[Tensor, Tensor | None]:
        """Checked cues (..., D) of this process and their mask, comparable on all processes."""

        def check() -> tuple[tuple[Tensor, Tensor | None], Mapping[str, int]]:
            check_layout(layout)
            if isinstance(option, bool) or not isinstance(option, int) or option < 1:
                raise ValueError(f"expected max_steps and k to be integers >= 1, got {option!r}.")
            asked, seen = queries, known
            if isinstance(asked, np.ma.MaskedArray):
                there = ~np.ma.getmaskarray(asked)
                seen = there if seen is None else there & np.asarray(seen)
                asked = asked.data
            held = stored.held
            cues = as_queries(asked, held.patterns.shape[1], held.rows.dtype).cpu()
            mask = as_mask(seen, cues)
            same = {"layout": digest(layout), "options": digest([option, mask is None])}
            if layout == "replicated":
                shape = tuple(cues.shape)
                same |= {"shape of the queries": digest(shape), "queries": digest(cues)}
                same |= {"known coordinates": digest(mask)}
            return (cues, mask), same

        return self._group.agree(check)

    def _everyone(
        self, cues: Tensor, mask: Tensor | None, layout: QueryLayout
    ) -> tuple[Tensor, Tensor | None, slice]:
        """The cues of all processes as rows, their mask, and which rows are our own."""
        flat = cues.reshape(cues.shape[:-1].numel(), cues.shape[-1])
        flat_mask = None if mask is None else mask.reshape(flat.shape)
        if layout == "replicated":
            return flat, flat_mask, slice(0, len(flat))
        tables = [flat] if flat_mask is None else [flat, flat_mask]
        parts = self._group.gather(lambda: tables)
        first = sum(len(part[0]) for part in parts[: self._group.rank])
        joined = [torch.cat(column) for column in zip(*parts, strict=True)]
        return joined[0], joined[1] if mask is not None else None, slice(first, first + len(flat))

    def _contents_of(
        self, pieces: list[Piece], engine: Engine, stored: Stored
    ) -> tuple[list[Piece], Contents]:
        """What took part in the answers, on all processes, and the pieces on these columns."""
        held = stored.held
        if pieces:
            ids = torch.unique(torch.cat([piece.weights.indices for piece in pieces]))
        else:
            ids = torch.zeros(0, dtype=torch.int64)
        check_fetch(engine, len(ids))
        tables = [held.rows, held.ids, *([] if held.values is None else [held.values])]
        rows, names, *values = engine.fetch_all(ids, tables)
        contents = Contents(rows, names, values[0] if values else None, held.radius, self._codec)
        small = []
        for piece in pieces:
            weights = piece.weights
            places = torch.searchsorted(ids, weights.indices)
            columns = SparseRows(weights.offsets, places, weights.values, len(ids))
            small.append(piece._replace(weights=columns))
        return small, contents

    def _gathered(self, stored: Stored) -> AssociativeMemory:
        """One memory with all patterns, for maps that cannot be merged."""
        engine, held = self._engine(stored), stored.held
        rows, total = held.rows, stored.total
        needed = total * rows.shape[1] * rows.element_size()
        if needed > self._gather_limit:
            raise ValueError(
                "expected an omega whose parts can be merged (a sparse one on the simplex), got "
                f"{self._settings.omega.name}: all {total} patterns ({needed:.2g} bytes) would be "
                f"brought to every process. Raise gather_limit above {self._gather_limit:.2g} bytes."
            )
        numbers = torch.cat([part[0] for part in self._group.gather(lambda: [held.numbers])])
        tables = [rows, held.ids, *([] if held.values is None else [held.values])]
        everything, ids, *values = engine.fetch_all(numbers.sort().values, tables)
        contents = Contents(
            everything, ids, values[0] if values else None, held.radius, self._codec
        )
        return memory_of(self._settings, contents, stored.next_id)


def _with_digest(value: Any, name: str) -> tuple[Any, Mapping[str, int]]:
    return value, {name: digest(value)}


def _best_of(shard: Shard, held: StoredPatterns, queries: Tensor, k: int) -> list[Tensor]:
    """The k best of this process: scores, numbers and ids, each (at most k, M)."""
    count = min(k, len(shard))
    if not count or not len(queries):
        none = torch.zeros(0, len(queries))
        return [none.double(), none.long(), none.long()]
    metric: Metric = "inner" if held.radius is None else "euclidean"
    nowhere = torch.zeros(len(queries), dtype=torch.float64)
    found = shard.near_best(queries, nowhere, count, metric)
    order = found.values.argsort(descending=True, stable=True)
    order = order[found.row_of_entry[order].argsort(stable=True)]
    places = found.offsets[:-1].unsqueeze(1) + torch.arange(count)
    chosen = order[places]
    where = found.indices[chosen]
    return [found.values[chosen].T, held.numbers[where].T, held.ids[where].T]


def _readout(contents: Contents, max_steps: int) -> Readout:
    """What the collector of `hopfy.memory` reads from; it keeps all weights."""
    budget = RecallBudget(1 << 62)
    return Readout(contents, None, None, budget, max_steps)  # type: ignore[arg-type]


def _part_of(piece: Piece, inside: Tensor, first: int) -> Piece:
    return Piece(
        piece.places[inside] - first,
        piece.weights.take(inside.nonzero().flatten()),
        piece.certified[inside],
        piece.kinds[inside],
        piece.steps[inside],
    )
