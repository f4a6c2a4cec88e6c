"""Laws of sharded networks, run by every process; the judge is one network with all memories."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy.distributed import ShardedHopfieldNetwork
from hopfy.distributed import _group as group_module
from hopfy.distributed import _merge as merge
from hopfy.search import ExactIndex
from hopfy.search import _short as short
from hopfy.structures import AtMostK, KSubsets, SequentialKSubsets


class OwnSparsemax(hopfy.Omega):
    """A user's map that answers the abstract questions only."""

    def __init__(self, weight: float = 1.0) -> None:
        self.weight = weight

    def __call__(self, scores, mask=None, *, dim=-1):
        return hopfy.functional.sparsemax(scores / self.weight, dim=dim, mask=mask)

    def value(self, weights, *, dim=-1):
        return self.weight / 2 * (weights.square().sum(dim) - 1)

    @property
    def margin(self) -> float:
        return self.weight


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
    "own": OwnSparsemax(1.5),
}
MORE: dict[str, hopfy.Omega] = {  # with kernels that other tests of processes do not load
    "capped": hopfy.omega.Capped(0.3),
    "entropic 2-subsets": hopfy.omega.EntropicKSubsets(2),
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
    for name, omega in (OMEGAS | (MORE if kind == "even" else {})).items():
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


def bits_hold_in_large_problems(rank: int, size: int, dtype: torch.dtype, how: str) -> None:
    """Searches in two passes, few queries at a time, joined by a tree or dealt, solved in shares."""
    with (
        mock.patch.object(short, "_FEW", 0),
        mock.patch.object(merge, "_AT_ONCE", 7),
        mock.patch.object(merge, "_WORTH_SHARING", 0),
        mock.patch.object(group_module, "_TREE_ABOVE", 0),
        mock.patch.object(group_module, "_WORTH_DEALING", 0 if how == "dealt" else 1 << 60),
    ):
        bits_are_those_of_one_index(rank, size, dtype)


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


STATES: dict[str, tuple[hopfy.Omega, hopfy.states.State]] = {
    "sparsemax, ball": (hopfy.Tsallis(2.0), hopfy.states.Ball(3.0)),
    "1.5-entmax, layer norm": (hopfy.Tsallis(1.5), hopfy.states.LayerNorm()),
    "softmax, tanh": (hopfy.Shannon(), hopfy.states.Tanh(0.7)),
    "3-subsets, sign": (hopfy.SparseMAP(KSubsets(3)), hopfy.states.Sign()),
    "exponential, ball": (hopfy.omega.Exponential(), hopfy.states.Ball(2.0)),
    "quadratic, layer norm": (hopfy.omega.Quadratic(), hopfy.states.LayerNorm()),
}


def states_are_those_of_one_process(rank: int, size: int, name: str) -> None:
    """With other regularizers of the state; single patterns that are states are certified."""
    omega, state = STATES[name]
    whole = state.of_patterns(memories_of())
    queries = state.of_patterns(queries_of(whole, 7))
    beta = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    mine = part(whole, rank, shares(size, "single")).clone().requires_grad_()
    full = whole.clone().requires_grad_()
    ours = ShardedHopfieldNetwork(mine, omega, beta, state=state, timeout=60)
    alone = hopfy.HopfieldNetwork(full, omega, beta, state=state)
    tight = {"rtol": 1e-8, "atol": 1e-9}
    for call in ("update", "energy", "gradient"):
        a, b = getattr(ours, call)(queries), getattr(alone, call)(queries)
        torch.testing.assert_close(
            a, b, **tight, equal_nan=True, msg=lambda m, c=call: f"{name}, {c}: {m}"
        )
    for gradient in ("unrolled", "last"):
        options: dict[str, Any] = {"max_steps": 3, "gradient": gradient, "trace": True}
        a, b = ours.retrieve(queries, **options), alone.retrieve(queries, **options)
        same_retrieval(a, b, tight, name)
        if name == "3-subsets, sign":  # its map has no gradient
            continue
        found = torch.autograd.grad(a.state.sin().sum(), [mine, beta])
        wanted = torch.autograd.grad(b.state.sin().sum(), [full, beta])
        rows = part(wanted[0], rank, shares(size, "single"))
        torch.testing.assert_close(found[0], rows, rtol=1e-6, atol=1e-8)
        torch.testing.assert_close(found[1], wanted[1], rtol=1e-6, atol=1e-8)
    if not state.is_identity:
        with pytest.raises(ValueError, match="symmetric"):
            ours.retrieve(queries, gradient="implicit")


def halves_are_those_of_one_process(rank: int, size: int, name: str, dtype: torch.dtype) -> None:
    """Mixtures and the state's map run in float32 and are rounded once, as in one process."""
    omega, state = STATES[name]
    whole = state.of_patterns(memories_of()).to(dtype)
    queries = state.of_patterns(queries_of(whole.double(), 40)).to(dtype)
    mine = part(whole, rank, shares(size, "single")).clone()
    ours = ShardedHopfieldNetwork(mine, omega, 0.7, state=state, timeout=60)
    alone = hopfy.HopfieldNetwork(whole, omega, 0.7, state=state)
    found, wanted = ours.update(queries), alone.update(queries)
    assert found.dtype == wanted.dtype == dtype
    torch.testing.assert_close(found, wanted, rtol=2 * torch.finfo(dtype).eps, atol=1e-3)
    assert float((found == wanted).double().mean()) > 0.97, name  # sums may end beside a tie
    assert ours.gradient(queries).dtype == alone.gradient(queries).dtype
    a, b = ours.retrieve(queries, max_steps=2), alone.retrieve(queries, max_steps=2)
    assert a.state.dtype == b.state.dtype == dtype
    assert float((a.state == b.state).double().mean()) > 0.9, name


def gradient_modes_are_those_of_one_process(rank: int, size: int, layout: str) -> None:
    """Retrieved states and values depend on memories, values and beta as in one process."""
    whole = memories_of()
    readable = torch.randn(PATTERNS, 3, generator=torch.Generator().manual_seed(8)).double()
    queries = queries_of(whole)
    counts = shares(size, "single")
    asked = [4, *([0] * (size - 2)), 5] if size > 1 else [9]
    some = slice(0, 9)
    if layout == "sharded":
        some = slice(sum(asked[:rank]), sum(asked[: rank + 1]))
    for name in ("softmax", "1.5-entmax", "3-subsets"):
        for gradient in ("unrolled", "last", "implicit"):
            beta = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
            mine = part(whole, rank, counts).clone().requires_grad_()
            own = part(readable, rank, counts).clone().requires_grad_()
            net = ShardedHopfieldNetwork(mine, OMEGAS[name], beta, values=own, timeout=60)
            options: dict[str, Any] = {"max_steps": 60, "gradient": gradient}
            ours = net.retrieve(queries[some], layout=layout, **options)
            full, values = whole.clone().requires_grad_(), readable.clone().requires_grad_()
            judge = hopfy.HopfieldNetwork(full, OMEGAS[name], beta, values=values)
            theirs = judge.retrieve(queries, **options)
            torch.testing.assert_close(ours.readout, theirs.readout[some], rtol=1e-7, atol=1e-8)
            torch.testing.assert_close(ours.state, theirs.state[some], rtol=1e-7, atol=1e-8)
            loss = ours.state.sin().sum() + ours.readout.cos().sum()
            total = theirs.state.sin().sum() + theirs.readout.cos().sum()
            found = torch.autograd.grad(loss, [mine, own, beta])
            wanted = torch.autograd.grad(total, [full, values, beta])
            for a, b in zip(found[:2], wanted[:2], strict=True):
                torch.testing.assert_close(a, part(b, rank, counts), rtol=1e-5, atol=1e-7)
            torch.testing.assert_close(found[2], wanted[2], rtol=1e-5, atol=1e-7)


def comes_from_a_dtensor(rank: int, size: int) -> None:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (size,))
    whole = memories_of()
    network = ShardedHopfieldNetwork(distribute_tensor(whole, mesh, [Shard(0)]), "sparsemax", 0.7)
    alone = hopfy.HopfieldNetwork(whole, "sparsemax", 0.7)
    queries = queries_of(whole)
    torch.testing.assert_close(network.update(queries), alone.update(queries))
    assert torch.equal(network.retrieve(queries).pattern, alone.retrieve(queries).pattern)
    for wrong in ([Shard(1)], [Replicate()]):
        with pytest.raises(ValueError, match=r"Shard\(0\)"):
            ShardedHopfieldNetwork(distribute_tensor(whole, mesh, wrong), "sparsemax", 0.7)


