"""Derivatives of every map: against finite differences and against closed forms."""

from __future__ import annotations

import math

import pytest
import torch

import hopfy
from hopfy import functional as F
from judges.registry import MAPS, Map, every_map, every_smooth_map

SMOOTH = [m for m in MAPS if not m.is_flat and m.name != "10.0-entmax"]


def well_separated(rows: int, size: int, spacing: float = 0.07) -> torch.Tensor:
    """Scores no two of which are close, so that finite differences stay on one smooth piece."""
    base = torch.arange(size, dtype=torch.float64) * spacing
    return torch.stack([base[torch.randperm(size)] + 0.013 * r for r in range(rows)])


@pytest.mark.parametrize("map", SMOOTH, ids=lambda m: m.name)
def test_first_and_second_derivatives(map: Map) -> None:
    scores = well_separated(2, 7).requires_grad_()
    assert torch.autograd.gradcheck(map, (scores,), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(map, (scores,))


@pytest.mark.parametrize("alpha", [1.0, 1.0 + 1e-7, 1.1, 1.5, 2.0, 2.7])
def test_derivative_in_alpha_of_entmax(alpha: float) -> None:
    scores = well_separated(2, 6)
    exact = _gradient_in_parameter(F.entmax, scores, alpha)
    if alpha == 1.0:
        step = 1e-5  # alpha below one is no entmax: one-sided, second order
        f = [F.entmax(scores, alpha + i * step) for i in range(3)]
        numeric = (-3 * f[0] + 4 * f[1] - f[2]) / (2 * step)
    else:
        step = min(1e-5, (alpha - 1) / 2)
        numeric = (F.entmax(scores, alpha + step) - F.entmax(scores, alpha - step)) / (2 * step)
    torch.testing.assert_close(exact, numeric, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("alpha", [1.2, 1.5, 2.0, 5.0, 12.0])
def test_derivative_in_alpha_of_normmax(alpha: float) -> None:
    scores = well_separated(2, 6)
    exact = _gradient_in_parameter(F.normmax, scores, alpha)
    step = 1e-6
    numeric = (F.normmax(scores, alpha + step) - F.normmax(scores, alpha - step)) / (2 * step)
    torch.testing.assert_close(exact, numeric, rtol=1e-5, atol=1e-7)


def _gradient_in_parameter(map, scores: torch.Tensor, value: float) -> torch.Tensor:
    """Jacobian with respect to one parameter per row, entry by entry."""
    parameter = torch.full(scores.shape[:1], value, dtype=torch.float64, requires_grad=True)
    weights = map(scores, parameter)
    columns = []
    for entry in range(scores.shape[1]):
        (column,) = torch.autograd.grad(weights[:, entry].sum(), parameter, retain_graph=True)
        columns.append(column)
    return torch.stack(columns, -1)


@pytest.mark.parametrize("shape", [(), (3, 1), (2, 1, 1), (2, 3), (1, 3)])
def test_parameters_of_every_shape_receive_gradients(shape: tuple[int, ...]) -> None:
    scores = torch.stack([well_separated(3, 5), well_separated(3, 5)]).requires_grad_()
    alpha = torch.full(shape, 1.6, dtype=torch.float64, requires_grad=True)
    k = torch.full(shape, 2.3, dtype=torch.float64, requires_grad=True)
    if shape == (3, 1):
        with pytest.raises(ValueError, match="broadcast over the rows"):
            F.entmax(scores, alpha)
        return
    assert torch.autograd.gradcheck(F.entmax, (scores, alpha), check_forward_ad=True)
    assert torch.autograd.gradcheck(F.normmax, (scores, alpha))
    assert torch.autograd.gradcheck(F.ksubsets, (scores, k))
    assert torch.autograd.gradcheck(F.entropic_ksubsets, (scores, k), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(F.entropic_ksubsets, (scores, k))


@every_smooth_map
def test_the_jacobian_is_symmetric_and_kills_constants(map: Map) -> None:
    scores = well_separated(1, 9)[0]
    jacobian = torch.autograd.functional.jacobian(map, scores)
    torch.testing.assert_close(jacobian, jacobian.T, rtol=1e-9, atol=1e-12)
    scale = jacobian.abs().max()
    assert jacobian.sum(-1).abs().max() <= 1e-9 * (1 + scale)
    assert torch.linalg.eigvalsh(jacobian).min() >= -1e-9 * (1 + scale)


def test_closed_form_jacobians() -> None:
    scores = well_separated(1, 9, 0.2)[0]
    for alpha in (1.0, 1.25, 1.5, 2.0, 3.0):
        p = F.entmax(scores, alpha)
        g = torch.where(p > 0, p.clamp_min(1e-300) ** (2 - alpha), 0.0)
        closed = torch.diag(g) - torch.outer(g, g) / g.sum()
        jacobian = torch.autograd.functional.jacobian(lambda s, a=alpha: F.entmax(s, a), scores)
        torch.testing.assert_close(jacobian, closed, rtol=1e-9, atol=1e-12)
    y = F.ksubsets(scores, 3)
    between = ((y > 0) & (y < 1)).double()
    closed = torch.diag(between) - torch.outer(between, between) / between.sum().clamp_min(1)
    jacobian = torch.autograd.functional.jacobian(lambda s: F.ksubsets(s, 3), scores)
    torch.testing.assert_close(jacobian, closed, rtol=0, atol=1e-12)


@every_map
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_low_precision_gradients_follow_double(map: Map, dtype: torch.dtype) -> None:
    if map.name == "10.0-entmax":
        pytest.skip("slopes of tiny weights are beyond low precision")
    scores = well_separated(4, 30, 0.11).to(dtype)
    cotangent = torch.randn(4, 30).to(dtype)
    gradients = []
    for kind in (dtype, torch.float64):
        leaf = scores.to(kind, copy=True).requires_grad_()
        map(leaf).backward(cotangent.to(kind))
        gradients.append(leaf.grad.double())
    loose = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-4}[dtype]
    torch.testing.assert_close(*gradients, rtol=loose, atol=loose)


@every_map
def test_extreme_scores_have_finite_gradients(map: Map) -> None:
    for scale in (1e-8, 1e9):
        scores = (torch.randn(5, 20) * scale).requires_grad_()
        map(scores).backward(torch.randn(5, 20))
        assert scores.grad.isfinite().all()
    tied = torch.zeros(5, 20, requires_grad=True)
    map(tied).backward(torch.ones(5, 20))
    torch.testing.assert_close(tied.grad, torch.zeros(5, 20), rtol=0, atol=1e-4)


def test_flat_maps_have_zero_gradient() -> None:
    for map in MAPS:
        if map.is_flat:
            scores = torch.randn(4, 9, requires_grad=True)
            map(scores).backward(torch.randn(4, 9))
            assert (scores.grad == 0).all()
            assert math.isinf(map.omega.alpha)


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("upper", [0.1, 0.25, 0.5, 0.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_below_bounds_add_up_to_one_whatever_the_bound(
    backend: str, upper: float, dtype: torch.dtype
) -> None:
    """Also where the bounds of the selected entries do, so that no entry is free."""
    scores = torch.arange(20, dtype=dtype) * 5
    for bounds in (torch.tensor(upper, dtype=dtype), torch.full((20,), upper, dtype=dtype)):
        bounds.requires_grad_()
        with hopfy.use_backend(backend):
            weights = F.capped_sparsemax(scores, bounds)
            (gradient,) = torch.autograd.grad(weights.sum(), bounds)
            _, change = torch.func.jvp(
                lambda u: F.capped_sparsemax(scores, u),
                (bounds.detach(),),
                (torch.rand(bounds.shape, dtype=dtype),),
            )
        torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-5)
        torch.testing.assert_close(change.sum(), change.new_zeros(()), rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", [(), (5,), (3, 5), (2, 3, 5), (3, 1), (2, 1, 1)])
def test_upper_bounds_of_every_shape_receive_gradients(shape: tuple[int, ...]) -> None:
    scores = torch.stack([well_separated(3, 5, 0.11), well_separated(3, 5, 0.11)]).requires_grad_()
    upper = (0.31 + 0.1 * torch.rand(shape, dtype=torch.float64)).requires_grad_()
    assert torch.autograd.gradcheck(F.capped_sparsemax, (scores, upper), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(F.capped_sparsemax, (scores, upper))
    across = lambda s, u: F.capped_sparsemax(s, u.movedim(-1, 0) if u.ndim > 2 else u, dim=0)  # noqa: E731
    if len(shape) in (0, 3):
        assert torch.autograd.gradcheck(across, (scores.movedim(-1, 0), upper))


def test_conjugates_and_losses_know_their_domain() -> None:
    """The size of the domain (k, the upper bounds) receives the exact gradient, too."""
    scores = well_separated(3, 6, 0.21)
    k = torch.tensor([1.4, 2.0, 3.1], dtype=torch.float64, requires_grad=True)
    upper = (0.2 + 0.2 * torch.rand(3, 6, dtype=torch.float64)).requires_grad_()
    entropic, capped = hopfy.omega.EntropicKSubsets, hopfy.omega.Capped
    assert torch.autograd.gradcheck(lambda k: entropic(k).conjugate(scores), (k,))
    assert torch.autograd.gradcheck(lambda u: capped(u).conjugate(scores), (upper,))
    target = torch.full((3, 6), 1 / 6, dtype=torch.float64)
    assert torch.autograd.gradcheck(lambda u: capped(u).loss(scores, target), (upper,))


def test_closed_form_jacobian_of_entropic_ksubsets() -> None:
    scores = well_separated(1, 9, 0.2)[0]
    y = F.entropic_ksubsets(scores, 3)
    g = y * (1 - y)
    closed = torch.diag(g) - torch.outer(g, g) / g.sum()
    jacobian = torch.autograd.functional.jacobian(lambda s: F.entropic_ksubsets(s, 3), scores)
    torch.testing.assert_close(jacobian, closed, rtol=0, atol=1e-12)
