"""What is stored, as users see it: single entries, chunks, neighbors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from torch import Tensor

from hopfy.memory._store import Contents

__all__ = ["Chunk", "Entry", "Neighbors", "chunks_of", "value_at"]


class Chunk(NamedTuple):
    """Some stored patterns: ids (M,), patterns (M, D) and values (M, ...) or None."""

    ids: Tensor
    patterns: Tensor
    values: Any


class Entry(NamedTuple):
    """One stored pattern: its id, the pattern (D,) and its value or None."""

    id: int
    pattern: Tensor
    value: Any


class Neighbors(NamedTuple):
    """The k best patterns of each query: ``ids`` (..., k), and ``scores`` (..., k) in float64.

    Scores are distances, the smallest first, or inner products, the largest first.
    """

    ids: Any
    scores: Any


def value_at(contents: Contents, place: int) -> Any:
    if contents.values is None:
        return None
    value = contents.values[place].clone()
    if contents.codec is not None:
        return contents.codec.value(int(value))
    return value if value.ndim else value.item()


def chunks_of(contents: Contents, size: int) -> Iterator[Chunk]:
    for start in range(0, contents.rows.shape[0], size):
        part = slice(start, start + size)
        values = None if contents.values is None else contents.values[part].clone()
        if values is not None and contents.codec is not None:
            yield Chunk(
                contents.ids[part].clone(),
                contents.patterns[part].clone(),
                contents.codec.decoded(values),
            )
            continue
        yield Chunk(contents.ids[part].clone(), contents.patterns[part].clone(), values)