def comes_from_files(rank: int, size: int, paths: list[str]) -> None:
    whole = memories_of(torch.float32)
    network = ShardedHopfieldNetwork.from_files(paths, "1.5-entmax", 0.7, timeout=60)
    assert len(network) == PATTERNS
    alone = hopfy.HopfieldNetwork(whole, "1.5-entmax", 0.7)
    queries = queries_of(whole)
    torch.testing.assert_close(network.update(queries), alone.update(queries))
    with pytest.raises(FileNotFoundError, match="no such file"):
        ShardedHopfieldNetwork.from_files([*paths, "no such file.npy"], timeout=60)


def shares_a_mesh_dimension(rank: int, size: int) -> None:
    """Memories sharded over one dimension of a mesh, replicas over the other."""
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replica", "shard"))
    own = mesh["shard"]
    whole = memories_of()
    mine = part(whole, own.get_local_rank(), shares(size // 2, "even"))
    network = ShardedHopfieldNetwork(mine, "sparsemax", 0.7, own, timeout=60)
    queries = queries_of(whole) + mesh["replica"].get_local_rank()  # each replica has its own
    alone = hopfy.HopfieldNetwork(whole, "sparsemax", 0.7)
    torch.testing.assert_close(network.update(queries), alone.update(queries))
    with pytest.raises(ValueError, match="one dimension"):
        ShardedHopfieldNetwork(mine, "sparsemax", 0.7, mesh)


def sequential_is_exact_or_refused(rank: int, size: int) -> None:
    """Consecutive shards are one sequence; too many scores are refused with a reason."""
    omega = OMEGAS["sequential"]
    whole = memories_of()
    mine = part(whole, rank, shares(size, "single"))
    alone = hopfy.HopfieldNetwork(whole, omega, 0.7)
    queries = queries_of(whole)
    exact = ShardedHopfieldNetwork(mine, omega, 0.7, timeout=60)
    torch.testing.assert_close(exact.weights(queries), alone.weights(queries))
    assert exact.merge == "all scores"
    small = ShardedHopfieldNetwork(mine, omega, 0.7, timeout=60, gather_limit=100)
    with pytest.raises(ValueError, match="need not lie in the supports"):
        small.retrieve(queries)
