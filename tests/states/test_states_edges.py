"""State spaces at the edges: one-hot answers under autograd, batches, halves, NaN, overflow."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import HopfieldNetwork
from hopfy.network import Kind
from hopfy.omega import Exponential, Polynomial, Quadratic
from hopfy.states import Ball, Euclidean, LayerNorm, Sign, State, Tanh

STATES = [Euclidean(), Ball(1.5), LayerNorm(0.3, 0.8), Sign(), Tanh(2.0)]
every_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)
UNBOUNDED = [Quadratic(), Polynomial(2), Polynomial(5), Exponential(0.5)]


@pytest.mark.parametrize("name", ["radius", "shift", "scale"])
def test_one_hot_answers_have_the_gradients_of_the_map(name: str) -> None:
    """The stored pattern comes back bit for bit, but the derivatives are those of Psi's map."""
    torch.manual_seed(0)
    cues = torch.randn(6, 4, dtype=torch.float64)
    coefficients = torch.randn(6, 4, dtype=torch.float64)

    def space(value: Tensor) -> State:
        return Ball(value) if name == "radius" else LayerNorm(**{name: value})

    def found(value: Tensor, patterns: Tensor) -> Tensor:
        return HopfieldNetwork(patterns, "sparsemax", 30.0, state=space(value)).update(stored)

    value = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    stored = space(value.detach())(cues)
    patterns = stored.clone().requires_grad_()
    made = found(value, patterns)
    assert torch.equal(made, stored)
    by_value, by_patterns = torch.autograd.grad((made * coefficients).sum(), (value, patterns))
    step = 1e-6
    with torch.no_grad():
        change = found(value + step, patterns) - found(value - step, patterns)
        torch.testing.assert_close(by_value, (change * coefficients).sum() / (2 * step))
        for row, column in ((0, 0), (3, 2), (5, 3)):
            moved = torch.zeros_like(patterns)
            moved[row, column] = step
            change = found(value, patterns + moved) - found(value, patterns - moved)
            slope = (change * coefficients).sum() / (2 * step)
            torch.testing.assert_close(by_patterns[row, column], slope, rtol=1e-5, atol=1e-7)


