"""Sequential k-subsets against enumeration with a QP solver, golden answers and its own laws."""

from __future__ import annotations

import itertools
from pathlib import Path

import cvxpy as cp
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file
from torch import Tensor

from hopfy import functional as F
from hopfy._kernels import sequential as kernel
from hopfy._warnings import ConvergenceWarning
from hopfy.structures import SequentialKSubsets


def enumerate_subsets(kept: np.ndarray, k: int) -> np.ndarray:
    allowed = np.flatnonzero(kept)
    chosen = list(itertools.combinations(allowed, k))
    subsets = np.zeros((len(chosen), len(kept)))
    for row, members in enumerate(chosen):
        subsets[row, list(members)] = 1.0
    return subsets


def judge(scores: np.ndarray, k: int, tables: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """The SparseMAP of one row: a QP over the weights of all subsets; tables (N - 1, 2, 2)."""
    subsets = enumerate_subsets(kept, k)
    states = subsets.astype(int)
    value = subsets @ np.where(kept, scores, 0.0)
    for i in range(len(scores) - 1):
        if kept[i] and kept[i + 1]:
            value = value + tables[i][states[:, i], states[:, i + 1]]
    weights = cp.Variable(len(subsets), nonneg=True)
    y = subsets.T @ weights
    size = 0.5 * (cp.sum_squares(y) + cp.sum_squares(1 - y))
    problem = cp.Problem(
        cp.Maximize((value - value.max()) @ weights - size), [cp.sum(weights) == 1]
    )
    problem.solve(
        solver=cp.CLARABEL, tol_gap_abs=1e-13, tol_gap_rel=1e-13, tol_feas=1e-13, tol_ktratio=1e-9
    )
    return subsets.T @ weights.value


def as_tables(transition: float | np.ndarray, pairs: int) -> np.ndarray:
    transition = np.asarray(transition, dtype=float)
    if transition.ndim == 3:
        return transition
    tables = np.zeros((pairs, 2, 2))
    tables[:, 1, 1] = transition
    return tables


@st.composite
def problems(draw: st.DrawFn) -> tuple[np.ndarray, int, np.ndarray | float, np.ndarray]:
    n = draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    scores = rng.normal(size=n) * draw(st.sampled_from([0.1, 1.0, 3.0]))
    if draw(st.booleans()):
        scores = np.round(scores)  # ties
    kept = rng.random(n) < draw(st.sampled_from([0.6, 1.0]))
    kept[rng.integers(n)] = True
    k = draw(st.integers(0, int(kept.sum())))
    kind = draw(st.sampled_from(["zero", "number", "negative", "edges", "tables"]))
    transition: np.ndarray | float = {
        "zero": 0.0,
        "number": float(abs(rng.normal())),
        "negative": -float(abs(rng.normal()) * 2),
        "edges": rng.normal(size=n - 1) * 2,
        "tables": rng.normal(size=(n - 1, 2, 2)),
    }[kind]
    return scores, k, transition, kept


@given(problems())
@settings(max_examples=120, deadline=None)
def test_equals_the_qp_over_all_subsets(problem: tuple) -> None:
    scores, k, transition, kept = problem
    expected = judge(scores, k, as_tables(transition, len(scores) - 1), kept)
    found = F.sequential_ksubsets(
        torch.tensor(scores),
        k,
        transition if isinstance(transition, float) else torch.tensor(transition),
        mask=torch.tensor(kept),
    )
    torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=2e-6)


def suboptimality(scores: Tensor, k: int, edges: Tensor, details: kernel.Details) -> float:
    """How much better the best subset is than the answer, to first order: 0 only at the optimum."""
    gradient = scores - 2 * details.marginals
    best = kernel.plain.best_subset(gradient, edges, k)
    reached = gradient @ details.marginals + edges @ details.pairs
    return float(gradient @ best + edges @ (best[1:] * best[:-1]) - reached)


@pytest.mark.parametrize("transition", [0.0, 0.1, 0.5, 3.0, 8.0, -0.5, -4.0])
@pytest.mark.parametrize(("n", "k"), [(20, 2), (40, 20), (128, 13)])
def test_no_subset_improves_a_long_row(n: int, k: int, transition: float) -> None:
    for _ in range(5):
        scores = torch.randn(n, dtype=torch.float64) * 2
        edges = torch.full((n - 1,), transition, dtype=torch.float64)
        details = kernel.solve_details(scores, torch.tensor(k), edges)
        assert abs(suboptimality(scores, k, edges, details)) < 1e-8
        assert details.marginals.sum().item() == pytest.approx(k)
        assert details.pairs.min() >= 0
        assert 1 <= details.subsets <= n
        assert details.gap.abs() < 1e-8


