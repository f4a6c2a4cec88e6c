"""The networks of the literature against direct implementations of their formulas."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

import hopfy
from hopfy.models import Asynchronous, universal

SIMILARITIES = ["dot", "cosine", "euclidean", "manhattan"]


def _one_by_one(patterns: torch.Tensor, query: torch.Tensor, order: list[int]) -> torch.Tensor:
    """A sweep with the Hebbian matrix, coordinate by coordinate."""
    hebb = patterns.T @ patterns
    hebb.fill_diagonal_(0.0)
    state = query.clone()
    for i in order:
        field = hebb[i] @ state
        if field != 0:
            state[i] = field.sign()
    return state


@pytest.mark.parametrize("seed", [None, 0, 7])
def test_asynchronous_sweeps_are_the_hebbian_matrix(seed: int | None) -> None:
    patterns, queries = torch.randn(6, 30).sign(), torch.randn(8, 30).sign()
    queries[0, :5] = 0.0
    updates = Asynchronous(seed)
    net = hopfy.models.classic(patterns, updates)
    order = updates.order(30).tolist()
    assert sorted(order) == list(range(30))
    expected = torch.stack([_one_by_one(patterns, query, order) for query in queries])
    assert torch.equal(net.update(queries), expected)


def test_asynchronous_sweeps_end_at_fixed_points_and_lower_the_energy() -> None:
    generator = torch.Generator().manual_seed(0)
    patterns = torch.randn(12, 40, generator=generator).sign()
    queries = torch.randn(50, 40, generator=generator).sign()
    net = hopfy.models.classic(patterns, Asynchronous(3))
    found = net.retrieve(queries, trace=True)
    assert found.converged.all()
    assert (found.energies.diff(dim=0) <= 0).all()
    assert torch.equal(net.update(found.state), found.state)
    for twin in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert torch.equal(twin.retrieve(queries).state, found.state)


def test_asynchronous_updates_break_the_cycle_of_two() -> None:
    """Two coordinates that oppose each other exchange their signs for ever if updated at once."""
    patterns = torch.tensor([[1.0, -1.0], [-1.0, 1.0]])
    query = torch.tensor([1.0, 1.0])
    hebb = patterns.T @ patterns
    hebb.fill_diagonal_(0.0)
    once = (hebb @ query).sign()
    assert torch.equal(once, -query)
    assert torch.equal((hebb @ once).sign(), query)
    found = hopfy.models.classic(patterns, Asynchronous()).retrieve(query)
    assert found.converged
    assert found.state[0] == -found.state[1]


def test_nan_in_a_sweep_stays_nan_in_its_row() -> None:
    patterns = torch.randn(3, 6).sign()
    queries = torch.stack([patterns[0], torch.full((6,), torch.nan)])
    moved = hopfy.models.classic(patterns, Asynchronous()).update(queries)
    assert moved[1].isnan().all()
    assert torch.equal(moved[0], hopfy.models.classic(patterns, Asynchronous()).update(patterns[0]))


def test_entropic_topk_is_its_formula() -> None:
    patterns = torch.randn(20, 8, dtype=torch.float64)
    queries = torch.randn(5, 8, dtype=torch.float64)
    net = hopfy.models.entropic_topk(patterns, 3, beta=2.0)
    weights = net.weights(queries)
    scores = 2.0 * queries @ patterns.T
    tau = scores - torch.logit(weights)
    torch.testing.assert_close(tau, tau[:, :1].expand_as(tau), rtol=0, atol=1e-6)
    torch.testing.assert_close(weights.sum(-1), torch.full((5,), 3.0, dtype=torch.float64))
    torch.testing.assert_close(net.update(queries), weights @ patterns)
    cold = hopfy.models.entropic_topk(patterns, 3, beta=1e9).update(queries)
    best = (queries @ patterns.T).topk(3).indices
    torch.testing.assert_close(cold, patterns[best].sum(1))


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_similarities_are_their_formulas(similarity: str) -> None:
    patterns = torch.randn(7, 5, dtype=torch.float64)
    queries = torch.randn(4, 5, dtype=torch.float64)
    direct = torch.empty(4, 7, dtype=torch.float64)
    for m, q in enumerate(queries):
        for n, x in enumerate(patterns):
            direct[m, n] = {
                "dot": q @ x,
                "cosine": q @ x / (q.norm() * x.norm()),
                "euclidean": -(q - x).square().sum().sqrt(),
                "manhattan": -(q - x).abs().sum(),
            }[similarity]
    net = universal(patterns, similarity, "sparsemax", 3.0)
    torch.testing.assert_close(net.similarity(queries), direct)
    torch.testing.assert_close(net.similarity(queries[1]), direct[1])
    expected = hopfy.functional.sparsemax(3.0 * direct) @ patterns
    torch.testing.assert_close(net.retrieve(queries), expected)
    if similarity in ("euclidean", "manhattan"):
        assert torch.equal(
            universal(patterns, similarity, "inf-entmax").retrieve(patterns), patterns
        )


@pytest.mark.parametrize("scale", [1e-30, 1e-20, 1.0, 1e20, 1e30])
def test_cosines_of_vectors_of_any_length(scale: float) -> None:
    patterns = torch.randn(30, 5)
    found = universal(scale * patterns, "cosine").similarity(scale * patterns)
    directions = torch.nn.functional.normalize(patterns.double(), dim=-1)
    torch.testing.assert_close(found.double(), directions @ directions.T, rtol=0, atol=1e-6)


@pytest.mark.parametrize("similarity", ["euclidean", "manhattan"])
def test_distances_far_from_the_origin(similarity: str) -> None:
    """A common offset moves nothing; products would round at the size of its square."""
    patterns = torch.randn(40, 8).mul(64).round() / 64 + 4096
    net = universal(patterns, similarity, "sparsemax", 50.0)
    power = 2.0 if similarity == "euclidean" else 1.0
    wide = -torch.cdist(patterns.double(), patterns.double(), p=power)
    torch.testing.assert_close(net.similarity(patterns).double(), wide, rtol=1e-5, atol=1e-5)
    assert torch.equal(net.retrieve(patterns), patterns)


@pytest.mark.parametrize("similarity", SIMILARITIES)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_halves(similarity: str, dtype: torch.dtype) -> None:
    patterns, queries = (3 * torch.randn(9, 200)).to(dtype), torch.randn(4, 200).to(dtype)
    found = universal(patterns, similarity, "softmax", 100.0).update(queries)
    assert found.dtype is dtype
    expected = universal(patterns.double(), similarity, "softmax", 100.0).update(queries.double())
    torch.testing.assert_close(found, expected.to(dtype))


def test_a_beta_for_every_query() -> None:
    patterns, queries = torch.randn(6, 4), torch.randn(6, 4)
    betas = torch.rand(6) + 0.5
    for similarity in SIMILARITIES:
        found = universal(patterns, similarity, "softmax", betas).update(queries)
        for row in range(6):
            alone = universal(patterns, similarity, "softmax", float(betas[row]))
            torch.testing.assert_close(found[row], alone.update(queries[row]))


def test_the_dot_product_is_the_hopfield_network() -> None:
    patterns, queries = torch.randn(9, 5), torch.randn(4, 5)
    for omega in ("softmax", "1.5-entmax", "3-subsets"):
        net = universal(patterns, "dot", omega, 1.3)
        expected = hopfy.HopfieldNetwork(patterns, omega, 1.3).update(queries)
        torch.testing.assert_close(net.update(queries), expected)


def test_projections_read_out_something_else() -> None:
    patterns, labels = torch.randn(6, 4), torch.eye(6)
    net = universal(patterns, "euclidean", "inf-entmax", projection=labels)
    assert torch.equal(net.retrieve(patterns), labels)
    with pytest.raises(ValueError, match="shaped like the patterns"):
        net.retrieve(patterns, max_steps=2)


def test_bad_input() -> None:
    patterns = torch.randn(3, 2)
    with pytest.raises(ValueError, match='did you mean "euclidean"'):
        universal(patterns, "euclid")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="one row of projection per pattern"):
        universal(patterns, projection=torch.randn(2, 2))
    with pytest.raises(TypeError, match="projection like the memories"):
        universal(patterns, projection=torch.randn(3, 2, dtype=torch.float64))
    with pytest.raises(TypeError, match=r"projection to be a torch\.Tensor"):
        universal(patterns, projection=[1.0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="expected a similarity among"):
        universal(patterns, ["dot"])  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="updates to be Asynchronous"):
        hopfy.models.classic(patterns.sign(), updates=True)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="beta > 0"):
        universal(patterns, beta=0.0)
    with pytest.raises(TypeError, match="seed to be an integer"):
        Asynchronous(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shape \(N, D\)"):
        hopfy.models.classic(patterns.sign().expand(2, 3, 2), Asynchronous())
    assert (universal(torch.zeros(2, 2), "cosine").similarity(torch.zeros(2)) == 0).all()
