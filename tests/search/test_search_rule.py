"""One rule for scores: an answer depends on the memories and the query alone."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy.search import ExactIndex, SparseRows, _candidate_search, _short
from hopfy.search._sweep import Rows

NAMES = ["sparsemax", "1.5-entmax", "3-entmax", "5-normmax", "3-subsets", "0.5-subsets"]
DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


def _same(one: SparseRows, two: SparseRows) -> bool:
    return (
        torch.equal(one.offsets, two.offsets)
        and torch.equal(one.indices, two.indices)
        and torch.equal(one.values, two.values)
    )


def _near_copies(count: int, size: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Half of the patterns are copies of the others, moved by little."""
    half = torch.randn(count // 2, size)
    return torch.cat([half, half + 1e-6 * torch.randn_like(half)]).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_batches_bounds_and_paths_do_not_change_a_bit(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    memories = _near_copies(3000, 24, dtype)
    queries = (memories[::200].float() + 0.1 * torch.randn(15, 24)).to(dtype)
    omega = hopfy.omega_from(name)
    for beta in (3.0, 1e5):
        expected = ExactIndex(memories, 0).weights(queries, omega, beta)
        for directions in (4, None):
            index = ExactIndex(memories, directions)
            assert _same(index.weights(queries, omega, beta), expected)
            alone = [index.weights(queries[i : i + 1], omega, beta) for i in range(15)]
            assert _same(SparseRows.stack(alone), expected)
        with monkeypatch.context() as patch:
            patch.setattr(_short, "_FEW", 1 << 60)  # everything exactly, at once
            assert _same(ExactIndex(memories, 0).weights(queries, omega, beta), expected)
        with monkeypatch.context() as patch:
            patch.setattr(
                _candidate_search, "_sweeps", _gives_up
            )  # whole rows, some queries at a time
            index = ExactIndex(memories, 0, scratch=200_000)
            assert _same(index.weights(queries, omega, beta), expected)


def _gives_up(state: object, problem: object, wanted: Tensor, budget: object) -> object:
    from hopfy._kernels.select import Found

    found = Found.nothing(wanted.numel(), 1, 1)
    found.status[:] = 2
    yield wanted, found, np.zeros(0, np.int64)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_do_not_change_a_bit(threads: int) -> None:
    memories = _near_copies(5000, 48)
    queries = memories[:300] + 0.05 * torch.randn(300, 48)
    before = torch.get_num_threads()
    expected = ExactIndex(memories).weights(queries, hopfy.Tsallis(2.0), 1e5)
    try:
        torch.set_num_threads(threads)
        assert _same(ExactIndex(memories).weights(queries, hopfy.Tsallis(2.0), 1e5), expected)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("directions", [0, 4])
def test_autocast_precision_switches_and_defaults_change_nothing(directions: int) -> None:
    memories = _near_copies(3000, 24)
    queries = memories[::200] + 0.1 * torch.randn(15, 24)

    def answers() -> list[Tensor]:
        index = ExactIndex(memories, directions)
        weights = index.weights(queries, hopfy.Tsallis(2.0), 1e4)
        near = index.top(queries, 3, metric="euclidean").indices
        states = index.update(queries, hopfy.Shannon(), 0.1).states
        index.remove([0])
        return [weights.indices, weights.values, near, index.within(queries, 9.0).indices, states]

    expected = answers()
    before = torch.backends.mkldnn.matmul.fp32_precision
    with torch.autocast("cpu", torch.bfloat16):
        found = [answers()]
    try:
        torch.backends.mkldnn.matmul.fp32_precision = "bf16"
        found.append(answers()[:4])
    finally:
        torch.backends.mkldnn.matmul.fp32_precision = before
    try:
        torch.set_default_dtype(torch.float16)
        torch.set_default_device("meta")
        found.append(answers())
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)
    for each in found:
        assert all(torch.equal(one, two) for one, two in zip(each, expected, strict=False))


def test_one_beta_per_query() -> None:
    memories, queries = torch.randn(2000, 12), torch.randn(9, 12)
    betas = torch.logspace(-2, 1, 9, dtype=torch.float64)
    index = ExactIndex(memories)
    together = index.weights(queries, hopfy.Tsallis(1.5), betas)
    for row in range(9):
        alone = index.weights(queries[row : row + 1], hopfy.Tsallis(1.5), float(betas[row]))
        assert torch.equal(together.row(row)[0], alone.indices)
        assert torch.equal(together.row(row)[1], alone.values)


@pytest.mark.parametrize("dtype", DTYPES)
def test_stored_halves_are_searched_as_the_numbers_they_are(dtype: torch.dtype) -> None:
    memories = torch.randn(2500, 10).to(dtype)
    queries = torch.randn(20, 10)
    if dtype is torch.float64:
        queries = queries.double()
    index = ExactIndex(memories, 3)
    assert index.memories.dtype is dtype
    gaps = queries.double().unsqueeze(1) - memories.double()
    by_distance = gaps.square().sum(-1)
    assert torch.equal(
        index.top(queries, 5, metric="euclidean").indices,
        by_distance.topk(5, largest=False).indices,
    )
    by_product = queries.double() @ memories.double().mT
    assert torch.equal(index.top(queries, 5).indices, by_product.topk(5).indices)


# --- searches ------------------------------------------------------------------------------------


@pytest.mark.parametrize("directions", [0, 3])
@pytest.mark.parametrize("k", [1, 3, 40, 1500])
def test_nearest_neighbors_with_ties_by_number(directions: int, k: int) -> None:
    memories = torch.randint(-2, 3, (1500, 6)).float()
    queries = torch.randint(-2, 3, (30, 6)).float()
    top = ExactIndex(memories, directions).top(queries, k, metric="euclidean")
    squares = (queries.unsqueeze(1) - memories).square().sum(-1).double()
    expected, order = squares.sort(dim=1, stable=True)
    assert torch.equal(top.indices, order[:, :k])
    torch.testing.assert_close(top.scores, expected[:, :k].sqrt())


@pytest.mark.parametrize("directions", [0, 3])
@pytest.mark.parametrize("metric", ["inner", "euclidean"])
def test_range_search_is_the_definition(directions: int, metric: hopfy.search.Metric) -> None:
    memories = torch.randint(-2, 3, (1500, 6)).float()
    queries = torch.randint(-2, 3, (30, 6)).float()
    index = ExactIndex(memories, directions)
    scores = (queries @ memories.mT).double()
    if metric == "euclidean":
        scores = (queries.unsqueeze(1) - memories).square().sum(-1).double().sqrt()
    for limit in (-3.0, 0.0, 2.0, 4.0, 1e9):
        inside = scores >= limit if metric == "inner" else scores <= limit
        found = index.within(queries, limit, metric=metric)
        assert torch.equal(found.counts, inside.sum(1))
        assert torch.equal(found.indices, inside.nonzero()[:, 1])
        torch.testing.assert_close(found.values, scores[inside])
    own = scores if metric == "inner" else (scores.square() / -2).mul(2).round().div(2)
    near = index.near_best(queries, 1.5, metric=metric)
    assert torch.equal(near.indices, (own >= own.amax(1, keepdim=True) - 1.5).nonzero()[:, 1])


def test_far_from_the_origin_distances_keep_their_digits() -> None:
    memories = (1e4 + torch.randn(3000, 16).double()).float()
    queries = memories[:40] + 1e-2 * torch.randn(40, 16)
    exact = (queries.double().unsqueeze(1) - memories.double()).square().sum(-1)
    for directions in (0, 4):
        top = ExactIndex(memories, directions).top(queries, 3, metric="euclidean")
        assert torch.equal(top.indices, exact.topk(3, largest=False).indices)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), exponent=st.integers(-12, 12), size=st.integers(1, 9))