@every_state
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_batches_of_networks_return_patterns_bit_for_bit(state: State, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.randn(3, 5, 40, generator=generator, dtype=torch.float64)
    patterns = state(points).to(dtype)
    noise = 0.01 * torch.randn(3, 5, 40, generator=generator, dtype=torch.float64)
    net = HopfieldNetwork(patterns, "sparsemax", 50.0, state=state)
    found = net.update(patterns + noise.to(dtype))
    expected = patterns
    if isinstance(state, Tanh):  # a stored pattern is no state of its own there
        wide = torch.promote_types(dtype, torch.float32)
        expected = state(patterns.to(wide)).to(dtype)
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("size", [2, 40, 4096])
def test_which_patterns_are_states_of_their_own(dtype: torch.dtype, size: int) -> None:
    """Those that torch's own functions normalize are; a percent more, or ten in halves, is too much."""
    points = torch.randn(20, size, dtype=torch.float64).to(dtype)
    made = {
        Ball(1.0): torch.nn.functional.normalize(points, dim=-1),
        LayerNorm(): torch.nn.functional.layer_norm(points, (size,), eps=0.0),
        Sign(): points.sign(),
    }
    for state, patterns in made.items():
        assert state.keeps(patterns).all(), state
        assert state.keeps(state(points)).all(), state
        assert not state.keeps(1.1 * patterns).any(), state
        assert torch.finfo(dtype).bits == 16 or not state.keeps(1.01 * patterns).any(), state


@pytest.mark.parametrize("state", STATES[1:], ids=lambda state: state.name)
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_nothing_that_is_not_finite_becomes_a_state(state: State, value: float) -> None:
    z = torch.tensor([[1.0, value, 2.0], [1.0, -2.0, 0.5]])
    made = state(z)
    assert made[1].isfinite().all()
    if value != value or isinstance(state, Ball | LayerNorm):
        assert made[0].isnan().any()
    else:
        assert made[0, 1] == (1.0 if value > 0 else -1.0)


@pytest.mark.parametrize("state", STATES[1:], ids=lambda state: state.name)
@pytest.mark.parametrize("omega", ["sparsemax", "softmax", Quadratic()], ids=str)
def test_nan_stays_in_its_row(state: State, omega: hopfy.Omega | str) -> None:
    net = HopfieldNetwork(state(torch.randn(4, 3)), omega, state=state)
    z = torch.tensor([[1.0, torch.nan, 2.0], [1.0, -2.0, 0.5]])
    moved = net.update(z)
    assert moved[0].isnan().all()
    torch.testing.assert_close(moved[1], net.update(z[1]))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("state", STATES[1:], ids=lambda state: state.name)
@pytest.mark.parametrize("beta", [2.0**-20, 1.0, 2.0**20])
def test_halves_are_rounded_once(state: State, dtype: torch.dtype, beta: float) -> None:
    """Scores and sums beyond the largest float16 stay right (powers of two: fields of 0 stay 0)."""
    torch.manual_seed(0)
    patterns = state.of_patterns(torch.randn(9, 40)).to(dtype)
    queries = state(torch.randn(4, 40)).to(dtype)
    for omega in (*UNBOUNDED, "softmax", "1.5-entmax", "2-subsets"):
        net = HopfieldNetwork(patterns, omega, beta, state=state)
        wide = HopfieldNetwork(patterns.double(), omega, beta, state=state)
        expected = wide.update(queries.double())
        eps = torch.finfo(dtype).eps
        torch.testing.assert_close(net.update(queries).double(), expected, rtol=eps, atol=4 * eps)
        if net.omega.is_bounded:
            weights = wide.weights(queries.double())
            torch.testing.assert_close(
                net.weights(queries).double(), weights, rtol=eps, atol=4 * eps
            )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_classic_networks_of_halves_count_exactly(dtype: torch.dtype) -> None:
    """Scores of 3,001 coordinates are no whole numbers of a half any more."""
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(40, 3001, generator=generator).sign()
    queries = torch.randn(6, 3001, generator=generator).sign()
    for maker in (
        hopfy.models.classic,
        hopfy.models.dense,
        lambda x: hopfy.models.classic(x, hopfy.models.Asynchronous()),
    ):
        found = maker(patterns.to(dtype)).update(queries.to(dtype))
        assert found.dtype is dtype
        assert torch.equal(found.double(), maker(patterns.double()).update(queries.double()))


@pytest.mark.parametrize("omega", [Exponential(100.0), Polynomial(101), Polynomial(100)], ids=str)
@pytest.mark.parametrize("state", [Sign(), Tanh(1.0)], ids=lambda state: state.name)
def test_gradients_beyond_the_largest_float_keep_their_signs(
    omega: hopfy.Omega, state: State
) -> None:
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(5, 21, generator=generator).sign()
    net = HopfieldNetwork(patterns, omega, 1.0, state=state)
    queries = 0.9 * patterns
    gradient = net.gradient(queries)
    assert not gradient.isnan().any()
    assert torch.equal(gradient.sign(), -patterns)
    assert (net.energy(queries) == -torch.inf).all()


@pytest.mark.parametrize("omega", UNBOUNDED, ids=str)
@pytest.mark.parametrize("beta", [1e-30, 1e-12, 1e-6])
def test_energies_at_a_small_beta_keep_their_digits(omega: hopfy.Omega, beta: float) -> None:
    """-(Omega*(beta X q) - Omega*(0)) / beta: the constant N must not swallow the rest."""
    torch.manual_seed(0)
    patterns = torch.randn(7, 5, dtype=torch.float64)
    queries = 2 * torch.rand(6, 5, dtype=torch.float64) - 1
    for state in (Ball(4.0), Tanh(2.0)):
        net = HopfieldNetwork(patterns, omega, beta, state=state)
        energies = net.retrieve(queries, max_steps=5, trace=True).energies
        assert (energies.diff(dim=0) <= 1e-12 * energies.abs().amax(0)).all()
    if isinstance(omega, Exponential):  # exp(b t) = 1 + b t up to b^2 t^2
        expected = -(queries @ patterns.T).sum(-1)
        found = HopfieldNetwork(patterns, omega, beta, state=Ball(4.0)).energy(queries)
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=0)


