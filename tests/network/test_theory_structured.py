"""Props. 4 and 5 against enumeration and an independent quadratic solver."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import theory


def _sparsemap_by_solver(
    scores: np.ndarray, structures: np.ndarray, regularized: int
) -> np.ndarray:
    """The argmax of scores . y - |first ``regularized`` bits|^2 / 2 over the hull, by Clarabel."""
    import cvxpy as cp

    p = cp.Variable(len(structures), nonneg=True)
    y = structures.T @ p
    problem = cp.Problem(
        cp.Maximize(scores @ y - cp.sum_squares(y[:regularized]) / 2), [cp.sum(p) == 1]
    )
    problem.solve(cp.CLARABEL, tol_gap_abs=1e-11, tol_gap_rel=1e-11, tol_feas=1e-11)
    return structures.T @ p.value


def _subsets(n: int, k: int) -> Tensor:
    rows = torch.zeros(0, n, dtype=torch.float64)
    for members in itertools.combinations(range(n), k):
        row = torch.zeros(1, n, dtype=torch.float64)
        row[0, list(members)] = 1
        rows = torch.cat((rows, row))
    return rows


def _factor_graph(n: int, k: int) -> np.ndarray:
    """Sequential k-subsets as in App. C: a one-hot pair per variable, four states per factor."""
    rows = []
    for bits in _subsets(n, k).long().tolist():
        variables = [[1 - b, b] for b in bits]
        factors = []
        for left, right in itertools.pairwise(bits):
            state = [0, 0, 0, 0]
            state[2 * left + right] = 1
            factors.append(state)
        rows.append(np.concatenate([np.ravel(variables), np.ravel(factors)]))
    return np.array(rows, dtype=float)


# ---------------------------------------------------------------------- Prop. 4


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9999),
    n=st.integers(2, 6),
    k=st.integers(1, 5),
    stretch=st.sampled_from([1.0, 1.0 + 1e-9, 1.5]),
)
def test_the_structured_margin_of_ksubsets_gives_exactly_that_subset(
    seed: int, n: int, k: int, stretch: float
) -> None:
    assume(k < n)
    structures = _subsets(n, k)
    scores = torch.randn(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    chosen = int((structures @ scores).argmax())
    gap = scores[structures[chosen] == 1].min() - scores[structures[chosen] == 0].max()
    assume(gap > 1e-6)
    scores = scores / gap * stretch  # the condition holds with equality, or barely
    omega = hopfy.omega_from(f"{k}-subsets")
    if bool(theory.has_structured_margin(scores, structures, chosen)):
        assert torch.allclose(omega(scores), structures[chosen], atol=1e-9)
    if stretch > 1:
        assert bool(theory.has_structured_margin(scores, structures, chosen))
    short = scores / stretch * 0.99
    assert not bool(theory.has_structured_margin(short, structures, chosen))
    assert not torch.allclose(omega(short), structures[chosen], atol=1e-4)  # m = 1 is the smallest


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 9999), length=st.integers(3, 6), ones=st.integers(1, 3))
def test_any_set_on_a_sphere_has_margin_one(seed: int, length: int, ones: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    everything = _subsets(length, min(ones, length - 1))
    keep = torch.rand(len(everything), generator=generator) < 0.6
    structures = everything[keep]
    assume(len(structures) >= 2)
    scores = torch.randn(length, generator=generator, dtype=torch.float64)
    chosen = int((structures @ scores).argmax())
    leads = (structures[chosen] - structures) @ scores
    halves = (structures - structures[chosen]).square().sum(-1) / 2
    others = halves > 0
    slack = float((leads[others] / halves[others]).min())
    assume(slack > 1e-3)
    scores = scores / slack * 1.001
    assert bool(theory.has_structured_margin(scores, structures, chosen))
    answer = _sparsemap_by_solver(scores.numpy(), structures.numpy(), length)
    assert answer == pytest.approx(structures[chosen].numpy(), abs=1e-4)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 9999), n=st.integers(3, 5), k=st.integers(1, 2))
def test_factor_graphs_have_a_margin_of_at_most_one(seed: int, n: int, k: int) -> None:
    structures = _factor_graph(n, k)
    assert {int(row.sum()) for row in structures} == {2 * n - 1}  # r^2 = |V| + |F|
    generator = np.random.default_rng(seed)
    scores = generator.normal(size=structures.shape[1])
    chosen = int((structures @ scores).argmax())
    distances = ((structures - structures[chosen]) ** 2).sum(1)
    leads = (structures[chosen] - structures) @ scores
    slack = (leads[distances > 0] / (distances[distances > 0] / 2)).min()
    assume(slack > 1e-3)
    scores = scores / slack * 1.001
    rows = torch.from_numpy(structures)
    assert bool(theory.has_structured_margin(torch.from_numpy(scores), rows, chosen))
    answer = _sparsemap_by_solver(scores, structures, 2 * n)
    assert answer[: 2 * n] == pytest.approx(structures[chosen][: 2 * n], abs=1e-4)


# ---------------------------------------------------------------------- Prop. 5


@pytest.mark.parametrize(("n", "k"), [(6, 2), (7, 3), (8, 4), (5, 1)])
def test_the_diameters_are_what_enumeration_finds(n: int, k: int) -> None:
    plain = _subsets(n, k)
    assert torch.cdist(plain, plain).square().max().item() == pytest.approx(
        theory.ksubsets_diameter(k)
    )
    graph = torch.from_numpy(_factor_graph(n, k))
    widest = torch.cdist(graph, graph).square().max().item()
    assert widest <= theory.sequential_ksubsets_diameter(k) + 1e-9


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 9999), n=st.integers(2, 7), d=st.integers(1, 5), k=st.integers(1, 4))
def test_the_separation_of_an_association_is_its_definition(
    seed: int, n: int, d: int, k: int
) -> None:
    assume(k < n)
    memories = torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    members = torch.tensor(list(itertools.combinations(range(n), k)))
    states = _subsets(n, k) @ memories
    gram = states @ states.T
    expected = gram.diagonal() - gram.clone().fill_diagonal_(-torch.inf).amax(-1)
    assert torch.allclose(theory.association_separation(memories, members), expected, atol=1e-10)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9999),
    n=st.integers(3, 8),
    k=st.integers(1, 4),
    beta=st.sampled_from([0.5, 2.0, 10.0]),
)
def test_within_the_radius_of_proposition_5_an_association_is_recalled_at_once(
    seed: int, n: int, k: int, beta: float
) -> None:
    assume(k < n)
    generator = torch.Generator().manual_seed(seed)
    memories = torch.randn(n, n, generator=generator, dtype=torch.float64) * 0.2
    memories = memories + 2 * torch.eye(n, dtype=torch.float64)
    members = torch.stack([torch.randperm(n, generator=generator)[:k] for _ in range(5)])
    separation = theory.association_separation(memories, members)
    paper = theory.structured_radius(memories, separation, beta, theory.ksubsets_diameter(k))
    tight = theory.association_radius(memories, members, beta)
    net = hopfy.HopfieldNetwork(memories, f"{k}-subsets", beta)
    for row in range(5):
        target = memories[members[row]].sum(0)
        if paper[row] >= 0:
            assert tight[row] >= paper[row] * (1 - 1e-12)
        if tight[row] <= 0:
            continue
        pairs = memories.unsqueeze(0) - memories[members[row]].unsqueeze(1)
        away = torch.cat((pairs.flatten(0, 1), torch.randn(3, n, dtype=torch.float64)))
        away = away[away.norm(dim=-1) > 0]
        away = away / away.norm(dim=-1, keepdim=True)
        inside = net.weights(target + (1 - 1e-9) * tight[row] * away)
        expected = torch.zeros(n, dtype=torch.float64).scatter(0, members[row], 1.0)
        assert torch.equal(inside, expected.expand_as(inside))
        beyond = net.weights(target + (1 + 1e-6) * tight[row] * away)
        assert not torch.equal(beyond, expected.expand_as(beyond))  # it is the largest ball


def test_the_papers_condition_for_ksubsets_is_k_times_too_strong() -> None:
    # Delta = 1 / beta is enough for any k; Prop. 5 asks for k / beta.
    k, beta = 3, 1.0
    memories = torch.eye(8, dtype=torch.float64) * 1.1
    members = torch.tensor([[0, 3, 5]])
    separation = theory.association_separation(memories, members)
    assert 1 / beta <= float(separation) < k / beta
    radius = theory.structured_radius(memories, separation, beta, theory.ksubsets_diameter(k))
    assert radius < 0
    found = hopfy.HopfieldNetwork(memories, "3-subsets", beta).retrieve(memories[members[0]].sum(0))
    assert bool(found.certified)
    assert torch.equal(found.state, memories[members[0]].sum(0))
    below = hopfy.HopfieldNetwork(memories, "3-subsets", 0.8).weights(memories[members[0]].sum(0))
    assert (below[members[0]] < 1).all()  # and 1 / beta is necessary


def test_one_pattern_is_the_unstructured_case() -> None:
    torch.manual_seed(0)
    memories = torch.randn(6, 4, dtype=torch.float64)
    singles = torch.arange(6).unsqueeze(1)
    separation = theory.association_separation(memories, singles)
    assert torch.allclose(separation, theory.separations(memories).value)
    tight = theory.association_radius(memories, singles, 5.0)
    assert torch.allclose(tight, theory.certified_radius(memories, "sparsemax", 5.0))


def test_all_patterns_at_once_have_no_rival() -> None:
    memories = torch.eye(3, dtype=torch.float64)
    everyone = torch.tensor([[0, 1, 2]])
    assert theory.association_separation(memories, everyone).item() == torch.inf
    assert theory.association_radius(memories, everyone, 1.0).item() == torch.inf
    assert bool(theory.proves_fixed_point(memories, everyone, hopfy.omega_from("3-subsets"), 1.0))


def _sequential_scores(scores: np.ndarray, transition: float) -> np.ndarray:
    """Scores of the factor graph: a memory's for 'on', ``transition`` for neighbors both on."""
    variables = np.stack((np.zeros_like(scores), scores), 1).ravel()
    factors = np.tile([0.0, 0.0, 0.0, transition], len(scores) - 1)
    return np.concatenate((variables, factors))


