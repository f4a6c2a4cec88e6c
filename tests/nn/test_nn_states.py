"""State spaces inside layers: Psi is applied to what each head retrieves, in every step."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import hopfy
from hopfy.nn import Hopfield, HopfieldLookup, HopfieldPooling
from hopfy.omega import Quadratic
from hopfy.states import Ball, Euclidean, LayerNorm, Sign, Tanh

STATES = [Euclidean(), Ball(1.5), LayerNorm(0.3, 0.8), Sign(), Tanh(2.0)]
every_state = pytest.mark.parametrize("state", STATES, ids=lambda state: state.name)


@every_state
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("tol", [0.0, 1e-12])
def test_a_layer_without_projections_is_the_network(
    state: hopfy.states.State, steps: int, tol: float
) -> None:
    memories = state.of_patterns(torch.randn(7, 6, dtype=torch.float64))
    queries = state.of_patterns(torch.randn(4, 6, dtype=torch.float64))
    layer = Hopfield(omega="1.5-entmax", beta=0.7, max_steps=steps, tol=tol, state=state)
    expected = queries
    net = hopfy.HopfieldNetwork(memories, "1.5-entmax", 0.7, state=state)
    for _ in range(steps):
        expected = net.update(expected)
    torch.testing.assert_close(layer(queries, memories), expected)


def test_post_norm_attention_is_the_layer_norm_state() -> None:
    """Softmax attention followed by layer normalization of every head, from torch's own parts."""
    torch.manual_seed(0)
    layer = Hopfield(12, heads=3, omega="softmax", state="layer-norm").double()
    x, memories = torch.randn(2, 5, 12).double(), torch.randn(2, 8, 12).double()

    def heads(part: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return part(x).unflatten(-1, (3, 4)).transpose(-2, -3)

    attended = nn.functional.scaled_dot_product_attention(
        heads(layer.queries_in, x), heads(layer.memories_in, memories), heads(layer.values_in, memories)
    )  # fmt: skip
    normed = nn.functional.layer_norm(attended, (4,), eps=0.0)
    expected = layer.out(normed.transpose(-2, -3).flatten(-2))
    torch.testing.assert_close(layer(x, memories), expected)


def test_a_module_can_be_the_state() -> None:
    norm = nn.LayerNorm(6, eps=0.0).double()
    x = torch.randn(4, 6, dtype=torch.float64)
    ours = Hopfield(beta=1.0, max_steps=3, state="layer-norm")(x)
    torch.testing.assert_close(Hopfield(beta=1.0, max_steps=3, state=norm)(x), ours)


def test_parameters_of_the_state_are_learned() -> None:
    radius = nn.Parameter(torch.tensor(1.3))
    layer = Hopfield(8, heads=2, max_steps=2, state=Ball(radius))
    assert any(parameter is radius for parameter in layer.parameters())
    layer(torch.randn(3, 5, 8)).square().sum().backward()
    assert radius.grad is not None
    assert radius.grad != 0
    assert "association.state_radius" in layer.state_dict()
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        next(p for n, p in twin.named_parameters() if n.endswith("radius")).fill_(2.0)
    assert twin.association.state.radius.item() == 2.0
    assert layer.association.state.radius.item() == pytest.approx(1.3)


def test_pooling_and_lookup_take_states() -> None:
    bags = torch.randn(3, 9, 8)
    pool = HopfieldPooling(8, heads=2, state="ball")
    pool.hopfield.use(*(nn.Identity() for _ in range(4)))
    pooled = pool(bags).unflatten(-1, (2, 4))
    torch.testing.assert_close(pooled.norm(dim=-1), torch.ones(3, 2))
    lookup = HopfieldLookup(8, heads=2, memories=5, state=LayerNorm(0.0, 2.0), max_steps=3)
    lookup.hopfield.out = nn.Identity()
    found = lookup(torch.randn(3, 4, 8)).unflatten(-1, (2, 4))
    torch.testing.assert_close(found.std(-1, correction=0), torch.full((3, 4, 2), 2.0))


def test_masked_queries_give_zeros_in_every_space() -> None:
    mask = torch.tensor([[True, True], [False, False]])
    for state in STATES:
        layer = Hopfield(4, state=state)
        assert (layer(torch.randn(2, 3, 4), torch.randn(2, 2, 4), mask=mask)[1] == 0).all()


def test_steps_that_grow_without_end_are_refused() -> None:
    """One step of weights without a bound is linear attention; several need a bounded state."""
    x = torch.randn(2, 5, 8)
    assert Hopfield(8, omega=Quadratic())(x).isfinite().all()
    assert Hopfield(8, omega=Quadratic(), max_steps=9, state="ball")(x).isfinite().all()
    with pytest.raises(ValueError, match="state space that is bounded"):
        Hopfield(8, omega=Quadratic(), max_steps=2)


@pytest.mark.parametrize("name", ["radius", "shift", "scale", "b"])
def test_learned_parameters_get_exact_gradients(name: str) -> None:
    """Through three steps of two heads, against differences."""
    torch.manual_seed(0)
    parameter = nn.Parameter(torch.tensor(0.8, dtype=torch.float64))
    makers = {"radius": Ball, "b": Tanh}
    state = makers[name](parameter) if name in makers else LayerNorm(**{name: parameter})
    layer = Hopfield(8, heads=2, max_steps=3, state=state, omega="1.5-entmax").double()
    x, coefficients = torch.randn(2, 2, 5, 8, dtype=torch.float64)
    own = dict(layer.named_parameters())[f"association.state_{name}"]
    (gradient,) = torch.autograd.grad((layer(x) * coefficients).sum(), own)
    ends = []
    with torch.no_grad():
        for step in (1e-6, -1e-6):
            own += step
            ends.append((layer(x) * coefficients).sum())
            own -= step
    torch.testing.assert_close(gradient, (ends[0] - ends[1]) / 2e-6, rtol=1e-6, atol=1e-6)


def test_unknown_states_are_refused() -> None:
    with pytest.raises(ValueError, match='did you mean "layer-norm"'):
        Hopfield(4, state="layernorm")
    assert "state=Ball(radius=2.0)" in repr(Hopfield(4, state=Ball(2.0)))
