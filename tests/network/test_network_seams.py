"""Networks with every omega: gradients to all parameters, batches, autocast, copies."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import HopfieldNetwork, Norm, Omega, SparseMAP, Tsallis
from hopfy.structures import (
    AtMostK,
    Chain,
    FactorGraph,
    Grid,
    KSubsets,
    Matching,
    Oracle,
    Pair,
    SequentialKSubsets,
    Tree,
    Xor,
)

BETA = 1.3


def _interval(scores: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The best run of consecutive items; a factor bit for each length scores it."""
    best, answer, size = -float("inf"), (0, 1), len(scores)
    for begin in range(size):
        for end in range(begin + 1, size + 1):
            total = float(scores[begin:end].sum() + lengths[end - begin - 1])
            if total > best:
                best, answer = total, (begin, end)
    bits, factors = torch.zeros(size), torch.zeros(size)
    bits[slice(*answer)] = 1
    factors[answer[1] - answer[0] - 1] = 1
    return bits, factors


# A parameter, and the omega over six patterns that it belongs to.
PARAMETERS: dict[str, tuple[Tensor, Callable[[Tensor], Omega]]] = {
    "alpha of entmax": (torch.tensor(1.4), Tsallis),
    "alpha of normmax": (torch.tensor(3.0), Norm),
    "k of k-subsets": (torch.tensor(2.4), lambda k: SparseMAP(KSubsets(k))),
    "k of at most k": (torch.tensor(1.4), lambda k: SparseMAP(AtMostK(k))),
    "transition": (torch.tensor([0.5, -0.3, 0.2, 0.1, -0.4]),
                   lambda t: SparseMAP(SequentialKSubsets(2, t))),
    "transitions of a chain": (torch.randn(2, 2, generator=torch.Generator().manual_seed(1)),
                               lambda t: SparseMAP(Grid(Chain(t), (3, 2)))),
    "pair score": (torch.tensor(0.7), lambda t: SparseMAP(FactorGraph([Xor([0, 1, 2]), Pair(0, 4, t)]))),
    "factor scores": (torch.tensor([0.1, 0.4, 0.2, -0.2, 0.0, 0.3]),
                      lambda t: SparseMAP(Oracle(_interval, t))),
}  # fmt: skip
every_parameter = pytest.mark.parametrize("which", PARAMETERS)


def _setting(which: str) -> tuple[Tensor, Tensor, Tensor, Callable[[Tensor], Omega]]:
    value, make = PARAMETERS[which]
    generator = torch.Generator().manual_seed(3)
    patterns = torch.randn(6, 4, generator=generator, dtype=torch.float64)
    queries = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    return value.double().requires_grad_(), patterns, queries, make


def _slope(function: Callable[[Tensor], Tensor], at: Tensor, step: float = 1e-6) -> Tensor:
    """Central differences of a scalar function."""
    flat = at.detach().flatten()
    slopes = []
    for place in range(flat.numel()):
        move = torch.zeros_like(flat)
        move[place] = step
        ends = [function((flat + sign * move).reshape(at.shape)) for sign in (1, -1)]
        slopes.append((ends[0] - ends[1]) / (2 * step))
    return torch.stack(slopes).reshape(at.shape)


