"""The solver of chains against the general active set, its gradients, and what it must survive."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import SparseMAP
from hopfy import functional as F
from hopfy._kernels import chain as kernel
from hopfy.structures import Chain


def _transition(kind: str, rows: int, length: int, states: int, draw: torch.Generator) -> Tensor:
    shape = {
        "shared": (states, states),
        "edges": (length - 1, states, states),
        "rows": (rows, 1, states, states),
        "all": (rows, length - 1, states, states),
    }[kind]
    return torch.randn(shape, generator=draw, dtype=torch.float64)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    length=st.integers(2, 9),
    states=st.integers(1, 5),
    scale=st.sampled_from([0.05, 0.5, 1.0, 4.0]),
    kind=st.sampled_from(["shared", "edges", "rows", "all"]),
    coarse=st.booleans(),
    gaps=st.booleans(),
)
def test_equals_the_general_solver(
    seed: int, length: int, states: int, scale: float, kind: str, coarse: bool, gaps: bool
) -> None:
    """Two methods that share nothing but the problem; with ties, masks and positions that are not there."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, length, states, generator=draw, dtype=torch.float64) * scale
    transition = _transition(kind, 3, length, states, draw) * scale
    if coarse:
        scores, transition = (scores * 2).round() / 2, (transition * 2).round() / 2
    mask = torch.ones(3, length, states, dtype=torch.bool)
    if gaps:
        mask = torch.rand(3, length, states, generator=draw) < 0.7
        mask[1] = False
    structure = Chain(transition)
    general = F.sparsemap_solution(scores, structure, mask=mask)
    found = F.sparsemap(scores, structure, mask=mask)
    torch.testing.assert_close(found, general.marginals, rtol=0, atol=1e-9)
    y, pairs = structure.marginals(scores.masked_fill(~mask, -torch.inf))
    torch.testing.assert_close(y, found)
    # At ties the transitions' marginals are not unique; they always fit those of the states.
    there = (mask.any(-1)[:, 1:] & mask.any(-1)[:, :-1])[..., None]
    torch.testing.assert_close(pairs.sum(-1), y[:, :-1] * there, rtol=0, atol=1e-9)
    torch.testing.assert_close(pairs.sum(-2), y[:, 1:] * there, rtol=0, atol=1e-9)
    assert (pairs >= 0).all()
    if not coarse:
        torch.testing.assert_close(pairs, general.factor_marginals, rtol=0, atol=1e-8)


@pytest.mark.parametrize("kind", ["shared", "edges", "rows", "all"])
def test_gradients_of_marginals_and_pairs(kind: str) -> None:
    draw = torch.Generator().manual_seed(3)
    scores = torch.randn(2, 5, 3, generator=draw, dtype=torch.float64).requires_grad_()
    transition = _transition(kind, 2, 5, 3, draw).requires_grad_()

    def predict(theta: Tensor, table: Tensor) -> tuple[Tensor, Tensor]:
        return Chain(table).marginals(theta)

    assert torch.autograd.gradcheck(predict, (scores, transition))
    assert torch.autograd.gradgradcheck(predict, (scores, transition))
    assert torch.autograd.gradcheck(lambda s, t: F.sparsemap(s, Chain(t)), (scores, transition))


def test_a_long_chain_closes_its_gap() -> None:
    """Checked by the general oracle: no path is better than the mixture for the gradient."""
    scores = torch.randn(2, 300, 12, dtype=torch.float64)
    table = torch.randn(12, 12, dtype=torch.float64)
    structure = Chain(table)
    y, pairs = structure.marginals(scores)
    best = Chain(table).argmax(scores - y)
    edges = best[:, :-1, :, None] * best[:, 1:, None, :]
    lead = ((scores - y) * (best - y)).sum((1, 2)) + (table * (edges - pairs)).sum((1, 2, 3))
    assert (lead.abs() < 1e-9).all()
    torch.testing.assert_close(y.sum(-1), torch.ones(2, 300).double())
    searches = kernel.solve(scores, table[None, None], 1e-12, 1000).calls
    assert (searches < 100).all()  # one search improves the chain in many places at once


def test_forbidden_transitions_and_rows_without_a_path() -> None:
    table = torch.tensor([[0.0, -math.inf], [0.3, 0.1]], dtype=torch.float64)
    scores = torch.randn(4, 6, 2, dtype=torch.float64)
    found, pairs = Chain(table).marginals(scores)
    general = F.sparsemap_solution(scores, Chain(table))
    torch.testing.assert_close(found, general.marginals, rtol=0, atol=1e-9)
    assert (pairs[..., 0, 1] == 0).all()
    never = torch.full((2, 2), -math.inf, dtype=torch.float64)
    with pytest.raises(ValueError, match="expected a feasible structure of Chain"):
        F.sparsemap(scores, Chain(never))


def test_nan_affects_its_own_row_only_forward_and_backward() -> None:
    clean = torch.randn(3, 5, 4, dtype=torch.float64)
    scores = clean.clone()
    scores[1, 2, 3] = math.nan
    scores.requires_grad_()
    found = F.sparsemap(scores, Chain(0.5))
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2]], F.sparsemap(clean, Chain(0.5))[[0, 2]])
    found[[0, 2]].square().sum().backward()
    assert scores.grad is not None
    assert scores.grad[[0, 2]].isfinite().all()


def test_one_position_is_sparsemax_and_threads_change_nothing() -> None:
    scores = torch.randn(3, 1, 6)
    torch.testing.assert_close(F.sparsemap(scores, Chain(0.5)), F.sparsemax(scores))
    apart = torch.randn(2, 5, 6).masked_fill(torch.arange(5)[:, None] % 2 == 1, -math.inf)
    found = F.sparsemap(apart, Chain(0.5))
    torch.testing.assert_close(found[:, ::2], F.sparsemax(apart[:, ::2]))
    many = torch.randn(64, 30, 8)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = F.sparsemap(many, Chain(0.5))
        torch.set_num_threads(3)
        assert torch.equal(F.sparsemap(many, Chain(0.5)), alone)
    finally:
        torch.set_num_threads(before)


def test_the_reference_backend_gives_the_same() -> None:
    scores = torch.randn(3, 6, 3, dtype=torch.float64)
    fast = F.sparsemap(scores, Chain(0.7))
    with hopfy.use_backend("reference"):
        torch.testing.assert_close(F.sparsemap(scores, Chain(0.7)), fast, rtol=0, atol=1e-9)


def test_the_loss_of_a_batch_trains() -> None:
    torch.manual_seed(1)
    scores = torch.zeros(8, 12, 4, requires_grad=True)
    table = torch.zeros(4, 4, requires_grad=True)
    target = torch.nn.functional.one_hot(torch.randint(4, (8, 12)), 4).float()
    optimizer = torch.optim.SGD([scores, table], lr=1.0)
    for _ in range(30):
        optimizer.zero_grad()
        loss = SparseMAP(Chain(table)).loss(scores, target).mean() * 8
        loss.backward()
        optimizer.step()
    assert float(loss.detach()) < 1e-6
    assert torch.equal(F.sparsemap(scores.detach(), Chain(table.detach())), target)
