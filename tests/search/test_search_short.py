"""Few memories take a short way; it changes no bit of any answer."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import AssociativeMemory, HopfieldNetwork
from hopfy.search import ExactIndex, _short

NAMES = [
    "sparsemax", "1.5-entmax", "1.3-entmax", "3-entmax", "2-normmax", "5-normmax", "3-subsets",
    "0.5-subsets",
]  # fmt: skip


def _patterns(dtype: torch.dtype = torch.float32) -> Tensor:
    """Some far apart, some nearly equal, and two that are equal."""
    generator = torch.Generator().manual_seed(5)
    far = torch.randn(60, 17, generator=generator)
    near = far[:30] + 1e-3 * torch.randn(30, 17, generator=generator)
    return torch.cat([far, near, far[:1]]).to(dtype)


def _long_way(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(_short, "_FEW", 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", NAMES)
def test_an_update_has_the_same_bits(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns, omega = _patterns(dtype), hopfy.omega_from(name)
    queries = torch.cat([patterns[:8], patterns[::9] + 0.2, torch.zeros_like(patterns[:1])])
    betas = torch.logspace(-3, 3, queries.shape[0], dtype=torch.float64)
    gone = torch.tensor([3, 40])

    def answers() -> list[Tensor]:
        found: list[Tensor] = []
        for index in (ExactIndex(patterns), ExactIndex(patterns).without(gone)):
            for beta in (1e-2, 1.0, 30.0, betas):
                states, weights = index.update(queries, omega, beta)
                assert weights is not None
                found += [states, weights.offsets, weights.indices, weights.values]
        return found

    short = answers()
    with monkeypatch.context() as patch:
        _long_way(patch)
        assert all(torch.equal(one, two) for one, two in zip(short, answers(), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_a_retrieval_has_the_same_bits_alone_together_and_the_long_way(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns = _patterns()
    queries = torch.cat([patterns[:6], patterns[::7] + 0.3, torch.full((1, 17), torch.nan)])
    fields = ("state", "steps", "converged", "certified", "pattern", "size")

    def answers(rows: list[Tensor]) -> list[Tensor]:
        found = []
        for beta in (0.05, 0.5, 8.0):
            network = HopfieldNetwork(patterns, name, beta)
            results = [network.retrieve(each) for each in rows]
            found += [torch.cat([getattr(each, field) for each in results]) for field in fields]
            found.append(torch.cat([each.weights for each in results]))
            found.append(torch.cat([network.update(each) for each in rows]))
        return found

    def same(one: list[Tensor], two: list[Tensor]) -> bool:
        pairs = zip(one, two, strict=True)
        return all(torch.equal(a.nan_to_num(7), b.nan_to_num(7)) for a, b in pairs)

    together = answers([queries])
    assert bool(together[19].any()) or name == "0.5-subsets"  # some are certified at the last beta
    assert same(answers(list(queries.split(1))), together)
    with monkeypatch.context() as patch:
        _long_way(patch)
        assert same(answers([queries]), together)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_verdicts_are_those_of_rational_arithmetic(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns = torch.cat([_patterns()[:20], torch.eye(17)])
    generator = torch.Generator().manual_seed(1)
    members = torch.stack([torch.randperm(37, generator=generator)[:size] for _ in range(60)])
    omega = hopfy.Tsallis(2.0) if size == 1 else hopfy.SparseMAP(hopfy.structures.KSubsets(size))
    for beta in (0.05, 0.3, 1.0, 20.0):
        betas = torch.full((60,), beta, dtype=torch.float64)
        truth = hopfy.theory.proves_fixed_point(patterns, members, omega, betas)
        lead = torch.full((60,), 1 / beta, dtype=torch.float64)
        found = ExactIndex(patterns).verdicts(members, lead)
        assert not bool(((found > 0) & ~truth).any())
        assert not bool(((found < 0) & truth).any())
        assert float((found == 0).double().mean()) < 0.5
        with monkeypatch.context() as patch:
            _long_way(patch)
            assert torch.equal(ExactIndex(patterns).verdicts(members, lead), found)


@pytest.mark.parametrize("share", [1.0, 0.5], ids=["whole cues", "half cues"])
@pytest.mark.parametrize("compare", ["distance", "dot"])
def test_a_recall_has_the_same_bits(
    compare: str, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    patterns = _patterns()
    mask = torch.arange(patterns.shape[1]) < share * patterns.shape[1]
    cues = torch.cat([patterns[:5], patterns[::6] + 0.1])

    def answers(rows: list[Tensor]) -> list[Tensor]:
        found = []
        for beta in (0.2, 50.0):
            memory = AssociativeMemory(beta=beta, compare=compare)  # type: ignore[arg-type]
            memory.fit(patterns, torch.arange(91))
            results = [memory.recall(each, mask=mask) for each in rows]
            for field in ("patterns", "ids", "values", "certified", "size", "steps"):
                found.append(torch.cat([getattr(each, field) for each in results]))
            kinds = [kind.value for each in results for kind in each.kind]
            found.append(torch.tensor([len(kind) for kind in kinds]))
        return found

    together = answers([cues])
    alone = answers(list(cues.split(1)))
    assert bool(together[3].any())
    assert all(torch.equal(one, two) for one, two in zip(alone, together, strict=True))
    with monkeypatch.context() as patch:
        _long_way(patch)
        again = answers([cues])
    assert all(torch.equal(one, two) for one, two in zip(again, together, strict=True))


def test_parameters_that_change_in_place_are_read_again() -> None:
    patterns, alpha = _patterns(), torch.tensor(2.0)
    network = HopfieldNetwork(patterns, hopfy.Tsallis(alpha), 0.05)
    query = patterns[:3] + 0.5
    network.update(query)
    alpha.fill_(1.2)
    expected = HopfieldNetwork(patterns, hopfy.Tsallis(1.2), 0.05).update(query)
    assert torch.allclose(network.update(query), expected, atol=1e-5)


def test_a_repeated_update_follows_every_change_of_its_inputs() -> None:
    """After the first call an update of few memories skips most checks; nothing may get lost."""
    patterns = _patterns()
    network, query = HopfieldNetwork(patterns, "sparsemax", 2.0), patterns[:3] + 0.1
    first = network.update(query)
    assert torch.equal(network.update(query), first)
    assert torch.equal(network.update(query.T.contiguous().T), first)  # not contiguous
    assert torch.equal(network.update(query[0]), first[0])
    assert torch.equal(network.update(query.reshape(1, 3, 17)), first.reshape(1, 3, 17))
    assert network.update(query[:0]).shape == (0, 17)
    with pytest.raises(TypeError, match="queries like the memories"):
        network.update(query.double())
    with pytest.raises(ValueError, match=r"expected queries of shape"):
        network.update(query[:, :5])
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        network.update([[0.0] * 17])  # type: ignore[arg-type]
    spoiled = query.clone()
    spoiled[1, 2] = torch.nan
    after = network.update(spoiled)
    assert bool(after[1].isnan().all())
    assert torch.equal(after[[0, 2]], first[[0, 2]])
    with torch.autocast("cpu", torch.bfloat16), hopfy.use_backend("reference"):
        assert torch.allclose(network.update(query), first, atol=1e-6)
    assert network.update(query.clone().requires_grad_()).requires_grad
    network.memories.mul_(0.5)
    expected = HopfieldNetwork(0.5 * patterns, "sparsemax", 2.0).update(query)
    assert torch.equal(network.update(query), expected)
    network.memories.requires_grad_()
    assert network.update(query).requires_grad
