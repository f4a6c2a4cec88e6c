"""Regularizers as objects, and their losses."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopfy
from judges.registry import MAPS, Map, every_map, every_smooth_map, every_sparse_map


def target_for(map: Map, rows: int, size: int) -> torch.Tensor:
    """A random point of the domain."""
    return map.omega(torch.randn(rows, size, dtype=torch.float64) * 0.7)


@every_map
def test_the_object_predicts_as_the_function(map: Map) -> None:
    scores = torch.randn(4, 9)
    mask = torch.rand(4, 9) > 0.3
    mask[:, :3] = True
    assert torch.equal(map.omega(scores, mask), map(scores, mask=mask))
    assert torch.equal(map.omega(scores, dim=0), map(scores, dim=0))


@every_map
def test_fenchel_young_inequality(map: Map) -> None:
    scores = torch.randn(50, 8, dtype=torch.float64) * 2
    target = target_for(map, 50, 8)
    loss = map.omega.loss(scores, target)
    assert (loss >= 0).all()
    direct = map.omega.value(target) + map.omega.conjugate(scores) - (scores * target).sum(-1)
    torch.testing.assert_close(loss, direct, rtol=1e-9, atol=1e-9)


@every_map
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e6])
def test_zero_exactly_at_the_prediction(map: Map, scale: float) -> None:
    for dtype in (torch.float32, torch.float64):
        scores = (torch.randn(20, 9) * scale).to(dtype)
        assert (map.omega.loss(scores, map.omega(scores)) == 0).all()


@every_map
def test_the_gradient_is_prediction_minus_target(map: Map) -> None:
    scores = torch.randn(6, 8, dtype=torch.float64, requires_grad=True)
    target = target_for(map, 6, 8)
    map.omega.loss(scores, target).sum().backward()
    torch.testing.assert_close(scores.grad, map.omega(scores.detach()) - target)
    scores.grad = None
    map.omega.conjugate(scores).sum().backward()
    torch.testing.assert_close(scores.grad, map.omega(scores.detach()))


@every_smooth_map
def test_losses_and_conjugates_are_differentiable_twice(map: Map) -> None:
    scores = (torch.arange(6, dtype=torch.float64) * 0.13)[torch.randperm(6)].requires_grad_()
    target = target_for(map, 1, 6)[0]
    assert torch.autograd.gradcheck(lambda s: map.omega.loss(s, target), (scores,))
    hessian = torch.autograd.functional.hessian(lambda s: map.omega.conjugate(s), scores.detach())
    jacobian = torch.autograd.functional.jacobian(map.omega, scores.detach())
    torch.testing.assert_close(hessian, jacobian)


@every_map
def test_the_conjugate_is_the_best_over_many_points(map: Map) -> None:
    scores = torch.randn(7, dtype=torch.float64)
    candidates = target_for(map, 4000, 7)
    values = (candidates * scores).sum(-1) - map.omega.value(candidates)
    best = map.omega.conjugate(scores)
    assert values.max() <= best + 1e-12


@every_map
def test_generalized_negentropies_vanish_at_corners_and_sink_to_the_uniform(map: Map) -> None:
    if isinstance(map.omega, hopfy.SparseMAP | hopfy.omega.EntropicKSubsets):
        pytest.skip("half the squared norm and binary entropies are no negentropy of the simplex")
    corner = torch.eye(6, dtype=torch.float64)
    assert (map.omega.value(corner) == 0).all()
    points = target_for(map, 200, 6)
    uniform = torch.full((6,), 1 / 6, dtype=torch.float64)
    assert (map.omega.value(points) <= 1e-15).all()
    assert (map.omega.value(points) >= map.omega.value(uniform) - 1e-12).all()


def test_values_by_their_formulas() -> None:
    y = torch.tensor([[0.5, 0.3, 0.2, 0.0]], dtype=torch.float64)
    for alpha in (1.5, 2.0, 4.0):
        tsallis = ((y**alpha).sum(-1) - 1) / (alpha * (alpha - 1))
        torch.testing.assert_close(hopfy.Tsallis(alpha).value(y), tsallis)
        norm = (y**alpha).sum(-1) ** (1 / alpha) - 1
        torch.testing.assert_close(hopfy.Norm(alpha).value(y), norm)
    entropy = (y[:, :3] * y[:, :3].log()).sum(-1)
    for omega in (hopfy.Shannon(), hopfy.Tsallis(1.0), hopfy.Tsallis(1 + 1e-9)):
        torch.testing.assert_close(omega.value(y), entropy)
    torch.testing.assert_close(hopfy.Norm(math.inf).value(y), torch.tensor([-0.5]).double())
    flat = y.clone().requires_grad_()
    value = hopfy.Tsallis(math.inf).value(flat)
    value.sum().backward()
    assert value == 0
    assert (flat.grad == 0).all()


def test_margins() -> None:
    assert hopfy.Shannon().margin == math.inf
    assert hopfy.Tsallis(1.0).margin == math.inf
    assert hopfy.Tsallis(1.5).margin == 2.0
    assert hopfy.Tsallis(math.inf).margin == 0.0
    assert hopfy.Norm(7).margin == 1.0


@every_sparse_map
@settings(max_examples=25, deadline=None)
@given(extra=st.floats(1e-9, 3.0), seed=st.integers(0, 10_000))
def test_the_margin_is_a_margin(map: Map, extra: float, seed: int) -> None:
    """Def. 1: zero loss at a corner if and only if its score leads by the margin."""
    if map.total != 1 or map.name in ("1.01-entmax", "inf-entmax", "1.1-normmax"):
        return  # weights below the smallest float64, or no margin to undercut
    generator = torch.Generator().manual_seed(seed)
    scores = torch.rand(6, dtype=torch.float64, generator=generator)
    corner = torch.eye(6, dtype=torch.float64)[0]
    leading = scores.clone()
    leading[0] = scores[1:].max() + map.omega.margin + extra
    assert map.omega.loss(leading, corner) == 0
    trailing = scores.clone()
    trailing[0] = scores[1:].max() + map.omega.margin * (1 - min(max(extra, 0.3), 0.9))
    assert map.omega.loss(trailing, corner) > 0


@every_map
def test_minus_infinity_outside_the_target_is_harmless(map: Map) -> None:
    scores = torch.randn(3, 8, dtype=torch.float64)
    scores[:, 5:] = -math.inf
    scores.requires_grad_()
    target = torch.zeros(3, 8, dtype=torch.float64)
    target[:, :5] = map.total / 5
    loss = map.omega.loss(scores, target)
    assert loss.isfinite().all()
    loss.sum().backward()
    assert scores.grad.isfinite().all()
    assert (scores.grad[:, 5:] == 0).all()
    target = torch.roll(target, 3, dims=1)
    assert (map.omega.loss(scores, target) == math.inf).all()


def test_shannon_is_cross_entropy() -> None:
    scores, classes = torch.randn(7, 5), torch.randint(0, 5, (7,))
    classes[2] = -100
    for reduction in ("mean", "sum", "none"):
        ours = hopfy.FenchelYoungLoss("softmax", reduction=reduction)
        theirs = torch.nn.CrossEntropyLoss(reduction=reduction)
        torch.testing.assert_close(ours(scores, classes), theirs(scores, classes))
    images, labels = torch.randn(2, 5, 3, 4), torch.randint(0, 5, (2, 3, 4))
    ours = hopfy.FenchelYoungLoss("softmax", dim=1)
    torch.testing.assert_close(ours(images, labels), torch.nn.CrossEntropyLoss()(images, labels))


def test_probability_targets_and_everything_ignored() -> None:
    loss = hopfy.FenchelYoungLoss("1.5-entmax")
    scores = torch.randn(4, 6, requires_grad=True)
    classes = torch.tensor([0, 5, 2, 2])
    weights = torch.nn.functional.one_hot(classes, 6).float()
    torch.testing.assert_close(loss(scores, classes), loss(scores, weights))
    ignored = loss(scores, torch.full((4,), -100))
    ignored.backward()
    assert ignored == 0
    assert (scores.grad == 0).all()
    assert "Tsallis(alpha=1.5)" in repr(loss)


def test_targets_receive_gradients() -> None:
    scores = torch.randn(5, dtype=torch.float64)
    for omega in (hopfy.Shannon(), hopfy.Tsallis(1.5), hopfy.Norm(3.0)):
        target = torch.softmax(torch.randn(5, dtype=torch.float64), -1).requires_grad_()
        (ours,) = torch.autograd.grad(omega.loss(scores, target), target)
        (value,) = torch.autograd.grad(omega.value(target), target)
        expected = value - scores
        torch.testing.assert_close(ours - ours.mean(), expected - expected.mean())


def test_a_learned_alpha_reaches_the_loss() -> None:
    scores = torch.arange(5, dtype=torch.float64) * 0.21
    target = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.0], dtype=torch.float64)
    alpha = torch.tensor(1.6, dtype=torch.float64, requires_grad=True)
    for family in (hopfy.Tsallis, hopfy.Norm):
        assert torch.autograd.gradcheck(
            lambda a, family=family: family(a).loss(scores, target), (alpha,)
        )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_losses(dtype: torch.dtype) -> None:
    scores = torch.randn(8, 10).to(dtype)
    target = torch.nn.functional.one_hot(torch.arange(8), 10)
    for map in MAPS:
        if map.total == 1 and map.least == 1:
            low = map.omega.loss(scores, target)
            assert low.dtype is dtype
            high = map.omega.loss(scores.double(), target.double())
            torch.testing.assert_close(low.double(), high, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize(
    ("name", "omega"),
    [
        ("softmax", hopfy.Shannon()),
        ("sparsemax", hopfy.Tsallis(2.0)),
        ("1.5-entmax", hopfy.Tsallis(1.5)),
        (" 2-Entmax ", hopfy.Tsallis(2.0)),
        ("inf-normmax", hopfy.Norm(math.inf)),
        ("5-normmax", hopfy.Norm(5.0)),
        ("3-subsets", hopfy.SparseMAP(hopfy.structures.KSubsets(3))),
        ("entropic-3-subsets", hopfy.omega.EntropicKSubsets(3)),
        ("entropic-2.5-subsets", hopfy.omega.EntropicKSubsets(2.5)),
        ("0.4-capped", hopfy.omega.Capped(0.4)),
    ],
)
def test_names(name: str, omega: hopfy.Omega) -> None:
    assert hopfy.omega_from(name) == omega
    assert hopfy.omega_from(omega) is omega
    assert (
        eval(
            repr(omega),
            {**vars(hopfy), **vars(hopfy.structures), **vars(hopfy.omega), "inf": math.inf},
        )
        == omega
    )
    assert copy.deepcopy(omega) == omega