def random_rows(rows: int, n: int) -> tuple[Tensor, Tensor, Tensor]:
    scores = torch.randn(rows, n, dtype=torch.float64) * 2
    edges = torch.randn(rows, n - 1, dtype=torch.float64)
    return scores, edges, torch.randint(0, n + 1, (rows,))


def test_relaxation_active_set_and_reference_agree() -> None:
    scores, edges, k = random_rows(60, 14)
    found = kernel.solve(scores, edges, k)
    listed = kernel.solve(scores, edges, k, always_active=True)
    assert (found.size[:, 0] == 0).any()
    assert (found.size[:, 0] > 0).any()
    assert (listed.size[:, 0] > 0).all()
    torch.testing.assert_close(found.y, listed.y, rtol=0, atol=1e-9)
    torch.testing.assert_close(found.y, kernel.reference(scores, edges, k), rtol=0, atol=1e-9)
    cotangent = torch.randn_like(scores)
    gradients = kernel.vjp(found, edges, cotangent)
    torch.testing.assert_close(gradients, kernel.vjp(listed, edges, cotangent), rtol=0, atol=1e-8)
    plain = kernel.plain
    solution = plain.solve(scores, edges, k)
    torch.testing.assert_close(gradients, plain.vjp(solution, cotangent), rtol=0, atol=1e-8)
    pairs = kernel.solve_details(scores, k, edges).pairs
    torch.testing.assert_close(pairs, plain.pairs(solution), rtol=0, atol=1e-8)


def test_without_numba_the_reference_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    scores, edges, k = random_rows(6, 7)
    scores[0, 2] = -torch.inf
    k = k.clamp_max(6)
    cotangent = torch.randn_like(scores)
    with_kernels = F.sequential_ksubsets(scores, k, edges)
    details = kernel.solve_details(scores, k, edges)
    monkeypatch.setattr(kernel, "compiled", lambda _: None)
    scores.requires_grad_()
    edges.requires_grad_()
    plain = F.sequential_ksubsets(scores, k, edges)
    torch.testing.assert_close(plain.detach(), with_kernels, rtol=0, atol=1e-9)
    assert torch.autograd.grad(plain, (scores, edges), cotangent)[0].isfinite().all()
    again = kernel.solve_details(scores, k, edges)
    torch.testing.assert_close(again.pairs, details.pairs, rtol=0, atol=1e-9)


@pytest.mark.parametrize("case", ["seq_a", "seq_b", "seq_c", "seq_d", "seq_e"])
def test_golden_answers_and_gradients(golden: Path, case: str) -> None:
    entries = load_file(golden / "sparsemap.safetensors")
    want = {name.split(".")[1]: value for name, value in entries.items() if case in name}
    scores = want["scores"].requires_grad_()
    edges = want["transition"].expand(len(scores) - 1).clone().requires_grad_()
    y = F.sequential_ksubsets(scores, int(want["k"]), edges)
    torch.testing.assert_close(y, want["y"], rtol=0, atol=1e-5)
    by_scores, by_edges = torch.autograd.grad(y, (scores, edges), want["v"])
    torch.testing.assert_close(by_scores, want["vjp_scores"], rtol=0, atol=1e-5)
    torch.testing.assert_close(by_edges, want["vjp_transition"], rtol=0, atol=1e-5)


@pytest.mark.parametrize("shape", ["number", "edges", "tables", "rows", "row-tables"])
@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_gradients_pass_gradcheck(shape: str, scale: float) -> None:
    size = {
        "number": (),
        "edges": (8,),
        "tables": (8, 2, 2),
        "rows": (4, 8),
        "row-tables": (4, 8, 2, 2),
    }[shape]
    scores = (torch.randn(4, 9, dtype=torch.float64) * 2).requires_grad_()
    transition = (torch.rand(size, dtype=torch.float64) * 1.5 + 0.1) * scale
    mask = torch.ones(4, 9, dtype=torch.bool)
    mask[1, 6:] = False
    mask[2, 4] = False

    def run(s: Tensor, t: Tensor) -> Tensor:
        return F.sequential_ksubsets(s, 3, t, mask=mask)

    assert torch.autograd.gradcheck(run, (scores, transition.requires_grad_()), atol=1e-5)