def test_the_best_is_never_beaten_in_rational_arithmetic(
    seed: int, exponent: int, size: int
) -> None:
    torch.manual_seed(seed)
    memories = torch.randn(40, size).round(decimals=1) * 10.0**exponent
    query = torch.randn(size)
    number = int(ExactIndex(memories, 1).top(query).indices)
    scores = [
        sum(Fraction(a) * Fraction(b) for a, b in zip(row, query.tolist(), strict=True))
        for row in memories.tolist()
    ]
    slack = Fraction(1, 10**13) * max(abs(score) for score in scores)
    assert scores[number] >= max(scores) - slack


# --- growing and shrinking -----------------------------------------------------------------------


@pytest.mark.parametrize("directions", [0, 3, None])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_adding_and_removing_equals_a_new_index(directions: int | None, dtype: torch.dtype) -> None:
    rows = torch.randn(6000, 12).to(dtype)
    queries = torch.randn(25, 12)
    index = ExactIndex(rows[:2000], directions)
    there = list(range(2000))
    generator = torch.Generator().manual_seed(1)
    for start in (2000, 2001, 2900, 4500):
        stop = {2000: 2001, 2001: 2900, 2900: 4500, 4500: 6000}[start]
        assert index.add(rows[start:stop]).tolist() == list(range(start, stop))
        there += range(start, stop)
        gone = [
            there[i] for i in torch.randperm(len(there), generator=generator)[: len(there) // 3]
        ]
        index.remove(gone)
        there = sorted(set(there) - set(gone))
        assert len(index) == len(there)
        assert index.numbers.tolist() == there
        fresh, kept = ExactIndex(rows[there], 0), torch.tensor(there)
        for metric in ("inner", "euclidean"):
            one = index.top(queries, 4, metric=metric)  # type: ignore[arg-type]
            two = fresh.top(queries, 4, metric=metric)  # type: ignore[arg-type]
            assert torch.equal(one.indices, kept[two.indices])
            assert torch.equal(one.scores, two.scores)
        for omega in (hopfy.Tsallis(2.0), hopfy.Shannon(), Halves()):
            one, two = index.update(queries, omega, 0.5), fresh.update(queries, omega, 0.5)
            torch.testing.assert_close(one.states, two.states, rtol=0, atol=2e-5)
            if one.weights is not None and two.weights is not None:
                assert torch.equal(one.weights.indices, kept[two.weights.indices])


class Halves(hopfy.Omega):
    """Half of the weight to the best score, half to the first: weight may be anywhere."""

    margin = torch.inf

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        assert mask is None
        assert dim == -1
        best = torch.nn.functional.one_hot(scores.argmax(-1), scores.shape[-1])
        first = torch.zeros_like(scores)
        first[..., 0] = 0.5
        return first + 0.5 * best

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        return weights.sum(dim)


def test_a_copy_goes_its_own_way() -> None:
    rows = torch.randn(30, 4)
    index = ExactIndex(rows[:20])
    index.add(rows[20:22])
    other = index.copy()
    other.add(rows[22:25])
    index.add(rows[25:30])
    other.remove([0])
    assert len(index) == 27
    assert len(other) == 24
    assert torch.equal(index.memories[22:], rows[25:30])
    assert torch.equal(other.memories[22:], rows[22:25])
    again = pickle.loads(pickle.dumps(other))
    queries = torch.randn(3, 4)
    assert torch.equal(again.top(queries, 2).indices, other.top(queries, 2).indices)
    again.add(rows[:1])


CHANGES: list[Callable[[Tensor, np.ndarray], object]] = [
    lambda t, _: t.mul_(-1),
    lambda t, _: t.data.mul_(-1),
    lambda _, a: np.negative(a, out=a),
]


@pytest.mark.parametrize("change", CHANGES)
def test_an_index_owns_what_it_indexed(change: Callable[[Tensor, np.ndarray], object]) -> None:
    array = np.random.default_rng(0).normal(size=(500, 8)).astype(np.float32)
    rows = torch.from_numpy(array)
    index, queries = ExactIndex(rows), torch.randn(5, 8)
    expected = index.top(queries, 3)
    change(rows, array)
    assert torch.equal(index.top(queries, 3).indices, expected.indices)


def test_bad_requests_get_a_descriptive_error() -> None:
    index = ExactIndex(torch.randn(5, 3))
    with pytest.raises(KeyError, match="expected numbers of stored memories"):
        index.remove([5])
    index.remove([2])
    with pytest.raises(KeyError, match=r"\[2\]"):
        index.remove([1, 2])
    assert len(index) == 4
    with pytest.raises(ValueError, match="expected memories with 3 coordinates"):
        index.add(torch.randn(2, 4))
    with pytest.raises(ValueError, match="in row 5"):
        index.add(torch.tensor([[1.0, torch.nan, 0.0]]))
    assert len(index) == 4
    with pytest.raises(ValueError, match="expected metric"):
        index.top(torch.randn(3), metric="cosine")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected limit"):
        index.within(torch.randn(1, 3), torch.nan)
    with pytest.raises(ValueError, match="every beta"):
        index.weights(torch.randn(2, 3), hopfy.Tsallis(2.0), torch.tensor([1.0, 0.0]))
    assert Rows(index.memories, None).memories.shape == (5, 3)


def test_indexes_that_share_a_plan_keep_their_own_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    factors = torch.randn(6, 200, generator=generator)

    def rows(count: int) -> Tensor:
        return torch.randn(count, 6, generator=generator) @ factors

    first = rows(4200)
    one = ExactIndex(first, 0)
    one.add(rows(20))  # now there is room behind the rows
    two, late = one.copy(), one.copy()
    more, other = rows(30), rows(30)
    one.add(more)
    two.add(other)
    before = one.planned()
    one.add(rows(10))  # from a state without a plan
    found = {"one": one.planned(), "two": two.planned(), "late": late.planned(), "before": before}
    kept = torch.arange(0, one.memories.shape[0], 3)
    found["restricted"] = one.planned().restricted(kept).planned()
    for name, index in found.items():
        assert index.chooses_directions, name
        assert index.directions > 0, name
        queries = torch.cat([index.memories[-40:], rows(10)])  # stored ones, and others
        fresh = ExactIndex(index.memories, 0)
        for metric in ("inner", "euclidean"):
            got, expected = (i.top(queries, 3, metric=metric) for i in (index, fresh))
            assert torch.equal(got.indices, expected.indices), name
            assert torch.equal(got.scores, expected.scores), name
        members = torch.arange(len(index) - 40, len(index)).unsqueeze(1)
        lead = torch.full((40,), 0.1, dtype=torch.float64)
        assert torch.equal(index.verdicts(members, lead), fresh.verdicts(members, lead)), name


def test_a_plan_is_made_once_for_rows_that_grow_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    from hopfy.search import _state

    plans: list[int] = []
    plan = _state.planned_bounds
    monkeypatch.setattr(_state, "planned_bounds", lambda r: (plans.append(len(r)), plan(r))[1])
    frames: list[int] = []
    frame = _state.leading_frame
    monkeypatch.setattr(
        _state, "leading_frame", lambda r, k: (frames.append(len(r)), frame(r, k))[1]
    )
    buffer = torch.randn(4300, 40)
    states = [ExactIndex.over(buffer[:4100], 0)]
    for count in range(4110, 4200, 10):
        states.append(states[-1].extended(buffer[:count]))  # before the other has a plan
    members = torch.arange(20).unsqueeze(1)
    lead = torch.full((20,), 0.1, dtype=torch.float64)
    for index in states:
        index.planned().verdicts(members, lead)
    assert plans == [4100]
    assert frames == [4100]
