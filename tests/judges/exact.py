"""Fixed points in rational arithmetic, by enumeration: what certificates are judged by."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor


def rational(values: Tensor) -> list[list[Fraction]]:
    """The rows of a matrix as the rational numbers that its floats stand for."""
    return [[Fraction(v) for v in row] for row in values.double().tolist()]


def dot(a: list[Fraction], b: list[Fraction]) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))


def gaps(
    memories: Tensor, members: list[int], anchor: list[Fraction] | None = None
) -> list[Fraction]:
    """How far the weakest member leads each other pattern, at the exact sum of the members."""
    rows = rational(memories)
    if anchor is None:
        anchor = [
            sum(column, Fraction(0)) for column in zip(*(rows[m] for m in members), strict=True)
        ]
    products = [dot(anchor, row) for row in rows]
    weakest = min(products[m] for m in members)
    return [weakest - p for j, p in enumerate(products) if j not in members]


def leads(memories: Tensor, members: list[int], lead: Fraction) -> bool:
    return all(gap >= lead for gap in gaps(memories, members))


def rooms(
    memories: Tensor,
    members: list[int],
    beta: float,
    slope: Tensor,
    vertices: Tensor,
    factors: Tensor,
    factor_scores: Tensor,
) -> list[tuple[int, Fraction]]:
    r"""By how much y is better than each other vertex for the linear scores at its own sum.

    ``(index, room)`` of every other vertex (V, N); y is the SparseMAP answer exactly if none is
    negative. An empty list where y is no vertex.
    """
    rows = rational(memories)
    bits = [int(j in members) for j in range(len(rows))]
    table = vertices.flatten(1).long().tolist()
    if bits not in table:
        return [(-1, Fraction(-1))]
    anchor = [sum(column, Fraction(0)) for column in zip(*(rows[m] for m in members), strict=True)]
    slopes = [Fraction(v) for v in slope.double().tolist()]
    linear = [Fraction(beta) * dot(anchor, row) - s for row, s in zip(rows, slopes, strict=True)]
    edges = [None if v == -torch.inf else Fraction(v) for v in factor_scores.double().tolist()]
    values: list[Fraction | None] = []
    for vertex, edge in zip(table, factors.long().tolist(), strict=True):
        chosen = [e for e, b in zip(edges, edge, strict=True) if b]
        total = sum((s for s, b in zip(linear, vertex, strict=True) if b), Fraction(0))
        values.append(None if None in chosen else total + sum(chosen, Fraction(0)))
    own = table.index(bits)
    if values[own] is None:
        return [(-1, Fraction(-1))]
    return [(z, values[own] - v) for z, v in enumerate(values) if z != own and v is not None]