@every_parameter
@pytest.mark.parametrize("what", ["update", "retrieve", "last", "energy", "weights"])
def test_every_parameter_gets_its_gradient(which: str, what: str) -> None:
    value, patterns, queries, make = _setting(which)
    weights = torch.randn(3, 4, dtype=torch.float64)

    def outcome(parameter: Tensor) -> Tensor:
        net = HopfieldNetwork(patterns, make(parameter), BETA)
        if what == "energy":
            # The radius counts k patterns; it is a constant of the dynamics.
            return net.energy(queries).sum()
        if what == "weights":
            return (net.weights(queries) @ patterns * weights).sum()
        if what == "update":
            return (net.update(queries) * weights).sum()
        gradient = "last" if what == "last" else "unrolled"
        return (net.retrieve(queries, max_steps=1, gradient=gradient).state * weights).sum()

    (gradient,) = torch.autograd.grad(outcome(value), value)
    expected = _slope(lambda parameter: outcome(parameter).detach(), value)
    torch.testing.assert_close(gradient, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("structure", [Matching(), Tree(), Chain(0.3)])
def test_structures_of_two_dimensions_name_the_grid(structure) -> None:
    with pytest.raises(ValueError, match=r"Grid\("):
        HopfieldNetwork(torch.randn(4, 3), SparseMAP(structure))


@pytest.mark.parametrize("structure", [Matching(), Tree(), Chain(0.3)])
def test_a_grid_of_patterns_is_batched_as_looped(structure) -> None:
    net = HopfieldNetwork(torch.randn(4, 3), SparseMAP(Grid(structure, (2, 2))), 2.0)
    queries = torch.randn(5, 3)
    looped = torch.stack([net.update(query) for query in queries])
    torch.testing.assert_close(net.update(queries), looped)
    states = torch.stack([net.retrieve(query).state for query in queries])
    torch.testing.assert_close(net.retrieve(queries).state, states)
    energies = torch.stack([net.energy(query) for query in queries])
    torch.testing.assert_close(net.energy(queries), energies)
    trace = net.retrieve(queries, trace=True).energies
    assert trace is not None
    assert (trace.diff(dim=0) <= 1e-6).all()


OMEGAS = ["softmax", "sparsemax", "1.5-entmax", "5-normmax", "3-subsets", "sequential-2-subsets"]


@pytest.mark.parametrize("omega", OMEGAS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(omega: str, dtype: torch.dtype) -> None:
    patterns = torch.nn.functional.normalize(torch.randn(50, 8), dim=1)
    net = HopfieldNetwork(patterns, omega, 12.0)
    queries = patterns[:20] + 0.1 * torch.randn(20, 8)
    outside = net.retrieve(queries)
    update, energy, weights = net.update(queries), net.energy(queries), net.weights(queries)
    with torch.autocast("cpu", dtype=dtype):
        inside = net.retrieve(queries)
        assert torch.equal(net.update(queries), update)
        assert torch.equal(net.energy(queries), energy)
        assert torch.equal(net.weights(queries), weights)
    assert torch.equal(inside.state, outside.state)
    assert torch.equal(inside.certified, outside.certified)
    assert torch.equal(inside.pattern, outside.pattern)
    assert torch.equal(inside.size, outside.size)


@pytest.mark.parametrize("omega", OMEGAS)
def test_networks_and_results_are_python_objects(omega: str) -> None:
    net = HopfieldNetwork(torch.randn(10, 4), omega, 2.0, values=torch.randn(10, 2))
    queries = torch.randn(3, 4)
    found = net.retrieve(queries)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    buffer.seek(0)
    copies = [
        pickle.loads(pickle.dumps(net)),
        copy.deepcopy(net),
        torch.load(buffer, weights_only=False),
    ]
    for again in copies:
        assert torch.equal(again.update(queries), net.update(queries))
        assert repr(again) == repr(net)
    result = pickle.loads(pickle.dumps(copy.deepcopy(found)))
    assert torch.equal(result.state, found.state)
    assert repr(result) == repr(found)


@pytest.mark.parametrize("attribute", ["memories", "omega", "values"])
def test_a_network_is_made_once(attribute: str) -> None:
    net = HopfieldNetwork(torch.randn(10, 4), "sparsemax")
    with pytest.raises(AttributeError, match="make a new HopfieldNetwork"):
        setattr(net, attribute, torch.randn(10, 4))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("omega", ["sparsemax", "1.5-entmax", "5-normmax", "2-subsets"])
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4])
def test_an_update_returns_a_certified_state_bit_for_bit(
    omega: str, dtype: torch.dtype, scale: float
) -> None:
    """At the margin: beta is the smallest that certifies, within an ulp."""
    certified = 0
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        patterns = scale * torch.randn(12, 6, generator=generator, dtype=dtype)
        size = 2 if "subsets" in omega else 1
        members = torch.tensor([list(range(size))])
        separation = hopfy.theory.association_separation(patterns, members)
        if separation <= 0:
            continue
        margin = hopfy.omega_from(omega).exact_margin(size)
        assert margin is not None
        beta = float(margin) / float(separation)
        for factor in (1 - 2**-52, 1.0, 1 + 2**-52, 1 + 2**-50):
            net = HopfieldNetwork(patterns, omega, beta * factor)
            found = net.retrieve(patterns[members].sum(1))
            if found.certified.all():
                certified += 1
                assert torch.equal(net.update(found.state), found.state)
                assert torch.equal(net.retrieve(found.state).state, found.state)
    assert certified > 2