def test_gradients_of_a_long_row_pass_gradcheck() -> None:
    scores = (torch.randn(1, 40, dtype=torch.float64) * 2).requires_grad_()
    edges = torch.randn(39, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda s, e: F.sequential_ksubsets(s, 7, e), (scores, edges))


@given(
    st.integers(1, 30),
    st.integers(0, 2**32 - 1),
    st.sampled_from([1e-8, 0.3, 2.0, 1e9]),
)
@settings(max_examples=50, deadline=None)
def test_without_transition_it_is_ksubsets_of_half_the_scores(
    n: int, seed: int, scale: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randn(3, n, dtype=torch.float64, generator=generator) * scale
    k = torch.randint(0, n + 1, (3,), generator=generator)
    expected = F.ksubsets(scores / 2, k)
    torch.testing.assert_close(F.sequential_ksubsets(scores, k), expected, rtol=0, atol=1e-6)
    listed = kernel.solve(scores, torch.zeros(1, n - 1, dtype=torch.float64), k, True)
    torch.testing.assert_close(listed.y, expected, rtol=0, atol=1e-6)


def test_edge_cases() -> None:
    scores = torch.randn(3, 5)
    assert (F.sequential_ksubsets(scores, 0, 0.5) == 0).all()
    assert (F.sequential_ksubsets(scores, 5, 0.5) == 1).all()
    assert F.sequential_ksubsets(torch.tensor([0.3]), 1, 2.0).tolist() == [1.0]
    assert F.sequential_ksubsets(torch.tensor([0.3]), 0, 2.0).tolist() == [0.0]
    assert F.sequential_ksubsets(torch.empty(0, 5), 2).shape == (0, 5)
    assert F.sequential_ksubsets(torch.empty(4, 0), 0).shape == (4, 0)


def test_a_fully_masked_row_is_zeros_forward_and_backward() -> None:
    scores = torch.randn(2, 5, requires_grad=True)
    transition = torch.tensor(0.5, requires_grad=True)
    mask = torch.tensor([[True] * 5, [False] * 5])
    y = F.sequential_ksubsets(scores, 2, transition, mask=mask)
    assert (y[1] == 0).all()
    by_scores, by_transition = torch.autograd.grad(y[1].sum(), (scores, transition))
    assert (by_scores == 0).all()
    assert by_transition == 0


@pytest.mark.parametrize("tables", [False, True])
def test_padding_changes_nothing(tables: bool) -> None:
    scores = torch.randn(4, 12, dtype=torch.float64) * 2
    transition = torch.randn(11, 2, 2, dtype=torch.float64) if tables else torch.randn(11).double()
    lengths = [12, 9, 5, 3]
    mask = torch.arange(12) < torch.tensor(lengths)[:, None]
    padded = F.sequential_ksubsets(scores, 3, transition, mask=mask)
    for row, length in enumerate(lengths):
        alone = F.sequential_ksubsets(scores[row, :length], 3, transition[: length - 1])
        torch.testing.assert_close(padded[row, :length], alone, rtol=0, atol=1e-10)
        assert (padded[row, length:] == 0).all()
    infinite = scores.masked_fill(~mask, -torch.inf)
    torch.testing.assert_close(F.sequential_ksubsets(infinite, 3, transition), padded)


def test_batched_equals_looped_with_k_and_transition_per_row() -> None:
    scores = torch.randn(2, 3, 10, dtype=torch.float64) * 2
    k = torch.tensor([[1, 2, 3], [4, 5, 6]])
    for transition in (
        torch.randn(2, 3, 1).double(),
        torch.randn(2, 3, 9).double(),
        torch.randn(2, 3, 9, 2, 2).double(),
    ):
        together = F.sequential_ksubsets(scores, k, transition)
        for i, j in itertools.product(range(2), range(3)):
            alone = F.sequential_ksubsets(scores[i, j], int(k[i, j]), transition[i, j])
            torch.testing.assert_close(together[i, j], alone, rtol=0, atol=1e-12)


def test_threads_do_not_change_the_answer() -> None:
    scores = torch.randn(200, 60) * 2
    before = torch.get_num_threads()
    answers = []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            leaf = scores.clone().requires_grad_()
            y = F.sequential_ksubsets(leaf, 6, 1.5)
            y.square().sum().backward()
            answers.append((y.detach(), leaf.grad))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(answers[0][0], answers[1][0])
    assert torch.equal(answers[0][1], answers[1][1])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_lower_precisions(dtype: torch.dtype) -> None:
    scores = (torch.randn(5, 16) * 2).to(dtype).requires_grad_()
    y = F.sequential_ksubsets(scores, 4, 0.5)
    exact = F.sequential_ksubsets(scores.detach().double(), 4, 0.5)
    assert y.dtype == dtype
    torch.testing.assert_close(y.detach(), exact.to(dtype))
    y.sum().backward()
    assert scores.grad is not None
    assert scores.grad.dtype == dtype


@pytest.mark.parametrize("transition", [0.0, 0.5, 2.0, -1.0])
def test_ties_neither_crash_nor_leave_the_polytope(transition: float) -> None:
    for scores in (torch.zeros(3, 12), torch.ones(3, 12).cumsum(0), torch.eye(12)[:3] * 2):
        for k in (1, 3, 6, 11):
            leaf = scores.double().requires_grad_()
            y = F.sequential_ksubsets(leaf, k, transition)
            assert y.min() >= 0
            assert y.max() <= 1
            torch.testing.assert_close(y.sum(-1), torch.full((3,), float(k)).double())
            assert torch.autograd.grad(y.square().sum(), leaf)[0].abs().max() < 100


@pytest.mark.parametrize("transition", [0.5, 5.0, -3.0])
def test_huge_scores_give_the_best_subset(transition: float) -> None:
    scores = torch.randn(20, 30, dtype=torch.float64) * 1e9
    y = F.sequential_ksubsets(scores, 7, transition)
    expected = torch.zeros_like(scores).scatter(-1, scores.topk(7).indices, 1.0)
    assert torch.equal(y, expected)


def test_tiny_scores_are_told_apart() -> None:
    scores = torch.randn(20, dtype=torch.float64) * 1e-8
    y = F.sequential_ksubsets(scores, 5, 1e-8)
    expected = 0.25 + (scores - scores.mean()) / 2
    assert (y - expected).abs().max() < 1e-8
    assert (y - 0.25).abs().max() > 1e-9


def test_nan_and_infinity_spoil_their_own_row_only() -> None:
    clean = torch.randn(4, 6)
    scores = clean.clone()
    scores[1, 2] = torch.nan
    scores[2, 3] = torch.inf
    y = F.sequential_ksubsets(scores, 2, 0.5)
    assert y[1:3].isnan().all()
    torch.testing.assert_close(y[[0, 3]], F.sequential_ksubsets(clean, 2, 0.5)[[0, 3]])


def test_second_derivatives_in_the_scores() -> None:
    scores = (torch.randn(3, 9, dtype=torch.float64) * 2).requires_grad_()
    assert torch.autograd.gradgradcheck(lambda s: F.sequential_ksubsets(s, 3, 0.5), (scores,))


@pytest.mark.parametrize("scale", [1.0, -1.0])
def test_second_derivatives_and_forward_mode_in_scores_and_transition(scale: float) -> None:
    scores = (torch.randn(3, 9, dtype=torch.float64) * 2).requires_grad_()
    for shape in ((), (8,), (3, 8)):
        edges = ((torch.rand(shape, dtype=torch.float64) + 0.1) * scale).requires_grad_()

        def run(s: Tensor, e: Tensor) -> Tensor:
            return F.sequential_ksubsets(s, 3, e)

        assert torch.autograd.gradgradcheck(run, (scores, edges))
        assert torch.autograd.gradcheck(run, (scores, edges), check_forward_ad=True)


@pytest.mark.parametrize(
    "layout", ["plain", "transposed", "one row", "expanded edges", "shared edges", "batch"]
)
def test_operators_keep_their_promises(layout: str) -> None:
    """Schemas, strides of the fake kernels, autograd and dynamic shapes, as torch checks them."""
    rows = 1 if layout == "one row" else 4
    unary, tangent = torch.randn(2, rows, 6, dtype=torch.float64)
    if layout == "transposed":
        unary, tangent = (part.mT.contiguous().mT for part in (unary, tangent))
    if layout == "one row":
        unary = torch.randn(6, 1, dtype=torch.float64).mT
    edges = torch.rand(rows, 5, dtype=torch.float64) + 0.1
    if layout == "expanded edges":
        edges = edges[:1].expand(rows, 5)
    if layout == "shared edges":
        edges = edges[0]
    budgets = torch.full((rows, 1), 2)
    if layout == "batch":
        unary, tangent = torch.randn(2, 3, rows, 6, dtype=torch.float64)
        budgets = torch.tensor(2.0)
    inputs = unary.requires_grad_(), edges.requires_grad_(), budgets
    tangent.requires_grad_()
    edge_tangent = torch.rand(edges.shape, dtype=torch.float64).requires_grad_()
    operators = torch.ops.hopfy
    torch.library.opcheck(operators.sequential_ksubsets.default, inputs)
    torch.library.opcheck(operators.sequential_ksubsets_vjp.default, (*inputs, tangent))
    jvp_inputs = (*inputs, tangent, edge_tangent)
    torch.library.opcheck(operators.sequential_ksubsets_jvp.default, jvp_inputs)


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["transposed", "other dimension"])
def test_compiles_to_code_for_any_layout(layout: str) -> None:
    edges = torch.rand(7, requires_grad=True)
    if layout == "transposed":
        scores = torch.randn(8, 3).mT.requires_grad_()
        structure, dim = SequentialKSubsets, -1
    else:
        scores, structure, dim = torch.randn(8, 3, requires_grad=True), SequentialKSubsets, 0

    def run(s: Tensor, e: Tensor) -> Tensor:
        return F.sparsemap(s, structure(3, e), dim=dim).square().sum()

    expected = torch.autograd.grad(run(scores, edges), (scores, edges))
    found = torch.autograd.grad(torch.compile(run)(scores, edges), (scores, edges))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (([1.0], 1), TypeError, "expected scores to be a torch.Tensor, got list"),
        ((torch.zeros(4), 1.5), ValueError, "whole number from 0 to the row's size 4, got 1.5"),
        ((torch.zeros(4), 5), ValueError, "whole number from 0 to the row's size 4, got 5"),
        ((torch.zeros(4), -1), ValueError, "whole number"),
        ((torch.zeros(2, 4), torch.tensor([1.0, 2.5])), ValueError, "got 2.5 in it"),
        ((torch.zeros(4), 2, "near"), TypeError, "transition to be a number or a tensor"),
        ((torch.zeros(4), 2, torch.zeros(5)), ValueError, r"per pair \(..., N - 1\)"),
        ((torch.zeros(4), 2, torch.zeros(3, 3, 2)), ValueError, r"tables \(..., N - 1, 2, 2\)"),
        ((torch.zeros(4), 2, torch.tensor([1, 2, 3])), TypeError, "floating dtype"),
        (
            (torch.tensor([[0.0, 1.0], [0.0, -torch.inf]]), 2),
            ValueError,
            "got k = 2 with 1 of them in row 1",
        ),
    ],
)
def test_bad_input_gets_a_message(arguments: tuple, error: type, message: str) -> None:
    with pytest.raises(error, match=message):
        F.sequential_ksubsets(*arguments)