@every_state
def test_one_coordinate_one_pattern_and_duplicates(state: State) -> None:
    for size in (1, 3):
        single = state.of_patterns(torch.randn(1, size))
        for patterns in (single, single.expand(4, size)):
            net = HopfieldNetwork(patterns, "sparsemax", 2.0, state=state)
            found = net.retrieve(state(torch.randn(5, size)), trace=True)
            assert found.state.isfinite().all()
            assert (found.energies.diff(dim=0) <= 1e-5).all()
            expected = state(single).expand(5, size)
            torch.testing.assert_close(found.state, expected, rtol=1e-4, atol=1e-5)


def test_a_zero_vector_on_the_ball() -> None:
    """Weights that cancel leave the field 0: the center is returned, a fixed point of zero scores."""
    patterns = Ball(2.0)(torch.tensor([[3.0, 4.0], [-3.0, -4.0]]))
    net = HopfieldNetwork(patterns, "softmax", 1.0, state=Ball(2.0))
    zero = torch.zeros(2, requires_grad=True)
    moved = net.update(zero)
    assert torch.equal(moved, torch.zeros(2))
    (gradient,) = torch.autograd.grad(moved.sum(), zero)
    assert torch.equal(gradient, torch.zeros(2))
    found = net.retrieve(zero.detach(), trace=True)
    assert found.converged
    assert torch.equal(found.state, torch.zeros(2))
    assert (found.energies.diff(dim=0) <= 0).all()


def test_even_powers_of_negative_scores_are_nothing() -> None:
    """Else the conjugate would not be convex: an anti-pattern has no pull, and Sign takes 0."""
    patterns = torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    net = hopfy.models.dense(patterns, 2)
    opposite = -patterns.sum(0).sign()
    assert (net.scores(opposite) < 0).all()
    assert torch.equal(net.weights(opposite), torch.zeros(2))
    assert torch.equal(net.update(opposite), torch.zeros(3))
    assert net.energy(opposite) == 0
    assert torch.equal(net.gradient(opposite), torch.zeros(3))
    direct = torch.zeros(2, dtype=torch.float64)
    scores = torch.tensor([-2.0, 3.0], dtype=torch.float64, requires_grad=True)
    conjugate = Polynomial(2).conjugate(scores)
    assert conjugate == 9.0
    (slope,) = torch.autograd.grad(conjugate, scores)
    direct[1] = 9.0
    assert torch.equal(slope, direct)


def test_parameters_are_named_in_errors() -> None:
    for make in (Tanh, Exponential):
        with pytest.raises(ValueError, match="expected b > 0 and finite, got 0"):
            make(0.0)
    with pytest.raises(ValueError, match="expected scale > 0"):
        LayerNorm(0.0, -1.0)
    with pytest.raises(ValueError, match="expected shift finite"):
        LayerNorm(torch.inf)
    with pytest.raises(TypeError, match="expected radius to be a number"):
        Ball("one")  # type: ignore[arg-type]


def test_only_what_is_stored_is_called_exact() -> None:
    """One-hot weights recall a stored pattern only if Psi's map leaves it as it is."""
    generator = torch.Generator().manual_seed(0)
    points = 3 * torch.randn(8, 30, generator=generator)
    for state in (Ball(1.0), LayerNorm(), Tanh(2.0)):
        for patterns in (points, points.expand(2, 8, 30)):
            net = HopfieldNetwork(patterns, "sparsemax", 5.0, state=state)
            found = net.retrieve(state(patterns))
            assert found.converged.all()
            assert (found.size == 1).all()
            assert not (found.state == patterns).all(-1).any()
            assert (found.pattern == -1).all(), state
            assert set(found.kind) == {Kind.METASTABLE}
        stored = state.of_patterns(points)
        sums = HopfieldNetwork(stored, "2-subsets", 50.0, state=state).retrieve(stored)
        assert set(sums.kind) == {Kind.METASTABLE}
    kept = Ball(1.0)(points).expand(2, 8, 30)
    found = HopfieldNetwork(kept, "sparsemax", 50.0, state=Ball(1.0)).retrieve(kept)
    assert set(found.kind) == {Kind.PATTERN}
    assert torch.equal(found.pattern, torch.arange(8).expand(2, 8))
