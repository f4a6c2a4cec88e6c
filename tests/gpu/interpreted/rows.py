"""Laws of the Triton row kernels, under Triton's interpreter: run by `test_interpreted.py`.

The judge is the same public function in float64, itself judged by mpmath and others elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy._runtime.backends import kernels_for

INF = math.inf
# Half precision: two units in the last place of a number below 1.
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2**-11, torch.bfloat16: 2**-8}


@dataclass(frozen=True)
class Case:
    """A map with its parameter."""

    function: Callable[..., Tensor]
    parameter: float

    def __str__(self) -> str:
        return f"{self.function.__name__}({self.parameter})"

    def __call__(self, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
        return self.function(scores, self.parameter if parameter is None else parameter)


CASES = [
    *(Case(F.entmax, a) for a in (1.0, 1.001, 1.25, 1.5, 1.9, 2.0, 2.2, 3.0, 10.0, 100.0, INF)),
    *(Case(F.normmax, a) for a in (1.01, 1.5, 2.0, 2.2, 5.0, 20.0, INF)),
    *(Case(F.ksubsets, k) for k in (0, 1, 2, 2.5)),
    *(Case(F.entropic_ksubsets, k) for k in (0, 1, 2, 2.5)),
    *(Case(F.capped_sparsemax, u) for u in (0.35, 0.5, 1.5)),
]
SUBSETS = (F.ksubsets, F.entropic_ksubsets)
FOLDERS = {"capped_sparsemax": "capped"}
# One of each kind of search; the others are slow tests.
QUICK = {
    "entmax": (1.0, 1.25, 1.5, 2.0, 3.0, INF),
    "normmax": (1.5, 2.0, 5.0),
    "ksubsets": (2.5,),
    "entropic_ksubsets": (2,),
    "capped_sparsemax": (0.35,),
}


def _marked(case: Case) -> Any:
    quick = case.parameter in QUICK[case.function.__name__]
    return pytest.param(case, marks=() if quick else pytest.mark.slow)


every_case = pytest.mark.parametrize("case", [_marked(case) for case in CASES], ids=str)


def by_triton(case: Case, scores: Tensor, parameter: Tensor | None = None) -> Tensor:
    name = case.function.__name__
    name = FOLDERS.get(name, name)
    with hopfy.use_backend("triton"):
        assert kernels_for(name, scores).__name__.endswith(".gpu")
        return case(scores, parameter)


def check(case: Case, scores: Tensor, parameter: Tensor | None = None) -> None:
    """Weights against float64, exact zeros included."""
    weights = by_triton(case, scores, parameter)
    expected = case(scores.double(), None if parameter is None else parameter.double())
    assert weights.dtype == scores.dtype
    error = (weights.double() - expected).abs()
    assert (weights.isnan() == expected.isnan()).all()
    assert error.nan_to_num().max() <= TOLERANCE[scores.dtype]
    smallest = torch.finfo(scores.dtype).tiny
    if case.function in (F.ksubsets, F.capped_sparsemax):
        smallest = 2**-50  # differences of scores in float64 say nothing below
    wrong = (weights > 0) & (expected == 0) | (weights == 0) & (expected > smallest)
    for row, place in wrong.nonzero().tolist():
        own = case.parameter if parameter is None else parameter[row].double()
        assert _is_undecided(Case(case.function, own), scores[row], place), (scores[row], place)


def _is_undecided(case: Case, scores: Tensor, place: int) -> bool:
    """Whether a change in the last float32 digits moves this entry in or out of the support.

    Of its score, or of the upper bounds, which the kernels know as float32.
    """
    row, bounds = scores.double(), case.function is F.capped_sparsemax
    change = 4 * 2**-24 * row[row.isfinite()].abs().max()
    selected = set()
    for way, factor in product((-1, 1), (1 - 2**-23, 1 + 2**-23) if bounds else (1.0,)):
        nudged = row.clone()
        nudged[place] += way * change
        selected.add(bool(Case(case.function, case.parameter * factor)(nudged)[place] > 0))
    return len(selected) == 2


def scores_of(rows: int, size: int, scale: float, dtype: torch.dtype = torch.float32) -> Tensor:
    return (torch.randn(rows, size, dtype=torch.float64) * scale).to(dtype)


any_rows = settings(
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # the interpreter is too slow to shrink examples
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@every_case
def test_weights_and_zeros(case: Case) -> None:
    check(case, scores_of(3, 150, 0.5))


@every_case
def test_what_is_not_finite(case: Case) -> None:
    """-inf is not there; NaN and +inf affect their own row; a row of -inf is zero."""
    scores = scores_of(5, 20, 1.0)
    scores[0, 3:9] = -INF
    scores[1, 4] = math.nan
    scores[2, 5] = INF
    scores[3] = -INF
    check(case, scores)


@every_case
def test_gradients(case: Case) -> None:
    """Gradients of scores and parameter; the spoiled row is NaN, the empty one zero."""
    scores, cotangent = scores_of(6, 30, 0.7), torch.randn(6, 30)
    scores[1] = -INF
    scores[2, 5:] = -INF
    parameter = torch.full((6, 1), float(case.parameter))
    found, expected = [], []
    for answer, kind in ((found, torch.float32), (expected, torch.float64)):
        with hopfy.use_backend("triton" if kind == torch.float32 else "auto"):
            leaves = scores.to(kind).requires_grad_(), parameter.to(kind).requires_grad_()
            weights = case(*leaves)
            answer += torch.autograd.grad(weights, leaves, cotangent.to(kind))
    weights = case(scores.detach().double())
    tolerance = 4e-6 + _rounding_of_slopes(case, weights.masked_fill(weights == 0, 1.0).amin())
    for ours, judge in zip(found, expected, strict=True):
        torch.testing.assert_close(
            ours.double(), judge, rtol=tolerance, atol=tolerance * judge.abs().max().item() + 1e-7
        )


def _rounding_of_slopes(case: Case, smallest: Tensor) -> float:
    """How much a weight that is known as float32 changes its slope p^(2 - alpha), relative to it.

    The kernels compute it by way of its logarithm. Those of normmax know the threshold as a sum of two
    float32 numbers, beside leads of p^(alpha - 1).
    """
    alpha = case.parameter
    if case.function not in (F.entmax, F.normmax) or not 2 < alpha < INF:
        return 0.0
    rounding = (4 - math.log2(smallest)) * 2**-24
    if case.function is F.normmax:
        rounding += 2**-48 / (alpha - 1) / float(smallest) ** (alpha - 1)
    return (alpha - 2) * rounding


def _check_slopes(case: Case, scores: Tensor, cotangent: Tensor) -> None:
    """Gradients above alpha = 2 against float64, each row beside the largest of its own.

    Rows whose support is undecided, or whose slopes exceed 1e30, are left out.
    """
    answers = []
    for kind, backend in ((torch.float32, "triton"), (torch.float64, "auto")):
        with hopfy.use_backend(backend):
            leaf = scores.to(kind).requires_grad_()
            weights = case(leaf)
            (gradient,) = torch.autograd.grad(weights, leaf, cotangent.to(kind))
            answers.append((weights.detach().double(), gradient.double()))
    (ours, found), (weights, expected) = answers
    for row in range(len(scores)):
        smallest = weights[row][weights[row] > 0].amin()
        steepest = smallest.log10() * (2 - case.parameter)
        if ((ours[row] > 0) == (weights[row] > 0)).all() and steepest < 30:
            tolerance = 2e-6 + _rounding_of_slopes(case, smallest)
            error = (found[row] - expected[row]).abs().max()
            largest = expected[row].abs().max().clamp(min=1.0)
            assert error <= tolerance * largest, (case, scores[row], error / largest)


@pytest.mark.parametrize("function", [F.entmax, F.normmax])
def test_slopes_of_small_weights(function: Callable[..., Tensor]) -> None:
    """Above alpha = 2 small weights have large slopes: their digits count relative to them.

    Scores whose weights are about (1 - 2 w, w, w).
    """
    small = torch.tensor([1e-1, 1e-2, 1e-3, 1e-4, 1e-5], dtype=torch.float64)
    weights = torch.stack((1 - 2 * small, small, small), -1)
    cotangent = torch.tensor([0.5, 1.0, -2.0]).expand(weights.shape)
    for alpha in (2.5, 4.0, 6.0):
        norm = weights.pow(alpha).sum(-1, keepdim=True) ** (1 / alpha)
        unit = alpha - 1 if function is F.entmax else norm ** (alpha - 1)
        scores = (weights ** (alpha - 1) / unit).float()
        _check_slopes(Case(function, alpha), scores, cotangent)


@pytest.mark.slow
@settings(any_rows, max_examples=60)
@given(
    seed=st.integers(0, 2**31),
    function=st.sampled_from([F.entmax, F.normmax]),
    quarters=st.integers(9, 80),
    scale=st.sampled_from([0.01, 0.1, 1.0, 5.0]),
    size=st.integers(1, 60),
)
def test_any_slopes(
    seed: int, function: Callable[..., Tensor], quarters: int, scale: float, size: int
) -> None:
    torch.manual_seed(seed)
    scores, cotangent = scores_of(16, size, scale), torch.randn(16, size)
    _check_slopes(Case(function, quarters / 4), scores, cotangent)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    for case in CASES[2::4]:
        check(case, scores_of(3, 70, 1.0, dtype))


@pytest.mark.parametrize(
    "case", [*CASES[3::4], Case(F.at_most_k, 2), Case(F.fusedmax, 0.2)], ids=str
)
def test_rows_that_are_not_contiguous(case: Case) -> None:
    """Scores, weights and cotangents in other orders of memory, and a mask: the same numbers."""
    scores, cotangent = torch.randn(3, 2, 9), torch.randn(3, 2, 9)
    mask = torch.arange(9) < 7
    answers = []
    for dim in (2, 0):
        own, outside = (x.movedim(2, dim) for x in (scores, cotangent))
        leaf = own.clone(memory_format=torch.preserve_format).requires_grad_()
        beside = mask.expand(3, 2, 9).movedim(2, dim)
        with hopfy.use_backend("triton"):
            weights = case.function(leaf, case.parameter, dim=dim, mask=beside)
            (gradient,) = torch.autograd.grad(weights, leaf, outside)
        answers.append([x.detach().movedim(dim, 2) for x in (weights, gradient)])
    for ours, expected in zip(*answers, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_is_rounded_once(dtype: torch.dtype) -> None:
    """Maps of several steps, and weights that the gradient of alpha needs, are float32 until the end."""
    for case in (Case(F.at_most_k, 3), Case(F.fusedmax, 0.2)):
        scores = scores_of(40, 60, 0.5, dtype)
        with hopfy.use_backend("triton"):
            weights = case(scores)
        error = (weights.double() - case(scores.double())).abs().max()
        assert error <= torch.finfo(dtype).eps / 4 + 1e-6, case  # half a unit of a number below 1
    scores, cotangent = scores_of(4, 30, 0.5, dtype), torch.randn(4, 30).to(dtype)
    slopes = []
    for kind, backend in ((torch.float32, "triton"), (torch.float64, "auto")):
        alpha = torch.full((4, 1), 1.3, dtype=torch.float32).to(kind).requires_grad_()
        with hopfy.use_backend(backend):
            weights = F.entmax(scores if backend == "triton" else scores.double(), alpha)
        (slope,) = torch.autograd.grad(weights, alpha, cotangent.to(weights.dtype))
        slopes.append(slope.double())
    torch.testing.assert_close(*slopes, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("function", [F.entmax, F.normmax, *SUBSETS])
def test_a_parameter_for_each_row(function: Callable[..., Tensor]) -> None:
    values = [case.parameter for case in CASES if case.function is function]
    scores = scores_of(len(values), 50, 1.0)
    check(Case(function, values[0]), scores, torch.tensor(values, dtype=torch.float64))


@pytest.mark.parametrize("function", SUBSETS)
@pytest.mark.parametrize("lack", [0.5, 0.14, 1e-3, 1e-6])
def test_nearly_all(function: Callable[..., Tensor], lack: float) -> None:
    """k just below the number of entries, where no next score bounds the threshold."""
    check(Case(function, 6 - lack), scores_of(8, 6, 1.0))
    check(Case(function, 40 - lack), scores_of(2, 40, 1.0))


def test_upper_bounds_for_each_entry() -> None:
    """Bounds of 0 exclude an entry; a row whose bounds add up to one takes all of them."""
    scores, upper = scores_of(5, 40, 0.3), torch.rand(5, 40, dtype=torch.float64) / 4
    upper[0, ::3] = 0
    upper[1] = 1 / 40
    check(Case(F.capped_sparsemax, 0.5), scores, upper)


@pytest.mark.parametrize("scale", [1e-44, 1e-40, 1e-38])
def test_scores_below_the_smallest_normal_number(scale: float) -> None:
    """A large alpha raises leads to a small power: at 50 a lead of 1e-42 becomes a weight of 0.14."""
    for alpha in (1.0, 1.3, 2.0, 50.0, 1000.0):
        check(Case(F.entmax, alpha), scores_of(2, 20, scale))


def test_ties_and_margins() -> None:
    """Equal scores share; whole answers are whole."""
    for case in CASES:
        scores = torch.zeros(2, 12)
        scores[1, 4] = 2000.0 if case.parameter < 1.01 else 110.0
        check(case, scores)


SIZES = (1, 2, 17, 200, 900, 2_500, 5_000)  # every shape of programs
SCALES = (1e-8, 1e-2, 1.0, 30.0, 1e9)


def _sizes_and_scales() -> Iterator[Any]:
    """Every size for every case, every scale in turn."""
    for turn, case in enumerate(CASES):
        for place, size in enumerate(SIZES):
            if _can_choose(case, size):
                scale = SCALES[(turn + place) % len(SCALES)]
                yield pytest.param(case, size, scale, id=f"{case}-{size}-{scale}")


def _can_choose(case: Case, size: int) -> bool:
    if case.function is F.capped_sparsemax:
        return size * case.parameter >= 1
    return case.function not in SUBSETS or size >= case.parameter


@pytest.mark.slow
@pytest.mark.parametrize(("case", "size", "scale"), [*_sizes_and_scales()])
def test_sizes_and_scales(case: Case, size: int, scale: float) -> None:
    check(case, scores_of(2, size, scale))


@pytest.mark.slow
@every_case
def test_rows_of_several_passes(case: Case) -> None:
    check(case, scores_of(1, 4_097, 1.0))
    check(case, scores_of(1, 131_072, 1.0))


@pytest.mark.slow
@pytest.mark.parametrize("k", [700.25, 4000, 130_000.5])
def test_many_selected(k: float) -> None:
    check(Case(F.ksubsets, k), scores_of(1, 131_072, 1.0))


def test_steep_slopes() -> None:
    """Equal weights of 1/3 have slopes of 3^48 at alpha = 50, which float32 holds."""
    scores, cotangent = torch.zeros(1, 3), torch.tensor([[1.0, -2.0, 0.5]])
    found = []
    for kind, backend in ((torch.float32, "triton"), (torch.float64, "auto")):
        with hopfy.use_backend(backend):
            leaf = scores.to(kind).requires_grad_()
            found += torch.autograd.grad(F.entmax(leaf, 50.0), leaf, cotangent.to(kind))
    torch.testing.assert_close(found[0].double(), found[1], rtol=2e-5, atol=0)


def _some(name: str, share: float, count: int) -> float:
    """A parameter of the map between its bounds, for rows with at least ``count`` entries."""
    if "ksubsets" in name:
        return share * count if share > 1e-30 else 0.0
    if name == "capped_sparsemax":
        return (1 + 1e-6 + share * (count - 1)) / count
    if share == 1:
        return INF
    least = 1.0 if name == "entmax" else 1.001
    return least + share**3 * 40


ANYTHING = {
    "rows": st.integers(1, 40),
    "size": st.integers(1, 140),
    "seed": st.integers(0, 2**31),
    "scale": st.sampled_from([1e-6, 0.1, 1.0, 5.0, 100.0, 1e9]),
    "dtype": st.sampled_from(list(TOLERANCE)),
    "holes": st.floats(0, 1),
    "levels": st.sampled_from([0, 4]),
    "name": st.sampled_from([*QUICK]),
    "shares": st.lists(st.floats(0, 1), min_size=1, max_size=4),
}


def _anything(
    rows: int,
    size: int,
    seed: int,
    scale: float,
    dtype: torch.dtype,
    holes: float,
    levels: int,
    name: str,
    shares: list[float],
) -> None:
    """A number, or one for each row if there are several shares."""
    torch.manual_seed(seed)
    scores = torch.randn(rows, size)
    if levels:  # many ties
        scores = (scores * levels).round() / levels
    scores = (scores * scale).to(dtype)
    scores = scores.masked_fill(torch.rand(rows, size) < holes, -INF)
    scores[scores == INF] = 0.0  # float16 ends at 65,504
    counts = (scores > -INF).sum(1)
    count = int(counts[counts > 0].min()) if counts.any() else size
    values = [_some(name, share, count) for share in shares]
    each = torch.tensor(values, dtype=torch.float64)[torch.arange(rows) % len(values)]
    each = each[:, None] if name == "capped_sparsemax" else each
    check(Case(getattr(F, name), values[0]), scores, each if len(values) > 1 else None)


@pytest.mark.slow
@settings(any_rows, max_examples=250)
@given(**ANYTHING)
def test_anything(**drawn: Any) -> None:
    _anything(**drawn)
