"""Laws of sharded networks, run by every process; the judge is one network with all memories."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

import hopfy
from hopfy.distributed import ShardedHopfieldNetwork
from hopfy.search import ExactIndex
from hopfy.structures import AtMostK, KSubsets, SequentialKSubsets

OMEGAS: dict[str, hopfy.Omega] = {
    "softmax": hopfy.Shannon(),
    "sparsemax": hopfy.Tsallis(2.0),
    "1.5-entmax": hopfy.Tsallis(1.5),
    "1.1-entmax": hopfy.Tsallis(1.1),
    "inf-entmax": hopfy.Tsallis(float("inf")),
    "2-normmax": hopfy.Norm(2.0),
    "5-normmax": hopfy.Norm(5.0),
    "3-subsets": hopfy.SparseMAP(KSubsets(3)),
    "2.5-subsets": hopfy.SparseMAP(KSubsets(2.5)),
    "at most 2": hopfy.SparseMAP(AtMostK(2)),
    "sequential": hopfy.SparseMAP(SequentialKSubsets(3, transition=0.3)),
}

PATTERNS = 29
SIZE = 12


def shares(size: int, kind: str) -> list[int]:
    """How many of the patterns each process holds."""
    if size == 1:
        return [PATTERNS]
    if kind == "even":
        return [PATTERNS // size + (rank < PATTERNS % size) for rank in range(size)]
    if kind == "empty":  # the first process has none
        return [0, *shares(size - 1, "even")]
    if kind == "single":  # the last process has one row
        *others, last = shares(size - 1, "even")
        return [*others, last - 1, 1]
    raise ValueError(kind)


def memories_of(dtype: torch.dtype = torch.float64, scale: float = 1.0) -> Tensor:
    made = torch.randn(
        PATTERNS, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64
    )
    return (scale * made).to(dtype)


def queries_of(memories: Tensor, count: int = 9) -> Tensor:
    made = torch.randn(count, SIZE, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    near = memories[torch.arange(count) * 3 % len(memories)].double()
    return (near + 0.5 * made).to(memories.dtype)


def part(whole: Tensor, rank: int, counts: list[int]) -> Tensor:
    return torch.split(whole, counts)[rank]


def _pair(rank: int, size: int, omega: hopfy.Omega, kind: str, whole: Tensor, beta: Any = 0.7):
    counts = shares(size, kind)
    sharded = ShardedHopfieldNetwork(part(whole, rank, counts), omega, beta, timeout=60)
    return sharded, hopfy.HopfieldNetwork(whole, omega, beta)


def answers_are_those_of_one_process(rank: int, size: int, kind: str, dtype: torch.dtype) -> None:
    tight = (
        {"rtol": 1e-9, "atol": 1e-10} if dtype is torch.float64 else {"rtol": 2e-4, "atol": 2e-5}
    )
    whole = memories_of(dtype)
    queries = queries_of(whole)
    for name, omega in OMEGAS.items():
        sharded, alone = _pair(rank, size, omega, kind, whole)
        close = lambda a, b: torch.testing.assert_close(a, b, **tight, msg=lambda m: f"{name}: {m}")  # noqa: E731, B023
        close(sharded.update(queries), alone.update(queries))
        close(sharded.weights(queries), alone.weights(queries))
        close(sharded.energy(queries), alone.energy(queries))
        close(sharded.update(queries[0]), alone.update(queries[0]))
        options: dict[str, Any] = {"max_steps": 6, "trace": name in ("softmax", "3-subsets")}
        same_retrieval(
            sharded.retrieve(queries, **options), alone.retrieve(queries, **options), tight, name
        )


def same_retrieval(
    ours: hopfy.Retrieval, judge: hopfy.Retrieval, tight: dict[str, float], name: str
) -> None:
    for field in ("pattern", "certified", "converged", "size"):
        a, b = getattr(ours, field), getattr(judge, field)
        assert torch.equal(a, b), f"{name}: {field} {a.tolist()} instead of {b.tolist()}"
    # A state that settles right at a tolerance may take one more step after another rounding.
    assert int((ours.steps - judge.steps).abs().max()) <= 1, (
        f"{name}: steps {ours.steps.tolist()}, {judge.steps.tolist()}"
    )
    torch.testing.assert_close(ours.state, judge.state, **tight, equal_nan=True)
    assert (ours.support is None) == (judge.support is None), name
    if judge.support is not None:
        assert torch.equal(ours.support.offsets, judge.support.offsets), name
        assert torch.equal(ours.support.indices, judge.support.indices), name
        assert ours.support.columns == judge.support.columns
    if judge.energies is not None:
        torch.testing.assert_close(ours.energies, judge.energies, rtol=1e-4, atol=1e-4)


def bits_are_those_of_one_index(rank: int, size: int, dtype: torch.dtype) -> None:
    """Scores and small problems are the same numbers, so nothing depends on the shards."""
    whole = memories_of(dtype)
    queries = queries_of(whole, 20)
    index = ExactIndex(whole)
    for name in ("sparsemax", "1.5-entmax", "inf-entmax", "5-normmax", "3-subsets"):
        for beta in (0.3, 2.0):
            net = ShardedHopfieldNetwork(
                part(whole, rank, shares(size, "single")), OMEGAS[name], beta, timeout=60
            )
            states, weights = index.update(queries, OMEGAS[name], beta)
            ours = net.support(queries)
            assert torch.equal(ours.indices, weights.indices), name
            assert torch.equal(ours.values, weights.values.to(dtype)), name
            narrow = weights.counts.double().mean() <= 4  # wider ones are summed shard by shard
            exact = {} if not narrow else {"rtol": 0.0, "atol": 0.0}
            torch.testing.assert_close(net.update(queries), states, **exact)


def sharded_queries_get_their_own_answers(rank: int, size: int) -> None:
    whole = memories_of()
    everything = queries_of(whole, 11)
    counts = [2 * r for r in range(size - 1)]
    counts.append(11 - sum(counts))
    mine = part(everything, rank, counts)
    for name in ("softmax", "1.5-entmax", "3-subsets", "sequential"):
        sharded, alone = _pair(rank, size, OMEGAS[name], "even", whole)
        exact = {"rtol": 1e-9, "atol": 1e-10}
        torch.testing.assert_close(
            sharded.update(mine, layout="sharded"), alone.update(mine), **exact
        )
        torch.testing.assert_close(
            sharded.energy(mine, layout="sharded"), alone.energy(mine), **exact
        )
        ours = sharded.retrieve(mine, layout="sharded")
        if len(mine):
            same_retrieval(ours, alone.retrieve(mine), exact, name)


def gradients_are_those_of_one_process(rank: int, size: int, kind: str, layout: str) -> None:
    """Of update, weights and energy, in queries, memories, beta and alpha or k-subsets."""
    whole = memories_of()
    queries = queries_of(whole)
    probe = torch.randn(9, SIZE, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    wide = torch.randn(9, PATTERNS, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    counts = shares(size, kind)
    asked = [4, *([0] * (size - 2)), 5] if size > 1 else [9]
    for name in ("softmax", "alpha", "norm", "3-subsets", "at most 2", "sequential"):
        alpha = torch.tensor(1.6, dtype=torch.float64, requires_grad=True)
        omega = {"alpha": hopfy.Tsallis(alpha), "norm": hopfy.Norm(alpha)}.get(name) or OMEGAS[name]
        learned = [alpha] if name in ("alpha", "norm") else []
        mine = part(whole, rank, counts).clone().requires_grad_()
        beta = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
        q = queries.clone() if layout == "replicated" else part(queries, rank, asked).clone()
        q.requires_grad_()
        net = ShardedHopfieldNetwork(mine, omega, beta, timeout=60)
        some = (
            slice(None)
            if layout == "replicated"
            else slice(sum(asked[:rank]), sum(asked[: rank + 1]))
        )
        loss = (
            (net.update(q, layout=layout) * probe[some]).sum()
            + (net.weights(q, layout=layout) * wide[some]).sum()
            + net.energy(q, layout=layout).sum()
        )
        ours = torch.autograd.grad(loss, [q, mine, beta, *learned])
        all_q, full = queries.clone().requires_grad_(), whole.clone().requires_grad_()
        judge = hopfy.HopfieldNetwork(full, omega, beta)
        total = (
            (judge.update(all_q) * probe).sum()
            + (judge.weights(all_q) * wide).sum()
            + judge.energy(all_q).sum()
        )
        wanted = list(torch.autograd.grad(total, [all_q, full, beta, *learned]))
        wanted[0], wanted[1] = wanted[0][some], part(wanted[1], rank, counts)
        for which, a, b in zip(
            ("queries", "memories", "beta", "alpha"), ours, wanted, strict=False
        ):
            torch.testing.assert_close(
                a, b, rtol=1e-6, atol=1e-8, msg=lambda m, w=f"{name}, {which}": f"{w}: {m}"
            )
