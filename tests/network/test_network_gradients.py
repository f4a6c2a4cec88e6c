"""Gradients through retrieval: unrolled, through the last step, and implicit."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hopfy

MAPS = ["softmax", "1.5-entmax", "sparsemax", "5-normmax", "2-subsets"]


def _data() -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    # Two clusters, so that the fixed points are mixtures and the gradients are not zero.
    centers = torch.tensor([[2.0, 0.0, 0.5], [-1.0, 2.0, 0.0]], dtype=torch.float64)
    memories = centers.repeat(3, 1) + 0.2 * torch.randn(6, 3, dtype=torch.float64)
    return memories, centers + 0.1


@pytest.mark.parametrize("name", MAPS)
def test_unrolled_gradients_are_those_of_the_iteration(name: str) -> None:
    memories, queries = _data()
    beta = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)

    def end(q: Tensor, x: Tensor, b: Tensor) -> Tensor:
        return hopfy.HopfieldNetwork(x, name, b).retrieve(q, max_steps=3, tol=0.0).state

    inputs = (queries.requires_grad_(), memories.requires_grad_(), beta)
    assert torch.autograd.gradcheck(end, inputs)


@pytest.mark.parametrize("name", MAPS)
def test_the_implicit_gradient_is_the_limit_of_the_unrolled_one(name: str) -> None:
    memories, queries = _data()
    memories.requires_grad_()
    beta = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    cotangent = torch.randn(2, 3, dtype=torch.float64)
    found = {}
    for gradient in ("unrolled", "implicit"):
        net = hopfy.HopfieldNetwork(memories, name, beta)
        result = net.retrieve(queries, max_steps=200, tol=1e-15, gradient=gradient)
        assert bool(result.converged.all())
        found[gradient] = torch.autograd.grad((result.state * cotangent).sum(), (memories, beta))
    for unrolled, implicit in zip(found["unrolled"], found["implicit"], strict=True):
        assert torch.allclose(unrolled, implicit, atol=1e-8)
    assert found["implicit"][0].abs().max() > 0.05


@pytest.mark.parametrize("name", ["softmax", "1.5-entmax", "5-normmax"])
def test_gradcheck_of_the_implicit_gradient(name: str) -> None:
    memories, queries = _data()
    beta = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)

    def end(x: Tensor, b: Tensor) -> Tensor:
        net = hopfy.HopfieldNetwork(x, name, b)
        return net.retrieve(queries, max_steps=100, tol=1e-15, gradient="implicit").state

    assert torch.autograd.gradcheck(end, (memories.requires_grad_(), beta), atol=1e-5)


def test_the_implicit_gradient_reaches_alpha_and_values() -> None:
    memories, queries = _data()
    values = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    alpha = torch.tensor(1.4, dtype=torch.float64, requires_grad=True)

    def read(a: Tensor, v: Tensor) -> Tensor:
        net = hopfy.HopfieldNetwork(memories, hopfy.Tsallis(a), 0.8, values=v)
        result = net.retrieve(queries, max_steps=500, tol=1e-15, gradient="implicit")
        assert result.readout is not None
        return result.readout

    assert torch.autograd.gradcheck(read, (alpha, values), atol=1e-5)


@pytest.mark.parametrize("name", MAPS)
def test_the_last_step_gradient_is_one_update_from_where_it_stood(name: str) -> None:
    memories, queries = _data()
    memories.requires_grad_()
    queries.requires_grad_()
    net = hopfy.HopfieldNetwork(memories, name, 0.8)
    result = net.retrieve(queries, max_steps=4, tol=0.0, gradient="last")
    with torch.no_grad():
        steps = int(result.steps.max())
        before = queries.detach()
        for _ in range(steps - 1):
            before = net.update(before)
    expected = net.update(before)
    assert torch.allclose(result.state, expected)
    (found,) = torch.autograd.grad(result.state.sum(), memories, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected.sum(), memories)
    assert torch.allclose(found, wanted, atol=1e-10)
    assert torch.autograd.grad(result.state.sum(), queries, allow_unused=True) == (None,)


@pytest.mark.parametrize("gradient", ["unrolled", "last", "implicit"])
def test_an_exact_recall_copies_its_gradient_to_the_pattern(gradient: str) -> None:
    memories = (torch.eye(4) * 3).requires_grad_()
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 1.0)
    result = net.retrieve(torch.eye(4)[:2] * 2.9, gradient=gradient)  # type: ignore[arg-type]
    assert bool(result.certified.all())
    assert torch.equal(result.state, memories.detach()[:2])
    (found,) = torch.autograd.grad(result.state.sum(), memories)
    assert torch.equal(found, torch.tensor([1.0, 1.0, 0.0, 0.0]).unsqueeze(-1).expand(4, 4))


def test_nothing_is_recorded_when_nobody_asks() -> None:
    memories, queries = _data()
    net = hopfy.HopfieldNetwork(memories, "1.5-entmax", 0.8)
    assert not net.retrieve(queries).state.requires_grad
    assert not net.energy(queries).requires_grad
    memories.requires_grad_()
    learning = hopfy.HopfieldNetwork(memories, "1.5-entmax", 0.8)
    with torch.no_grad():
        assert not learning.retrieve(queries).state.requires_grad
    assert learning.retrieve(queries).state.requires_grad


def test_the_sparse_weights_carry_gradients_too() -> None:
    memories, queries = _data()
    memories.requires_grad_()
    result = hopfy.HopfieldNetwork(memories, "1.5-entmax", 0.8).retrieve(queries, max_steps=3)
    assert result.support is not None
    assert result.support.values.requires_grad
    assert torch.autograd.grad(result.weights.square().sum(), memories)[0].abs().max() > 0


def test_a_fixed_point_that_is_no_minimum_is_reported() -> None:
    # Halfway between two patterns sparsemax is unstable: I - J is not positive definite there.
    memories = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64, requires_grad=True)
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 4.0)
    result = net.retrieve(torch.zeros(1, 2, dtype=torch.float64), gradient="implicit")
    with pytest.warns(RuntimeWarning, match="implicit gradient is inaccurate"):
        torch.autograd.grad(result.state.sum(), memories)
