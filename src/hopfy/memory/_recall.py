"""What a recall found, query by query."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from hopfy.memory._arrays import ArrayLike, in_kind_of
from hopfy.memory._store import Contents
from hopfy.network import Kind
from hopfy.search import SparseRows

__all__ = ["Found", "Recall"]


@dataclass(frozen=True, eq=False, repr=False)
class Recall:
    """The result of `AssociativeMemory.recall`; rows are the queries, ``queries.shape[:-1]``.

    Arrays are of the queries' kind: NumPy for NumPy, torch for torch.

    Attributes:
        patterns: (..., D), the recalled patterns. A single pattern comes back bit for bit as it was
            stored; a mixture is the weighted average of the stored ones.
        ids: (...) int64, the id of the pattern with the largest weight.
        values: what was stored with the patterns: floating values are averaged with the weights,
            integers (labels) are voted on. None if the memory has no values.
        certified: (...) booleans: it is proven, rounding included, that the recalled pattern is an
            exact fixed point of the whole network and that finitely many steps led to it (Prop. 2).
        kinds: one `Kind` per query in row-major order; their values are sentences.
        sizes: (...) int64, how many patterns have a positive weight.
        steps: (...) int64, updates of the whole network; 0 for an incomplete cue that fits several
            patterns.
    """

    patterns: Any
    ids: Any
    values: Any
    certified: Any
    kinds: tuple[Kind, ...]
    sizes: Any
    steps: Any
    _weights: SparseRows
    _ids: Tensor
    _question: Any

    def weights(self, query: int) -> tuple[Any, Any]:
        """The ids and the weights of all patterns that take part, the largest weight first."""
        indices, weights = self._weights.row(_as_row(query, len(self.kinds)))
        order = weights.argsort(descending=True, stable=True)
        ids = self._ids[indices.cpu()][order.cpu()]
        return in_kind_of(ids, self._question), in_kind_of(weights[order], self._question)

    def describe(self, query: int) -> str:
        """One sentence about one query (counted in row-major order)."""
        row = _as_row(query, len(self.kinds))
        ids, weights = self.weights(row)
        kind = self.kinds[row]
        if kind is Kind.PATTERN:
            proof = "certified" if bool(self.certified.reshape(-1)[row]) else "not certified"
            return f"pattern {int(ids[0])}, exactly, {proof}."
        if kind is Kind.METASTABLE:
            named = ", ".join(
                f"{i} ({w:.0%})"
                for i, w in zip(ids[:3].tolist(), weights[:3].tolist(), strict=True)
            )
            more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
            return f"a mixture of {len(ids)} stored patterns: {named}{more}."
        return f"{kind.value}."

    def __len__(self) -> int:
        return len(self.kinds)

    def __repr__(self) -> str:
        count = len(self.kinds)
        certified = int(self.certified.sum())
        lines = [f"Recall of {count} {'query' if count == 1 else 'queries'}, {certified} certified"]
        for kind in Kind:
            times = sum(found is kind for found in self.kinds)
            if times:
                lines.append(f"  {times} x {kind.value}")
        return "\n".join(lines)


@dataclass(frozen=True)
class Found:
    """What the network found for Q queries, flat, before it is put into the caller's kind."""

    weights: SparseRows
    certified: Tensor
    kinds: tuple[Kind, ...]
    steps: Tensor

    def with_mixtures(
        self, places: Tensor, mixtures: SparseRows, others: Tensor, settled: Tensor
    ) -> Found:
        """These rows at ``places``, and at the ``others`` cues that were never released."""
        order = torch.cat([places, others]).argsort()
        kinds = [
            *self.kinds,
            *(Kind.METASTABLE if done else Kind.MOVING for done in settled.tolist()),
        ]
        return Found(
            SparseRows.stack([self.weights, mixtures]).take(order),
            torch.cat([self.certified, torch.zeros_like(settled)])[order],
            tuple(kinds[row] for row in order.tolist()),
            torch.cat([self.steps, torch.zeros_like(others)])[order],
        )

    def answer(self, contents: Contents, queries: Tensor, question: ArrayLike) -> Recall:
        rows, weights = queries.shape[:-1], self.weights

        def out(tensor: Tensor, *tail: int) -> Any:
            return in_kind_of(tensor.reshape((*rows, *tail)), question)

        values = None
        if contents.values is not None:
            values = out(_read_values(weights, contents.values), *contents.values.shape[1:])
        size = contents.patterns.shape[1]
        top = _largest(weights, weights.values)
        ids = contents.ids[weights.indices.cpu()[top.cpu()]]
        return Recall(
            patterns=out(weights.matmul(contents.rows)[:, :size], size),
            ids=out(ids),
            values=values,
            certified=out(self.certified),
            kinds=self.kinds,
            sizes=out(weights.counts),
            steps=out(self.steps),
            _weights=weights,
            _ids=contents.ids,
            _question=question,
        )


def _read_values(weights: SparseRows, values: Tensor) -> Tensor:
    flat = values.reshape(values.shape[0], -1)
    if values.is_floating_point():
        narrow = weights.values.to(torch.promote_types(values.dtype, torch.float32))
        exact = SparseRows(weights.offsets, weights.indices, narrow, weights.columns)
        return exact.matmul(flat).to(values.dtype)
    return _vote(weights, flat)


def _vote(weights: SparseRows, values: Tensor) -> Tensor:
    """For each row the value with the most weight; the smallest of equals."""
    choices, choice = torch.unique(values[weights.indices], dim=0, return_inverse=True)
    pair = weights.row_of_entry * choices.shape[0] + choice
    pairs, entry = torch.unique(pair, return_inverse=True)
    shares = weights.values.new_zeros(pairs.shape[0]).index_add(0, entry, weights.values)
    counts = torch.bincount(pairs // choices.shape[0], minlength=weights.rows)
    offsets = torch.nn.functional.pad(counts.cumsum(0), (1, 0))
    ballots = SparseRows(offsets, pairs % choices.shape[0], shares, choices.shape[0])
    elected: Tensor = choices[ballots.indices[_largest(ballots, shares)]]
    return elected


def _largest(rows: SparseRows, weights: Tensor) -> Tensor:
    """The entry with the largest weight of each row, the first of equals."""
    by_weight = weights.argsort(descending=True, stable=True)
    by_row = rows.row_of_entry[by_weight].argsort(stable=True)
    first: Tensor = by_weight[by_row][rows.offsets[:-1]]
    return first


def _as_row(query: int, count: int) -> int:
    if not -count <= query < count:
        raise IndexError(f"expected a query number below {count}, got {query}.")
    return query % count
