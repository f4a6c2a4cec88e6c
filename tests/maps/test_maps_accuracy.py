"""Every map against answers in high precision and against a QP solver."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

import hopfy
from hopfy import functional as F
from hopfy._kernels import capped as capped_kernel
from hopfy._kernels import entmax as entmax_kernel
from hopfy._kernels import entropic_ksubsets as entropic_kernel
from hopfy._kernels import ksubsets as ksubsets_kernel
from hopfy._kernels import normmax as normmax_kernel
from judges import maps as judges

ENTMAX_ALPHAS = [1.0, 1.0001, 1.01, 1.25, 1.5, 2.0, 3.0, 10.0, 100.0, math.inf]
NORMMAX_ALPHAS = [1.01, 1.25, 1.5, 2.0, 3.0, 10.0, 100.0, math.inf]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 5e-6}


def rows_to_judge(dtype: torch.dtype, size: int) -> list[torch.Tensor]:
    """Normal scores at many scales, and heavy ties: rounded scores at the same scales."""
    rows = []
    for scale in (1e-8, 1e-3, 0.1, 1.0, 5.0, 1e9):
        normal = torch.randn(size, dtype=torch.float64)
        rows += [(normal * scale).to(dtype), ((normal * 2).round() / 2 * scale).to(dtype)]
    return rows


def error(weights: torch.Tensor, truth: list) -> float:
    return max(abs(float(w - t)) for w, t in zip(weights.tolist(), truth, strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("alpha", ENTMAX_ALPHAS)
def test_entmax(alpha: float, dtype: torch.dtype) -> None:
    for size in (1, 2, 7) if alpha == 100 else (1, 2, 7, 33):
        for row in rows_to_judge(dtype, size):
            truth = judges.entmax(row.tolist(), alpha)
            weights = F.entmax(row, alpha)
            assert error(weights, truth) <= TOLERANCE[dtype], (size, row)
            outside = torch.tensor([t == 0 for t in truth])
            assert (weights[outside] == 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("alpha", NORMMAX_ALPHAS)
def test_normmax(alpha: float, dtype: torch.dtype) -> None:
    for size in (1, 2, 7, 33):
        for row in rows_to_judge(dtype, size):
            assert (
                error(F.normmax(row, alpha), judges.normmax(row.tolist(), alpha))
                <= (TOLERANCE[dtype])
            ), (size, row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.03, 0.3, 0.5, 0.97, 1.0])
def test_ksubsets(share: float, dtype: torch.dtype) -> None:
    for size in (1, 2, 7, 33, 100):
        for k in {round(share * size), min(share * size, size)}:
            for row in rows_to_judge(dtype, size):
                truth = judges.ksubsets(row.tolist(), k)
                assert error(F.ksubsets(row, k), truth) <= TOLERANCE[dtype], (size, k, row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.97])
def test_entropic_ksubsets(share: float, dtype: torch.dtype) -> None:
    for size in (1, 2, 9):
        for k in {round(share * size), min(share * size, size)}:
            for row in rows_to_judge(dtype, size):
                truth = judges.entropic_ksubsets(row.tolist(), k)
                found = F.entropic_ksubsets(row, k)
                assert error(found, truth) <= TOLERANCE[dtype], (size, k, row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("room", [1.0, 1.01, 1.5, 4.0, 100.0])
def test_capped_sparsemax(room: float, dtype: torch.dtype) -> None:
    """Upper bounds, for each entry or shared, that add up to ``room``."""
    for size in (1, 2, 7, 33, 150):
        for row in rows_to_judge(dtype, size):
            bounds = torch.rand(size, dtype=torch.float64) * (torch.rand(size) > 0.3) + 1e-3
            for upper in (bounds * room / bounds.sum(), torch.full((size,), room / size).double()):
                upper = (upper * (1 + 1e-6)).to(dtype)
                truth = judges.capped(row.tolist(), upper.tolist())
                found = F.capped_sparsemax(row, upper)
                assert error(found, truth) <= TOLERANCE[dtype], (size, row, upper)


@pytest.mark.skipif(np.finfo(np.longdouble).eps > 1e-18, reason="no extended precision here")
@pytest.mark.parametrize("size", [5_000, pytest.param(100_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("alpha", [1.0001, 1.01, 1.25, 1.5, 2.0])
def test_long_rows_of_entmax(alpha: float, size: int) -> None:
    for scale in (1e-8, 0.3, 1.0, 3.0):
        row = torch.randn(size, dtype=torch.float64) * scale
        gamma = 1 / (np.longdouble(alpha) - 1)
        x = (row.max() - row).numpy().astype(np.longdouble) / gamma
        s = judges.extended_threshold(x, float(gamma))
        ratio = np.clip(1 - x / s, 0, None)
        powers = np.where(ratio > 0, ratio, 1) ** gamma * (ratio > 0)
        truth = powers / powers.sum()
        assert np.abs(F.entmax(row, alpha).numpy() - truth).max() <= 1e-12
        single = row.float()
        close = F.entmax(single.double(), alpha)
        assert (F.entmax(single, alpha).double() - close).abs().max() <= 5e-6


@pytest.mark.parametrize("size", [5, 6])
@pytest.mark.parametrize("k", [1, 2, 3])
def test_ksubsets_is_the_projection_onto_the_hull_of_all_subsets(size: int, k: int) -> None:
    corners = judges.vertices(size, k)
    for scale in (0.3, 1.0, 3.0):
        scores = torch.randn(size, dtype=torch.float64) * scale
        truth = torch.from_numpy(judges.project(scores.numpy(), corners))
        torch.testing.assert_close(F.ksubsets(scores, k), truth, rtol=0, atol=1e-6)


def test_limits_are_reached_continuously() -> None:
    scores = torch.randn(50, 20, dtype=torch.float64)
    close = {"rtol": 0, "atol": 1e-7}
    torch.testing.assert_close(F.entmax(scores, 1 + 1e-9), torch.softmax(scores, -1), **close)
    torch.testing.assert_close(F.entmax(scores, 1e9), F.entmax(scores, math.inf), **close)
    torch.testing.assert_close(F.normmax(scores, 1e9), F.normmax(scores, math.inf), **close)
    torch.testing.assert_close(F.entmax(scores, 2.0), F.sparsemax(scores), rtol=0, atol=0)
    torch.testing.assert_close(F.ksubsets(scores, 1), F.sparsemax(scores), rtol=0, atol=1e-15)
    for upper in (1.0, math.inf):
        capped = F.capped_sparsemax(scores, upper)
        torch.testing.assert_close(capped, F.sparsemax(scores), rtol=0, atol=1e-15)
    scaled = F.ksubsets(scores / 0.4, 2.5) * 0.4
    torch.testing.assert_close(F.capped_sparsemax(scores, 0.4), scaled, rtol=0, atol=1e-15)
    cold = F.entropic_ksubsets(scores * 1e9, 3)
    torch.testing.assert_close(cold, F.ksubsets(scores * 1e9, 3), **close)


def test_a_parameter_for_each_row() -> None:
    scores = torch.randn(2, 3, 5, 9)
    alpha = torch.rand(3, 1) * 3 + 1.1
    k = torch.randint(0, 10, (2, 1, 5))
    for b in range(2):
        for h in range(3):
            for m in range(5):
                row = scores[b, h, m]
                each = {"rtol": 0, "atol": 1e-7}
                a = alpha[h, 0].item()
                torch.testing.assert_close(
                    F.entmax(scores, alpha)[b, h, m], F.entmax(row, a), **each
                )
                torch.testing.assert_close(
                    F.normmax(scores, alpha.unsqueeze(-1).expand(3, 5, 1)[None])[b, h, m],
                    F.normmax(row, a),
                    **each,
                )
                torch.testing.assert_close(
                    F.ksubsets(scores, k)[b, h, m], F.ksubsets(row, k[b, 0, m].item()), **each
                )
    mixed = torch.tensor([1.0, 1.3, 2.0, 7.0, math.inf])
    rows = F.entmax(scores[0, 0], mixed)
    for row, a, weights in zip(scores[0, 0], mixed.tolist(), rows, strict=True):
        torch.testing.assert_close(weights, F.entmax(row, a), rtol=0, atol=1e-7)


KERNELS = {
    "entmax": entmax_kernel,
    "normmax": normmax_kernel,
    "ksubsets": ksubsets_kernel,
    "entropic_ksubsets": entropic_kernel,
    "capped": capped_kernel,
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", KERNELS)
def test_compiled_equals_reference(name: str, dtype: torch.dtype) -> None:
    kernel = KERNELS[name]
    parameters = {
        "entmax": ENTMAX_ALPHAS,
        "normmax": NORMMAX_ALPHAS,
        "ksubsets": [0, 1, 2, 2.5, 8, 30.5],
        "entropic_ksubsets": [0, 1, 2, 2.5, 8, 30.5],
        "capped": [0.03, 0.1, 0.34, 1.0, 2.0],
    }[name]
    for size in (60, 200, 513):
        for scale in (1e-3, 1.0, 10.0):
            scores = (torch.randn(5, size, dtype=torch.float64) * scale).to(dtype)
            scores[1] = (scores[1] / scale).round() * scale
            scores[2, ::3] = -math.inf
            scores[3] = -math.inf
            cotangent = torch.randn(5, size, dtype=dtype)
            for parameter in parameters:
                p = torch.tensor(float(parameter), dtype=torch.float64)
                weights = kernel.solve(scores, p)
                loose = 1e-12 if dtype is torch.float64 else 5e-6
                with hopfy.use_backend("reference"):
                    expected = kernel.solve(scores, p)
                    differentiable = kernel.vjp(weights, p, cotangent)
                torch.testing.assert_close(weights, expected, rtol=0, atol=loose)
                if parameter == 100:
                    continue  # slopes beyond any float, cut off: see test_maps_gradients
                compiled = kernel.vjp(weights, p, cotangent)
                rtol = 1e-9 if dtype is torch.float64 else 2e-3
                torch.testing.assert_close(compiled, differentiable, rtol=rtol, atol=100 * loose)
