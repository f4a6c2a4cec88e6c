"""Laws of the Triton attention kernels, under Triton's interpreter: run by `test_interpreted.py`.

The judge is the dense definition in float64: all scores, the map in float64, all weights.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy._kernels.attention import gpu
from hopfy._kernels.attention.types import Family, Visible

INF = math.inf


def subsets(scores: Tensor, k: Tensor) -> Tensor:
    """A row with fewer visible keys than k takes all of them."""
    return F.ksubsets(scores, torch.minimum(k, (scores > -INF).sum(-1)))


MAPS = {"entmax": F.entmax, "normmax": F.normmax, "ksubsets": subsets}


def scores_of(inputs: list[Tensor], visible: Visible, scale: float) -> Tensor:
    """All scores (groups, rows, keys) in float64; what is hidden is -inf."""
    queries, keys, _ = (x.double() for x in inputs)
    scores = (queries * scale) @ keys.mT
    bias = visible.dense_bias(*queries.shape[:2])
    scores = scores if bias is None else scores + bias.double()
    mask = visible.dense_mask(scores)
    return scores if mask is None else scores.masked_fill(~mask, -INF)


def judge(
    inputs: list[Tensor],
    parameter: Tensor,
    visible: Visible,
    kind: str,
    scale: float,
    factors: Tensor | None = None,
) -> Tensor:
    weights = MAPS[kind](scores_of(inputs, visible, scale), parameter)
    return (weights if factors is None else weights * factors) @ inputs[2]


def distance_to_kinks(scores: Tensor, k: Tensor) -> Tensor:
    """How far the scores of each row are from where k-subsets have no derivative.

    The weights are clip(score - threshold, 0, 1): kinks are at the threshold and one above. Where no
    weight is between 0 and 1 the threshold is the middle of those that are possible.
    """
    weights = subsets(scores, k)
    inside = (weights > 0) & (weights < 1)
    below = scores.masked_fill(weights > 0, -INF).amax(-1)
    above = scores.masked_fill(weights < 1, INF).amin(-1) - 1
    leads = torch.where(inside, scores - weights, 0.0).sum(-1) / inside.sum(-1)
    threshold = torch.where(inside.any(-1), leads, (below + above) / 2)
    gaps = scores - threshold[..., None]
    near = torch.minimum(gaps.abs(), (gaps - 1).abs()).nan_to_num(INF).amin(-1)
    return near.masked_fill(threshold.isinf() | threshold.isnan(), INF)


def case(
    groups: int = 1,
    repeat: int = 1,
    m: int = 20,
    n: int = 37,
    d: int = 8,
    e: int = 12,
    mask: str = "",
    bias: str = "",
    causal: int | None = None,
    dtype: torch.dtype = torch.float32,
) -> tuple[list[Tensor], Visible]:
    shapes = (groups, repeat * m, d), (groups, n, d), (groups, n, e)
    heads = groups * repeat
    visible = Visible(m, causal=causal)
    if mask:
        here = torch.rand(2, m if mask == "rows" else 1, n) > 0.4
        visible = visible._replace(mask=here, mask_of=torch.randint(0, 2, (heads,)))
    if bias:
        here = torch.randn(heads, m if bias == "rows" else 1, n).to(dtype)
        visible = visible._replace(bias=here, bias_of=torch.arange(heads))
    return [torch.randn(shape).to(dtype) for shape in shapes], visible


def check(
    kind: str,
    alpha: float | Tensor,
    inputs: list[Tensor],
    visible: Visible,
    tolerance: float = 2e-6,
    scale: float = 0.4,
    dropout: float = 0.0,
    exact: bool = False,
) -> gpu.State:
    """Output and all gradients, relative to the largest entry of each.

    Rows of k-subsets within 1e-5 of a kink have several gradients: they get no cotangent. Above alpha =
    2 slopes are powers of weights, see `_steepness`; ``exact`` says that float32 holds the scores.
    """
    parameter = torch.as_tensor(alpha, dtype=torch.float64)
    found = gpu.forward(*inputs, visible, Family(kind, parameter), scale, dropout)
    assert found is not None
    output, state = found
    cotangent = torch.randn(output.shape).to(output.dtype)
    leaves = [x.double().requires_grad_() for x in inputs]
    row = parameter.expand(leaves[0].shape[:2]).clone().requires_grad_()
    if kind == "ksubsets":
        near = distance_to_kinks(scores_of(inputs, visible, scale), row.detach()) < 1e-5
        cotangent[near] = 0.0
    ours = gpu.backward(state, *inputs, cotangent, wanted=True)
    shape = torch.Size((*inputs[0].shape[:2], inputs[1].shape[1]))
    factors = gpu.kept_weights(state, shape, torch.float64) if dropout else None
    expected = judge(leaves, row, visible, kind, scale, factors)
    gradients = torch.autograd.grad(expected, [*leaves, row], cotangent.double())
    _close(output, expected, tolerance)
    steep = 0.0
    if kind != "ksubsets":
        steep = _steepness(scores_of(inputs, visible, scale), row.detach(), kind, exact)
    for number, (gradient, right) in enumerate(zip(ours, gradients, strict=True)):
        assert gradient is not None
        _close(gradient, right, tolerance if number == 2 else 8 * tolerance + steep)
    return state


def _steepness(scores: Tensor, alpha: Tensor, kind: str, exact: bool) -> float:
    """How much rounding can change a slope g = p^(2 - alpha), relative to 1.

    A weight p that is known as float32, by way of its logarithm, changes g by (alpha - 2) as much. Where
    the score s is rounded too, p changes by g ds first.
    """
    weights = MAPS[kind](scores, alpha)
    p = weights.masked_fill(weights == 0, 1.0).amin(-1)
    rounding = (4 - p.log2()) * 2**-24 if exact else 1.2e-7 / p
    if kind == "normmax":  # the threshold is a sum of two float32 numbers
        rounding += 2**-48 / (alpha - 1) / p ** (alpha - 1)
    change = (alpha - 2).clamp(min=0) * rounding
    return change[alpha < INF].max().item() if (alpha < INF).any() else 0.0


def _close(ours: Tensor, expected: Tensor, tolerance: float) -> None:
    assert (ours.isnan() == expected.isnan()).all()
    error = (ours.double() - expected).nan_to_num().abs().max()
    assert error <= tolerance * max(1.0, expected.detach().nan_to_num().abs().max().item())


@pytest.mark.parametrize(
    ("kind", "alpha"),
    [("entmax", 1.5), ("entmax", 3.0), ("normmax", 2.0), ("ksubsets", 2.5), ("ksubsets", 50)],
)
def test_maps(kind: str, alpha: float) -> None:
    check(kind, alpha, *case(m=17, n=35))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "alpha"),
    [
        *(("entmax", a) for a in (1.0, 2.0, INF)),
        *(("normmax", a) for a in (1.5, 3.0, INF)),
        *(("ksubsets", k) for k in (0, 1, 3, 35)),
    ],
)
def test_every_map(kind: str, alpha: float) -> None:
    check(kind, alpha, *case(m=17, n=35))


@pytest.mark.parametrize(
    "options",
    [
        {"causal": 0, "repeat": 2},
        {"causal": 17, "mask": "rows", "bias": "rows"},
        {"causal": -5, "mask": "keys", "bias": "keys", "groups": 2},
    ],
    ids=str,
)
def test_every_condition(options: dict[str, Any]) -> None:
    """Causal (both alignments; the first rows see nothing), masks, biases, grouped heads."""
    check("entmax", 1.5, *case(**options))


@pytest.mark.parametrize("kind", ["entmax", "normmax"])
@pytest.mark.parametrize(
    "alpha", [4.0, *(pytest.param(a, marks=pytest.mark.slow) for a in (2.5, 12.0, INF))]
)
def test_steep_maps_of_exact_scores(kind: str, alpha: float) -> None:
    """Above alpha = 2 weights are infinitely steep at the edge: scores without rounding show it."""
    check(kind, alpha, *_exact(*case(m=18, n=40, d=8, e=8)), scale=0.25, exact=True)


@pytest.mark.parametrize("alpha", [5.0, 10.0])
def test_the_slope_of_alpha_among_ties(alpha: float) -> None:
    """Gradients of equal scores may be enormous and cancel; their product with alpha's stays right."""
    torch.manual_seed(1)
    inputs, visible = _exact(*case(m=17, n=35))
    queries, keys, values = (x.double() for x in inputs)
    number = torch.full((1, 17), alpha, dtype=torch.float64)
    output, state = gpu.forward(*inputs, visible, Family("entmax", number), 0.25)
    cotangent = torch.randn(output.shape)
    ours = gpu.backward(state, *inputs, cotangent, wanted=True)[3]
    leaf = number.clone().requires_grad_()
    expected = judge([queries, keys, values], leaf, visible, "entmax", 0.25)
    (slope,) = torch.autograd.grad(expected, leaf, cotangent.double())
    _close(ours, slope, 4e-6)