def test_a_wide_gap_is_announced() -> None:
    scores = torch.zeros(2, 3, dtype=torch.float64)
    solution = kernel._blank(2, 3)._replace(
        y=torch.ones(2, 3, dtype=torch.float64), gap=torch.tensor([0.0, 0.5]).double()
    )
    with pytest.warns(ConvergenceWarning, match=r"1 of 2 rows.* row 1, .*gap of 5\.0e-01"):
        kernel._warn_of_gaps(scores, solution)


def test_compiles_into_one_graph() -> None:
    scores = torch.randn(3, 8, dtype=torch.float64, requires_grad=True)
    edges = torch.rand(7, dtype=torch.float64, requires_grad=True)

    def run(s: Tensor, e: Tensor) -> Tensor:
        return F.sequential_ksubsets(s, 3, e).square().sum()

    expected = torch.autograd.grad(run(scores, edges), (scores, edges))
    graph = torch.compile(run, fullgraph=True, backend="aot_eager")
    found = torch.autograd.grad(graph(scores, edges), (scores, edges))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_vmap_equals_the_batch() -> None:
    scores = torch.randn(4, 3, 8, dtype=torch.float64)
    edges = torch.rand(4, 7, dtype=torch.float64)
    mapped = torch.func.vmap(lambda s, e: F.sequential_ksubsets(s, 3, e))(scores, edges)
    expected = F.sequential_ksubsets(scores, 3, edges[:, None])
    torch.testing.assert_close(mapped, expected)
    shared = torch.func.vmap(lambda s: F.sequential_ksubsets(s, 3, 0.5))(scores)
    torch.testing.assert_close(shared, F.sequential_ksubsets(scores, 3, 0.5))
    gradients = torch.func.vmap(torch.func.grad(lambda s: F.sequential_ksubsets(s, 3, 0.5)[0, 0]))
    leaf = scores.clone().requires_grad_()
    F.sequential_ksubsets(leaf, 3, 0.5)[:, 0, 0].sum().backward()
    torch.testing.assert_close(gradients(scores), leaf.grad)


