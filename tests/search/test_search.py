"""Exact search: streamed and pruned answers are those of the whole score matrix."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy._growing import Growing
from hopfy.search import ExactIndex, SparseRows
from hopfy.search._bounds import BLOCK, Plain

SPARSE = [
    "1.25-entmax",
    "1.5-entmax",
    "sparsemax",
    "3-entmax",
    "inf-entmax",
    "2-normmax",
    "5-normmax",
    "inf-normmax",
    "2-subsets",
    "8-subsets",
    "2.5-subsets",
]
DIRECTIONS = [0, 3, 12]


def low_rank(count: int, size: int, rank: int, noise: float) -> Tensor:
    return torch.randn(count, rank) @ torch.randn(rank, size) + noise * torch.randn(count, size)


def dense(memories: Tensor, queries: Tensor, omega: hopfy.Omega, beta: float) -> Tensor:
    scores = queries.double() @ memories.double().mT
    return omega(beta * (scores - scores.amax(1, keepdim=True)))


def check_update(index: ExactIndex, queries: Tensor, omega: hopfy.Omega, beta: float) -> None:
    memories = index.memories
    update = index.update(queries, omega, beta)
    expected = dense(memories, queries, omega, beta)
    assert update.weights is not None
    weights = update.weights.dense()
    size = float(memories.abs().max()) * float(queries.abs().max()) * memories.shape[1]
    error = 1e-14 * (1 + beta * size)
    torch.testing.assert_close(weights, expected, rtol=1e-9, atol=max(error, 1e-12))
    differing = (weights > 0) != (expected > 0)
    assert torch.maximum(weights, expected)[differing].le(1e3 * error).all()
    states = (expected @ memories.double()).to(update.states.dtype)
    tolerance = {torch.float32: 1e-5, torch.float64: 1e-9}[states.dtype]
    torch.testing.assert_close(update.states, states, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("directions", DIRECTIONS)
@pytest.mark.parametrize("name", SPARSE)
@pytest.mark.parametrize("beta", [0.02, 1.0, 50.0])
def test_an_update_is_that_of_the_whole_score_matrix(
    name: str, beta: float, directions: int
) -> None:
    memories = low_rank(BLOCK + 77, 24, 5, 0.3)
    queries = torch.cat([memories[5:9] + 0.2 * torch.randn(4, 24), torch.randn(3, 24)])
    check_update(ExactIndex(memories, directions), queries, hopfy.omega_from(name), beta)


@pytest.mark.parametrize("directions", DIRECTIONS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(dtype: torch.dtype, directions: int) -> None:
    memories = low_rank(1500, 16, 4, 0.2).to(dtype)
    queries = torch.randn(9, 16).to(dtype)
    index = ExactIndex(memories, directions)
    wide = torch.float32 if dtype.itemsize == 2 else dtype
    assert index.update(queries, hopfy.Tsallis(2.0)).states.dtype is wide
    check_update(index, queries, hopfy.Tsallis(1.5), 0.5)


@pytest.mark.parametrize("count", [1, 2, BLOCK - 1, BLOCK, BLOCK + 1])
@pytest.mark.parametrize("rows", [0, 1, 9])
@pytest.mark.parametrize("directions", DIRECTIONS)
def test_blocks_that_do_not_divide(count: int, rows: int, directions: int) -> None:
    memories, queries = torch.randn(count, 5), torch.randn(rows, 5)
    index = ExactIndex(memories, directions)
    check_update(index, queries, hopfy.Tsallis(2.0), 2.0) if rows else None
    update = index.update(queries, hopfy.Tsallis(2.0), 2.0)
    assert update.states.shape == (rows, 5)
    assert update.weights is not None
    assert update.weights.rows == rows
    assert index.update(queries, hopfy.Shannon()).states.shape == (rows, 5)
    assert index.top(queries, 1).indices.shape == (rows, 1)


@pytest.mark.parametrize("k", [1, 2, 7, 70, 1500])
@pytest.mark.parametrize("directions", DIRECTIONS)
def test_top_is_a_stable_sort(k: int, directions: int) -> None:
    # Small integers: scores are exact in every dtype, and many of them tie.
    memories = torch.randint(-2, 3, (1500, 6)).float()
    queries = torch.randint(-2, 3, (40, 6)).float()
    top = ExactIndex(memories, directions).top(queries, k)
    scores, indices = (queries @ memories.mT).double().sort(dim=1, descending=True, stable=True)
    assert torch.equal(top.scores, scores[:, :k])
    assert torch.equal(top.indices, indices[:, :k])


@pytest.mark.parametrize("beta", [1e-3, 0.3, 30.0])
def test_softmax_streams(beta: float) -> None:
    memories, queries = torch.randn(2 * BLOCK + 5, 12), torch.randn(1030, 12)
    update = ExactIndex(memories).update(queries, hopfy.Shannon(), beta)
    weights = torch.softmax(beta * queries.double() @ memories.double().mT, 1)
    torch.testing.assert_close(
        update.states.double(), weights @ memories.double(), rtol=0, atol=1e-4
    )
    assert update.weights is None


def test_softmax_at_scores_that_overflow_an_exponential() -> None:
    memories = 100 * torch.eye(4)
    states = ExactIndex(memories).update(memories, hopfy.Tsallis(1.0), 10.0).states
    assert torch.equal(states, memories)


class Reversed(hopfy.Omega):
    """A map that depends on the order of the entries, so it cannot stream."""

    margin = 1.0

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return hopfy.functional.sparsemax(scores.flip(dim), dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        return weights.square().sum(dim) / 2


def test_an_unknown_map_gets_whole_rows() -> None:
    memories, queries = torch.randn(1100, 8), torch.randn(7, 8)
    update = ExactIndex(memories).update(queries, Reversed(), 0.5)
    expected = Reversed()(0.5 * queries.double() @ memories.double().mT)
    assert update.weights is not None
    torch.testing.assert_close(update.weights.dense(), expected)


@pytest.mark.parametrize("directions", DIRECTIONS)
def test_a_spoiled_query_spoils_only_itself(directions: int) -> None:
    memories, queries = torch.randn(1100, 8), torch.randn(5, 8)
    index = ExactIndex(memories, directions)
    for omega in (hopfy.Tsallis(2.0), hopfy.Shannon(), Reversed()):
        clean = index.update(queries, omega)
        spoiled = queries.clone()
        spoiled[1, 3], spoiled[4, 0] = torch.nan, torch.inf
        update = index.update(spoiled, omega)
        assert update.states[[1, 4]].isnan().all()
        torch.testing.assert_close(update.states[[0, 2, 3]], clean.states[[0, 2, 3]])
        if update.weights is not None:
            assert update.weights.counts[[1, 4]].tolist() == [0, 0]
    top = index.top(spoiled, 2)
    assert top.scores[[1, 4]].isnan().all()
    assert torch.equal(top.indices[[0, 2, 3]], index.top(queries, 2).indices[[0, 2, 3]])


@pytest.mark.parametrize("directions", [0, 4])
def test_supports_too_large_to_collect_are_still_right(directions: int) -> None:
    memories = low_rank(6000, 16, 3, 0.1)
    queries = torch.cat([torch.randn(1, 16), torch.zeros(1, 16), 100 * torch.randn(1, 16)])
    index = ExactIndex(memories, directions)
    check_update(index, queries, hopfy.Tsallis(2.0), 1e-4)


# --- pruning must not change an answer -----------------------------------------------------------


def duplicates() -> Tensor:
    return torch.randn(300, 20).repeat(8, 1)


def near_ties() -> Tensor:
    base = torch.randn(1, 20)
    return base * (1 + 1e-7 * torch.randn(2500, 1)) + 1e-6 * torch.randn(2500, 20)


def one_giant() -> Tensor:
    memories = low_rank(2500, 20, 4, 0.1)
    memories[1234] *= 1e6
    return memories


def far_from_the_origin() -> Tensor:
    return low_rank(2500, 20, 4, 0.05) + 1e4


def constant_columns() -> Tensor:
    memories = low_rank(2500, 20, 4, 0.05)
    memories[:, ::2] = -1.0
    return memories


HARD: list[Callable[[], Tensor]] = [
    duplicates,
    near_ties,
    one_giant,
    far_from_the_origin,
    constant_columns,
    lambda: low_rank(2500, 20, 2, 0.0),
    lambda: torch.zeros(2500, 20),
    lambda: torch.randn(7, 20),
    lambda: 1e18 * low_rank(2500, 20, 4, 0.05),
    lambda: 1e-20 * low_rank(2500, 20, 4, 0.05),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("make", HARD)
def test_pruned_and_streamed_answers_are_identical(
    make: Callable[[], Tensor], dtype: torch.dtype
) -> None:
    memories = make().to(dtype)
    some = memories[:: max(1, len(memories) // 8)]
    queries = torch.cat([some, some + 1e-3 * torch.randn_like(some) * some.abs().mean()])
    streamed = ExactIndex(memories, 0)
    scale = float((queries.double() @ memories.double().mT).std()) or 1.0
    for directions in (1, 6):
        pruned = ExactIndex(memories, directions)
        for name in ("sparsemax", "3-subsets", "inf-entmax"):
            for beta in (10 / scale, 1e5 / scale):
                one = streamed.update(queries, hopfy.omega_from(name), beta)
                two = pruned.update(queries, hopfy.omega_from(name), beta)
                assert one.weights is not None
                assert two.weights is not None
                assert torch.equal(one.weights.offsets, two.weights.offsets)
                assert torch.equal(one.weights.indices, two.weights.indices)
                assert torch.equal(one.weights.values, two.weights.values)
                assert torch.equal(one.states, two.states)
        k = min(5, len(memories))
        for a, b in zip(streamed.top(queries, k), pruned.top(queries, k), strict=True):
            assert torch.equal(a, b)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    count=st.integers(1, 300),
    size=st.integers(1, 12),
    directions=st.integers(1, 14),
    exponent=st.integers(-6, 6),
    k=st.integers(1, 4),
)
def test_bounds_hold_for_any_data(
    seed: int, count: int, size: int, directions: int, exponent: int, k: int
) -> None:
    torch.manual_seed(seed)
    memories = torch.randn(count, size).round(decimals=1) * 10.0**exponent
    queries = torch.randn(8, size) * 10.0**-exponent
    index = ExactIndex(memories, directions)
    assert index._state.principal is not None
    exact = queries.double() @ memories.double().mT
    for bounds in (index._state.principal, index._state.plain):
        left = bounds.left(queries.double())
        right = bounds.right(0, count)
        coarse = (left.vectors @ right.mT).double() + left.slack[0].unsqueeze(1)
        assert (coarse >= exact).all()
        fine = left.vectors @ right.mT + left.fine @ bounds.fine.mT
        assert (fine.double() + left.slack[0].unsqueeze(1) >= exact).all()
    k = min(k, count)
    torch.testing.assert_close(index.top(queries, k).scores, exact.topk(k, dim=1).values)


def test_the_plan_prunes_where_the_spectrum_decays_and_only_there() -> None:
    assert ExactIndex(low_rank(5000, 128, 8, 0.02)).directions > 0
    assert ExactIndex(torch.randn(5000, 128)).directions == 0
    assert ExactIndex(low_rank(500, 128, 8, 0.02)).directions == 0  # too few to matter


def test_queries_that_bounds_cannot_help_fall_back_to_the_product() -> None:
    memories = torch.randn(3000, 64)
    index = ExactIndex(memories, 2)
    queries = torch.randn(100, 64)
    check_update(index, queries, hopfy.Tsallis(2.0), 0.2)
    assert torch.equal(
        index.top(queries, 3).indices, ExactIndex(memories, 0).top(queries, 3).indices
    )


# --- growing, shrinking, sharing -----------------------------------------------------------------


@pytest.mark.parametrize("directions", [0, 4])
def test_an_extended_index_equals_a_new_one(directions: int) -> None:
    everything = low_rank(3000, 16, 4, 0.1)
    everything[2500] *= 50
    index = ExactIndex(everything[:1900], directions)
    queries = torch.randn(20, 16)
    for count in (1901, 2048, 2500, 3000):
        index = index.extended(everything[:count])
        assert len(index) == count
        check_update(index, queries, hopfy.Tsallis(2.0), 0.1)
    kept = torch.randperm(3000)[:1700]
    for smaller in (index.restricted(kept), index.restricted(kept, everything[kept])):
        check_update(smaller, queries, hopfy.Tsallis(2.0), 0.1)


def test_two_extensions_of_one_index_do_not_disturb_each_other() -> None:
    base, one, two = torch.randn(1500, 8), torch.randn(3, 8), torch.randn(4, 8)
    queries = torch.cat([one, two])
    index = ExactIndex(base, 3).extended(torch.cat([base, base[:1]]))
    base = index.memories
    first = index.extended(torch.cat([base, one]))
    second = index.extended(torch.cat([base, two]))
    for grown in (first, second, index):
        check_update(grown, queries, hopfy.Tsallis(2.0), 1.0)


def test_a_doubled_index_is_planned_anew() -> None:
    memories = low_rank(10000, 128, 8, 0.01)
    index = ExactIndex(memories[:5000])
    frame = index._state.principal.frame if index._state.principal else None
    assert frame is not None
    assert index.extended(memories[:5500])._state.principal.frame is frame  # type: ignore[union-attr]
    assert index.extended(memories)._state.principal.frame is not frame  # type: ignore[union-attr]


def test_growing_rows_share_until_they_differ() -> None:
    store = Growing(torch.zeros(2, 3)).plus(2, 1, [torch.ones(1, 3)])
    same = store.plus(3, 1, [torch.full((1, 3), 2.0)])
    other = store.plus(3, 1, [torch.full((1, 3), 3.0)])
    assert same is store
    assert other is not store
    assert same.rows(4)[:, 0].tolist() == [0, 0, 1, 2]
    assert other.rows(4)[:, 0].tolist() == [0, 0, 1, 3]


def test_memory_maps_are_read_in_place(tmp_path: Path) -> None:
    memories = low_rank(3000, 16, 4, 0.1)
    np.save(tmp_path / "memories.npy", memories.numpy())
    mapped = np.load(tmp_path / "memories.npy", mmap_mode="r")
    index = ExactIndex(mapped, 4)
    assert index.memories.data_ptr() == mapped.ctypes.data
    check_update(index, torch.randn(9, 16), hopfy.Tsallis(2.0), 0.3)


def test_many_threads_get_the_same_answers() -> None:
    memories, queries = low_rank(3000, 16, 4, 0.1), torch.randn(200, 16)
    index = ExactIndex(memories, 4)
    expected = index.update(queries, hopfy.Tsallis(1.5), 0.3).states
    answers: list[Tensor] = []

    def work() -> None:
        for _ in range(5):
            answers.append(index.update(queries, hopfy.Tsallis(1.5), 0.3).states)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    assert all(torch.equal(answer, expected) for answer in answers)


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_answers_do_not_depend_on_the_number_of_threads(threads: int) -> None:
    memories, queries = low_rank(3000, 16, 4, 0.1), torch.randn(100, 16)
    before = torch.get_num_threads()
    expected = ExactIndex(memories, 4).update(queries, hopfy.Tsallis(2.0), 0.1)
    try:
        torch.set_num_threads(threads)
        update = ExactIndex(memories, 4).update(queries, hopfy.Tsallis(2.0), 0.1)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(update.states, expected.states)


@pytest.mark.parametrize("directions", [0, 4])
def test_separations_are_those_of_the_definition(directions: int) -> None:
    memories = torch.nn.functional.normalize(low_rank(1300, 12, 4, 0.2))
    memories[7] = memories[900]
    memories[11] = 0.1 * memories[12]
    gram = memories.double() @ memories.double().mT
    own = gram.diagonal().clone()
    expected = own - gram.fill_diagonal_(-torch.inf).amax(1)
    kept = torch.tensor([3, 7, 11, 900, 1299])
    found = ExactIndex(memories, directions).separations(kept)
    torch.testing.assert_close(found, expected[kept])
    assert found[1] == 0
    assert ExactIndex(memories[:1]).separations(torch.tensor([0])).tolist() == [torch.inf]


def test_without_numba_whole_rows_give_the_same() -> None:
    memories, queries = low_rank(1300, 12, 4, 0.2), torch.randn(9, 12)
    expected = ExactIndex(memories, 3).top(queries, 4)
    with hopfy.use_backend("reference"):
        plain = ExactIndex(memories, 3)
        check_update(plain, queries, hopfy.Tsallis(2.0), 0.3)
        assert torch.equal(plain.top(queries, 4).indices, expected.indices)


def test_compiled_selection_matches_its_reference() -> None:
    from hopfy._kernels import select
    from hopfy.search._state import State
    from hopfy.search._sweep import sweep

    memories, queries = torch.randn(1100, 6), torch.randn(30, 6)
    bounds = Plain(memories, torch.full((2,), 10.0, dtype=torch.float64))
    state = State.of(memories, 0, lifted=False)
    for rank, reach in ((1, 0.5), (3, 1.0), (80, 0.1)):
        distance = torch.full((30,), reach, dtype=torch.float64)
        found = sweep(state.rows, state.inner(queries.double(), rank, distance), bounds, 1100)
        mask = select.reference.above_floor(queries.double() @ memories.double().mT, rank, reach)
        for row in range(30):
            indices = found.indices[row, : found.counts[row]]
            assert indices.tolist() == mask[row].nonzero().flatten().tolist()


def test_sparse_weights_join_in_any_order() -> None:
    matrix = torch.randn(6, 5).clamp_min(0).double()
    places = [torch.tensor([4, 1]), torch.tensor([0, 5, 2]), torch.tensor([3])]
    parts = [(place, SparseRows.from_dense(matrix[place])) for place in places]
    joined = SparseRows.assemble(parts)
    assert torch.equal(joined.dense(), matrix)
    table = torch.randn(5, 3)
    torch.testing.assert_close(joined.matmul(table), (matrix @ table.double()).float())


def test_bad_input_gets_a_message() -> None:
    index = ExactIndex(torch.randn(4, 3))
    queries, omega = torch.randn(2, 3), hopfy.Tsallis(2.0)
    with pytest.raises(ValueError, match=r"expected memories of shape \(N, D\)"):
        ExactIndex(torch.empty(0, 3))
    with pytest.raises(TypeError, match="expected memories of a floating dtype"):
        ExactIndex(torch.ones(2, 3, dtype=torch.int64))
    with pytest.raises(TypeError, match="expected memories to be a torch"):
        ExactIndex([[1.0]])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in row 1"):
        ExactIndex(torch.tensor([[1.0], [torch.nan]]))
    with pytest.raises(ValueError, match="directions"):
        ExactIndex(torch.randn(4, 3), directions=-1)
    with pytest.raises(ValueError, match=r"expected queries of shape \(M, 3\)"):
        index.update(torch.randn(2, 4), omega)
    with pytest.raises(TypeError, match="expected queries"):
        index.update([1.0], omega)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected queries of a floating"):
        index.update(torch.ones(2, 3, dtype=torch.int64), omega)
    for beta in (0.0, -1.0, torch.nan, torch.inf):
        with pytest.raises(ValueError, match="expected beta"):
            index.update(queries, omega, beta)
    with pytest.raises(TypeError, match="expected beta"):
        index.update(queries, omega, "1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected k from 1 to the 4 memories"):
        index.top(queries, 5)
    with pytest.raises(ValueError, match="same parameters for all queries"):
        index.update(queries, hopfy.Tsallis(torch.tensor([1.5, 2.0])))
    with pytest.raises(ValueError, match="with rows added"):
        index.extended(torch.randn(3, 3))


@pytest.mark.parametrize("lifted", [False, True])
def test_a_grown_index_measures_distances_like_a_new_one(lifted: bool) -> None:
    """What a Euclidean score adds is kept for old rows and computed for new ones."""
    rows = torch.randn(3000, 5, generator=torch.Generator().manual_seed(0))
    queries = torch.randn(6, 5 - lifted, generator=torch.Generator().manual_seed(1))
    grown = ExactIndex.over(rows[:1500], 0, lifted=lifted)
    for count in (1500, 1501, 2048, 2048, 2999):
        grown = grown.extended(rows[:count])
        grown.top(queries, 3, metric="euclidean")
        bias = grown._state.derived["euclidean"]
        fresh = ExactIndex.over(rows[:count], 0, lifted=lifted)._state._euclidean_bias()
        assert torch.equal(bias.values, fresh.values)
        assert torch.equal(bias.error, fresh.error)
