"""What a recall found, query by query."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from hopfy._renamed import renamed_attributes
from hopfy.memory._arrays import ArrayLike, in_kind_of
from hopfy.memory._dynamics import KINDS, Engine, Piece
from hopfy.memory._store import Contents
from hopfy.memory._streamed import Mixture, Streamed
from hopfy.memory._values import Codec
from hopfy.network import HopfieldNetwork, Kind
from hopfy.search import ExactIndex, SparseRows

__all__ = ["Collector", "Recall", "certain_recall"]


@dataclass(frozen=True, eq=False, repr=False)
class Recall:
    """The result of `AssociativeMemory.recall`; rows are the queries, ``queries.shape[:-1]``.

    Arrays are of the queries' kind: NumPy for NumPy, torch for torch.

    Attributes:
        patterns: (..., D), the recalled patterns. A single pattern comes back bit for bit as it was
            stored; a mixture is the weighted average of the stored ones.
        ids: (...) int64, the id of the pattern with the largest weight.
        values: what was stored with the patterns: floating values are averaged with the weights,
            everything else (labels, texts, records) is voted on. None if the memory has no values.
        certified: (...) booleans: it is proven, rounding included, that the recalled pattern is an
            exact fixed point of the whole network and that finitely many steps led to it (Prop. 2).
        kind: one `Kind` per query in row-major order; their values are what to show.
        size: (...) int64, how many patterns have a positive weight.
        steps: (...) int64, updates; 0 for an incomplete cue that fits several patterns.
    """

    patterns: Any
    ids: Any
    values: Any
    certified: Any
    kind: tuple[Kind, ...]
    size: Any
    steps: Any
    _weights: Callable[[int], tuple[Tensor, Tensor]]
    _ids: Tensor
    _question: Any

    __getattr__ = renamed_attributes(kinds="kind", sizes="size")

    def weights(self, query: int) -> tuple[Any, Any]:
        """The ids and the weights of all patterns that take part, the largest weight first.

        Weights that did not fit into the memory's ``scratch`` are computed again from the recalled
        state.
        """
        indices, weights = self._weights(_as_row(query, len(self.kind)))
        order = weights.argsort(descending=True, stable=True)
        ids = self._ids[indices.cpu()][order.cpu()]
        return in_kind_of(ids, self._question), in_kind_of(weights[order], self._question)

    def describe(self, query: int) -> str:
        """One line about one query (counted in row-major order)."""
        row = _as_row(query, len(self.kind))
        kind = self.kind[row]
        if kind is Kind.PATTERN:
            proof = "certified" if bool(self.certified.reshape(-1)[row]) else "not certified"
            return f"pattern {int(self.ids.reshape(-1)[row])}, exactly, {proof}."
        if kind is Kind.METASTABLE:
            ids, weights = self.weights(row)
            named = ", ".join(
                f"{i} ({w:.0%})"
                for i, w in zip(ids[:3].tolist(), weights[:3].tolist(), strict=True)
            )
            more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
            return f"a mixture of {len(ids)} stored patterns: {named}{more}."
        return f"{kind.value}."

    def __len__(self) -> int:
        return len(self.kind)

    def __repr__(self) -> str:
        count = len(self.kind)
        certified = int(self.certified.sum())
        lines = [f"Recall of {count} {'query' if count == 1 else 'queries'}, {certified} certified"]
        sizes = self.size.reshape(-1)
        for kind in Kind:
            chosen = [row for row, found in enumerate(self.kind) if found is kind]
            if not chosen:
                continue
            how_many = ""
            if kind is Kind.METASTABLE:
                few, many = int(sizes[chosen].min()), int(sizes[chosen].max())
                how_many = f" (of {few} to {many})"
            lines.append(f"  {len(chosen)} x {kind.value}{how_many}")
        return "\n".join(lines)


def certain_recall(
    contents: Contents, rows: Tensor, shape: torch.Size, question: ArrayLike
) -> Recall:
    """The answer where each query leads to one stored row (Q,) in one step, which is proven."""
    flat = len(shape) == 1

    def out(tensor: Tensor) -> Any:
        return in_kind_of(tensor if flat else tensor.reshape(shape + tensor.shape[1:]), question)

    values: Any = None
    if contents.values is not None:
        found = contents.values.index_select(0, rows)
        if contents.codec is None:
            values = out(found)
        else:
            values = contents.codec.decoded(found.reshape(shape + found.shape[1:]))
    ones = torch.ones_like(rows)
    return Recall(
        patterns=out(contents.patterns.index_select(0, rows)),
        ids=out(contents.ids.index_select(0, rows)),
        values=values,
        certified=out(ones.bool()),
        kind=(Kind.PATTERN,) * rows.numel(),
        size=out(ones),
        steps=out(ones.clone()),
        _weights=partial(_alone, rows, contents.rows.dtype),
        _ids=contents.ids,
        _question=question,
    )


class Collector:
    """Reads out each piece as it comes and keeps its weights while they fit into the budget."""

    def __init__(self, engine: Engine, queries: Tensor, codec: Codec | None) -> None:
        self._engine, self._codec = engine, codec
        rows, device = queries.shape[0], queries.device
        contents = engine.contents
        self.states = contents.rows.new_empty(rows, contents.rows.shape[1])
        self.top = torch.zeros(rows, dtype=torch.int64, device=device)
        self.size, self.steps, self.kind = (torch.zeros_like(self.top) for _ in range(3))
        self.certified = torch.zeros(rows, dtype=torch.bool, device=device)
        self.values = None
        if contents.values is not None:
            self.values = contents.values.new_empty(rows, *contents.values.shape[1:])
        self._kept: _KeptRows | None = _KeptRows(rows)
        self._room = engine.budget.kept
        self._before: Tensor | None = None
        self._streamed: Streamed | None = None

    def take(self, piece: Piece) -> None:
        places, weights = piece.places, piece.weights
        self.states[places] = weights.matmul(self._engine.contents.rows)
        self.top[places] = weights.indices[_largest(weights, weights.values)]
        self.size[places] = weights.counts
        self.steps[places], self.kind[places] = piece.steps, piece.kinds
        self.certified[places] = piece.certified
        stored = self._engine.contents.values
        if self.values is not None and stored is not None:
            self.values[places] = _read_values(weights, stored).reshape(-1, *stored.shape[1:])
        if self._kept is None:
            return
        own = weights.to(self.states.dtype)
        self._room -= own.indices.numel() * (own.indices.element_size() + own.values.element_size())
        if self._room < 0:
            self._kept = None
        else:
            self._kept.append(places, own)

    def take_mixture(self, mixture: Mixture, streamed: Streamed) -> None:
        """A recall whose weights were streamed: asked for, they are computed again from ``before``."""
        self._streamed = streamed
        places = mixture.places
        self.states[places], self.top[places] = mixture.states, mixture.top
        self.size[places], self.steps[places] = mixture.size, mixture.steps
        self.kind[places] = mixture.kinds
        if self.values is not None and mixture.values is not None:
            self.values[places] = mixture.values
        if self._before is None:
            self._before = torch.empty_like(self.states)
        self._before[places] = mixture.before

    def answer(self, shape: torch.Size, question: ArrayLike) -> Recall:
        contents = self._engine.contents

        def out(tensor: Tensor, *tail: int) -> Any:
            return in_kind_of(tensor.reshape((*shape, *tail)), question)

        values: Any = None
        if self.values is not None:
            tail = self.values.shape[1:]
            values = out(self.values, *tail)
            if self._codec is not None:
                values = self._codec.decoded(self.values.reshape((*shape, *tail)))
        size = contents.patterns.shape[1]
        return Recall(
            patterns=out(self.states[:, :size], size),
            ids=out(contents.ids[self.top.cpu()]),
            values=values,
            certified=out(self.certified),
            kind=tuple(KINDS[kind] for kind in self.kind.tolist()),
            size=out(self.size),
            steps=out(self.steps),
            _weights=self._weights(),
            _ids=contents.ids,
            _question=question,
        )

    def _weights(self) -> Callable[[int], tuple[Tensor, Tensor]]:
        streamed, before = self._streamed, self._before
        if streamed is not None and before is not None:
            return partial(_streamed_again, streamed, before)
        if self._kept is None:
            return partial(_computed_again, self._engine.index, self._engine.network, self.states)
        return self._kept.row


class _KeptRows:
    """The weights of some queries, in the parts in which they came: nothing is copied."""

    def __init__(self, queries: int) -> None:
        self._parts: list[SparseRows] = []
        self._part, self._row = (torch.zeros(queries, dtype=torch.int64) for _ in range(2))

    def append(self, places: Tensor, weights: SparseRows) -> None:
        where = places.cpu()
        self._part[where], self._row[where] = len(self._parts), torch.arange(len(where))
        self._parts.append(weights)

    def row(self, query: int) -> tuple[Tensor, Tensor]:
        return self._parts[int(self._part[query])].row(int(self._row[query]))


def _alone(rows: Tensor, dtype: torch.dtype, row: int) -> tuple[Tensor, Tensor]:
    """The weights of a query that one row answers."""
    return rows[row : row + 1], torch.ones(1, dtype=dtype, device=rows.device)


def _streamed_again(streamed: Streamed, before: Tensor, row: int) -> tuple[Tensor, Tensor]:
    return streamed.weights(before[row : row + 1]).row(0)


def _computed_again(
    index: ExactIndex | None, network: HopfieldNetwork, states: Tensor, row: int
) -> tuple[Tensor, Tensor]:
    state = states[row : row + 1]
    if index is not None:
        found = index.weights(state, network.omega, float(network.beta))
        return found.to(state.dtype).row(0)
    with torch.no_grad():
        return SparseRows.from_dense(network.weights(state)).row(0)


def _read_values(weights: SparseRows, values: Tensor) -> Tensor:
    flat = values.reshape(values.shape[0], -1)
    if values.is_floating_point():
        return weights.matmul(flat)
    return _vote(weights, flat)


def _vote(weights: SparseRows, values: Tensor) -> Tensor:
    """For each row the value with the most weight; the smallest of equals."""
    if bool((weights.counts == 1).all()):
        return values[weights.indices]
    patterns, pattern = torch.unique(weights.indices, return_inverse=True)
    choices, choice = torch.unique(values[patterns], dim=0, return_inverse=True)
    pair = weights.row_of_entry * choices.shape[0] + choice[pattern]
    pairs, entry = torch.unique(pair, return_inverse=True)
    shares = weights.values.new_zeros(pairs.shape[0]).index_add(0, entry, weights.values)
    counts = torch.bincount(pairs // choices.shape[0], minlength=weights.rows)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    ballots = SparseRows(offsets, pairs % choices.shape[0], shares, choices.shape[0])
    elected: Tensor = choices[ballots.indices[_largest(ballots, shares)]]
    return elected


def _largest(rows: SparseRows, weights: Tensor) -> Tensor:
    """The entry with the largest weight of each row, the first of equals."""
    if bool((rows.counts == 1).all()):
        return rows.offsets[:-1]
    by_weight = weights.argsort(descending=True, stable=True)
    by_row = rows.row_of_entry[by_weight].argsort(stable=True)
    first: Tensor = by_weight[by_row][rows.offsets[:-1]]
    return first


def _as_row(query: int, count: int) -> int:
    if not -count <= query < count:
        raise IndexError(f"expected a query number below {count}, got {query}.")
    return query % count