VMAPS = {
    "both": ((0, 0), (4, 3, 8), (4, 7)),
    "other axes": ((1, 1), (3, 4, 8), (7, 4)),
    "scores": ((0, None), (4, 3, 8), (3, 7)),
    "scores, a number": ((0, None), (4, 3, 8), ()),
    "edges": ((None, 0), (3, 8), (4, 7)),
    "edges of every row": ((None, 0), (3, 8), (4, 3, 7)),
    "one row": ((0, 0), (4, 8), (4, 1)),
}


@pytest.mark.parametrize("case", VMAPS)
def test_transforms_agree_with_autograd(case: str) -> None:
    """Values, vmap around grad, grad around vmap, Jacobians both ways and the Hessian."""
    in_dims, *shapes = VMAPS[case]
    scores, edges = (torch.randn(shape, dtype=torch.float64).requires_grad_() for shape in shapes)

    def run(s: Tensor, e: Tensor) -> Tensor:
        return F.sequential_ksubsets(s, 3, e)

    def loss(s: Tensor, e: Tensor) -> Tensor:
        return run(s, e).square().sum()

    def one(i: int) -> tuple[Tensor, Tensor]:
        inputs = zip((scores, edges), in_dims, strict=True)
        return tuple(part if dim is None else part.select(dim, i) for part, dim in inputs)

    vmap, func = torch.func.vmap, torch.func
    looped = torch.stack([run(*one(i)) for i in range(4)])
    torch.testing.assert_close(vmap(run, in_dims)(scores, edges), looped)
    within = vmap(func.grad(loss, argnums=(0, 1)), in_dims)(scores, edges)
    alone = [torch.autograd.grad(loss(*own), own) for own in map(one, range(4))]
    torch.testing.assert_close(within, tuple(map(torch.stack, zip(*alone, strict=True))))
    around = func.grad(lambda s, e: vmap(loss, in_dims)(s, e).sum(), argnums=(0, 1))(scores, edges)
    whole = torch.autograd.grad(looped.square().sum(), (scores, edges))
    torch.testing.assert_close(around, whole)
    forward = func.jacfwd(run, argnums=(0, 1))(*one(1))
    torch.testing.assert_close(forward, func.jacrev(run, argnums=(0, 1))(*one(1)))
    torch.testing.assert_close(forward, torch.autograd.functional.jacobian(run, one(1)))
    second = torch.autograd.functional.hessian(loss, one(1))
    torch.testing.assert_close(func.hessian(loss, argnums=(0, 1))(*one(1)), second)


