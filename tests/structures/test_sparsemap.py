"""The active-set solver itself: its record, its starts, its limits and what it says about bad input."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import ConvergenceWarning, SparseMAP
from hopfy import functional as F
from hopfy._kernels import active_set
from hopfy.structures import (
    AtMostK,
    Chain,
    KSubsets,
    Matching,
    Oracle,
    Rows,
    SequentialKSubsets,
    Structure,
    Tree,
)
from judges import structures as judge


def _listed(vertices: Tensor, factors: Tensor | None = None) -> Oracle:
    """Any list of structures as an oracle."""
    if factors is None:
        none = torch.zeros(len(vertices), 0)
        return Oracle(lambda s: vertices[judge.values(vertices, none, s, s[:0]).argmax()])

    def best(scores: Tensor, factor_scores: Tensor) -> tuple[Tensor, Tensor]:
        at = judge.values(vertices, factors, scores, factor_scores).argmax()
        return vertices[at], factors[at]

    return Oracle(best, torch.zeros(factors.shape[1]))


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 12),
    n=st.integers(1, 6),
    f=st.integers(0, 4),
    coarse=st.booleans(),
)
def test_any_list_of_structures(seed: int, count: int, n: int, f: int, coarse: bool) -> None:
    """Random bits: repeated, dependent, equal in the unary part and different in the factors."""
    draw = torch.Generator().manual_seed(seed)
    vertices = torch.randint(0, 2, (count, n), generator=draw).double()
    factors = torch.randint(0, 2, (count, f), generator=draw).double()
    scores = torch.randn(n, generator=draw, dtype=torch.float64)
    scored = torch.randn(f, generator=draw, dtype=torch.float64)
    if coarse:
        scores, scored = scores.round(), scored.round()
    oracle = _listed(vertices, factors)
    structure = Oracle(oracle.fn, scored)
    solution = F.sparsemap_solution(scores, structure)
    wanted, objective = judge.qp(vertices, factors, scores, scored)
    torch.testing.assert_close(solution.marginals, wanted, atol=2e-5, rtol=0)
    conjugate = SparseMAP(structure).conjugate(scores)
    torch.testing.assert_close(float(conjugate), objective, atol=1e-6, rtol=1e-6)
    assert solution.converged
    assert solution.support_size <= n + 1


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_compiled_steps_agree_with_the_reference(seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(2, 4, 4, generator=draw, dtype=torch.float64)
    structure = Tree()
    rows = structure.rows(scores)

    def best(which: Tensor, theta: Tensor) -> tuple[Tensor, Tensor]:
        bits, factors = structure.oracle(rows.take(which, theta.reshape(-1, 4, 4)))
        return bits.flatten(1), factors

    theta = scores.flatten(1)
    bits, factors = best(torch.arange(2), theta)
    start = bits[:, None], factors[:, None], torch.ones(2, 1, dtype=torch.float64)
    settings = {"start": start, "tol": 1e-12, "max_steps": 100}
    compiled = active_set.solve(theta, rows.factor_scores, best, **settings)  # type: ignore[arg-type]
    plain = active_set.reference(theta, rows.factor_scores, best, **settings)  # type: ignore[arg-type]
    torch.testing.assert_close(compiled.marginals, plain.marginals)
    cotangent = torch.randn(2, 16, generator=draw, dtype=torch.float64)
    nothing = torch.zeros(2, 0, dtype=torch.float64)
    torch.testing.assert_close(compiled.vjp(cotangent, nothing), plain.vjp(cotangent, nothing))


@pytest.mark.parametrize("structure", [Tree(), Matching(), Chain(0.3)])
def test_a_start_from_the_solution_ends_at_once(structure: Structure) -> None:
    scores = torch.randn(3, 5, 5, dtype=torch.float64)
    cold = F.sparsemap_solution(scores, structure)
    warm = F.sparsemap_solution(scores, structure, start=cold)
    torch.testing.assert_close(warm.marginals, cold.marginals)
    assert (warm.steps == 1).all()
    assert (cold.steps > 1).any()
    near = scores + 1e-3 * torch.randn_like(scores)
    again = F.sparsemap_solution(near, structure, start=cold)
    torch.testing.assert_close(again.marginals, F.sparsemap(near, structure))
    assert again.steps.sum() < F.sparsemap_solution(near, structure).steps.sum()


def test_a_start_that_the_mask_forbids_is_left_behind() -> None:
    scores = torch.randn(2, 4, 4, dtype=torch.float64)
    start = F.sparsemap_solution(scores, Matching())
    mask = ~start.vertices[:, 0]
    weights = F.sparsemap(scores, Matching(), mask=mask, start=start)
    torch.testing.assert_close(weights, F.sparsemap(scores, Matching(), mask=mask))


def test_the_iteration_limit_warns_with_the_gap() -> None:
    scores = torch.randn(4, 8, 8, dtype=torch.float64)
    with pytest.warns(
        ConvergenceWarning, match=r"Matching reached max_steps=2 in \d of 4 rows"
    ) as all:
        short = F.sparsemap_solution(scores, Matching(), max_steps=2)
    assert f"{float(short.gap.max()):.3g}" in str(all[0].message)
    assert short.status is F.SparseMAPStatus.MAX_STEPS
    assert not short.converged.all()
    # The gap bounds what is missing, and strong convexity what is wrong.
    exact = F.sparsemap_solution(scores, Matching())
    error = (short.marginals - exact.marginals).square().sum((-1, -2)) / 2
    assert (error <= short.gap + 1e-12).all()
    assert exact.status is F.SparseMAPStatus.CONVERGED
    finished = F.sparsemap_solution(scores, Matching(), start=short)
    torch.testing.assert_close(finished.marginals, exact.marginals)


def test_a_loose_tolerance_stops_early_within_its_gap() -> None:
    scores = torch.randn(6, 8, 8, dtype=torch.float64)
    loose = F.sparsemap_solution(scores, Matching(), tol=0.1)
    exact = F.sparsemap_solution(scores, Matching())
    assert (loose.gap <= 0.1 + 1e-9).all()
    assert loose.steps.sum() < exact.steps.sum()
    assert (loose.marginals - exact.marginals).square().sum((-1, -2)).max() / 2 <= 0.1


def test_gap_and_status_of_rows_without_a_problem() -> None:
    scores = torch.randn(3, 4, dtype=torch.float64)
    scores[1] = -torch.inf
    solution = F.sparsemap_solution(scores, KSubsets(2))
    assert solution.steps.tolist()[1] == 0
    assert solution.converged.all()
    assert solution.support_size.tolist()[1] == 0


def test_other_dimensions_and_empty_batches() -> None:
    scores = torch.randn(5, 3, dtype=torch.float64)
    for structure in (AtMostK(2), SequentialKSubsets(2, 0.4), KSubsets(2)):
        found = F.sparsemap(scores, structure, dim=0)
        torch.testing.assert_close(found, F.sparsemap(scores.T, structure).T)
        general = F.sparsemap_solution(scores, structure, dim=0).marginals
        torch.testing.assert_close(general, found)
        torch.testing.assert_close(
            SparseMAP(structure).conjugate(scores, dim=0), SparseMAP(structure).conjugate(scores.T)
        )
    for structure in (Matching(), Tree(), Chain()):
        assert F.sparsemap(torch.zeros(0, 3, 3), structure).shape == (0, 3, 3)
        with pytest.raises(ValueError, match="expected dim=-1 for"):
            F.sparsemap(torch.zeros(2, 3, 3), structure, dim=0)


def test_a_subclass_needs_its_oracle_only() -> None:
    class Prefixes(Structure):
        """The first few items, however many."""

        def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
            totals = torch.cat([torch.zeros_like(rows.scores[:, :1]), rows.scores.cumsum(1)], 1)
            length = totals.argmax(1, keepdim=True)
            bits = torch.arange(rows.scores.shape[1]) < length
            return bits.to(torch.int8), torch.zeros(len(bits), 0, dtype=torch.int8)

    scores = torch.randn(4, 6, dtype=torch.float64)
    vertices = torch.tril(torch.ones(7, 6, dtype=torch.float64), -1)
    for row, weights in zip(scores, F.sparsemap(scores, Prefixes()), strict=True):
        wanted, _ = judge.qp(vertices, torch.zeros(7, 0), row, torch.zeros(0))
        torch.testing.assert_close(weights, wanted, atol=2e-5, rtol=0)


def test_a_batched_oracle_sees_all_open_rows() -> None:
    sizes = []

    def best(scores: Tensor) -> Tensor:
        sizes.append(len(scores))
        return torch.nn.functional.one_hot(scores.argmax(1), scores.shape[1])

    scores = torch.randn(5, 7, dtype=torch.float64)
    weights = F.sparsemap(scores, Oracle(best, batched=True))
    torch.testing.assert_close(weights, F.sparsemax(scores))
    assert sizes[0] == 5
    assert sizes[-1] < 5


def test_oracles_in_more_dimensions_with_gradients_of_factor_scores() -> None:
    vertices, factors = judge.paths(3, 2).flatten(1), judge.path_edges(judge.paths(3, 2))
    scores = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    scored = torch.randn(8, dtype=torch.float64, requires_grad=True)
    fn = _listed(vertices, factors).fn
    found = F.sparsemap_solution(scores, Oracle(fn, scored))
    wanted = F.sparsemap(scores.reshape(2, 3, 2), Chain(scored.reshape(2, 2, 2))).flatten(1)
    torch.testing.assert_close(found.marginals, wanted)
    cotangent = torch.randn(2, 6, dtype=torch.float64)
    for a, b in zip(
        torch.autograd.grad(found.marginals, (scores, scored), cotangent),
        torch.autograd.grad(wanted, (scores, scored), cotangent),
        strict=True,
    ):
        torch.testing.assert_close(a, b)


class TestBadInput:
    scores = torch.zeros(2, 4)

    def test_structures(self) -> None:
        with pytest.raises(TypeError, match=r"expected a structure such as KSubsets\(k\), got 3"):
            F.sparsemap(self.scores, 3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="expected SparseMAP of a structure"):
            SparseMAP("tree")  # type: ignore[arg-type]

    def test_limits(self) -> None:
        with pytest.raises(ValueError, match="expected tol >= 0, got -1"):
            F.sparsemap(self.scores, Chain(), tol=-1.0)
        with pytest.raises(ValueError, match="positive integer, got 0"):
            F.sparsemap(self.scores, Chain(), max_steps=0)
        with pytest.raises(TypeError, match="result of sparsemap_solution, got Tensor"):
            F.sparsemap(self.scores, Chain(), start=self.scores)  # type: ignore[arg-type]
        pairs = F.sparsemap_solution(self.scores, KSubsets(2))
        for other in (KSubsets(3), AtMostK(2)):
            with pytest.raises(ValueError, match="start from the same structures as"):
                F.sparsemap_solution(self.scores, other, start=pairs)
        start = F.sparsemap_solution(torch.zeros(4, 2), Chain())
        with pytest.raises(ValueError, match=r"start for scores of shape \(2, 4\), got one for"):
            F.sparsemap_solution(self.scores, Chain(), start=start)

    def test_oracles(self) -> None:
        half = Oracle(lambda s: torch.full_like(s, 0.5))
        with pytest.raises(ValueError, match=r"Oracle to return zeros and ones, got 0.5 in row 0"):
            F.sparsemap(self.scores, half)
        everything = Oracle(torch.ones_like)
        mask = torch.tensor([[True] * 4, [True, True, True, False]])
        with pytest.raises(
            ValueError, match=r"Oracle to return a feasible .* masked entry .* row 1"
        ):
            F.sparsemap(self.scores, everything, mask=mask)
        short = Oracle(lambda s: s[:2])
        with pytest.raises(ValueError, match=r"shape \(4,\), got \(2,\) in row 0"):
            F.sparsemap(self.scores, short)
        with pytest.raises(TypeError, match="expected Oracle of a function"):
            Oracle(3)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"\(bits, factor bits\)"):
            F.sparsemap(self.scores, Oracle(lambda s, f: s + f.sum(), torch.zeros(3)))
        with pytest.raises(ValueError, match=r"factor scores of Oracle .* rows \(2,\), got"):
            F.sparsemap(self.scores, Oracle(torch.ones_like, torch.zeros(3, 3)))

    def test_an_oracle_that_does_not_find_the_best(self) -> None:
        def moody(scores: Tensor) -> Tensor:
            at = scores.argmax() if scores.max() >= 3 else scores.argmin()
            return torch.nn.functional.one_hot(at, len(scores))

        with pytest.raises(
            ValueError, match=r"Oracle to find the best structure, .* less .* in row 1"
        ):
            F.sparsemap(torch.tensor([[0.0] * 4, [3.0, 1.0, 0.0, -2.0]]), Oracle(moody))

    def test_budgets(self) -> None:
        with pytest.raises(ValueError, match="row's size 4, got 5"):
            F.sparsemap(self.scores, KSubsets(5))
        with pytest.raises(ValueError, match="4 entries of KSubsets, got 5 in row 1: no structure"):
            F.sparsemap_solution(self.scores, KSubsets(torch.tensor([1, 5])))
        with pytest.raises(
            ValueError, match=r"SequentialKSubsets, got k=3 of 2 in row 1: no struct"
        ):
            F.sparsemap_solution(
                self.scores,
                SequentialKSubsets(3),
                mask=torch.tensor([[True] * 4, [True, True, False, False]]),
            )
        with pytest.raises(ValueError, match=r"whole number k to have structures, got k=1.5"):
            F.sparsemap_solution(self.scores, KSubsets(1.5))
        with pytest.raises(ValueError, match=r"k of KSubsets to broadcast over the rows \(2,\)"):
            F.sparsemap_solution(self.scores, KSubsets(torch.tensor([1, 1, 1])))

    def test_factor_scores(self) -> None:
        with pytest.raises(
            ValueError, match=r"transition of SequentialKSubsets .* got shape \(5,\)"
        ):
            F.sparsemap_solution(self.scores, SequentialKSubsets(2, torch.zeros(5)))
        with pytest.raises(
            ValueError, match=r"transition of Chain .* \(4, 4\).* got shape \(3, 3\)"
        ):
            F.sparsemap(self.scores, Chain(torch.zeros(3, 3)))

    def test_transforms(self) -> None:
        with pytest.raises(ValueError, match="plain tensors for sparsemap over Matching"):
            torch.func.vmap(lambda s: F.sparsemap(s, Matching()))(torch.zeros(2, 3, 3))

    def test_shapes(self) -> None:
        with pytest.raises(ValueError, match=r"square scores for Tree .* got shape \(2, 4\)"):
            F.sparsemap(self.scores, Tree())
        with pytest.raises(ValueError, match="at least 2 dimensions, got shape"):
            F.sparsemap(self.scores[0], Matching())

    def test_masks_that_leave_no_structure(self) -> None:
        mask = torch.ones(2, 3, 3, dtype=torch.bool)
        mask[1, :2, 1:] = False  # two rows want the first column
        with pytest.raises(ValueError, match=r"feasible structure of Matching .* in row 1"):
            F.sparsemap(torch.zeros(2, 3, 3), Matching(), mask=mask)
        with pytest.raises(ValueError, match=r"feasible structure of Tree .* in row 0"):
            Tree().argmax(torch.zeros(1, 2, 2), ~torch.eye(2, dtype=torch.bool))

    def test_targets(self) -> None:
        omega = SparseMAP(Chain(0.5))
        with pytest.raises(
            ValueError, match=r"zeros and ones for Chain, .* fractions in the only row"
        ):
            omega.loss(torch.zeros(2, 2), torch.full((2, 2), 0.5))
        with pytest.raises(ValueError, match=r"factor_target of shape \(1, 2, 2\) for Chain, got"):
            omega.loss(torch.zeros(2, 2), torch.eye(2), factor_target=torch.zeros(3))


@pytest.mark.parametrize("tables", [False, True])
def test_sequential_conjugates_agree_however_they_are_solved(tables: bool) -> None:
    scores = torch.randn(3, 9, dtype=torch.float64, requires_grad=True)
    mask = torch.ones(3, 9, dtype=torch.bool)
    mask[0, 6:] = mask[1, 4] = mask[2] = False
    edges = torch.randn(8, 2, 2) if tables else torch.randn(8)
    edges = edges.double()
    target = torch.zeros(3, 9, dtype=torch.float64)
    target[0, :3] = target[1, [0, 5, 6]] = 1
    answers = []
    for transition in (edges, edges.clone().requires_grad_()):
        omega = SparseMAP(SequentialKSubsets(torch.tensor([3, 3, 0]), transition))
        conjugate, loss = omega.conjugate(scores, mask), omega.loss(scores, target, mask)
        (grad,) = torch.autograd.grad((conjugate + loss).sum(), scores, create_graph=True)
        (second,) = torch.autograd.grad(grad.square().sum(), scores)
        answers.append((conjugate, loss, grad, second))
    for fast, general in zip(*answers, strict=True):
        torch.testing.assert_close(fast, general)


def test_names() -> None:
    omega = hopfy.omega_from("sequential-3-subsets")
    assert isinstance(omega, SparseMAP)
    scores = torch.randn(2, 6, dtype=torch.float64)
    torch.testing.assert_close(omega(scores), F.ksubsets(scores / 2, 3))
