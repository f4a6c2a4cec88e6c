"""Laws of the state spaces, and of networks with every pair of regularizers."""

from __future__ import annotations

import json

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor

import hopfy
from hopfy import HopfieldNetwork, SparseMAP
from hopfy.omega import Capped, EntropicKSubsets, Exponential, Polynomial, Quadratic
from hopfy.states import Ball, Euclidean, LayerNorm, Sign, State, Tanh
from hopfy.structures import KSubsets, SequentialKSubsets

STATES = [Euclidean(), Ball(1.5), LayerNorm(0.3, 0.8), Sign(), Tanh(2.0)]
BOUNDED = [hopfy.omega_from(name) for name in ("softmax", "1.5-entmax", "sparsemax", "5-normmax")] + [
    SparseMAP(KSubsets(2)), SparseMAP(SequentialKSubsets(2, 0.4)), EntropicKSubsets(2), Capped(0.4),
]  # fmt: skip
UNBOUNDED = [Quadratic(), Polynomial(2), Polynomial(5), Exponential(0.5)]
every_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
PAIRS = [(omega, state) for omega in BOUNDED for state in STATES]
PAIRS += [(omega, state) for omega in UNBOUNDED for state in STATES[1:]]
every_pair = pytest.mark.parametrize(
    ("omega", "state"), PAIRS, ids=[f"{o.name}-{s.name}" for o, s in PAIRS]
)


def _inside(state: State, count: int, size: int) -> Tensor:
    """Points of the domain that no state's own map made."""
    points = torch.randn(count, size, dtype=torch.float64)
    if isinstance(state, Ball):
        return (
            1.5
            * torch.rand(count, 1, dtype=torch.float64)
            * points
            / points.norm(dim=1, keepdim=True)
        )
    if isinstance(state, LayerNorm):
        points = points - points.mean(1, keepdim=True)
        reach = 0.8 * size**0.5 * torch.rand(count, 1, dtype=torch.float64)
        return 0.3 + reach * points / points.norm(dim=1, keepdim=True)
    return points if isinstance(state, Euclidean) else 2 * torch.rand_like(points) - 1


@every_state
def test_the_map_is_the_best_state(state: State) -> None:
    z = torch.randn(20, 6, dtype=torch.float64)
    best = (state(z) * z).sum(-1) - state.value(state(z))
    torch.testing.assert_close(best, state.conjugate(z))
    for point in _inside(state, 200, 6):
        assert ((z @ point) - state.value(point) <= best + 1e-9).all()


@every_state
def test_the_map_is_the_gradient_of_the_conjugate(state: State) -> None:
    z = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(state.conjugate(z).sum(), z)
    torch.testing.assert_close(gradient, state(z).detach())


@every_state
def test_the_loss_is_never_negative_and_zero_at_the_map(state: State) -> None:
    z = torch.randn(30, 6, dtype=torch.float64)
    assert (state.loss(_inside(state, 30, 6), z) >= 0).all()
    assert (state.loss(state(z), z) <= 1e-12).all()


@every_state
def test_outside_the_domain_the_value_is_infinite(state: State) -> None:
    far = torch.full((6,), 50.0, dtype=torch.float64)
    far[0] = -49.0
    assert state.value(far).isinf() == state.is_bounded
    assert state.value(_inside(state, 50, 6)).isfinite().all()


@every_state
def test_zero_and_huge_and_tiny_vectors(state: State) -> None:
    for scale in (0.0, 1e-300, 1e-30, 1e30, 1e300):
        z = scale * torch.tensor([[1.0, -2.0, 3.0]], dtype=torch.float64).requires_grad_()
        made = state(z)
        if state.is_bounded or scale < 1e300:
            assert made.isfinite().all()
        (gradient,) = torch.autograd.grad(made.sum(), z)
        assert not gradient.isnan().any()


def test_layer_norm_is_torchs() -> None:
    z = torch.randn(4, 7, dtype=torch.float64)
    ours = LayerNorm(0.25, 1.5)(z)
    theirs = 1.5 * torch.nn.functional.layer_norm(z, (7,), eps=0.0) + 0.25
    torch.testing.assert_close(ours, theirs)


@every_state
def test_a_description_makes_the_same_state_again(state: State) -> None:
    assert State.from_spec(json.loads(json.dumps(state.spec()))) == state
    assert type(hopfy.states.state_from(state.name)) is type(state)


