"""Factor graphs against a QP over the local polytope, and against the structures they contain."""

from __future__ import annotations

import itertools
import warnings

import cvxpy as cp
import numpy as np
import pytest
import torch
from torch import Tensor

from hopfy import ConvergenceWarning, SparseMAP
from hopfy import functional as F
from hopfy.structures import (
    AtMostK,
    AtMostOne,
    Budget,
    Chain,
    Configurations,
    Dense,
    Factor,
    FactorGraph,
    KSubsets,
    Matching,
    Or,
    Oracle,
    Pair,
    Sequence,
    SequentialKSubsets,
    Tree,
    Xor,
    values,
)
from judges import structures as judge


def _listed(factor: Factor) -> tuple[np.ndarray, np.ndarray]:
    """Every structure of a factor and its factor bits."""
    n, structure = len(factor.variables), factor.structure
    if isinstance(factor, Pair | Sequence):
        counts = range(n + 1) if structure.k is None else range(structure.k, structure.k + 1)  # type: ignore[attr-defined]
        bits = judge.subsets(n, counts)
        return bits.numpy(), judge.edge_tables(bits).numpy()
    if isinstance(structure, Configurations):
        listed, terms = _listed_configurations(structure.sizes)
        return listed.numpy(), terms.numpy()
    if isinstance(structure, Matching):
        bits = judge.matchings(*factor.shape).flatten(1)
    elif isinstance(factor, Or):
        bits = judge.subsets(n, range(1, n + 1))
    elif isinstance(structure, AtMostK):
        bits = judge.subsets(n, range(int(structure.k) + 1))
    else:
        assert isinstance(structure, KSubsets)
        bits = judge.subsets(n, range(int(structure.k), int(structure.k) + 1))
    return bits.numpy(), np.zeros((len(bits), 0))


