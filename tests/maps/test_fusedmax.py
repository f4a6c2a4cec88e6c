"""Fusedmax: against a QP solver, its limits, and the laws of every map."""

from __future__ import annotations

import cvxpy
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import hopfy
from hopfy import functional as F
from hopfy._kernels import total_variation

F64 = torch.float64


def judged(scores: np.ndarray, strength: float) -> np.ndarray:
    """Clarabel's answer to the definition."""
    y = cvxpy.Variable(len(scores))
    rough = strength * cvxpy.norm1(cvxpy.diff(y)) if len(scores) > 1 else 0
    goal = cvxpy.Minimize(0.5 * cvxpy.sum_squares(y - scores) + rough)
    cvxpy.Problem(goal, [y >= 0, cvxpy.sum(y) == 1]).solve(solver=cvxpy.CLARABEL)
    return np.asarray(y.value)


@settings(max_examples=40)
@given(st.integers(1, 12), st.sampled_from([0.0, 0.05, 0.3, 1.0, 5.0]), st.integers(0, 10**6))
def test_it_solves_its_definition(size, strength, seed):
    scores = np.random.default_rng(seed).normal(size=size) * 1.5
    ours = F.fusedmax(torch.from_numpy(scores), strength).numpy()
    np.testing.assert_allclose(ours, judged(scores, strength), atol=2e-6)


@settings(max_examples=30)
@given(st.integers(1, 40), st.sampled_from([0.0, 0.1, 1.0, 10.0]), st.integers(0, 10**6))
def test_the_smoothing_obeys_its_optimality_conditions(size, strength, seed):
    """The dual u = cumsum(theta - y) stays in [-lambda, lambda], touches it where y jumps, ends at 0."""
    scores = np.random.default_rng(seed).normal(size=size).round(1)  # ties too
    smooth = total_variation.solve(
        torch.from_numpy(scores), torch.tensor(strength, dtype=F64)
    ).numpy()
    dual = np.cumsum(scores - smooth)
    assert abs(dual[-1]) < 1e-9
    assert np.abs(dual).max() <= strength + 1e-9
    jump = np.diff(smooth)
    np.testing.assert_allclose(dual[:-1][jump > 1e-9], -strength, atol=1e-9)
    np.testing.assert_allclose(dual[:-1][jump < -1e-9], strength, atol=1e-9)


def test_compiled_loops_and_plain_python_agree():
    scores = torch.randn(7, 33, dtype=F64)
    scores[1, 4:9] = -torch.inf
    scores[2] = -torch.inf
    scores[3, 0] = torch.nan
    scores[4, 5] = torch.inf
    strength = torch.rand(7, 1, dtype=F64)
    compiled = total_variation.solve(scores, strength)
    with hopfy.use_backend("reference"):
        expected = total_variation.solve(scores, strength)
    torch.testing.assert_close(compiled, expected, equal_nan=True, atol=0, rtol=0)


def test_no_strength_is_sparsemax_and_much_is_uniform():
    scores = torch.randn(4, 9)
    torch.testing.assert_close(F.fusedmax(scores, 0.0), F.sparsemax(scores))
    torch.testing.assert_close(F.fusedmax(scores, 1e6), torch.full_like(scores, 1 / 9))


def test_masked_is_removed_and_parts_the_row():
    scores = torch.randn(3, 8, dtype=F64)
    padded = torch.nn.functional.pad(scores, (0, 5), value=7.0)
    mask = torch.arange(13) < 8
    found = F.fusedmax(padded, 0.4, mask=mask)
    torch.testing.assert_close(found[:, :8], F.fusedmax(scores, 0.4))
    assert bool((found[:, 8:] == 0).all())
    assert bool((F.fusedmax(scores, 0.4, mask=torch.zeros(8, dtype=torch.bool)) == 0).all())
    # Two runs that smooth on their own, then one simplex.
    gap = torch.tensor([2.0, 1.8, 9.0, 2.1, 1.9], dtype=F64)
    mask = torch.tensor([True, True, False, True, True])
    torch.testing.assert_close(
        F.fusedmax(gap, 0.1, mask=mask), torch.tensor([0.2, 0.2, 0, 0.3, 0.3], dtype=F64)
    )


@pytest.mark.parametrize("strength", [0.0, 0.2, 1.0])
def test_gradients(strength):
    scores = torch.randn(5, 7, dtype=F64, requires_grad=True)
    mask = torch.arange(7) < torch.tensor([[7], [5], [1], [6], [3]])
    call = lambda s: F.fusedmax(s, strength, mask=mask)  # noqa: E731
    assert torch.autograd.gradcheck(call, (scores,))
    assert torch.autograd.gradgradcheck(call, (scores,))


def test_the_derivative_by_the_strength():
    scores = torch.randn(6, 11, dtype=F64)
    strength, step = torch.tensor(0.3, dtype=F64), 1e-6
    smooth = total_variation.solve(scores, strength)
    moved = total_variation.solve(scores, strength + step) - total_variation.solve(
        scores, strength - step
    )
    torch.testing.assert_close(
        total_variation.slope(smooth, strength), moved / (2 * step), atol=1e-6, rtol=0
    )


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e6])
def test_scales_and_shift(scale):
    scores = torch.randn(4, 50, dtype=F64)
    whole = total_variation.solve(scores * scale, torch.tensor(0.5 * scale, dtype=F64))
    plain = total_variation.solve(scores, torch.tensor(0.5, dtype=F64))
    torch.testing.assert_close(whole / scale, plain)
    torch.testing.assert_close(F.fusedmax(scores + 1e3, 0.5), F.fusedmax(scores, 0.5))


def test_other_dims_dtypes_and_long_rows():
    scores = torch.randn(3, 6, 4)
    torch.testing.assert_close(F.fusedmax(scores, 0.3, dim=1), F.fusedmax(scores.mT, 0.3).mT)
    assert F.fusedmax(scores.half(), 0.3).dtype is torch.float16
    assert F.fusedmax(torch.zeros(2, 0)).shape == (2, 0)
    long = F.fusedmax(torch.randn(2, 10_000), 0.5)
    torch.testing.assert_close(long.sum(-1), torch.ones(2))


def test_vmap_and_compile():
    scores = torch.randn(3, 5, 8, dtype=F64)
    torch.testing.assert_close(
        torch.vmap(lambda s: F.fusedmax(s, 0.3))(scores), F.fusedmax(scores, 0.3)
    )


@pytest.mark.parametrize("strength", [-1.0, float("inf"), float("nan"), True, "much"])
def test_a_wrong_strength_is_refused(strength):
    with pytest.raises((TypeError, ValueError), match="expected strength"):
        F.fusedmax(torch.randn(4), strength)
