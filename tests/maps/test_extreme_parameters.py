"""Laws of every map with a parameter where that is tiny, subnormal or huge.

Weights keep the order of the scores, lie between 0 and 1 and add up to what the parameter asks for.
Gradients are not NaN; above alpha = 2 those of equal scores may exceed every float.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import functional as F

TINY = (5e-324, 1e-310, 2.3e-308, 1e-306, 1e-300, 1e-46, 1e-45, 1e-40, 1e-38, 1e-30, 1e-17, 1e-16)
ABOVE = (2**-52, 1e-12, 1e-6, 1e6, 1e30, 1e38, 1e39, 1e300, 1.7e308, math.inf)
SIZE = 7
PARAMETERS: dict[Callable[..., Tensor], tuple[float, ...]] = {
    F.entmax: (1.0, *(1 + x for x in ABOVE)),
    F.normmax: tuple(1 + x for x in ABOVE),
    F.ksubsets: (0.0, *TINY, SIZE - 1e-15, SIZE),
    F.entropic_ksubsets: (0.0, *TINY, SIZE - 1e-15, SIZE),
    F.at_most_k: (0.0, *TINY, *ABOVE),
    F.capped_sparsemax: (1 / SIZE, 1 - 2**-53, *ABOVE[3:]),
    F.fusedmax: (0.0, *TINY, *ABOVE[3:-2]),
}
SCORES = {
    "near": [0.3, -0.2, 0.31, 0.1, -1.0, 0.0, 0.2],
    "far": [80.0, -50.0, 3.0, 0.0, -1.0, 0.5, 40.0],
    "tied": [1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0],
}


def total_of(function: Callable[..., Tensor], parameter: float) -> float | None:
    """What the weights add up to; None: at most the parameter."""
    if function in (F.ksubsets, F.entropic_ksubsets):
        return parameter
    return None if function is F.at_most_k else 1.0


@pytest.mark.parametrize("backend", ["auto", "reference"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("function", PARAMETERS, ids=lambda f: f.__name__)
def test_extreme_parameters(
    function: Callable[..., Tensor], dtype: torch.dtype, backend: str
) -> None:
    limits = torch.finfo(dtype)
    scores = torch.tensor([*SCORES.values()], dtype=dtype, requires_grad=True)
    cotangent = torch.linspace(-1, 2, SIZE, dtype=dtype).expand_as(scores)
    order = scores.detach().argsort(dim=-1, descending=True, stable=True)
    accuracy = {torch.float32: 8 * limits.eps, torch.float64: 1e-12}[dtype]  # of sums, relative
    for parameter in PARAMETERS[function]:
        if backend == "reference" and limits.max < parameter < math.inf:
            continue  # plain torch has alpha in the dtype of the scores
        with hopfy.use_backend(backend):
            weights = function(scores, parameter)
            (gradient,) = torch.autograd.grad(weights, scores, cotangent)
        said = f"{function.__name__}({parameter!r}): {weights}"
        assert weights.isfinite().all(), said
        assert not gradient.isnan().any(), f"{said}, gradient {gradient}"
        found = weights.detach().double()
        assert ((found >= 0) & (found <= 1 + 4 * limits.eps)).all(), said
        if function is not F.fusedmax:  # which looks at neighbors
            falling = found.gather(-1, order).diff(dim=-1)
            assert (falling <= 4 * limits.eps * found.amax(-1, keepdim=True)).all(), said
        total, sums = total_of(function, parameter), found.sum(-1)
        slack = SIZE * limits.smallest_normal  # below it, weights may be zero
        if function in (F.ksubsets, F.at_most_k):  # weights are differences of scores
            slack = SIZE * limits.eps * scores.detach().abs().max().item()
        bound = parameter if total is None else total
        assert (sums <= bound * (1 + accuracy) + slack).all(), said
        if total is not None:
            assert (sums >= bound * (1 - accuracy) - slack).all(), said


@pytest.mark.parametrize("k", TINY)
def test_tiny_subsets_are_shares_of_softmax(k: float) -> None:
    """sigma(score - tau) is k softmax(score) where every weight is far below 1.

    From 1e-17 up a Newton search finds tau, which ends at a step of 1e-8.
    """
    for scores in SCORES.values():
        row = torch.tensor(scores, dtype=torch.float64)
        found = F.entropic_ksubsets(row, k)
        expected = torch.softmax(row, -1) * k
        torch.testing.assert_close(found, expected, rtol=1e-12, atol=5e-324)