def local_polytope(scores: Tensor, graph: FactorGraph) -> tuple[Tensor, float]:
    """LP-SparseMAP of one row by Clarabel."""
    y = cp.Variable(len(scores))
    objective = scores.numpy() @ y - cp.sum_squares(y) / 2
    constraints = [y >= 0, y <= 1]
    for factor in graph.factors:
        bits, terms = _listed(factor)
        p = cp.Variable(len(bits), nonneg=True)
        constraints += [cp.sum(p) == 1, bits.T @ p == y[list(factor.variables)]]
        scored = factor.rows(scores).factor_scores[0].detach().numpy()
        if scored.size:
            objective = objective + (terms @ scored) @ p
    problem = cp.Problem(cp.Maximize(objective), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return torch.from_numpy(y.value), float(problem.value)


def _graphs(seed: int) -> dict[str, tuple[int, FactorGraph]]:
    draw = torch.Generator().manual_seed(seed)

    def score(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    loop = [Pair(i, (i + 1) % 4, score()) for i in range(4)]
    return {
        "constraints": (
            7,
            FactorGraph(
                [Xor([0, 1, 2]), AtMostOne([2, 3, 4]), Or([4, 5]), Budget([1, 3, 5, 6], 2)]
            ),
        ),
        "a loop of pairs": (5, FactorGraph(loop)),
        "pairs with tables": (4, FactorGraph([Pair(0, 1, score(2, 2)), Pair(1, 2, score(2, 2))])),
        "sequence and budget": (
            6,
            FactorGraph([Sequence(range(6), score(5)), Budget([0, 2, 4], 1), AtMostOne([1, 5])]),
        ),
        "two sequences": (
            5,
            FactorGraph([Sequence([0, 1, 2, 3], 0.5, k=2), Sequence([4, 2, 0], -0.7)]),
        ),
        "matching and at most": (
            6,
            FactorGraph([Factor(Matching(), range(6), (2, 3)), Factor(AtMostK(1), [0, 4])]),
        ),
    }


@pytest.mark.parametrize("name", list(_graphs(0)))
def test_overlapping_factors_reach_the_optimum_of_the_local_polytope(name: str) -> None:
    for seed, scale in ((1, 1.0), (2, 0.3), (3, 3.0)):
        size, graph = _graphs(seed)[name]
        generator = torch.Generator().manual_seed(seed)
        scores = torch.randn(2, size, generator=generator, dtype=torch.float64) * scale
        solution = F.sparsemap_solution(scores, graph)
        assert solution.converged.all()
        conjugate = SparseMAP(graph).conjugate(scores)
        for row in range(2):
            wanted, value = local_polytope(scores[row], graph)
            torch.testing.assert_close(solution.marginals[row], wanted, atol=1e-5, rtol=0)
            torch.testing.assert_close(float(conjugate[row]), value, atol=1e-7, rtol=1e-7)
            assert solution.gap[row] <= 1e-8


@pytest.mark.parametrize("name", ["constraints", "a loop of pairs", "sequence and budget"])
def test_gradients_of_overlapping_factors(name: str) -> None:
    size, graph = _graphs(5)[name]
    generator = torch.Generator().manual_seed(6)
    scores = torch.randn(1, size, generator=generator, dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(lambda theta: F.sparsemap(theta, graph), scores)


def test_gradients_of_the_scores_of_factors() -> None:
    scores = torch.tensor([0.3, -0.2, 0.5, 0.1], dtype=torch.float64, requires_grad=True)
    pairs = torch.tensor([0.4, -0.3, 0.6, 0.2], dtype=torch.float64, requires_grad=True)

    def predict(theta: Tensor, pair: Tensor) -> tuple[Tensor, Tensor]:
        factors = [Pair(i, (i + 1) % 4, pair[i]) for i in range(4)]
        solution = F.sparsemap_solution(theta, FactorGraph([*factors, AtMostOne([0, 2])]))
        return solution.marginals, solution.factor_marginals

    assert torch.autograd.gradcheck(predict, (scores, pairs))
    marginals, _ = predict(scores, pairs)
    (grad,) = torch.autograd.grad(marginals.square().sum(), pairs)
    assert grad.abs().max() > 1e-3


def test_one_factor_is_its_structure() -> None:
    torch.manual_seed(3)
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    edges = torch.randn(5, dtype=torch.float64)
    cotangent = torch.randn(3, 6, dtype=torch.float64)
    cases = [
        (Factor(Matching(), range(6), (2, 3)), F.sparsemap(scores.reshape(3, 2, 3), Matching())),
        (Budget(range(6), 2), F.ksubsets(scores, 2)),
        # The graph counts bits, the structure by itself both states of each.
        (Sequence(range(6), edges / 2, k=2), F.sparsemap(2 * scores, SequentialKSubsets(2, edges))),
    ]
    for factor, wanted in cases:
        solution = F.sparsemap_solution(scores, FactorGraph([factor]))
        wanted = wanted.reshape(3, 6)
        torch.testing.assert_close(solution.marginals, wanted)
        assert (solution.support_size <= 7).all()
        found = torch.autograd.grad(solution.marginals, scores, cotangent)
        torch.testing.assert_close(found, torch.autograd.grad(wanted, scores, cotangent))


def test_variables_in_no_factor_are_free_bits() -> None:
    scores = torch.tensor([0.3, 0.9, -0.5, 1.7, 0.4], dtype=torch.float64, requires_grad=True)
    weights = F.sparsemap(scores, FactorGraph([Xor([0, 1])]))
    wanted = torch.tensor([0.2, 0.8, 0.0, 1.0, 0.4], dtype=torch.float64)
    torch.testing.assert_close(weights, wanted)
    (grad,) = torch.autograd.grad(weights[2:].sum(), scores)
    torch.testing.assert_close(grad, torch.tensor([0.0, 0.0, 0.0, 0.0, 1.0], dtype=torch.float64))
    assert torch.equal(F.sparsemap(scores.detach(), FactorGraph([])), scores.detach().clamp(0, 1))


def test_masked_variables_are_off() -> None:
    scores = torch.randn(2, 5, dtype=torch.float64)
    mask = torch.tensor([[True, True, True, False, True], [True] * 5])
    graph = FactorGraph([Xor([0, 1, 3]), AtMostOne([1, 2, 3]), Pair(2, 4, 0.5)])
    weights = F.sparsemap(scores, graph, mask=mask)
    smaller = FactorGraph([Xor([0, 1]), AtMostOne([1, 2]), Pair(2, 3, 0.5)])
    without = F.sparsemap(scores[0, [0, 1, 2, 4]], smaller)
    torch.testing.assert_close(weights[0, [0, 1, 2, 4]], without)
    assert weights[0, 3] == 0
    torch.testing.assert_close(weights[1], F.sparsemap(scores[1], graph))


def test_rows_with_nothing_to_select_and_no_rows() -> None:
    graph = FactorGraph([Xor([0, 1]), AtMostOne([1, 2])])
    scores = torch.randn(2, 4, dtype=torch.float64)
    mask = torch.tensor([[True] * 4, [False] * 4])
    weights = F.sparsemap(scores, graph, mask=mask)
    assert (weights[1] == 0).all()
    torch.testing.assert_close(weights[0], F.sparsemap(scores[0], graph))
    assert F.sparsemap(scores[:0], graph).shape == (0, 4)
    one_left = torch.tensor([[True] * 4, [False, False, False, True]])
    weights = F.sparsemap(scores, graph, mask=one_left)
    torch.testing.assert_close(weights[1, 3], scores[1, 3].clamp(0, 1))


def test_a_custom_factor() -> None:
    def even(scores: Tensor) -> Tensor:
        every = judge.subsets(len(scores), range(0, len(scores) + 1, 2))
        return every[
            judge.values(every, torch.zeros(len(every), 0), scores, torch.zeros(0)).argmax()
        ]

    scores = torch.tensor([0.8, 0.3, -0.1, 0.6], dtype=torch.float64)
    graph = FactorGraph([Factor(Oracle(even), [0, 1, 2]), Xor([2, 3])])
    every = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4))).double()
    joint = every[((every[:, :3].sum(1) % 2) == 0) & (every[:, 2:].sum(1) == 1)]
    wanted, _ = judge.qp(joint, torch.zeros(len(joint), 0), scores, torch.zeros(0))
    torch.testing.assert_close(F.sparsemap(scores, graph), wanted, atol=1e-5, rtol=0)