def test_names_that_are_none() -> None:
    with pytest.raises(ValueError, match='did you mean "layer-norm"'):
        hopfy.states.state_from("layernorm")
    with pytest.raises(TypeError, match="expected a state"):
        hopfy.states.state_from(3)  # type: ignore[arg-type]


@given(
    pair=st.sampled_from(PAIRS),
    beta=st.floats(1e-2, 1e2),
    count=st.integers(3, 12),
    size=st.integers(2, 8),
    scale=st.sampled_from([0.1, 1.0, 5.0]),
    seed=st.integers(0, 2**31 - 1),
)
@example((Exponential(0.5), Tanh(2.0)), 25.0, 4, 8, 5.0, 1)  # energies below the least float
def test_energies_never_rise(
    pair: tuple[hopfy.Omega, State], beta: float, count: int, size: int, scale: float, seed: int
) -> None:
    omega, state = pair
    torch.manual_seed(seed)
    patterns = state.of_patterns(scale * torch.randn(count, size, dtype=torch.float64))
    net = HopfieldNetwork(patterns, omega, beta, state=state)
    queries = _inside(state, 6, size)
    found = net.retrieve(queries, max_steps=12, trace=True)
    assert found.energies is not None
    largest = found.energies.abs().amax(0) + 1
    before, now = found.energies[:-1], found.energies[1:]
    assert ((now <= before + 1e-10 * largest) | (now == -torch.inf)).all()
    if omega.is_bounded:
        assert (found.energies >= -1e-10 * largest).all()
    parts = net.energy_parts(queries)
    total = parts.concave + parts.convex
    torch.testing.assert_close(total, net.energy(queries))


@every_state
def test_float32_states_are_in_their_space(state: State) -> None:
    made = state(3 * torch.randn(50, 31))
    assert state.contains(made).all()
    net = HopfieldNetwork(made, "sparsemax", 1.0, state=state)
    assert net.energy(made).isfinite().all()


@every_pair
def test_the_energy_is_its_definition_up_to_a_constant(omega: hopfy.Omega, state: State) -> None:
    patterns = torch.randn(9, 5, dtype=torch.float64)
    net = HopfieldNetwork(patterns, omega, 0.7, state=state)
    queries = _inside(state, 12, 5)
    plain = -omega.conjugate(0.7 * queries @ patterns.T) / 0.7 + state.value(queries)
    difference = net.energy(queries) - plain
    torch.testing.assert_close(difference, difference[:1].expand(12))


@every_pair
def test_the_gradient_of_the_energy(omega: hopfy.Omega, state: State) -> None:
    patterns = torch.randn(9, 5, dtype=torch.float64)
    net = HopfieldNetwork(patterns, omega, 0.7, state=state)
    queries = (0.9 * _inside(state, 6, 5)).requires_grad_()
    if isinstance(state, LayerNorm):
        queries = _inside(state, 6, 5).requires_grad_()
    (gradient,) = torch.autograd.grad(net.energy(queries).sum(), queries)
    torch.testing.assert_close(gradient, net.gradient(queries).detach())


def test_the_classic_network_is_the_hebbian_matrix() -> None:
    patterns = torch.randn(4, 60).sign()
    net = hopfy.models.classic(patterns)
    queries = torch.randn(30, 60).sign()
    hebb = patterns.T @ patterns
    expected = queries
    for _ in range(10):
        assert torch.equal(net.update(expected), (expected @ hebb).sign())
        expected = (expected @ hebb).sign()
    energy = -(queries @ hebb * queries).sum(-1) / 2
    torch.testing.assert_close(net.energy(queries), energy)


@pytest.mark.parametrize("n", [2, 3, 10])
def test_the_dense_network_is_its_formula(n: int) -> None:
    patterns, queries = torch.randn(20, 40).sign(), torch.randn(10, 40).sign()
    scores = (queries @ patterns.T).double()
    powers = scores.pow(n) if n % 2 else scores.clamp_min(0).pow(n)
    expected = (powers @ patterns.double()).sign().float()
    assert torch.equal(hopfy.models.dense(patterns, n).update(queries), expected)


