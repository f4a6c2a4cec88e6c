"""Laws that every map keeps."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from judges.registry import MAPS, Map, every_map, every_sparse_map

INF = math.inf
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 2e-6, torch.float64: 1e-13}


def scores_of(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return (torch.randn(*shape, dtype=torch.float64) * scale).to(dtype)


@every_map
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1e-8, 1e-2, 1.0, 30.0, 1e9])
def test_weights_lie_in_the_polytope(map: Map, dtype: torch.dtype, scale: float) -> None:
    if dtype is torch.float16 and scale > 1e4:
        pytest.skip("float16 ends at 65504")
    for size in (3, 17, 200):
        scores = scores_of(6, size, scale=scale, dtype=dtype)
        weights = map(scores)
        assert weights.dtype is dtype
        assert weights.shape == scores.shape
        assert (weights >= 0).all()
        assert (weights <= torch.tensor(map.cap).to(dtype)).all()
        expected = torch.full((6,), map.total, dtype=torch.float64)
        torch.testing.assert_close(
            weights.double().sum(-1), expected, rtol=0, atol=TOLERANCE[dtype] * size
        )


@every_map
def test_order_of_weights_is_order_of_scores(map: Map) -> None:
    weights = map(scores_of(20, 30).sort(-1).values)
    assert (weights.diff(dim=-1) >= -1e-15).all()


@every_map
def test_a_common_shift_changes_nothing(map: Map) -> None:
    scores = torch.randint(-8, 8, (10, 12)).double() / 4
    torch.testing.assert_close(map(scores + 1024.0), map(scores), rtol=0, atol=1e-15)


@every_map
def test_permutations_pass_through(map: Map) -> None:
    scores = scores_of(5, 40)
    order = torch.randperm(40)
    torch.testing.assert_close(map(scores[:, order]), map(scores)[:, order], rtol=0, atol=1e-14)


@every_map
def test_ties_share_equally(map: Map) -> None:
    scores = torch.zeros(3, 8, dtype=torch.float64)
    expected = torch.full((3, 8), map.total / 8, dtype=torch.float64)
    torch.testing.assert_close(map(scores), expected, rtol=0, atol=1e-15)
    torch.testing.assert_close(map(scores.float()), expected.float(), rtol=0, atol=1e-7)


@every_sparse_map
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_margin_gives_whole_answers(map: Map, dtype: torch.dtype) -> None:
    k = int(map.total)
    if k != map.total:
        pytest.skip("a fractional budget has no whole answer")
    scores = torch.zeros(7, 20, dtype=dtype)
    best = torch.stack([torch.randperm(20)[:k] for _ in range(7)])
    scores.scatter_(1, best, map.omega.margin if map.omega.margin > 0 else 1e-6)
    expected = torch.zeros_like(scores).scatter_(1, best, 1.0)
    assert torch.equal(map(scores), expected)


@every_sparse_map
def test_just_below_the_margin_is_not_whole(map: Map) -> None:
    if map.total != 1 or map.omega.margin == 0 or map.name == "1.01-entmax":
        pytest.skip("no interior, or a weight too small for a float64")
    scores = torch.tensor([map.omega.margin * 0.99, 0.0], dtype=torch.float64)
    assert 0 < map(scores)[1] < 0.5 + 1e-12


@every_map
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_masked_is_minus_infinity_is_removed(map: Map, dtype: torch.dtype) -> None:
    scores = scores_of(9, 90, dtype=dtype)
    mask = torch.rand(9, 90) > 0.4
    mask[:, :3] = True
    masked = map(scores, mask=mask)
    assert torch.equal(masked, map(scores.masked_fill(~mask, -INF)))
    assert (masked[~mask] == 0).all()
    for row, kept, weights in zip(scores, mask, masked, strict=True):
        torch.testing.assert_close(map(row[kept]), weights[kept], rtol=0, atol=TOLERANCE[dtype])


@every_map
def test_padding_changes_nothing(map: Map) -> None:
    scores = scores_of(4, 70)
    padded = torch.nn.functional.pad(scores, (0, 61), value=-INF)
    torch.testing.assert_close(map(padded)[:, :70], map(scores), rtol=0, atol=1e-14)


@every_map
def test_a_row_with_nothing_to_select_is_zero_and_has_zero_gradient(map: Map) -> None:
    scores = scores_of(3, 8).requires_grad_()
    mask = torch.ones(3, 8, dtype=torch.bool)
    mask[1] = False
    weights = map(scores, mask=mask)
    assert (weights[1] == 0).all()
    (weights * torch.randn_like(weights)).sum().backward()
    assert (scores.grad[1] == 0).all()
    assert scores.grad.isfinite().all()
    assert (map(torch.full((2, 5), -INF)) == 0).all()


@every_map
@pytest.mark.parametrize("spoiler", [math.nan, -math.nan, INF])
@pytest.mark.parametrize("size", [5, 300])
def test_nan_and_infinity_spoil_their_own_row_only(map: Map, spoiler: float, size: int) -> None:
    for dtype in (torch.float32, torch.float64):
        scores = scores_of(4, size, dtype=dtype)
        clean = map(scores)
        scores[2, size // 2] = spoiler
        scores.requires_grad_()
        weights = map(scores)
        assert weights[2].isnan().all()
        others = [0, 1, 3]
        assert torch.equal(weights[others], clean[others])
        weights.sum().backward()
        assert scores.grad[others].isfinite().all()


@every_map
def test_any_dimension(map: Map) -> None:
    scores = scores_of(4, 5, 6)
    for dim in (0, 1, 2, -1, -2, -3):
        expected = map(scores.movedim(dim, -1)).movedim(-1, dim)
        assert torch.equal(map(scores, dim=dim), expected)


@every_map
def test_strides_do_not_matter(map: Map) -> None:
    scores = scores_of(12, 10)
    for view in (scores.T, scores[::2, ::3], scores[:1].expand(4, 10), scores.flip(0)):
        assert torch.equal(map(view), map(view.contiguous()))


@every_map
def test_empty_and_single(map: Map) -> None:
    assert map(torch.empty(0, 5)).shape == (0, 5)
    if map.least == 1:
        assert torch.equal(map(torch.tensor([[3.0], [-2.0]])), torch.ones(2, 1))
        assert map(torch.empty(3, 0)).shape == (3, 0)


@every_map
def test_inputs_are_left_alone(map: Map) -> None:
    scores = scores_of(3, 7)
    kept = scores.clone()
    map(scores, mask=torch.rand(3, 7) > -1)
    assert torch.equal(scores, kept)


@every_map
def test_rows_are_independent_of_the_batch(map: Map) -> None:
    """Enough rows for several threads give the same as one row at a time."""
    scores = scores_of(700, 101, dtype=torch.float32)
    weights = map(scores)
    for row in (0, 1, 349, 350, 699):
        assert torch.equal(map(scores[row]), weights[row])


@pytest.mark.parametrize("size_of_support", [1, 2, 9, 40])
def test_supports_of_every_size(size_of_support: int) -> None:
    """Equal leaders, the rest a margin behind: the support is exactly the leaders."""
    for map in MAPS:
        if not map.is_sparse or map.total != 1:
            continue
        scores = torch.full((40,), -1.0 - map.omega.margin, dtype=torch.float64)
        scores[:size_of_support] = 0.0
        weights = map(scores)
        assert ((weights > 0).sum() == size_of_support).item(), map.name
        torch.testing.assert_close(weights[0].item(), 1 / size_of_support, rtol=0, atol=1e-15)


@settings(max_examples=60, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.sampled_from([-2.0, -1.0, -0.5, 0.0, 0.25, 0.5, 1.0]), min_size=4, max_size=9),
        min_size=1,
        max_size=3,
    ),
    index=st.integers(0, len(MAPS) - 1),
    alpha=st.floats(1.05, 50),  # below, weights underflow and lose their slope
)
def test_optimality_on_ties(rows: list[list[float]], index: int, alpha: float) -> None:
    """No vertex improves on the answer: the optimality condition of a concave maximum.

    For y = argmax <theta, y> - Omega(y), the gap max_v <theta - grad, v> - <theta - grad, y> is zero.
    """
    import hopfy

    chosen = MAPS[index]
    for omega in (chosen.omega, hopfy.Tsallis(alpha), hopfy.Norm(alpha)):
        cap = chosen.cap if omega is chosen.omega else 1.0
        for row in rows:
            scores = torch.tensor(row, dtype=torch.float64)
            weights = omega(scores).requires_grad_()
            if omega == hopfy.Norm(math.inf):
                continue  # not differentiable where it is tied; judged in test_maps_accuracy
            (slope,) = torch.autograd.grad(omega.value(weights), weights)
            residual = scores - slope
            if omega is chosen.omega and chosen.is_interior:
                spread = residual.max() - residual.min()
                assert spread < 1e-9
                continue
            total = weights.sum().item()
            best = residual.sort(descending=True).values
            whole = int(total / cap + 1e-9)
            rest = total - whole * cap
            reachable = cap * best[:whole].sum() + rest * best[min(whole, len(best) - 1)]
            assert reachable - (residual * weights).sum() < 1e-9


@pytest.mark.parametrize("size", [2, 17, 64, 127, 128, 129, 400])
@every_map
def test_float32_weights_sum_to_their_total(map: Map, size: int) -> None:
    """Close enough for `torch.distributions.constraints.simplex`, in rows of any length."""
    generator = torch.Generator().manual_seed(size)
    for scale in (0.01, 1.0, 30.0):
        scores = torch.randn(200, max(size, 3), generator=generator) * scale
        total = map(scores).double().sum(-1)
        assert float((total - map.total).abs().max()) <= 5e-7 * map.total