def _train(memories: Tensor, **options: bool) -> None:
    optimizer = torch.optim.Adam([memories], lr=0.5, **options)
    memories.grad = torch.ones_like(memories)
    optimizer.step()


CHANGES: dict[str, Callable[[Tensor], object]] = {
    "Adam": _train,
    "fused Adam": lambda memories: _train(memories, fused=True),
    "foreach Adam": lambda memories: _train(memories, foreach=True),
    "data": lambda memories: memories.data.mul_(-1),
    "NumPy": lambda memories: memories.detach().numpy().__imul__(-1),
    "no_grad": lambda memories: memories.detach().mul_(-1),
    "set_": lambda memories: memories.data.copy_(torch.randn_like(memories)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("trained", [True, False])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_an_index_is_never_stale(change: str, trained: bool, mode: Callable[[], object]) -> None:
    """Trained memories are followed, all others are the network's own, however they are changed."""
    if "Adam" in change and not trained:
        pytest.skip("an optimizer changes what requires grad")
    memories = torch.nn.functional.normalize(torch.randn(5000, 16), dim=1)
    memories.requires_grad_(trained)
    net = HopfieldNetwork(memories, "sparsemax", 20.0)
    queries = torch.randn(100, 16)
    with mode():  # type: ignore[attr-defined]
        for _ in range(3):
            net.retrieve(queries)
        before = memories.detach().clone()
    CHANGES[change](memories)
    with mode():  # type: ignore[attr-defined]
        found = net.retrieve(queries)
        now = memories.detach().clone() if trained else before
        expected = HopfieldNetwork(now, "sparsemax", 20.0).retrieve(queries)
        assert torch.equal(found.pattern, expected.pattern)
        assert torch.equal(found.certified, expected.certified)
        torch.testing.assert_close(found.state, expected.state)


@pytest.mark.parametrize("omega", OMEGAS)
def test_no_dimensions_and_no_queries(omega: str) -> None:
    net = HopfieldNetwork(torch.zeros(4, 0), omega)
    assert net.update(torch.zeros(2, 0)).shape == (2, 0)
    assert net.retrieve(torch.zeros(2, 0)).state.shape == (2, 0)
    net = HopfieldNetwork(torch.randn(4, 3), omega)
    for shape in [(0, 3), (2, 0, 3)]:
        assert net.update(torch.zeros(shape)).shape == shape
        assert net.retrieve(torch.zeros(shape)).state.shape == shape
        assert net.energy(torch.zeros(shape)).shape == shape[:-1]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("count", [8, 300, 3000], ids="{} memories".format)
@pytest.mark.parametrize("omega", OMEGAS)
def test_a_query_that_is_not_finite_gives_nan_on_every_path(
    omega: str, count: int, value: float
) -> None:
    """Its scores are not finite, and the maps answer NaN to those; other queries notice nothing."""
    memories = torch.randn(count, 16)
    network = HopfieldNetwork(memories, omega, beta=1.0)
    queries = torch.randn(3, 16)
    expected = network.update(queries)
    queries[1, 5] = value
    for found in (network.update(queries), network.retrieve(queries, max_steps=1).state):
        assert found[1].isnan().all()
        torch.testing.assert_close(found[[0, 2]], expected[[0, 2]], rtol=0, atol=1e-6)


@pytest.mark.parametrize("omega", [*OMEGAS, "0.3-capped", "entropic-2-subsets"])
def test_weights_are_kept_the_same_way_with_and_without_gradients(omega: str) -> None:
    """On their support if some can be zero, also for maps without a margin."""
    memories = torch.randn(12, 5)
    network = HopfieldNetwork(memories, omega, beta=0.5)
    plain = network.retrieve(memories[:3], max_steps=2)
    recorded = network.retrieve(memories[:3].requires_grad_(), max_steps=2)
    assert (plain.support is None) == (recorded.support is None)
    torch.testing.assert_close(plain.weights, recorded.weights.detach(), rtol=0, atol=1e-6)


def test_submodules_resolve_after_a_plain_import() -> None:
    for name in (
        "estimators",
        "plot",
        "search",
        "paper",
        "functional",
        "nn",
        "structures",
        "theory",
    ):
        assert getattr(hopfy, name).__name__ == f"hopfy.{name}"
        assert name in dir(hopfy)
    with pytest.raises(AttributeError, match=r"hopfy\.paper\.data"):
        _ = hopfy.data
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = hopfy.nonsense
