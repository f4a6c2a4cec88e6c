"""The energy of Eq. 8 and the bounds and descent of Prop. 1."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import theory

NEGENTROPIES = [
    "softmax",
    "1.3-entmax",
    "1.5-entmax",
    "sparsemax",
    "3-entmax",
    "2-normmax",
    "5-normmax",
]
STRUCTURED = ["1-subsets", "2-subsets", "4-subsets"]


def _data(seed: int, n: int, d: int, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    memories = torch.randn(n, d, dtype=torch.float64, generator=generator) * scale
    weights = torch.distributions.Dirichlet(torch.full((n,), 0.5, dtype=torch.float64))
    torch.manual_seed(seed)
    return memories, weights.sample((5,)) @ memories


def _conjugate_by_hand(name: str, scores: np.ndarray) -> float:
    """Omega* from a textbook formula, not from hopfy."""
    if name == "softmax":
        return float(np.log(np.sum(np.exp(scores - scores.max()))) + scores.max())
    if name == "sparsemax":
        ordered = np.sort(scores)[::-1]
        counts = np.arange(1, scores.size + 1)
        taus = (np.cumsum(ordered) - 1) / counts
        tau = taus[np.flatnonzero(ordered > taus)[-1]]
        y = np.maximum(scores - tau, 0)
        return float(scores @ y - (y @ y - 1) / 2)
    import cvxpy as cp

    alpha = float(name.split("-")[0])
    y = cp.Variable(scores.size, nonneg=True)
    if name.endswith("entmax"):
        omega = (cp.sum(cp.power(y, alpha)) - 1) / (alpha * (alpha - 1))
    else:
        omega = cp.norm(y, alpha) - 1
    return float(cp.Problem(cp.Maximize(scores @ y - omega), [cp.sum(y) == 1]).solve(cp.CLARABEL))


def _omega_of_uniform(name: str, n: int) -> float:
    if name == "softmax":
        return -math.log(n)
    alpha = 2.0 if name == "sparsemax" else float(name.split("-")[0])
    if name.endswith("normmax"):
        return n ** (1 / alpha - 1) - 1
    return (n ** (1 - alpha) - 1) / (alpha * (alpha - 1))


@pytest.mark.parametrize("name", ["softmax", "sparsemax", "1.5-entmax", "5-normmax"])
def test_it_is_equation_8_with_every_constant(name: str) -> None:
    memories, queries = _data(0, 6, 4)
    queries = torch.cat((queries, queries * 3 + 1))  # outside the hull too
    beta = 1.7
    X = memories.numpy()
    mean, largest = X.mean(0), np.linalg.norm(X, axis=1).max()
    energies = hopfy.HopfieldNetwork(memories, name, beta).energy(queries)
    for q, found in zip(queries.numpy(), energies.tolist(), strict=True):
        loss = (
            _omega_of_uniform(name, 6)
            + _conjugate_by_hand(name, beta * X @ q)
            - beta * (X @ q).mean()
        )
        convex = ((q - mean) ** 2).sum() / 2 + (largest**2 - mean @ mean) / 2
        assert found == pytest.approx(convex - loss / beta, abs=1e-6)


@pytest.mark.parametrize("name", NEGENTROPIES + STRUCTURED)
def test_the_parts_add_up_and_have_their_signs(name: str) -> None:
    memories, queries = _data(1, 7, 3)
    net = hopfy.HopfieldNetwork(memories, name, 2.0)
    parts = net.energy_parts(queries)
    assert torch.allclose(parts.concave + parts.convex, net.energy(queries), atol=1e-12)
    assert (parts.concave <= 0).all()
    middle = (queries[:1] + queries[1:]) / 2
    ends = net.energy_parts(queries)
    at_middle = net.energy_parts(middle)
    assert (at_middle.convex <= (ends.convex[:1] + ends.convex[1:]) / 2 + 1e-12).all()
    assert (at_middle.concave >= (ends.concave[:1] + ends.concave[1:]) / 2 - 1e-12).all()


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(NEGENTROPIES),
    seed=st.integers(0, 10_000),
    n=st.integers(1, 12),
    d=st.integers(1, 6),
    beta=st.sampled_from([1e-3, 0.1, 1.0, 7.0, 1e3]),
    scale=st.sampled_from([1e-3, 1.0, 30.0]),
    same_norm=st.booleans(),
)
def test_proposition_1_bounds(
    name: str, seed: int, n: int, d: int, beta: float, scale: float, same_norm: bool
) -> None:
    memories, queries = _data(seed, n, d, scale)
    if same_norm:
        memories = memories / memories.norm(dim=-1, keepdim=True) * scale
        queries = memories[: min(n, 3)]
    queries = torch.cat((queries, memories, memories.mean(0, keepdim=True)))
    energies = hopfy.HopfieldNetwork(memories, name, beta).energy(queries)
    bound = theory.energy_bound(memories, name, beta)
    assert (energies >= 0).all()
    assert (energies <= bound * (1 + 1e-9) + 1e-300).all()


def test_the_upper_bound_of_proposition_1_is_reached_and_needs_the_hull() -> None:
    # One pattern and its opposite: at the center the energy is the second bound exactly.
    memories = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 10.0)
    bound = theory.energy_bound(memories, "sparsemax", 10.0)
    assert net.energy(torch.zeros(1, 1, dtype=torch.float64)).item() <= bound
    assert net.energy(torch.full((1, 1), 9.0, dtype=torch.float64)).item() > bound


@settings(max_examples=30, deadline=None)
@given(
    name=st.sampled_from(NEGENTROPIES + STRUCTURED),
    seed=st.integers(0, 10_000),
    n=st.integers(4, 15),
    d=st.integers(1, 5),
    beta=st.sampled_from([0.05, 1.0, 20.0]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_the_energy_is_never_negative_and_never_rises(
    name: str, seed: int, n: int, d: int, beta: float, dtype: torch.dtype
) -> None:
    memories, queries = _data(seed, n, d)
    queries = torch.cat((queries, 5 * queries, torch.zeros_like(queries[:1]))).to(dtype)
    net = hopfy.HopfieldNetwork(memories.to(dtype), name, beta)
    trace = net.retrieve(queries, trace=True, max_steps=12).energies
    assert trace is not None
    assert (trace >= 0).all()
    # One rounding of the state per step is all that may show.
    allowed = 1e-6 if dtype is torch.float32 else 1e-13
    assert (trace.diff(dim=0) <= allowed * (1 + trace[:-1].abs())).all()


@pytest.mark.parametrize("name", ["softmax", "1.5-entmax", "sparsemax", "5-normmax", "2-subsets"])
@pytest.mark.parametrize("scale", [1e-9, 1.0, 1e9])
def test_float32_keeps_its_digits_at_every_scale(name: str, scale: float) -> None:
    memories, queries = _data(3, 8, 5)
    memories, queries = memories.float(), queries.float()
    beta = 2.0 / scale**2
    small = hopfy.HopfieldNetwork((memories * scale).float(), name, beta)
    judge = hopfy.HopfieldNetwork((memories * scale).float().double(), name, beta)
    scaled = (queries * scale).float()
    expected = judge.energy(scaled.double())
    assert torch.allclose(small.energy(scaled).double(), expected, rtol=1e-6, atol=0)
    assert (expected > 0).all()


def test_a_large_common_offset_does_not_drown_the_energy() -> None:
    # All patterns near (1e6, 1e6): Eq. 8 term by term loses everything in float32.
    torch.manual_seed(0)
    memories = (1e6 + torch.randint(-8, 8, (6, 2))).float()
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 1e-6)
    trace = net.retrieve(memories.mean(0, keepdim=True), trace=True).energies
    assert trace is not None
    judge = hopfy.HopfieldNetwork(memories.double(), "sparsemax", 1e-6)
    expected = judge.energy(memories.mean(0, keepdim=True).double())
    assert torch.allclose(trace[0].double(), expected, rtol=1e-6)
    assert (trace.diff(dim=0) <= 0).all()


@pytest.mark.parametrize(
    "name", ["softmax", "1.5-entmax", "sparsemax", "3-entmax", "5-normmax", "2-subsets"]
)
def test_the_gradient_is_the_query_minus_its_update(name: str) -> None:
    memories, queries = _data(4, 6, 4)
    net = hopfy.HopfieldNetwork(memories, name, 1.3)
    leaf = queries.clone().requires_grad_()
    (automatic,) = torch.autograd.grad(net.energy(leaf).sum(), leaf)
    assert torch.allclose(automatic, net.gradient(queries), atol=1e-12)
    assert torch.allclose(net.gradient(queries), queries - net.update(queries))


@pytest.mark.parametrize("name", ["softmax", "1.5-entmax", "sparsemax", "5-normmax", "2-subsets"])
def test_gradcheck_of_the_energy_in_queries_memories_and_beta(name: str) -> None:
    memories, queries = _data(5, 5, 3)

    def energy(q: Tensor, x: Tensor, b: Tensor) -> Tensor:
        return hopfy.HopfieldNetwork(x, name, b).energy(q)

    beta = torch.tensor(1.1, dtype=torch.float64, requires_grad=True)
    inputs = (queries.requires_grad_(), memories.requires_grad_(), beta)
    assert torch.autograd.gradcheck(energy, inputs)
    assert torch.autograd.gradgradcheck(
        lambda q: energy(q, memories.detach(), beta.detach()), queries
    )


def test_the_energy_learns_alpha() -> None:
    memories, queries = _data(6, 5, 3)
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)

    def energy(a: Tensor) -> Tensor:
        return hopfy.HopfieldNetwork(memories, hopfy.Tsallis(a), 0.9).energy(queries)

    assert torch.autograd.gradcheck(energy, (alpha,))


def test_the_structured_energy_of_one_subset_is_that_of_sparsemax() -> None:
    memories, queries = _data(7, 6, 3)
    one = hopfy.HopfieldNetwork(memories, "1-subsets", 2.0)
    simplex = hopfy.HopfieldNetwork(memories, "sparsemax", 2.0)
    assert torch.allclose(one.energy(queries), simplex.energy(queries), atol=1e-12)


def test_batches_of_networks_and_of_queries_agree_with_one_by_one() -> None:
    torch.manual_seed(0)
    memories = torch.randn(2, 3, 6, 4)
    queries = torch.randn(2, 3, 5, 4)
    beta = torch.rand(2, 3, 5) + 0.5
    net = hopfy.HopfieldNetwork(memories, "1.5-entmax", beta)
    energies, parts = net.energy(queries), net.energy_parts(queries)
    for i in range(2):
        for j in range(3):
            for m in range(5):
                one = hopfy.HopfieldNetwork(memories[i, j], "1.5-entmax", float(beta[i, j, m]))
                assert torch.allclose(energies[i, j, m], one.energy(queries[i, j, m]), rtol=1e-6)
                single = one.energy_parts(queries[i, j, m])
                assert torch.allclose(parts.convex[i, j, m], single.convex, rtol=1e-6)
                assert torch.allclose(parts.concave[i, j, m], single.concave, rtol=1e-5)
