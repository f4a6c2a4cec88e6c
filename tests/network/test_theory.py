"""Props. 2 and 3: each test tries to refute a statement, with equality and near-margin cases."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import theory

MARGINS = {"1.5-entmax": 2.0, "sparsemax": 1.0, "3-entmax": 0.5, "2-normmax": 1.0, "5-normmax": 1.0}
NAMES = st.sampled_from(sorted(MARGINS))
KINDS = st.sampled_from(["ball", "sphere", "grid"])


def _patterns(seed: int, n: int, d: int, kind: str) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    if kind == "sphere":
        return x / x.norm(dim=-1, keepdim=True)
    if kind == "grid":  # exact arithmetic, ties and duplicates
        return (2 * x).round()
    return x


def _is_in_hull_of_others(memories: Tensor, i: int) -> bool:
    """A linear program of its own decides."""
    import numpy as np
    from scipy.optimize import linprog

    others = np.delete(memories.numpy(), i, axis=0)
    if len(others) == 0:
        return False
    A = np.vstack((others.T, np.ones(len(others))))
    b = np.append(memories[i].numpy(), 1.0)
    return bool(linprog(np.zeros(len(others)), A_eq=A, b_eq=b, bounds=(0, None)).status == 0)


# ---------------------------------------------------------------------- separations


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 9999),
    n=st.integers(1, 30),
    d=st.integers(1, 6),
    kind=KINDS,
    block=st.sampled_from([1, 9, 50, 10_000]),
)
def test_separations_are_their_definition_in_blocks_of_any_size(
    seed: int, n: int, d: int, kind: str, block: int
) -> None:
    memories = _patterns(seed, n, d, kind)
    gram = memories @ memories.T
    expected = gram.diagonal() - gram.clone().fill_diagonal_(-math.inf).amax(-1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hopfy.theory._separation._BLOCK", block)
        found = theory.separations(memories)
        some = theory.separations(memories, torch.tensor([n - 1, 0]))
    assert torch.allclose(found.value, expected, atol=1e-12)
    assert torch.allclose(some.value, expected[[n - 1, 0]], atol=1e-12)
    for i, rival in enumerate(found.rival.tolist()):
        assert rival != i
        assert (rival == -1) == (n == 1)


def test_duplicates_have_no_separation() -> None:
    memories = torch.tensor([[1.0, 2.0], [0.0, 1.0], [1.0, 2.0]])
    found = theory.separations(memories)
    assert found.value.tolist() == [0.0, -1.0, 0.0]
    assert found.rival.tolist() == [2, 0, 0]
    assert theory.certified_radius(memories, "sparsemax", 1e9).tolist()[0] == -math.inf


# ---------------------------------------------------------------------- Prop. 2, first statement


@settings(max_examples=120, deadline=None)
@given(
    name=NAMES,
    seed=st.integers(0, 9999),
    n=st.integers(2, 7),
    d=st.integers(1, 4),
    kind=KINDS,
    factor=st.sampled_from([0.5, 0.999999, 1.0, 1.000001, 2.0]),
)
def test_stationary_iff_separated_outside_the_hull(
    name: str, seed: int, n: int, d: int, kind: str, factor: float
) -> None:
    memories = _patterns(seed, n, d, kind)
    i = seed % n
    delta = float(theory.separations(memories).value[i])
    assume(delta > 1e-6)
    beta = factor * MARGINS[name] / delta  # just below, at and just above the margin
    weights = hopfy.HopfieldNetwork(memories, name, beta).weights(memories[i])
    update = weights @ memories
    if factor == 1:
        # The product rounds to one side of the margin, and weights leave zero like (1e-16)^(1/4).
        assert torch.allclose(update, memories[i], atol=1e-2)
    elif factor > 1:
        assert weights[i] == 1.0
        assert torch.equal(update, memories[i])
        assert bool(theory.is_stationary(memories, name, beta)[i])
    elif not _is_in_hull_of_others(memories, i):
        assert weights[i] < 1
        assert not torch.equal(update, memories[i])
        assert not bool(theory.is_stationary(memories, name, beta)[i])


def test_inside_the_hull_a_pattern_may_be_stationary_without_separation() -> None:
    # The 'only if' needs the hull: the center of a square is a fixed point with separation 0.
    square = torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, 1.0], [-1.0, -1.0], [0.0, 0.0]])
    net = hopfy.HopfieldNetwork(square, "sparsemax", 1.0)
    assert torch.equal(net.update(square[4]), square[4])
    assert not bool(theory.is_stationary(square, "sparsemax", 1.0)[4])
    twins = torch.tensor([[1.0, 2.0], [1.0, 2.0]])
    assert torch.equal(hopfy.HopfieldNetwork(twins, "sparsemax").update(twins), twins)
    assert not theory.is_stationary(twins, "sparsemax", 1.0).any()


@pytest.mark.parametrize("name", sorted(MARGINS))
def test_equality_at_the_margin_is_exact_recall(name: str) -> None:
    beta = MARGINS[name]
    memories = torch.eye(4, dtype=torch.float64)  # separation 1 = m / beta, in exact arithmetic
    assert torch.equal(hopfy.HopfieldNetwork(memories, name, beta).weights(memories), memories)
    assert theory.is_stationary(memories, name, beta).all()
    below = hopfy.HopfieldNetwork(memories, name, beta * 0.999).weights(memories)
    assert (below.diagonal() < 1).all()


def test_alpha_infinity_shares_ties_so_equality_does_not_count() -> None:
    memories = torch.tensor([[1.0, 0.0], [1.0, 1.0]])  # x_0 . x_0 = x_0 . x_1: separation 0
    assert hopfy.HopfieldNetwork(memories, "inf-entmax").weights(memories[0]).tolist() == [0.5, 0.5]
    assert theory.is_stationary(memories, "inf-entmax", 1.0).tolist() == [False, True]


def test_softmax_has_no_margin() -> None:
    assert theory.lead("softmax", 5.0) == math.inf
    assert not theory.is_stationary(torch.eye(3) * 100, "softmax", 1.0).any()
    assert (theory.certified_radius(torch.eye(3), "softmax", 1.0) == -math.inf).all()


# ---------------------------------------------------------------------- second statement


@settings(max_examples=120, deadline=None)
@given(
    name=NAMES,
    seed=st.integers(0, 9999),
    n=st.integers(1, 7),
    d=st.integers(1, 4),
    kind=KINDS,
    beta=st.sampled_from([0.5, 2.0, 10.0]),
    stretch=st.sampled_from([0.3, 1.0, 10.0]),
)
def test_one_step_says_what_the_network_does(
    name: str, seed: int, n: int, d: int, kind: str, beta: float, stretch: float
) -> None:
    memories = _patterns(seed, n, d, kind)
    queries = stretch * torch.cat((memories, _patterns(seed + 1, 6, d, "ball")))
    net = hopfy.HopfieldNetwork(memories, name, beta)
    found = theory.one_step(queries, memories, name, beta)
    state = net.update(queries)
    scores = (queries @ memories.T).sort(dim=-1, descending=True).values
    for q, (i, stays) in enumerate(zip(found.pattern.tolist(), found.stays.tolist(), strict=True)):
        near = n > 1 and abs(float(scores[q, 0] - scores[q, 1]) * beta - MARGINS[name]) < 1e-9
        if i >= 0 and not near:
            assert torch.equal(state[q], memories[i])
            if stays:
                final = net.retrieve(queries[q], max_steps=3)
                assert torch.allclose(final.state, memories[i], atol=1e-9)
        elif i < 0:
            assert not stays
            if not near:
                assert net.weights(queries[q]).max() < 1


def test_counterexample_one_step_to_a_pattern_that_is_left_again() -> None:
    # Prop. 2 says "converges to x_i exactly in one iteration" for every query with this lead.
    # It reaches x_i in one iteration, but without Delta_i >= m / beta it does not stay.
    memories = torch.tensor([[1.0], [0.9]], dtype=torch.float64)
    query = torch.tensor([100.0], dtype=torch.float64)
    assert float(query @ (memories[0] - memories[1])) >= 1.0  # the hypothesis, m = beta = 1
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 1.0)
    first = net.update(query)
    assert torch.equal(first, memories[0])
    assert not torch.equal(net.update(first), memories[0])
    assert not bool(theory.one_step(query, memories, "sparsemax", 1.0).stays)


# ---------------------------------------------------------------------- third statement


@settings(max_examples=100, deadline=None)
@given(
    name=NAMES,
    seed=st.integers(0, 9999),
    n=st.integers(2, 7),
    d=st.integers(1, 5),
    kind=KINDS,  # the footnote: norms need not be equal
    beta=st.sampled_from([1.0, 5.0, 50.0]),
    bound=st.sampled_from(["exact", "paper"]),
)
def test_every_query_within_the_radius_is_recalled_in_one_step(
    name: str, seed: int, n: int, d: int, kind: str, beta: float, bound: str
) -> None:
    memories = _patterns(seed, n, d, kind)
    radius = theory.certified_radius(memories, name, beta, bound=bound)  # type: ignore[arg-type]
    net = hopfy.HopfieldNetwork(memories, name, beta)
    for i in (radius > 0).nonzero().flatten().tolist():
        # The worst directions are straight at the others; add random ones.
        away = torch.cat((memories - memories[i], _patterns(seed + 7, 4, d, "ball")))
        away = away[away.norm(dim=-1) > 0]
        away = away / away.norm(dim=-1, keepdim=True)
        queries = memories[i] + (1 - 1e-9) * radius[i] * away
        assert torch.equal(net.update(queries), memories[i].expand_as(queries))


@settings(max_examples=60, deadline=None)
@given(name=NAMES, seed=st.integers(0, 9999), n=st.integers(2, 7), d=st.integers(2, 5))
def test_the_exact_radius_is_the_largest_and_at_least_the_papers(
    name: str, seed: int, n: int, d: int
) -> None:
    memories, beta = _patterns(seed, n, d, "ball"), 8.0
    exact = theory.certified_radius(memories, name, beta)
    paper = theory.certified_radius(memories, name, beta, bound="paper")
    certain = paper >= 0
    assert (exact[certain] >= paper[certain] * (1 - 1e-12)).all()
    net = hopfy.HopfieldNetwork(memories, name, beta)
    for i in (exact > 1e-3).nonzero().flatten().tolist():
        others = [j for j in range(n) if j != i]
        away = memories[others] - memories[i]
        away = away / away.norm(dim=-1, keepdim=True)
        beyond = net.weights(memories[i] + (1 + 1e-6) * exact[i] * away)
        assert (beyond[:, i] < 1).any()


@pytest.mark.parametrize("block", [4, 10_000])
def test_radii_do_not_depend_on_blocks(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    memories = _patterns(3, 20, 4, "ball")
    expected = theory.certified_radius(memories, "sparsemax", 3.0)
    monkeypatch.setattr("hopfy.theory._separation._BLOCK", block)
    assert torch.allclose(theory.certified_radius(memories, "sparsemax", 3.0), expected)
    some = torch.tensor([5, 2])
    assert torch.allclose(theory.certified_radius(memories, "sparsemax", 3.0, some), expected[some])


def test_a_lone_pattern_attracts_everything() -> None:
    assert theory.certified_radius(torch.ones(1, 3), "sparsemax", 1.0).tolist() == [math.inf]
    assert theory.is_stationary(torch.ones(1, 3), "sparsemax", 1.0).tolist() == [True]
    assert theory.one_step(torch.zeros(3), torch.ones(1, 3), "sparsemax", 1.0).pattern.item() == 0


# ---------------------------------------------------------------------- Prop. 3


def test_capacity_is_the_formula_of_the_paper() -> None:
    capacity = theory.separated_capacity(40, "1.5-entmax", beta=20.0, norm=3.0)
    assert capacity.epsilon == pytest.approx(3.0 / 4 - 2.0 / (2 * 20.0 * 3.0))
    asymptotic = math.sqrt(3 * math.pi * 40 / 8) * (2 / math.sqrt(3)) ** 40
    assert capacity.patterns == pytest.approx(asymptotic, rel=0.05)
    huge = theory.separated_capacity(20_000, "sparsemax", beta=20.0)
    assert huge.patterns == math.inf
    assert huge.log_patterns / 20_000 == pytest.approx(math.log(2 / math.sqrt(3)), rel=1e-2)


def test_capacity_needs_a_large_enough_norm() -> None:
    # M^2 > 2m / beta is exactly when the radius is positive.
    assert theory.separated_capacity(10, "sparsemax", 2.0, norm=1.0).epsilon == pytest.approx(0.0)
    assert theory.separated_capacity(10, "sparsemax", 2.0, norm=1.01).epsilon > 0
    assert theory.separated_capacity(10, "sparsemax", 2.0, norm=0.99).epsilon < 0


@pytest.mark.parametrize("dimension", [2, 3, 4, 5])
def test_so_many_separated_patterns_exist_and_are_recalled(dimension: int) -> None:
    # Greedy packing: any maximal set of directions 60 degrees apart is at least this large.
    capacity = theory.separated_capacity(dimension, "sparsemax", beta=30.0)
    generator = torch.Generator().manual_seed(dimension)
    candidates = torch.randn(4000, dimension, generator=generator, dtype=torch.float64)
    candidates = candidates / candidates.norm(dim=-1, keepdim=True)
    chosen: list[Tensor] = []
    for candidate in candidates:
        if all(float(candidate @ other) <= math.cos(capacity.angle) for other in chosen):
            chosen.append(candidate)
    memories = torch.stack(chosen)
    assert len(chosen) >= capacity.patterns
    noise = torch.randn(memories.shape, generator=generator, dtype=torch.float64)
    noise = capacity.epsilon * noise / noise.norm(dim=-1, keepdim=True)
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 30.0)
    assert torch.equal(net.update(memories + noise), memories)


@pytest.mark.parametrize(
    ("dimension", "zeta", "failure"), [(6, 3.0, 0.2), (12, 1.6, 0.1), (3, 9.0, 0.3)]
)
def test_random_patterns_fail_no_more_often_than_promised(
    dimension: int, zeta: float, failure: float
) -> None:
    beta = 1000.0
    capacity = theory.random_capacity(dimension, "sparsemax", beta, zeta=zeta, failure=failure)
    count = int(capacity.patterns)
    assert count >= 2
    assert capacity.epsilon == pytest.approx(0.5 * (1 - math.cos(1 / zeta)) - 1 / (2 * beta))
    assert capacity.epsilon > 0
    generator = torch.Generator().manual_seed(1)
    trials, failures = 80, 0
    for _ in range(trials):
        x = torch.randn(count, dimension, generator=generator, dtype=torch.float64)
        x = x / x.norm(dim=-1, keepdim=True)
        failures += int((theory.separations(x).value < 1 / beta + 2 * capacity.epsilon).any())
    # Three standard deviations of a binomial above the promise.
    assert failures <= trials * failure + 3 * math.sqrt(trials * failure * (1 - failure))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.separated_capacity(1, "sparsemax", 1.0), "dimension >= 2"),
        (lambda: theory.separated_capacity(3, "sparsemax", 1.0, angle=2.0), "angle"),
        (lambda: theory.separated_capacity(3, "sparsemax", 1.0, norm=0.0), "norm > 0"),
        (lambda: theory.random_capacity(3, "sparsemax", 1.0, zeta=0.5, failure=0.1), "zeta > 1"),
        (lambda: theory.random_capacity(3, "sparsemax", 1.0, zeta=2, failure=0), "probability"),
        (lambda: theory.lead("sparsemax", -1.0), "beta > 0"),
        (lambda: theory.separations(torch.ones(2, 3, 4)), r"shape \(N, D\)"),
        (lambda: theory.certified_radius(torch.eye(2), "sparsemax", 1.0, bound="x"), "bound"),
    ],
)
def test_bad_questions_are_one_message(call: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()  # type: ignore[operator]


def test_structures_are_sent_to_their_own_functions() -> None:
    with pytest.raises(TypeError, match="association_separation"):
        theory.is_stationary(torch.eye(3), "2-subsets", 1.0)
    with pytest.raises(TypeError, match="int64"):
        theory.separations(torch.eye(3), torch.tensor([0.0]))
