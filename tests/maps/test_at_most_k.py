"""At most k: the compiled loops and plain torch, judged by a bisection on the threshold."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import functional as F

SIZES = [1, 2, 7, 31, 64, 300]
BACKENDS = ("cpu", "reference")


def _judge(scores: Tensor, k: Tensor) -> Tensor:
    r""":math:`y = \mathrm{clip}(\theta - \tau, 0, 1)` with the smallest :math:`\tau \ge 0` that fits."""
    low, high = torch.zeros_like(k), scores.amax(-1, keepdim=True).clamp_min(0)
    for _ in range(200):
        middle = (low + high) / 2
        fits = (scores - middle).clamp(0, 1).sum(-1, keepdim=True) <= k
        low, high = torch.where(fits, low, middle), torch.where(fits, middle, high)
    return (scores - high).clamp(0, 1)


def _cases(size: int) -> tuple[Tensor, Tensor]:
    """Rows that spend less than k, more than k, and some of both kinds in one batch."""
    generator = torch.Generator().manual_seed(size)
    scores = torch.randn(6, 5, size, dtype=torch.float64, generator=generator)
    scores = scores + torch.tensor([-2.0, -0.5, 0.0, 0.5, 3.0, 0.1]).double()[:, None, None]
    k = torch.tensor([0.0, 0.5, 1.0, 2.0, 1e6], dtype=torch.float64)[:, None].expand(6, 5, 1)
    return scores, k


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("size", SIZES)
def test_weights_are_those_of_the_judge(size: int, backend: str) -> None:
    scores, k = _cases(size)
    with hopfy.use_backend(backend):
        found = F.at_most_k(scores, k)
        torch.testing.assert_close(found, _judge(scores, k), rtol=0, atol=1e-12)
        single = F.at_most_k(scores.float(), k)
    torch.testing.assert_close(single, found.float(), rtol=0, atol=2e-6)


@pytest.mark.parametrize("k", [0.5, 1.0, 2.0, 50.0])
def test_backends_agree_on_gradients(k: float) -> None:
    scores, _ = _cases(23)
    cotangent, gradients = torch.randn_like(scores), []
    for backend in BACKENDS:
        leaf, budget = scores.clone().requires_grad_(), torch.tensor(k).double().requires_grad_()
        with hopfy.use_backend(backend):
            weights = F.at_most_k(leaf, budget)
        gradients.append(torch.autograd.grad(weights, (leaf, budget), cotangent))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-12)
    leaf = scores[:, :2, :7].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: F.at_most_k(s, k), (leaf,))
    assert torch.autograd.gradgradcheck(lambda s: F.at_most_k(s, k), (leaf,))


@pytest.mark.parametrize("backend", BACKENDS)
def test_rough_rows_affect_only_themselves(backend: str) -> None:
    inf, nan = torch.inf, torch.nan
    scores = torch.tensor([[nan, 1.0, 0.5], [inf, 0.0, 0.0], [-inf] * 3, [-inf, 0.25, 2.0]])
    leaf = scores.requires_grad_()
    with hopfy.use_backend(backend):
        weights = F.at_most_k(leaf, 1.5)
        (gradient,) = torch.autograd.grad(weights, leaf, torch.ones_like(weights))
    for found in (weights, gradient):
        assert found[:2].isnan().all()
        assert not found[2:].isnan().any()
    assert weights[2:].tolist() == [[0.0, 0.0, 0.0], [0.0, 0.25, 1.0]]
    assert gradient[2:].tolist() == [[0.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