def test_sequential_associations_without_transition_obey_proposition_5() -> None:
    n, k, beta = 5, 2, 1.0
    memories = np.eye(n) * 3.6  # Delta = 12.96 >= 12k / (2 beta) = 12
    structures = _factor_graph(n, k)
    on = structures[:, 1 : 2 * n : 2]
    for chosen in range(len(structures)):
        state = on[chosen] @ memories
        scores = _sequential_scores(beta * memories @ state, 0.0)
        answer = _sparsemap_by_solver(scores, structures, 2 * n)
        assert answer[1 : 2 * n : 2] == pytest.approx(on[chosen], abs=1e-5)


def test_counterexample_factor_scores_break_proposition_5() -> None:
    # Delta sees the patterns only. With a transition score the separated pair {0, 2} is not even
    # the best structure at its own state, although Delta >= D^2 / (2 beta) holds.
    n, k, beta, transition = 5, 2, 1.0, 40.0
    memories = np.eye(n) * 3.6
    members = torch.tensor([[0, 2]])
    separation = theory.association_separation(torch.from_numpy(memories), members)
    assert float(separation) >= theory.sequential_ksubsets_diameter(k) / (2 * beta)
    structures = _factor_graph(n, k)
    state = memories[0] + memories[2]
    scores = _sequential_scores(beta * memories @ state, transition)
    answer = _sparsemap_by_solver(scores, structures, 2 * n)[1 : 2 * n : 2]
    assert np.abs(answer @ memories - state).max() > 0.5


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 9999),
    n=st.integers(2, 6),
    k=st.integers(1, 4),
    transition=st.sampled_from([0.0, 0.7, -2.0, 5.0]),
    beta=st.sampled_from([0.05, 0.3, 1.0, 4.0]),
    grid=st.booleans(),
)
def test_a_certificate_for_a_sequence_is_true_by_enumeration(
    seed: int, n: int, k: int, transition: float, beta: float, grid: bool
) -> None:
    assume(k <= n)
    memories = torch.randn(n, 4, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    memories = (2 * memories).round() if grid else memories
    structures = _subsets(n, k)
    members = torch.tensor(list(itertools.combinations(range(n), k)))
    pairs = (structures[:, 1:] * structures[:, :-1]).sum(-1) * transition
    omega = hopfy.SparseMAP(hopfy.structures.SequentialKSubsets(k, transition))
    proven = theory.proves_fixed_point(memories, members, omega, beta)
    for row, y in enumerate(structures):
        theta = beta * memories @ (y @ memories)
        # y is the answer iff no other structure gains along the way to it.
        gains = (structures - y) @ (theta - (2 * y - 1)) + pairs - pairs[row]
        others = torch.arange(len(structures)) != row
        worst = float(gains[others].max()) if len(structures) > 1 else -1.0
        if proven[row]:
            assert worst <= 1e-12
            assert torch.allclose(omega(theta), y, atol=1e-9)
        else:
            assert worst > -1e-6  # nothing that is clear is missed


def test_sequences_are_recalled_with_a_certificate() -> None:
    torch.manual_seed(0)
    memories = 3 * torch.eye(7) + 0.1 * torch.randn(7, 7)
    omega = hopfy.SparseMAP(hopfy.structures.SequentialKSubsets(2, transition=0.5))
    net = hopfy.HopfieldNetwork(memories, omega, 1.0)
    found = net.retrieve(memories[[2, 3]].sum(0, keepdim=True), trace=True)
    assert bool(found.certified.all())
    assert found.support is not None
    assert found.support.row(0)[0].tolist() == [2, 3]
    several = hopfy.structures.SequentialKSubsets(2, transition=torch.zeros(3, 6))
    rows = torch.tensor([[0, 1]])
    assert not theory.proves_fixed_point(memories, rows, hopfy.SparseMAP(several), 1.0).any()


@pytest.mark.parametrize("transition", [0.0, 0.7, -1.0])
def test_the_energy_of_sequences_counts_their_transitions(transition: float) -> None:
    torch.manual_seed(0)
    memories, queries = (
        torch.randn(6, 4, dtype=torch.float64),
        torch.randn(8, 4, dtype=torch.float64),
    )
    omega = hopfy.SparseMAP(hopfy.structures.SequentialKSubsets(2, transition))
    net = hopfy.HopfieldNetwork(memories, omega, 0.5)
    parts = net.energy_parts(queries)
    assert torch.allclose(parts.concave + parts.convex, net.energy(queries), atol=1e-9)
    assert (parts.concave <= 1e-9).all()
    leaf = queries.clone().requires_grad_()
    (slope,) = torch.autograd.grad(net.energy(leaf).sum(), leaf)
    assert torch.allclose(slope, net.gradient(queries), atol=1e-9)
    trace = net.retrieve(queries, trace=True, max_steps=15).energies
    assert trace is not None
    assert (trace >= 0).all()
    assert (trace.diff(dim=0) <= 1e-9).all()


def test_parameters_that_vary_by_row_get_no_certificate_and_a_reason() -> None:
    """Each row is another problem: limits are refused, proofs are missing, never wrong."""
    memories, members = 4 * torch.eye(4, dtype=torch.float64), torch.tensor([[0, 2]])
    tables = torch.zeros(3, 2, 2, dtype=torch.float64)
    tables[1, 1, 1] = 40.0  # in this row other patterns are favored
    varying = hopfy.structures.Configurations((2, 2), tables)
    with pytest.raises(TypeError, match="same parameters for all rows"):
        theory.association_radius(memories, members, 1.0, varying)
    betas = torch.ones(1, dtype=torch.float64)
    omega = hopfy.SparseMAP(varying)
    assert not bool(theory.proves_fixed_point(memories, members, omega, betas).any())
    queries = memories[[0, 2]].sum(0).expand(3, 4).contiguous()
    together = hopfy.HopfieldNetwork(memories, omega, 1.0).retrieve(queries)
    assert not bool(together.certified.any())
    for row in range(3):
        own = hopfy.structures.Configurations((2, 2), tables[row])
        alone = hopfy.HopfieldNetwork(memories, hopfy.SparseMAP(own), 1.0).retrieve(queries[row])
        assert torch.allclose(alone.state, together.state[row])
        assert bool(alone.certified)  # a structure of the row's parameters alone is certified
        pair = torch.tensor([[1, 3]]) if row == 1 else members
        assert float(theory.association_radius(memories, pair, 1.0, own)) > 0