def test_steep_slopes_in_half_precision() -> None:
    """Slopes above 65,504, the end of float16, whose products with keys are below."""
    gap, apart = 341 / 1024, 2**-12
    keys = torch.tensor([[[0.0, 0.0], [-gap, apart], [-gap, -apart]]], dtype=torch.float16)
    values = torch.tensor([[[0.0], [1.0], [-1.0]]], dtype=torch.float16)
    inputs = torch.tensor([[[1.0, 0.0]]], dtype=torch.float16), keys, values
    alpha = torch.tensor(4.0, dtype=torch.float64)
    output, state = gpu.forward(*inputs, Visible(1), Family("entmax", alpha), 1.0)
    in_queries = gpu.backward(state, *inputs, torch.ones_like(output))[0]
    weights = F.entmax(torch.tensor([0.0, -gap, -gap], dtype=torch.float64), alpha)
    slope = float(weights[1] ** -2)
    assert slope > 65_504
    expected = torch.tensor([[[0.0, 2 * apart * slope]]], dtype=torch.float64)
    _close(in_queries, expected, 2e-3)


def test_rows_that_take_all_keys() -> None:
    """Far below the maximum, too: k-subsets of rows with no more than k visible keys."""
    inputs, visible = case(m=5, n=70)
    bias = torch.zeros(1, 1, 70)
    bias[..., 32:] = -50.0
    visible = visible._replace(bias=bias, bias_of=torch.zeros(1, dtype=torch.int64))
    check("ksubsets", 70, inputs, visible)
    check("ksubsets", 80, inputs, visible)