def test_the_scores_may_change_after_the_call() -> None:
    """As for every other map: nothing that the backward pass needs is the caller's memory."""
    leaf, edges = torch.randn(3, 8, requires_grad=True), torch.rand(7, requires_grad=True)
    expected = torch.autograd.grad(F.sequential_ksubsets(leaf * 1, 3, edges)[:, 0].sum(), leaf)
    scores = leaf * 1
    y = F.sequential_ksubsets(scores, 3, edges)
    scores.zero_()
    torch.testing.assert_close(torch.autograd.grad(y[:, 0].sum(), leaf), expected)


def test_tensors_beside_any_dimension() -> None:
    """k as in every other map; a transition refers to the scores with the dimension moved last."""
    scores = torch.randn(8, 3, 2, dtype=torch.float64)
    k, edges = torch.tensor([[1, 2], [3, 4], [0, 8]]), torch.randn(3, 2, 7, dtype=torch.float64)
    moved = F.sequential_ksubsets(scores.movedim(0, -1), k, edges).movedim(-1, 0)
    for budgets in (k, k[None]):
        found = F.sequential_ksubsets(scores, budgets, edges, dim=0)
        torch.testing.assert_close(found, moved)


@pytest.mark.parametrize("dim", [0, 1, -2])
def test_any_dimension(dim: int) -> None:
    scores = torch.randn(5, 7, 6, dtype=torch.float64, requires_grad=True)
    mask = torch.rand(5, 7, 6) > 0.2
    mask.movedim(dim, -1)[..., :3] = True  # enough entries in every row
    ours = F.sequential_ksubsets(scores, 2, 0.4, dim=dim, mask=mask)
    moved = F.sequential_ksubsets(scores.movedim(dim, -1), 2, 0.4, mask=mask.movedim(dim, -1))
    assert torch.equal(ours, moved.movedim(-1, dim))
    ours.square().sum().backward()
    assert scores.grad is not None
