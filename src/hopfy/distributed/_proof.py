r"""Certificates over all shards (Props. 2 and 5).

A set S of patterns is an exact fixed point if :math:`a = \sum_{s \in S} x_s` leads every other
pattern by the margin: :math:`a^\top (x_i - x_j) \ge m / \beta` for all i in S and j outside. The
condition is a conjunction over the patterns j, so each process decides it for its own patterns and
all must agree. Each finds its strongest outsider in float64; what is too close to call is settled by
`hopfy.theory.proves_fixed_point` (rational arithmetic) on the members and the few close rivals.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hopfy.distributed._engine import Engine
from hopfy.theory import proves_fixed_point, rounding_bound

__all__ = ["prove"]

_MANY_RIVALS = 1 << 12


def prove(engine: Engine, members: Tensor, beta: Tensor, largest_norm: float) -> Tensor:
    """Which sets (P, k) of global ids are exact fixed points at beta (P,): a proof, or none."""
    rows, size = members.shape
    margin = engine.omega.exact_margin(size)
    if rows == 0 or (margin is None and engine.omega.structures is None):
        return torch.zeros(rows, dtype=torch.bool)
    if margin is None and not engine.omega.merges_by_support:
        return _with_all_memories(engine, members, beta)
    ids = torch.unique(members)
    table = engine.fetch(ids, engine.shard.memories)
    places = torch.searchsorted(ids, members)
    if margin is None:
        return engine.group.every(lambda: _proven_here(engine, ids, table, places, beta))
    lead = float(margin) / beta
    return _by_lead(engine, members, table, places, beta, lead, largest_norm)


def _by_lead(
    engine: Engine,
    members: Tensor,
    table: Tensor,
    places: Tensor,
    beta: Tensor,
    lead: Tensor,
    largest_norm: float,
) -> Tensor:
    """Whether the weakest member leads the strongest outsider of all shards by ``lead`` (P,)."""
    size = members.shape[1]
    anchors = table[places].sum(1)
    weakest = (table[places].double() @ anchors.double().unsqueeze(2)).amin((1, 2))
    dimension = table.shape[1]
    error = rounding_bound(dimension, 1, torch.float64)
    if size > 1:  # the sum was rounded to the memories' precision
        error += rounding_bound(0, size, table.dtype)
    reach = torch.linalg.vector_norm(table[places].double(), dim=-1).sum(-1)
    slack = 2 * error * reach * largest_norm * (1 + 1e-6)  # the norms are rounded too
    outsider = engine.group.maximum(lambda: _strongest_outsider(engine, anchors, members))
    gap = weakest - outsider
    proven: Tensor = gap - slack >= lead * (1 + 1e-14)
    close = (~proven & (gap + slack >= lead * (1 - 1e-14))).nonzero().flatten()
    if close.numel():
        limits = (weakest - lead * (1 + 1e-14) - slack)[close]
        proven[close] = engine.group.every(
            lambda: _settled(engine, table[places[close]], members[close], limits, beta[close])
        )
    return proven


def _proven_here(
    engine: Engine, ids: Tensor, table: Tensor, places: Tensor, beta: Tensor
) -> Tensor:
    """Proofs (P,) among the members ``table`` of all sets and the memories of this process.

    Where an entry with a weight has one in every part that contains it, a set that is the answer
    among itself and each shard is the answer among all memories.
    """
    own = engine.layout.places(ids[engine.layout.is_own(ids)])
    others = torch.ones(len(engine.shard), dtype=torch.bool)
    others[own] = False
    some = torch.cat([table, engine.shard.memories.detach()[others]])
    return proves_fixed_point(some, places, engine.omega, beta)


def _with_all_memories(engine: Engine, members: Tensor, beta: Tensor) -> Tensor:
    """Proofs (P,) for structures that cannot be merged: every process fetches all memories.

    None are found where these have more bytes than the engine's ``gather_limit``.
    """
    memories = engine.shard.memories.detach()
    needed = engine.layout.total * memories.shape[1] * memories.element_size()
    if needed > engine.gather_limit:
        return torch.zeros(len(members), dtype=torch.bool)
    parts = engine.group.gather(lambda: [memories])
    whole = torch.cat([part[0] for part in parts])
    return proves_fixed_point(whole, members, engine.omega, beta)


def _strongest_outsider(engine: Engine, anchors: Tensor, members: Tensor) -> Tensor:
    """The best score (P,) of a memory of this process that is not in the set; -inf: none."""
    count, size = len(engine.shard), members.shape[1]
    if not count:
        return torch.full((len(members),), -torch.inf, dtype=torch.float64)
    top = engine.shard.index.top(anchors, min(count, size + 1))
    ids = engine.layout.ids(top.indices)
    inside = (ids.unsqueeze(2) == members.unsqueeze(1)).any(2)
    return torch.where(inside, -torch.inf, top.scores).amax(1)


def _settled(
    engine: Engine, patterns: Tensor, members: Tensor, limits: Tensor, beta: Tensor
) -> Tensor:
    """Exact decisions (P,) about sets of ``patterns`` (P, k, D) against this process's rivals."""
    settled = torch.ones(len(members), dtype=torch.bool)
    if not len(engine.shard):
        return settled
    found = engine.shard.index.within(patterns.sum(1), limits)
    size = torch.arange(members.shape[1]).unsqueeze(0)
    for row in range(len(members)):
        rivals = found.row(row)[0]
        rivals = rivals[~torch.isin(engine.layout.ids(rivals), members[row])]
        if rivals.numel() > _MANY_RIVALS:
            settled[row] = False
        elif rivals.numel():
            small = torch.cat([patterns[row], engine.shard.memories.detach()[rivals]])
            settled[row] = proves_fixed_point(small, size, engine.omega, beta[row : row + 1])[0]
    return settled