@pytest.mark.parametrize("k", [0.25, 1.75])
def test_the_gradient_at_a_kink_is_that_of_one_side(k: float) -> None:
    """A score exactly at the threshold, or one above it: a little more of k and it is in, or out."""
    keys = torch.tensor([[[0.0], [-0.25], [-2.0], [-5.0]]])
    inputs = [torch.ones(1, 1, 1), keys, torch.tensor([[[1.0], [-2.0], [5.0], [9.0]]])]
    visible, number = Visible(1), torch.tensor(k, dtype=torch.float64)
    assert distance_to_kinks(scores_of(inputs, visible, 1.0), number) == 0
    output, state = gpu.forward(*inputs, visible, Family("ksubsets", number), 1.0)
    ours = gpu.backward(state, *inputs, torch.ones_like(output), wanted=True)
    sides = []
    for side in (k - 1e-9, k + 1e-9):
        leaves = [x.double().requires_grad_() for x in inputs]
        row = torch.full((1, 1), side, dtype=torch.float64, requires_grad=True)
        expected = judge(leaves, row, visible, "ksubsets", 1.0)
        sides.append(torch.autograd.grad(expected.sum(), [leaves[1], row]))
    assert (sides[0][1] - sides[1][1]).abs() > 0.1
    errors = [
        max((a - b).abs().max() for a, b in zip(side, ours[1::2], strict=True)) for side in sides
    ]
    assert min(errors) < 1e-6


@pytest.mark.parametrize("options", [{"repeat": 2, "causal": 3}, {"mask": "rows", "bias": "keys"}])
def test_subsets_under_conditions(options: dict[str, Any]) -> None:
    """Rows with fewer visible keys than k take all of them."""
    check("ksubsets", 4, *case(**options))


