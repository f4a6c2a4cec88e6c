"""Large networks answer through an index; it must not be possible to tell."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy.network._indexed_step import IndexedStep
from hopfy.network._step import DenseStep

SPARSE = ["sparsemax", "1.5-entmax", "5-normmax", "3-subsets"]


@pytest.fixture
def _indexed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfy.network._choice._MANY_MEMORIES", 1)


def _low_rank(n: int, d: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(6, d, generator=generator)
    return torch.randn(n, 6, generator=generator) @ directions + 0.1 * torch.randn(n, d)


@pytest.mark.usefixtures("_indexed")
@pytest.mark.parametrize("name", SPARSE)
def test_the_index_and_the_product_find_the_same(name: str) -> None:
    memories = _low_rank(300, 24).double()
    queries = memories[:80] + 0.3 * torch.randn(80, 24, dtype=torch.float64)
    net = hopfy.HopfieldNetwork(memories, name, 0.05)
    with torch.no_grad():
        assert isinstance(net._choice(80, False), IndexedStep)
    found = net.retrieve(queries)
    judge = hopfy.HopfieldNetwork(memories, name, 0.05)
    judge._choice = lambda *_: DenseStep(memories, judge.omega)  # type: ignore[assignment]
    expected = judge.retrieve(queries)
    assert torch.equal(found.certified, expected.certified)
    assert torch.equal(found.pattern, expected.pattern)
    assert torch.equal(found.steps, expected.steps)
    assert found.support is not None
    assert expected.support is not None
    assert torch.equal(found.support.indices, expected.support.indices)
    assert torch.allclose(found.state, expected.state, atol=1e-9)
    assert bool(found.certified.any())


@pytest.mark.usefixtures("_indexed")
@pytest.mark.parametrize(("name", "size"), [("sparsemax", 1), ("3-subsets", 3), ("2-normmax", 1)])
def test_proofs_through_the_index_are_the_dense_ones(name: str, size: int) -> None:
    memories = (2 * _low_rank(200, 12)).round()  # integers: ties, duplicates, equality
    memories[7] = memories[3]
    net = hopfy.HopfieldNetwork(memories, name, 1.0)
    with torch.no_grad():
        step = net._choice(200, False)
    assert isinstance(step, IndexedStep)
    members = torch.stack([torch.randperm(200)[:size] for _ in range(150)])
    best = step._index.top(memories, size).indices  # sets with a chance
    members = torch.cat((members, best))
    for beta in (0.02, 1.0, 50.0):
        betas = torch.full((members.shape[0],), beta, dtype=torch.float64)
        found = step.prove(members, betas)
        expected = hopfy.theory.proves_fixed_point(memories, members, net.omega, betas)
        assert torch.equal(found, expected)


@pytest.mark.usefixtures("_indexed")
def test_the_index_follows_memories_that_change() -> None:
    memories = torch.nn.functional.normalize(_low_rank(50, 8), dim=-1)
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 1000.0)
    assert torch.equal(net.retrieve(memories).state[:1], memories[:1])
    memories = net.memories.mul_(-2.0)  # the network's own
    found = net.retrieve(memories)
    own = found.pattern == torch.arange(50)
    assert bool(own.any())
    assert torch.equal(found.state[own], memories[own])


@pytest.mark.usefixtures("_indexed")
def test_softmax_may_stream_without_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hopfy.network._choice._MANY_WEIGHTS", 1)
    memories = _low_rank(50, 8)
    net = hopfy.HopfieldNetwork(memories, "softmax", 0.1)
    queries = memories[:9] * 0.5
    found = net.retrieve(queries, max_steps=3)
    state = queries
    for _ in range(3):
        state = torch.softmax(0.1 * state @ memories.T, -1) @ memories
    assert torch.allclose(found.state, state, atol=1e-4)
    assert found.size.tolist() == [-1] * 9
    with pytest.raises(ValueError, match=r"network\.weights"):
        _ = found.weights


@pytest.mark.usefixtures("_indexed")
def test_gradients_never_go_through_the_index() -> None:
    memories = _low_rank(50, 8).requires_grad_()
    net = hopfy.HopfieldNetwork(memories, "sparsemax", 0.1)
    assert net.retrieve(memories.detach()[:9]).state.requires_grad
    assert net._choice._kept is None


def test_a_plan_waits_for_enough_queries_and_changes_no_answer() -> None:
    """Copies moved by 1e-6 at a low temperature: the support hangs on the last digits."""
    generator = torch.Generator().manual_seed(0)
    half = torch.randn(2500, 32, generator=generator)
    memories = torch.cat([half, half + 1e-6 * torch.randn(half.shape, generator=generator)])
    queries = memories[:40] + 1e-3 * torch.randn(40, 32, generator=generator)
    for omega in ("sparsemax", "1.5-entmax", "3-subsets"):
        net = hopfy.HopfieldNetwork(memories, omega, 1e5)
        first = net.retrieve(queries[:3])
        before = net._choice._kept
        again = net.retrieve(queries)
        assert net._choice._kept is not before  # now there is a plan
        later = net.retrieve(queries)
        alone = [net.retrieve(query) for query in queries]
        for other in (again, later):
            assert torch.equal(first.state, other.state[:3])
            assert torch.equal(first.weights, other.weights[:3])
        assert torch.equal(later.pattern, torch.stack([one.pattern for one in alone]))
        assert torch.equal(later.weights, torch.stack([one.weights for one in alone]))


def test_the_number_of_threads_changes_no_answer() -> None:
    memories = torch.randn(6000, 24)
    queries, answers = torch.randn(300, 24), []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            answers.append(hopfy.HopfieldNetwork(memories, "1.5-entmax", 3.0).retrieve(queries))
    finally:
        torch.set_num_threads(threads)
    for answer in answers[1:]:
        assert torch.equal(answer.state, answers[0].state)
        assert torch.equal(answer.weights, answers[0].weights)
        assert torch.equal(answer.certified, answers[0].certified)


def _unit(count: int) -> Tensor:
    return torch.nn.functional.normalize(torch.randn(count, 16), dim=1)


@pytest.mark.parametrize("name", [*SPARSE, "softmax"])
def test_a_network_does_not_follow_the_index_it_was_made_of(name: str) -> None:
    memories, more = _unit(60), _unit(3)
    index = hopfy.search.ExactIndex(memories)
    net = hopfy.HopfieldNetwork.over(index, name, 20.0)
    expected = hopfy.HopfieldNetwork(memories, name, 20.0)
    index.add(more)
    index.remove([0, 1])
    for own in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        queries = torch.cat((memories[:2], more))
        found, judged = own.retrieve(queries), expected.retrieve(queries)
        torch.testing.assert_close(found.weights, judged.weights)
        assert torch.equal(found.certified, judged.certified)
        torch.testing.assert_close(own.energy(queries), expected.energy(queries))


@pytest.mark.parametrize("name", SPARSE)
def test_removed_memories_are_never_retrieved(name: str) -> None:
    memories = _unit(60)
    index = hopfy.search.ExactIndex(memories)
    index.remove([0, 5])
    expected = hopfy.HopfieldNetwork(memories[index.living], name, 20.0)
    queries = memories[:6]
    net = hopfy.HopfieldNetwork.over(index, name, 20.0)
    for own in (net, copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        torch.testing.assert_close(own.update(queries), expected.update(queries))
        torch.testing.assert_close(own.retrieve(queries).state, expected.retrieve(queries).state)
        for ask in (own.energy, own.energy_parts, own.scores, own.weights):
            with pytest.raises(ValueError, match=r"index\.restricted\(index\.living\)"):
                ask(queries)
        with pytest.raises(ValueError, match="without removed memories"):
            own.retrieve(queries.clone().requires_grad_())
        with pytest.raises(ValueError, match="without removed memories"):
            own.retrieve(queries, trace=True)
    rest = hopfy.HopfieldNetwork.over(index.restricted(index.living), name, 20.0)
    torch.testing.assert_close(rest.energy(queries), expected.energy(queries))


def test_softmax_gives_removed_memories_no_weight() -> None:
    index = hopfy.search.ExactIndex(_unit(60))
    index.remove([0])
    net = hopfy.HopfieldNetwork.over(index, "softmax", 20.0)
    with pytest.raises(ValueError, match="without removed memories"):
        net.retrieve(_unit(2))


def test_changes_of_memories_made_in_inference_mode_are_seen() -> None:
    with torch.inference_mode():
        net = hopfy.HopfieldNetwork(_unit(60), "sparsemax", 20.0)
        queries = net.memories[:4].clone()
        assert torch.equal(net.retrieve(queries).state, queries)
        net.memories.mul_(-1)
        assert torch.equal(net.retrieve(-queries).state, -queries)
        assert torch.equal(net.update(-queries), -queries)
