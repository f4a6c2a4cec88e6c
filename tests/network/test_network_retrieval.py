"""The dynamics: what is found, how it is named, and what is proven."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy.network import Kind, Status
from hopfy.network._step import DenseStep, Step
from hopfy.search import SparseRows

SPARSE = [
    "1.3-entmax",
    "1.5-entmax",
    "sparsemax",
    "3-entmax",
    "2-normmax",
    "5-normmax",
    "2-subsets",
]


def _sphere(n: int, d: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator)
    return x / x.norm(dim=-1, keepdim=True)


# ---------------------------------------------------------------------- what is found


@pytest.mark.parametrize("name", ["softmax", *SPARSE])
def test_one_update_is_equation_9(name: str) -> None:
    memories, queries = _sphere(9, 4), _sphere(5, 4, 1)
    net = hopfy.HopfieldNetwork(memories, name, 2.5)
    weights = hopfy.omega_from(name)(2.5 * queries @ memories.T)
    assert torch.allclose(net.weights(queries), weights, atol=1e-6)
    assert torch.allclose(net.update(queries), weights @ memories, atol=1e-6)
    assert net.update(queries[0]).shape == (4,)
    assert torch.allclose(net.update(queries[0]), net.update(queries)[0], atol=1e-6)


@pytest.mark.parametrize("name", ["softmax", *SPARSE])
def test_retrieval_ends_where_plain_iteration_ends(name: str) -> None:
    memories, queries = _sphere(20, 6).double(), 0.7 * _sphere(30, 6, 1).double()
    net = hopfy.HopfieldNetwork(memories, name, 12.0)
    found = net.retrieve(queries, max_steps=150)
    state = queries
    for _ in range(150):
        state = net.omega(12.0 * state @ memories.T) @ memories
    assert bool(found.converged.all())
    assert torch.allclose(found.state, state, atol=1e-6)
    assert torch.allclose(found.weights @ memories, found.state, atol=1e-12)


@pytest.mark.parametrize("name", SPARSE[:-1])
def test_perturbed_patterns_come_back_bit_for_bit(name: str) -> None:
    memories = _sphere(50, 32)
    net = hopfy.HopfieldNetwork(memories, name, 40.0)
    queries = memories + 0.02 * torch.randn(50, 32)
    found = net.retrieve(queries)
    assert torch.equal(found.state, memories)
    assert torch.equal(found.pattern, torch.arange(50))
    assert found.status is Status.EXACT
    assert set(found.kind) == {Kind.PATTERN}
    assert bool((found.steps == 1).all())
    assert torch.equal(found.size, torch.ones(50, dtype=torch.int64))
    assert torch.equal(found.weights, torch.eye(50))


def test_associations_of_k_patterns_are_recalled_and_proven() -> None:
    memories = torch.eye(8) * 3
    net = hopfy.HopfieldNetwork(memories, "3-subsets", 1.0)
    query = memories[[1, 4, 6]].sum(0) + 0.1 * torch.randn(8)
    found = net.retrieve(query)
    assert found.kind == [Kind.ASSOCIATION]
    assert torch.equal(found.state, memories[[1, 4, 6]].sum(0))
    assert bool(found.certified)
    assert int(found.pattern) == -1
    assert found.describe(0) == "the sum of patterns [1, 4, 6] exactly, after 1 step, certified"


def test_metastable_states_count_their_patterns() -> None:
    memories = torch.tensor([[1.0, 0.1], [1.0, -0.1], [-1.0, 0.0]])
    found = hopfy.HopfieldNetwork(memories, "sparsemax", 2.0).retrieve(torch.tensor([[1.0, 0.0]]))
    assert found.kind == [Kind.METASTABLE]
    assert int(found.size) == 2
    assert found.support is not None
    assert found.support.row(0)[0].tolist() == [0, 1]
    assert found.status is Status.SETTLED
    assert not bool(found.certified)
    assert "mixture of 2 patterns" in found.describe(0)


def test_softmax_is_never_exact_and_counts_weights_above_a_hundredth() -> None:
    memories = torch.eye(3)
    found = hopfy.HopfieldNetwork(memories, "softmax", 1000.0).retrieve(memories)
    assert set(found.kind) == {Kind.METASTABLE}
    assert found.size.tolist() == [1, 1, 1]
    assert not found.certified.any()
    assert found.support is None
    many = hopfy.HopfieldNetwork(torch.eye(200), "softmax", 0.1).retrieve(torch.zeros(1, 200))
    assert many.size.tolist() == [0]
    assert many.weights.shape == (1, 200)


def test_too_few_steps_are_reported() -> None:
    memories = _sphere(20, 3)
    found = hopfy.HopfieldNetwork(memories, "softmax", 5.0).retrieve(
        0.3 * _sphere(10, 3, 2), max_steps=1
    )
    assert found.status is Status.MAX_STEPS
    assert Kind.MOVING in found.kind
    assert "not converged" in repr(found)
    assert found.steps.tolist() == [1] * 10


def test_a_step_that_lands_on_a_pattern_it_will_leave_is_not_called_a_recall() -> None:
    # One step from far away gives exactly pattern 0 (Prop. 2), which is no fixed point.
    memories = torch.tensor([[1.0], [0.9]])
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 1.0)
    assert net.update(torch.tensor([[100.0]])).item() == 1.0
    found = net.retrieve(torch.tensor([[100.0]]), max_steps=1)
    assert found.kind == [Kind.MOVING]
    assert int(found.pattern) == -1
    settled = net.retrieve(torch.tensor([[100.0]]))
    assert settled.kind == [Kind.METASTABLE]
    assert not bool(settled.certified)


# ---------------------------------------------------------------------- the loop


class _Counting(DenseStep):
    def __init__(self, memories: Tensor, omega: hopfy.Omega) -> None:
        super().__init__(memories, omega)
        self.rows: list[int] = []

    def step(self, queries: Tensor, beta: float | Tensor) -> Step:
        self.rows.append(queries.shape[0])
        return super().step(queries, beta)


def test_settled_queries_leave_and_proven_ones_cost_no_second_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memories = _sphere(30, 16)
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 30.0)
    counting = _Counting(net.memories, net.omega)
    monkeypatch.setattr(net, "_choice", lambda *_: counting)
    net.retrieve(memories[:7])
    assert counting.rows == [7]
    counting.rows.clear()
    mixed = torch.cat((memories[:7], (memories[7:9] + memories[9:11]) / 2))
    found = net.retrieve(mixed)
    assert counting.rows[0] == 9
    assert all(later <= 2 for later in counting.rows[1:])
    assert found.steps[:7].tolist() == [1] * 7


def test_rows_do_not_depend_on_their_company() -> None:
    memories, queries = _sphere(40, 5).double(), 0.5 * _sphere(10, 5, 3).double()
    net = hopfy.HopfieldNetwork(memories, "1.5-entmax", 12.0)
    together = net.retrieve(queries)
    for row in range(10):
        alone = net.retrieve(queries[row])
        assert torch.allclose(alone.state, together.state[row], atol=1e-12)
        assert int(alone.steps) == int(together.steps[row])
        assert together.support is not None
        assert alone.support is not None
        assert torch.equal(alone.support.indices, together.support.row(row)[0])
    again = net.retrieve(queries)
    assert torch.equal(again.state, together.state)


def test_blocks_of_queries_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    memories, queries = _sphere(11, 5).double(), 0.5 * _sphere(25, 5, 3).double()
    for name in ("softmax", "1.5-entmax"):
        net = hopfy.HopfieldNetwork(memories, name, 15.0)
        whole = net.retrieve(queries, max_steps=25)
        with monkeypatch.context() as patch:
            patch.setattr("hopfy.network._step._BLOCK", 40)
            patch.setattr("hopfy.network._network._BLOCK", 40)
            patch.setattr("hopfy.network._energy._BLOCK", 12)
            parts = net.retrieve(queries, max_steps=25, trace=True)
        assert torch.allclose(parts.state, whole.state, atol=1e-12)
        assert torch.equal(parts.steps, whole.steps)
        assert parts.energies is not None
        assert torch.allclose(parts.energies[-1], net.energy(parts.state), rtol=1e-12)


def test_a_batch_of_networks_is_a_loop_over_networks() -> None:
    torch.manual_seed(1)
    memories, queries = torch.randn(2, 3, 8, 5), torch.randn(2, 3, 4, 5)
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 1.0)
    found = net.retrieve(queries, trace=True)
    assert found.state.shape == queries.shape
    assert found.weights.shape == (2, 3, 4, 8)
    for i in range(2):
        for j in range(3):
            one = hopfy.HopfieldNetwork(memories[i, j], "sparsemax", 1.0).retrieve(queries[i, j])
            assert torch.allclose(found.state[i, j], one.state, atol=1e-6)
            assert torch.equal(found.steps[i, j], one.steps)
            assert torch.equal(found.certified[i, j], one.certified)
            assert torch.equal(found.pattern[i, j], one.pattern)


def test_beta_and_alpha_may_differ_from_query_to_query() -> None:
    memories, queries = _sphere(12, 5).double(), 0.5 * _sphere(4, 5, 3).double()
    beta = torch.tensor([1.0, 3.0, 10.0, 30.0], dtype=torch.float64)
    found = hopfy.HopfieldNetwork(memories, "1.5-entmax", beta).retrieve(queries)
    alpha = torch.tensor([1.2, 1.5, 2.0, 3.0], dtype=torch.float64)
    mixed = hopfy.HopfieldNetwork(memories, hopfy.Tsallis(alpha), 8.0).retrieve(queries)
    for row in range(4):
        one = hopfy.HopfieldNetwork(memories, "1.5-entmax", float(beta[row])).retrieve(queries[row])
        assert torch.allclose(found.state[row], one.state, atol=1e-10)
        assert bool(found.certified[row]) == bool(one.certified)
        omega = hopfy.Tsallis(float(alpha[row]))
        other = hopfy.HopfieldNetwork(memories, omega, 8.0).retrieve(queries[row])
        assert torch.allclose(mixed.state[row], other.state, atol=1e-10)


def test_values_are_read_out_with_the_weights_of_the_state() -> None:
    memories = _sphere(6, 12)
    values = torch.randn(6, 2)
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 30.0, values=values)
    found = net.retrieve(memories + 0.01)
    assert found.readout is not None
    assert torch.equal(found.readout, values)  # exact recall reads out exactly
    soft = hopfy.HopfieldNetwork(memories, "softmax", 3.0, values=values).retrieve(memories)
    assert soft.readout is not None
    assert torch.allclose(soft.readout, soft.weights @ values, atol=1e-6)


# ---------------------------------------------------------------------- corners


def test_one_memory_recalls_itself_from_anywhere() -> None:
    for name in ("softmax", "sparsemax", "5-normmax", "1-subsets"):
        net = hopfy.HopfieldNetwork(torch.tensor([[1.0, 2.0]]), name)
        found = net.retrieve(torch.tensor([[0.0, 0.0], [-5.0, 1e6]]))
        assert torch.equal(found.state, torch.tensor([[1.0, 2.0], [1.0, 2.0]]))
        assert net.energy(found.state).tolist() == [0.0, 0.0]


def test_a_zero_query_goes_to_the_mean() -> None:
    memories = _sphere(5, 3)
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 1.0)
    assert torch.allclose(net.update(torch.zeros(3)), memories.mean(0), atol=1e-6)


def test_zero_memories_are_a_fixed_point() -> None:
    found = hopfy.HopfieldNetwork(torch.zeros(3, 2)).retrieve(torch.ones(1, 2))
    assert torch.equal(found.state, torch.zeros(1, 2))
    assert bool(found.converged.all())


def test_duplicates_are_found_but_never_certified() -> None:
    memories = torch.cat((_sphere(4, 16), _sphere(1, 16)))
    found = hopfy.HopfieldNetwork(memories, "sparsemax", 100.0).retrieve(memories)
    assert found.certified.tolist() == [False, True, True, True, False]
    assert found.size.tolist() == [2, 1, 1, 1, 2]
    assert torch.allclose(found.state, memories)


def test_a_broken_query_spoils_only_itself() -> None:
    memories = _sphere(4, 16)
    queries = memories.clone()
    queries[1, 3] = float("nan")
    queries[2, 0] = float("inf")
    found = hopfy.HopfieldNetwork(memories, "sparsemax", 30.0).retrieve(queries)
    assert found.status is Status.NOT_FINITE
    assert found.converged.tolist() == [True, False, False, True]
    assert found.state[1].isnan().all()
    assert torch.equal(found.state[[0, 3]], memories[[0, 3]])
    assert found.kind[1] is Kind.MOVING


def test_no_queries_give_an_empty_result() -> None:
    found = hopfy.HopfieldNetwork(_sphere(4, 3)).retrieve(torch.zeros(0, 3))
    assert found.state.shape == (0, 3)
    assert found.kind == []
    assert "0 queries" in repr(found)


def test_half_precision_memories_work() -> None:
    memories = _sphere(6, 16).to(torch.bfloat16)
    found = hopfy.HopfieldNetwork(memories, "sparsemax", 30.0).retrieve(memories)
    assert torch.equal(found.state, memories)
    assert bool(found.certified.all())


def test_the_result_is_frozen() -> None:
    found = hopfy.HopfieldNetwork(_sphere(4, 3)).retrieve(torch.zeros(1, 3))
    with pytest.raises(dataclasses.FrozenInstanceError):
        found.steps = torch.zeros(1)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"memories": [[1.0]]}, TypeError, "torch.Tensor"),
        ({"memories": torch.ones(3)}, ValueError, r"shape \(\.\.\., N, D\)"),
        ({"memories": torch.ones(0, 3)}, ValueError, "at least one pattern"),
        ({"memories": torch.tensor([[float("nan")]])}, ValueError, "finite memories"),
        ({"memories": torch.ones(2, 3), "beta": 0.0}, ValueError, "beta > 0"),
        ({"memories": torch.ones(2, 3), "beta": -1.0}, ValueError, "beta > 0"),
        ({"memories": torch.ones(2, 3), "beta": float("inf")}, ValueError, "beta > 0"),
        ({"memories": torch.ones(2, 3), "beta": "warm"}, TypeError, "beta"),
        ({"memories": torch.ones(2, 3), "omega": "argmax"}, ValueError, "a name such as"),
        (
            {"memories": torch.ones(2, 3), "values": torch.ones(3, 1)},
            ValueError,
            "one row of values",
        ),
    ],
)
def test_bad_networks_are_one_message(
    arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        hopfy.HopfieldNetwork(**arguments)  # type: ignore[arg-type]


def test_bad_queries_are_one_message() -> None:
    net = hopfy.HopfieldNetwork(torch.ones(2, 3))
    with pytest.raises(ValueError, match=r"expected queries of shape \(\.\.\., M, 3\)"):
        net.update(torch.ones(2, 4))
    with pytest.raises(TypeError, match="convert with"):
        net.update(torch.ones(2, 3, dtype=torch.float64))
    with pytest.raises(ValueError, match="max_steps"):
        net.retrieve(torch.ones(2, 3), max_steps=0)
    with pytest.raises(ValueError, match="tol"):
        net.retrieve(torch.ones(2, 3), tol=-1.0)
    with pytest.raises(ValueError, match="gradient"):
        net.retrieve(torch.ones(2, 3), gradient="none")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="batched memories"):
        hopfy.HopfieldNetwork(torch.ones(4, 2, 3)).update(torch.ones(5, 2, 3))
    with pytest.raises(ValueError, match="beta to broadcast"):
        hopfy.HopfieldNetwork(torch.ones(2, 3), beta=torch.ones(7)).update(torch.ones(2, 3))


# ---------------------------------------------------------------------- certificates


def _is_fixed_exactly(memories: Tensor, members: list[int], margin: Fraction, beta: float) -> bool:
    """The condition of Props. 2 and 5 in rational arithmetic, pair by pair."""
    rows = [[Fraction(v) for v in row] for row in memories.double().tolist()]
    anchor = [sum(rows[s][d] for s in members) for d in range(len(rows[0]))]
    scores = [sum(a * b for a, b in zip(anchor, row, strict=True)) for row in rows]
    outside = [scores[j] for j in range(len(rows)) if j not in members]
    if not outside:
        return True
    return (min(scores[s] for s in members) - max(outside)) * Fraction(beta) >= margin


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    n=st.integers(1, 8),
    d=st.integers(1, 4),
    grid=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16]),
    k=st.sampled_from([1, 2, 3]),
    nudge=st.sampled_from([1.0, 1 - 2**-30, 1 + 2**-30, 1 - 2**-52, 1 + 2**-52, 0.3, 3.0]),
    scale=st.sampled_from([1.0, 1e-8, 1e8, 3.3]),
)
def test_a_certificate_is_the_truth_in_rational_arithmetic(
    seed: int, n: int, d: int, grid: bool, dtype: torch.dtype, k: int, nudge: float, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    memories = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if grid:  # ties, duplicates and equality at the margin
        memories = memories.round()
    memories = (memories * scale).to(dtype)
    k = min(k, n)
    members = torch.stack([torch.randperm(n, generator=generator)[:k] for _ in range(4)])
    omega = hopfy.SparseMAP(hopfy.structures.KSubsets(k))
    anchor = memories[members[0]].double().sum(0)
    scores = memories.double() @ anchor
    rest = [j for j in range(n) if j not in members[0].tolist()]
    gap = float(scores[members[0]].min() - scores[rest].max()) if rest else 1.0
    beta = nudge / gap if gap > 0 else 1.0  # the margin is met almost, exactly, or by an ulp
    proven = hopfy.theory.proves_fixed_point(memories, members, omega, beta)
    for row in range(4):
        truth = _is_fixed_exactly(memories, members[row].tolist(), Fraction(1), beta)
        assert bool(proven[row]) == truth


def test_certificates_survive_reduced_matmul_precision() -> None:
    torch.manual_seed(0)
    memories = torch.randn(30, 64)
    members = torch.arange(30).unsqueeze(1)
    expected = hopfy.theory.proves_fixed_point(memories, members, hopfy.Tsallis(2.0), 0.03)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        found = hopfy.theory.proves_fixed_point(memories, members, hopfy.Tsallis(2.0), 0.03)
    finally:
        torch.set_float32_matmul_precision(before)
    assert torch.equal(found, expected)
    assert expected.any()
    assert not expected.all()


def test_margins_are_exact_rationals() -> None:
    margin = hopfy.theory.exact_margin
    assert margin(hopfy.Tsallis(1.5)) == 2
    assert margin(hopfy.Tsallis(1.1)) == 1 / (Fraction(1.1) - 1)
    assert margin(hopfy.Norm(7.0)) == 1
    assert margin(hopfy.Shannon()) is None
    assert margin(hopfy.Tsallis(1.0)) is None
    assert margin(hopfy.Tsallis(float("inf"))) is None
    assert margin(hopfy.Tsallis(torch.tensor([1.5, 2.0]))) is None
    assert margin(hopfy.Tsallis(torch.tensor(1.5))) == 2
    assert margin(hopfy.Tsallis(1.5), 2) is None
    assert margin(hopfy.omega_from("3-subsets"), 3) == 1
    assert margin(hopfy.omega_from("3-subsets"), 2) is None


def test_an_absurd_beta_proves_nothing() -> None:
    proven = hopfy.theory.proves_fixed_point(
        torch.eye(3) * 1e-150, torch.tensor([[0]]), hopfy.Tsallis(2.0), 5e-324
    )
    assert proven.tolist() == [False]


# ---------------------------------------------------------------------- compressed rows


def test_sparse_rows_are_the_dense_matrix() -> None:
    torch.manual_seed(0)
    dense = torch.randn(6, 5) * (torch.rand(6, 5) > 0.6)
    dense[2] = 0
    rows = SparseRows.from_dense(dense)
    table = torch.randn(5, 3)
    assert torch.equal(rows.dense(), dense)
    assert torch.equal(rows.counts, (dense != 0).sum(-1))
    assert torch.allclose(rows.matmul(table), dense @ table, atol=1e-6)
    order = torch.tensor([3, 2, 2, 0])
    assert torch.equal(rows.take(order).dense(), dense[order])
    parts = [(torch.tensor([4, 1]), rows.take(torch.tensor([4, 1])))]
    parts.append((torch.tensor([0, 5, 3, 2]), rows.take(torch.tensor([0, 5, 3, 2]))))
    assert torch.equal(SparseRows.assemble(parts).dense(), dense)
    assert torch.equal(rows.to_sparse().to_dense(), dense)