def test_loss_counts_the_scores_of_factors() -> None:
    graph = FactorGraph([Xor([0, 1, 2]), Pair(0, 3, 1.5), Pair(1, 3, torch.tensor(0.5))])
    omega = SparseMAP(graph)
    scores = torch.randn(4, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([1.0, 0.0, 0.0, 1.0], dtype=torch.float64)
    loss = omega.loss(scores, target)
    wanted = omega.conjugate(scores) + 1.0 - scores @ target - 1.5
    torch.testing.assert_close(loss, wanted)
    (grad,) = torch.autograd.grad(loss, scores)
    torch.testing.assert_close(grad, (omega(scores) - target).detach())


def test_the_best_structure_needs_factors_that_are_apart() -> None:
    scores = torch.tensor([0.3, 0.9, -0.5, 1.7])
    apart = FactorGraph([Xor([0, 1]), Pair(2, 3, 1.0)])
    assert apart.argmax(scores).tolist() == [0.0, 1.0, 1.0, 1.0]
    assert apart.margin == 2.0
    together = FactorGraph([Xor([0, 1]), Pair(1, 3, 1.0)])
    assert together.margin == float("inf")
    with pytest.raises(ValueError, match="share no variables"):
        together.argmax(scores)


def test_factors_that_are_apart_keep_to_tolerance_and_limit() -> None:
    scores = torch.randn(3, 30, dtype=torch.float64) * 0.2
    graph = FactorGraph([Factor(Matching(), range(25), (5, 5)), Xor([26, 27, 28])])
    loose = F.sparsemap_solution(scores, graph, tol=0.2)
    exact = F.sparsemap_solution(scores, graph)
    assert (loose.steps < exact.steps).any()
    assert (loose.gap <= 0.4).all()
    assert (exact.gap <= 1e-9).all()
    with pytest.warns(ConvergenceWarning, match="FactorGraph reached max_steps=1"):
        assert not F.sparsemap_solution(scores, graph, max_steps=1).converged.all()


def test_contradictions_warn_and_do_not_hang() -> None:
    graph = FactorGraph([Xor([0, 1]), Budget([0, 1], 2)])
    with pytest.warns(
        ConvergenceWarning, match=r"FactorGraph reached max_steps=20 .* duality gap is"
    ):
        solution = F.sparsemap_solution(torch.zeros(2, dtype=torch.float64), graph, max_steps=20)
    assert not solution.converged
    assert "maximum number of steps" in str(solution.status)


def test_bad_graphs_are_explained() -> None:
    with pytest.raises(ValueError, match=r"budget of at most the 3 variables .* got 4"):
        Budget([0, 1, 2], 4)
    with pytest.raises(ValueError, match="different variables"):
        Xor([0, 0, 1])
    with pytest.raises(ValueError, match="2 dimensions for the Tree of Factor"):
        Factor(Tree(), range(9))
    with pytest.raises(TypeError, match=r"factors such as Xor\(\[0, 1\]\)"):
        FactorGraph([Chain()])  # type: ignore[list-item]
    with pytest.raises(ValueError, match=r"variables below 3, .* got Xor\(\[2, 3\]\)"):
        F.sparsemap(torch.zeros(3), FactorGraph([Xor([2, 3])]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(
            ValueError, match=r"feasible structure of AtLeastOne|no structure meets"
        ):
            F.sparsemap(
                torch.zeros(2, 3),
                FactorGraph([Sequence([0, 1, 2], k=2)]),
                mask=torch.tensor([[True, True, True], [True, False, False]]),
            )


def _listed_configurations(sizes: tuple[int, ...]) -> tuple[Tensor, Tensor]:
    """Every configuration as one-hot values side by side, and as one bit among all of them."""
    every = list(itertools.product(*(range(size) for size in sizes)))
    bits = [
        torch.cat([torch.eye(size)[value] for size, value in zip(sizes, one, strict=True)])
        for one in every
    ]
    return torch.stack(bits).double(), torch.eye(len(every)).double()


@pytest.mark.parametrize("sizes", [(3,), (2, 3), (3, 2, 2), (1, 4), (2, 2, 2, 2)])
def test_a_dense_factor_is_the_quadratic_program_over_all_configurations(
    sizes: tuple[int, ...],
) -> None:
    bits, terms = _listed_configurations(sizes)
    for scale in (0.3, 1.0, 3.0):
        scores = torch.randn(sum(sizes), dtype=torch.float64) * scale
        table = torch.randn(sizes, dtype=torch.float64)
        graph = FactorGraph([Dense(values(*sizes), table)])
        solution = F.sparsemap_solution(scores, graph)
        wanted, objective = judge.qp(bits, terms, scores, table.flatten())
        torch.testing.assert_close(solution.marginals, wanted, atol=2e-5, rtol=0)
        reached = scores @ solution.marginals - solution.marginals.square().sum() / 2
        reached = reached + (table.flatten() * solution.factor_marginals.flatten()).sum()
        torch.testing.assert_close(float(reached), objective, atol=1e-7, rtol=1e-7)
        alone = F.sparsemap(scores, Configurations(sizes, table))
        torch.testing.assert_close(alone, solution.marginals)
        best = bits[(bits @ scores + terms @ table.flatten()).argmax()]
        assert torch.equal(graph.argmax(scores), best)


def _dense_graph(tables: list[Tensor]) -> tuple[int, FactorGraph, list[tuple[int, ...]]]:
    """Three variables with 3, 2 and 3 values in a loop, and logic over some of their values."""
    a, b, c = values(3, 2, 3)
    pairs = [Dense([a, b], tables[0]), Dense([b, c], tables[1]), Dense([a, c], tables[2])]
    logic = [AtMostOne([0, 3]), Or([1, 7, 8])]
    return 9, FactorGraph([*pairs, *logic]), [(3, 2), (2, 3), (3, 3)]


def test_dense_factors_beside_logic_reach_the_optimum_of_the_local_polytope() -> None:
    for seed in range(3):
        draw = torch.Generator().manual_seed(seed)
        shapes = [(3, 2), (2, 3), (3, 3)]
        tables = [torch.randn(s, generator=draw, dtype=torch.float64) for s in shapes]
        size, graph, _ = _dense_graph(tables)
        scores = torch.randn(2, size, generator=draw, dtype=torch.float64)
        solution = F.sparsemap_solution(scores, graph)
        assert solution.converged.all()
        for row in range(2):
            wanted, _ = local_polytope(scores[row], graph)
            torch.testing.assert_close(solution.marginals[row], wanted, atol=2e-5, rtol=0)


def test_gradients_in_the_tables_of_dense_factors() -> None:
    torch.manual_seed(7)
    shapes = [(3, 2), (2, 3), (3, 3)]
    tables = [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]
    scores = torch.randn(9, dtype=torch.float64).requires_grad_()

    def predict(theta: Tensor, *scored: Tensor) -> tuple[Tensor, Tensor]:
        solution = F.sparsemap_solution(theta, _dense_graph(list(scored))[1])
        return solution.marginals, solution.factor_marginals

    assert torch.autograd.gradcheck(predict, (scores, *tables))
    grads = torch.autograd.grad(predict(scores, *tables)[0].square().sum(), tables)
    assert max(float(grad.abs().max()) for grad in grads) > 1e-3


def test_dense_factors_know_masks_forbidden_configurations_and_rows() -> None:
    table = torch.randn(2, 3, 2, dtype=torch.float64)
    scores = torch.randn(2, 5, dtype=torch.float64)
    graph = FactorGraph([Dense(values(3, 2), table)])
    together = F.sparsemap(scores, graph)
    for row in range(2):
        alone = FactorGraph([Dense(values(3, 2), table[row])])
        torch.testing.assert_close(together[row], F.sparsemap(scores[row], alone))
    mask = torch.tensor([True, False, True, True, True])
    masked = F.sparsemap(scores[0], FactorGraph([Dense(values(3, 2), table[0])]), mask=mask)
    smaller = FactorGraph([Dense(values(2, 2), table[0][[0, 2]])])
    torch.testing.assert_close(masked[mask], F.sparsemap(scores[0][mask], smaller))
    # A variable that is not there takes the table with it.
    gone = torch.tensor([True, True, True, False, False])
    left = F.sparsemap(scores[0], FactorGraph([Dense(values(3, 2), table[0])]), mask=gone)
    torch.testing.assert_close(left[:3], F.sparsemax(scores[0, :3]))
    forbidden = torch.zeros(2, 2, dtype=torch.float64)
    forbidden[0, 0] = -torch.inf
    weights = F.sparsemap_solution(
        torch.tensor([5.0, 0.0, 5.0, 0.0]), Configurations((2, 2), forbidden)
    )
    assert float(weights.factor_marginals[0, 0]) == 0
    with pytest.raises(ValueError, match=r"table of shape \(3, 2\)"):
        F.sparsemap(scores, FactorGraph([Dense(values(3, 2), torch.zeros(4, 2))]))
    with pytest.raises(ValueError, match="at least one value each"):
        Dense([range(2), []])
    with pytest.raises(ValueError, match="5 scores for Configurations"):
        F.sparsemap(torch.zeros(4), Configurations((3, 2)))


def test_loss_of_a_dense_factor() -> None:
    table = torch.randn(3, 2, dtype=torch.float64, requires_grad=True)
    omega = SparseMAP(FactorGraph([Dense(values(3, 2), table)]))
    scores = torch.randn(5, dtype=torch.float64, requires_grad=True)
    target = torch.tensor([0.0, 1.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    loss = omega.loss(scores, target)
    wanted = omega.conjugate(scores) + 1.0 - scores @ target - table[1, 0]
    torch.testing.assert_close(loss, wanted)
    by_scores, by_table = torch.autograd.grad(loss, (scores, table))
    torch.testing.assert_close(by_scores, (omega(scores) - target).detach())
    assert by_table[1, 0] < 0


def test_the_two_conventions_of_sequences_are_related_exactly() -> None:
    """`F.sequential_ksubsets` counts both states of a bit, a factor graph counts the bit.

    With the first one's regularizer twice the second's, up to a constant, scores and transitions
    of the graph are half of those of the map; for transitions as numbers and as tables.
    """
    scores = torch.randn(4, 7, dtype=torch.float64) * 2
    for transition in (
        torch.tensor(0.8).double(),
        torch.randn(6, dtype=torch.float64),
        torch.randn(6, 2, 2, dtype=torch.float64),
    ):
        wanted = F.sequential_ksubsets(scores, 3, transition)
        graph = FactorGraph([Sequence(range(7), transition / 2, k=3)])
        torch.testing.assert_close(F.sparsemap(scores / 2, graph), wanted, rtol=0, atol=1e-9)
        # The regularizers themselves: 2 * graph's - k = the map's, where |y| = k.
        by_map, by_graph = SparseMAP(SequentialKSubsets(3, transition)), SparseMAP(graph)
        torch.testing.assert_close(by_map.value(wanted), 2 * by_graph.value(wanted) - 3)