@pytest.mark.slow
def test_subsets_of_scores_far_apart() -> None:
    """The search widens its bracket, and few blocks stay on the lists."""
    inputs, visible = case(m=20, n=150)
    state = check("ksubsets", 3.25, inputs, visible, scale=20.0, tolerance=2e-5)
    assert state.lists[1].max() <= state.sizes[3]
    bias = torch.where(torch.rand(1, 20, 150) < 0.9, -1e9, 0.0)
    visible = visible._replace(bias=bias, bias_of=torch.zeros(1, dtype=torch.int64))
    state = check("ksubsets", 2, inputs, visible)


@pytest.mark.parametrize(
    "kind", ["entmax", *(pytest.param(k, marks=pytest.mark.slow) for k in ("normmax", "ksubsets"))]
)
def test_dropout(kind: str) -> None:
    """Forward and backward drop the same weights; the gradients are those of the dropped product."""
    inputs, visible = case(groups=2, repeat=2, m=17, n=40)
    torch.manual_seed(3)
    check(kind, 2.0, inputs, visible, dropout=0.3)


def test_what_dropout_keeps() -> None:
    """The share, the seed, and independence of the size of blocks."""
    inputs, visible = case(groups=2, m=40, n=60, d=4, e=4)
    number = Family("entmax", torch.tensor(1.5, dtype=torch.float64))
    kept = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        output, state = gpu.forward(*inputs, visible, number, 1.0, 0.25)
        kept.append((output, gpu.kept_weights(state, torch.Size((2, 40, 60)), torch.float64)))
    assert torch.equal(kept[0][0], kept[1][0])
    assert torch.equal(kept[0][1], kept[1][1])
    assert not torch.equal(kept[0][1], kept[2][1])
    factors = kept[0][1]
    torch.testing.assert_close(factors.unique(), torch.tensor([0, 4 / 3], dtype=torch.float64))
    share = (factors == 0).double()
    spread = (0.25 * 0.75 / share.numel()) ** 0.5
    assert abs(share.mean() - 0.25) < 4 * spread
    for dim in (0, 1, 2):  # neighbors are dropped independently
        together = share.narrow(dim, 0, share.shape[dim] - 1) * share.narrow(
            dim, 1, share.shape[dim] - 1
        )
        assert abs(together.mean() - 0.0625) < 5 * (0.0625 / together.numel()) ** 0.5


def test_everything_dropped() -> None:
    inputs, visible = case(m=5, n=9)
    number = Family("entmax", torch.tensor(1.5, dtype=torch.float64))
    output, state = gpu.forward(*inputs, visible, number, 1.0, 1.0)
    assert (output == 0).all()
    assert all((g == 0).all() for g in gpu.backward(state, *inputs, output + 1)[:3])


def test_a_parameter_for_each_row() -> None:
    inputs, visible = case(repeat=2, m=10, n=33)
    check("entmax", 1.2 + 1.2 * torch.rand(1, 20), inputs, visible)
    check("normmax", 1.2 + 0.8 * torch.rand(1, 20), inputs, visible)
    check("ksubsets", torch.randint(0, 20, (1, 20)) / 4, inputs, visible)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision(dtype: torch.dtype) -> None:
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2}[dtype]
    check("entmax", 1.5, *case(m=33, n=70, d=16, e=16, dtype=dtype), tolerance=tolerance)


def test_nan_and_infinity() -> None:
    """A query with NaN affects its own row only."""
    inputs, visible = case(causal=-2)
    inputs[0][0, 5, 3] = math.nan
    output, state = gpu.forward(
        *inputs, visible, Family("entmax", torch.tensor(1.5, dtype=torch.float64)), 1.0
    )
    assert output[0, 5].isnan().all()
    assert (output[0, :2] == 0).all()
    assert output[0, 6:].isfinite().all()
    in_queries = gpu.backward(state, *inputs, torch.ones_like(output))[0]
    assert in_queries[0, 5].isnan().all()
    assert (in_queries[0, :2] == 0).all()


def test_empty_blocks_are_skipped() -> None:
    """A sliding window by a mask, and scores far apart: few blocks are on the lists, or used."""
    inputs, _ = case(m=160, n=160, d=8)
    place = torch.arange(160)
    window = (place[:, None] - place).abs() <= 8
    visible = Visible(160, mask=window[None], mask_of=torch.zeros(1, dtype=torch.int64))
    state = check("entmax", 1.5, inputs, visible)
    across, along = state.used.shape[1:]
    assert state.lists[1].max() <= 3 < along
    assert 0 < state.used.sum() <= 3 * across