def test_an_exponential_network_does_not_overflow() -> None:
    patterns = torch.randn(30, 2000).sign()
    cue = patterns[:5].clone()
    cue[:, :700] = 0.0
    net = hopfy.models.exponential(patterns)
    assert (net.scores(cue) > 1000).any()
    assert torch.equal(net.retrieve(cue).state, patterns[:5])
    soft = HopfieldNetwork(patterns, Exponential(), 1.0, state=Tanh(1.0))
    assert torch.equal(soft.update(cue), patterns[:5])


def test_one_hot_answers_are_bit_exact_and_certified() -> None:
    generator = torch.Generator().manual_seed(0)
    for state in (Euclidean(), Ball(3.0), LayerNorm(0.2, 1.1), Sign()):
        patterns = state.of_patterns(torch.randn(20, 30, generator=generator))
        net = HopfieldNetwork(patterns, "sparsemax", 5.0, state=state)
        found = net.retrieve(patterns + 0.05 * torch.randn(20, 30, generator=generator))
        assert torch.equal(found.state, patterns)
        assert torch.equal(found.pattern, torch.arange(20))
        assert found.certified.all(), state
        assert torch.equal(net.update(found.state), patterns)


@pytest.mark.parametrize(
    "omega",
    [Quadratic(), Polynomial(2), Polynomial(3), Exponential(), "softmax", "sparsemax", "2-subsets"],
    ids=str,
)
def test_networks_of_signs_end_at_fixed_points(omega: hopfy.Omega | str) -> None:
    """Until then the energy falls in every step, so that no state comes twice."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(7, 9, generator=generator, dtype=torch.float64).sign()
    queries = torch.randn(200, 9, generator=generator, dtype=torch.float64).sign()
    net = HopfieldNetwork(patterns, omega, 1.0, state=Sign())
    states, ended = [queries], torch.zeros(200, dtype=torch.bool)
    for _ in range(50):
        states.append(net.update(states[-1]))
        fell = net.energy(states[-1]) < net.energy(states[-2])
        ended = (states[-1] == states[-2]).all(-1)
        follows = (net.update(states[-1]) == states[-1]).all(-1)
        assert (fell | ended | follows).all()
    assert ended.all()


def test_patterns_that_are_no_states_are_never_certified() -> None:
    patterns = 5 * torch.eye(4)
    net = HopfieldNetwork(patterns, "sparsemax", 5.0, state=Ball(1.0))
    found = net.retrieve(patterns)
    assert not found.certified.any()
    torch.testing.assert_close(found.state, torch.eye(4))


@pytest.mark.parametrize("omega", UNBOUNDED, ids=lambda omega: omega.name)
def test_pairs_without_a_bound_are_refused(omega: hopfy.Omega) -> None:
    with pytest.raises(ValueError, match="state space that is bounded"):
        HopfieldNetwork(torch.randn(3, 2), omega)


def test_other_refusals() -> None:
    net = HopfieldNetwork(torch.randn(3, 2), "sparsemax", state="ball")
    with pytest.raises(ValueError, match="symmetric"):
        net.retrieve(torch.randn(1, 2), gradient="implicit")
    with pytest.raises(ValueError, match="patterns of -1 and 1"):
        hopfy.models.classic(torch.randn(3, 2))
    with pytest.raises(ValueError, match="integer of at least 1"):
        Polynomial(0)
    with pytest.raises(ValueError, match="radius > 0"):
        Ball(0.0)


@pytest.mark.parametrize("name", ["radius", "shift", "scale", "b"])
def test_parameters_of_the_state_get_gradients(name: str) -> None:
    parameter = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    makers = {"radius": Ball, "b": Tanh}
    patterns, queries = torch.randn(2, 6, 4, dtype=torch.float64)[:, :, :4].unbind(0)

    def moved(value: Tensor) -> Tensor:
        state = makers[name](value) if name in makers else LayerNorm(**{name: value})
        net = HopfieldNetwork(patterns, "1.5-entmax", 1.0, state=state)
        return (net.retrieve(queries, max_steps=2).state * torch.arange(4)).sum()

    (gradient,) = torch.autograd.grad(moved(parameter), parameter)
    step = 1e-6
    with torch.no_grad():
        expected = (moved(parameter + step) - moved(parameter - step)) / (2 * step)
    torch.testing.assert_close(gradient, expected, atol=1e-5, rtol=1e-5)