def test_the_public_function_takes_this_way(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    forward = gpu.forward
    monkeypatch.setattr(gpu, "forward", lambda *args: calls.append(1) or forward(*args))
    inputs = torch.randn(1, 2, 16, 8), torch.randn(1, 2, 25, 8), torch.randn(1, 2, 25, 8)
    answers = []
    for backend in ("triton", "reference"):
        with hopfy.use_backend(backend):
            leaves = [x.clone().requires_grad_() for x in inputs]
            alpha = torch.tensor([[1.5], [2.0]], requires_grad=True)
            output = F.attention(*leaves, is_causal=True, omega=hopfy.Tsallis(alpha))
            gradients = torch.autograd.grad(output.sin().sum(), [*leaves, alpha])
            answers.append((output, *gradients))
    assert calls == [1]
    for ours, theirs in zip(*answers, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=4e-6)


def _exact(inputs: list[Tensor], visible: Visible) -> tuple[list[Tensor], Visible]:
    """Queries, keys and biases whose scores float32 holds exactly, with a scale that is a power of 2."""
    queries, keys, values = inputs
    queries, keys = ((x * 4).round() / 8 for x in (queries, keys))
    bias = None if visible.bias is None else (visible.bias * 4).round() / 8
    return [queries, keys, values], visible._replace(bias=bias)


HALF = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
ANYTHING = {
    "seed": st.integers(0, 2**31),
    "groups": st.integers(1, 2),
    "repeat": st.integers(1, 3),
    "m": st.integers(1, 70),
    "n": st.integers(1, 70),
    "d": st.integers(1, 40),
    "e": st.integers(1, 40),
    "mask": st.sampled_from(["", "rows", "keys"]),
    "bias": st.sampled_from(["", "rows", "keys"]),
    "causal": st.one_of(st.none(), st.integers(-20, 60)),
    "dtype": st.sampled_from(list(HALF)),
    "map": st.sampled_from([("entmax", 1.0, 4.0), ("normmax", 1.2, 4.0), ("ksubsets", 0.0, 7.0)]),
    "shares": st.lists(st.floats(0, 1), min_size=1, max_size=4),
}


def _anything(
    seed: int, map: tuple[str, float, float], shares: list[float], **options: Any
) -> None:
    """A number, or one for each row if there are several shares."""
    torch.manual_seed(seed)
    kind, low, high = map
    inputs, visible = _exact(*case(**options))
    drawn = torch.tensor([low + share * (high - low) for share in shares], dtype=torch.float64)
    drawn = (drawn - 1).float().double() + 1  # the kernels know alpha - 1 as float32
    groups, rows, _ = inputs[0].shape
    own = drawn[torch.arange(groups * rows) % len(drawn)].reshape(groups, rows)
    tolerance = HALF[options["dtype"]]
    check(kind, own if len(drawn) > 1 else drawn[0], inputs, visible, tolerance, 0.25, exact=True)


any_attention = settings(
    deadline=None,
    phases=(Phase.explicit, Phase.generate),  # the interpreter is too slow to shrink examples
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@pytest.mark.slow
@settings(any_attention, max_examples=80)
@given(**ANYTHING)
@example(  # two rows are exactly at a kink
    seed=53,
    groups=1,
    repeat=3,
    m=24,
    n=68,
    d=32,
    e=2,
    mask="keys",
    bias="",
    causal=None,
    dtype=torch.bfloat16,
    map=("ksubsets", 0.25, 3.67),
    shares=[0.0, 1.0],
)
def test_anything(**drawn: Any) -> None:
    _anything(**drawn)


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 100, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_large_heads(size: int, dtype: torch.dtype) -> None:
    tolerance = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 2e-6}[dtype]
    inputs, visible = case(m=20, n=40, d=size, e=size // 2, dtype=dtype)
    check("entmax", 1.5, inputs, visible, tolerance=tolerance, scale=size**-0.5)
