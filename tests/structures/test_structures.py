"""Every structure against brute force: best member, SparseMAP, gradients, margin, batches, masks."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from hopfy import SparseMAP
from hopfy import functional as F
from hopfy.structures import (
    AtMostK,
    Chain,
    KSubsets,
    Matching,
    SequentialKSubsets,
    Structure,
    Tree,
)
from judges import structures as judge


class Case(NamedTuple):
    """A structure small enough to list, with the shape of its scores and all its members."""

    structure: Structure
    event: tuple[int, ...]
    vertices: Tensor  # (V, n)
    factors: Tensor  # (V, f)
    factor_scores: Tensor  # (f,)


def _plain(structure: Structure, event: tuple[int, ...], vertices: Tensor) -> Case:
    vertices = vertices.reshape(-1, torch.Size(event).numel())
    return Case(structure, event, vertices, torch.zeros(len(vertices), 0), torch.zeros(0).double())


def _sequence(n: int, k: int, draw: Callable[..., Tensor]) -> Case:
    tables = draw(n - 1, 2, 2)
    bits = judge.subsets(n, range(k, k + 1))
    structure = SequentialKSubsets(k, tables)
    return Case(structure, (n,), bits, judge.edge_tables(bits), tables.flatten())


def _chain(n: int, s: int, draw: Callable[..., Tensor]) -> Case:
    transition = draw(n - 1, s, s)
    path = judge.paths(n, s)
    structure = Chain(transition)
    return Case(structure, (n, s), path.flatten(1), judge.path_edges(path), transition.flatten())


def make(kind: str, size: int, draw: Callable[..., Tensor]) -> Case:
    """The case of a kind; sizes run from 1 to 4."""
    k = size // 2
    if kind == "k-subsets":
        return _plain(KSubsets(k), (size,), judge.subsets(size, range(k, k + 1)))
    if kind == "at most k":
        return _plain(AtMostK(k), (size,), judge.subsets(size, range(k + 1)))
    if kind == "sequential":
        return _sequence(size + 2, k, draw)
    if kind == "chain":
        return _chain(size, 3, draw)
    if kind == "matching":
        return _plain(Matching(), (size, 3), judge.matchings(size, 3))
    projective, single = "projective" in kind, "single" in kind
    return _plain(
        Tree(projective=projective, single_root=single),
        (size, size),
        judge.trees(size, projective=projective, single_root=single),
    )


KINDS = [
    "k-subsets",
    "at most k",
    "sequential",
    "chain",
    "matching",
    "tree",
    "projective tree",
    "single-root tree",
    "projective single-root tree",
]
every_kind = pytest.mark.parametrize("kind", KINDS)


class Drawer:
    """Scores from a seed; coarse ones are full of ties."""

    def __init__(self, seed: int, coarse: bool, scale: float = 1.0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.coarse, self.scale = coarse, scale

    def __call__(self, *shape: int) -> Tensor:
        noise = torch.randn(*shape, generator=self.generator, dtype=torch.float64) * self.scale
        return (noise * 2).round() / 2 if self.coarse else noise


draws = st.builds(
    Drawer, st.integers(0, 10_000), st.booleans(), st.sampled_from([0.1, 1.0, 1.0, 10.0])
)


def _best(case: Case, scores: Tensor) -> Tensor:
    return judge.values(case.vertices, case.factors, scores.flatten(), case.factor_scores)


@every_kind
@settings(max_examples=8, deadline=None)
@given(size=st.integers(1, 4), draw=draws)
def test_the_best_structure_is_the_best_of_all(kind: str, size: int, draw: Drawer) -> None:
    case = make(kind, size, draw)
    scores = draw(*case.event)
    found = case.structure.argmax(scores).flatten()
    place = (case.vertices == found).all(1)
    assert place.any(), "what came is not a structure"
    every = _best(case, scores)
    torch.testing.assert_close(every[place].max(), every.max())


@every_kind
@settings(max_examples=6, deadline=None)
@given(size=st.integers(1, 4), draw=draws)
def test_sparsemap_is_the_quadratic_program_over_all_structures(
    kind: str, size: int, draw: Drawer
) -> None:
    case = make(kind, size, draw)
    scores = draw(*case.event)
    solution = F.sparsemap_solution(scores, case.structure)
    marginals, objective = judge.qp(
        case.vertices, case.factors, scores.flatten(), case.factor_scores, case.structure.curvature
    )
    torch.testing.assert_close(solution.marginals.flatten(), marginals, atol=2e-5, rtol=0)
    torch.testing.assert_close(F.sparsemap(scores, case.structure), solution.marginals)
    assert solution.converged.all()
    assert solution.gap <= 1e-9 * (1 + abs(objective))
    constant = size + 2 if kind == "sequential" else 0  # Omega leaves out what no map can see
    conjugate = SparseMAP(case.structure).conjugate(scores)
    k = size // 2 if constant else 0
    torch.testing.assert_close(float(conjugate), objective + k, atol=1e-6, rtol=1e-6)


@every_kind
@settings(max_examples=8, deadline=None)
@given(size=st.integers(1, 4), draw=draws)
def test_a_solution_is_a_mixture_of_few_structures(kind: str, size: int, draw: Drawer) -> None:
    case = make(kind, size, draw)
    solution = F.sparsemap_solution(draw(*case.event), case.structure)
    weights, vertices = solution.vertex_weights, solution.vertices.flatten(1).double()
    n = vertices.shape[1]
    assert 1 <= solution.support_size <= n + 1
    torch.testing.assert_close(weights.sum(), torch.tensor(1.0).double())
    torch.testing.assert_close(weights @ vertices, solution.marginals.flatten())
    for vertex in vertices[weights > 0]:
        assert (case.vertices == vertex).all(1).any()
    factors = solution.factor_vertices.reshape(len(weights), -1).double()
    torch.testing.assert_close(weights @ factors, solution.factor_marginals.flatten())


@every_kind
@pytest.mark.parametrize("size", [1, 3])
def test_gradients(kind: str, size: int) -> None:
    case = make(kind, size, Drawer(size, coarse=False))
    scores = Drawer(11 + size, coarse=False, scale=0.7)(*case.event).requires_grad_()

    def predict(theta: Tensor) -> Tensor:
        return F.sparsemap(theta, case.structure)

    assert torch.autograd.gradcheck(predict, scores)
    assert torch.autograd.gradgradcheck(predict, scores)


@pytest.mark.parametrize("kind", ["sequential", "chain"])
def test_gradients_in_higher_order_scores(kind: str) -> None:
    case = make(kind, 3, Drawer(4, coarse=False))
    scores = Drawer(3, coarse=False)(2, *case.event).requires_grad_()
    transition = case.structure.transition.clone().requires_grad_()  # type: ignore[attr-defined]

    def predict(theta: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        structure = Chain(edges) if kind == "chain" else SequentialKSubsets(2, edges)
        solution = F.sparsemap_solution(theta, structure)
        return solution.marginals, solution.factor_marginals

    assert torch.autograd.gradcheck(predict, (scores, transition))
    assert torch.autograd.gradgradcheck(predict, (scores, transition))
    for part in predict(scores, transition):
        (in_edges,) = torch.autograd.grad(part.square().sum(), transition, retain_graph=True)
        assert in_edges.abs().max() > 1e-3


@every_kind
def test_ties_give_finite_gradients(kind: str) -> None:
    case = make(kind, 4, Drawer(0, coarse=True))
    scores = torch.zeros(3, *case.event, dtype=torch.float64, requires_grad=True)
    weights = F.sparsemap(scores, case.structure)
    (grad,) = torch.autograd.grad((weights * torch.randn_like(weights)).sum(), scores)
    assert grad.isfinite().all()
    assert grad.abs().max() < 100


@every_kind
def test_batched_equals_looped(kind: str) -> None:
    case = make(kind, 4, Drawer(1, coarse=False))
    scores = Drawer(2, coarse=False)(2, 3, *case.event)
    together = F.sparsemap(scores, case.structure)
    for i in range(2):
        for j in range(3):
            alone = F.sparsemap(scores[i, j], case.structure)
            torch.testing.assert_close(together[i, j], alone)


@every_kind
@settings(max_examples=8, deadline=None)
@given(size=st.integers(1, 4), draw=draws, seed=st.integers(0, 10_000))
def test_masks_remove_structures(kind: str, size: int, draw: Drawer, seed: int) -> None:
    case = make(kind, size, draw)
    if case.factor_scores.numel():
        return  # a mask takes edges away too: see the tests of padding
    scores = draw(*case.event)
    mask = torch.rand(case.event, generator=torch.Generator().manual_seed(seed)) < 0.8
    gone = ~mask.any(-1).all() | ~mask.any(0).all() if mask.ndim > 1 else ~mask.any()
    allowed = case.vertices[~((case.vertices > 0) & ~mask.flatten()).any(1)]
    if gone or (kind == "k-subsets" and not len(allowed)):
        return  # entries that are not there change which structures there are
    if not len(allowed):
        with pytest.raises(ValueError, match=r"feasible structure .* in the only row"):
            F.sparsemap(scores, case.structure, mask=mask)
        return
    case = case._replace(vertices=allowed, factors=torch.zeros(len(allowed), 0))
    wanted, _ = judge.qp(case.vertices, case.factors, scores.flatten(), case.factor_scores)
    found = F.sparsemap(scores, case.structure, mask=mask)
    torch.testing.assert_close(found.flatten(), wanted, atol=2e-5, rtol=0)


@every_kind
def test_padded_equals_unpadded(kind: str) -> None:
    case = make(kind, 4, Drawer(5, coarse=False))
    scores = Drawer(6, coarse=False)(2, *case.event).requires_grad_()
    dims = 2 if kind not in ("chain", "k-subsets", "at most k", "sequential") else 1
    skip = (0, 0) if kind == "chain" else ()
    pad = (*skip, *(0, 2) * dims)
    padded_scores = torch.nn.functional.pad(scores, pad, value=5.0)
    mask = torch.nn.functional.pad(torch.ones_like(scores), pad).bool()
    structure: Structure = case.structure
    if isinstance(structure, SequentialKSubsets | Chain):
        edges = torch.nn.functional.pad(structure.transition, (0, 0, 0, 0, 0, 2), value=3.0)  # type: ignore[arg-type]
        structure = (
            Chain(edges) if isinstance(structure, Chain) else SequentialKSubsets(structure.k, edges)  # type: ignore[arg-type]
        )
    padded = F.sparsemap(padded_scores, structure, mask=mask)
    plain = F.sparsemap(scores, case.structure)
    assert (padded[~mask] == 0).all()
    torch.testing.assert_close(padded[mask].reshape(plain.shape), plain)
    cotangent = torch.randn_like(padded)
    (grad,) = torch.autograd.grad(padded, scores, cotangent)
    (wanted,) = torch.autograd.grad(plain, scores, cotangent[mask].reshape(plain.shape))
    torch.testing.assert_close(grad, wanted)


@every_kind
def test_rows_with_nothing_to_select_are_zero(kind: str) -> None:
    case = make(kind, 3, Drawer(7, coarse=False))
    scores = Drawer(8, coarse=False)(3, *case.event).requires_grad_()
    mask = torch.ones(scores.shape, dtype=torch.bool)
    mask[1] = False
    weights = F.sparsemap(scores, case.structure, mask=mask)
    assert (weights[1] == 0).all()
    torch.testing.assert_close(weights[0], F.sparsemap(scores[0], case.structure))
    (grad,) = torch.autograd.grad(weights.square().sum(), scores)
    assert (grad[1] == 0).all()
    assert (case.structure.argmax(scores, mask)[1] == 0).all()
    nothing = F.sparsemap(scores, case.structure, mask=torch.zeros_like(mask))
    assert (nothing == 0).all()


@every_kind
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_spoiled_rows_spoil_themselves_only(kind: str, bad: float) -> None:
    case = make(kind, 3, Drawer(9, coarse=False))
    scores = Drawer(10, coarse=False)(2, *case.event)
    wanted = F.sparsemap(scores, case.structure)
    scores[1].view(-1)[0] = bad
    found = F.sparsemap(scores, case.structure)
    assert found[1].isnan().any()
    torch.testing.assert_close(found[0], wanted[0])


@every_kind
def test_a_structure_that_leads_by_the_margin_is_the_answer(kind: str) -> None:
    case = make(kind, 4, Drawer(12, coarse=False, scale=0.3))
    omega = SparseMAP(case.structure)
    both = torch.cat([case.vertices, case.factors], 1)
    counted = both
    if kind == "sequential":  # each bit counts with both of its states
        counted = torch.cat([case.vertices, 1 - case.vertices, case.factors], 1)
    exact, loose = 0, 0
    for vertex in range(0, len(case.vertices), max(1, len(case.vertices) // 12)):
        distance = (counted - counted[vertex]).square().sum(1)
        noise = Drawer(vertex, coarse=False, scale=0.2)(case.vertices.shape[1])
        for strength in (0.5, 2.0, 6.0):
            scores = strength * (2 * case.vertices[vertex] - 1) + noise
            lead = _best(case, scores)[vertex] - _best(case, scores)
            weights = F.sparsemap(scores.reshape(case.event), case.structure).flatten()
            if (lead >= omega.margin / 2 * distance).all():
                torch.testing.assert_close(weights, case.vertices[vertex])
                target = case.vertices[vertex].reshape(case.event)
                loss = omega.loss(scores.reshape(case.event), target)
                torch.testing.assert_close(float(loss), 0.0, atol=1e-10, rtol=0)
                exact += 1
            else:
                loose += 1
    assert exact, "no scores met the margin"
    assert loose, "no scores missed it"


@every_kind
@settings(max_examples=6, deadline=None)
@given(size=st.integers(1, 4), draw=draws)
def test_loss_is_zero_at_the_prediction_only(kind: str, size: int, draw: Drawer) -> None:
    case = make(kind, size, draw)
    omega = SparseMAP(case.structure)
    scores = draw(*case.event).requires_grad_()
    solution = F.sparsemap_solution(scores, case.structure)
    for vertex in case.vertices[:: max(1, len(case.vertices) // 5)]:
        target = vertex.reshape(case.event)
        loss = omega.loss(scores, target)
        distance = (solution.marginals - target).square().sum().detach() / 2
        assert loss >= case.structure.curvature * distance * (1 - 1e-9) - 1e-9
        (grad,) = torch.autograd.grad(loss, scores)
        torch.testing.assert_close(grad, (solution.marginals - target).detach())
    if not case.factor_scores.numel():
        at_prediction = omega.loss(scores, solution.marginals.detach())
    else:
        assert isinstance(omega, SparseMAP)
        at_prediction = omega.loss(
            scores,
            solution.marginals.detach(),
            factor_target=solution.factor_marginals.detach(),
        )
    assert float(at_prediction.detach()) <= 1e-9 * (1 + float(scores.detach().abs().max()))


def test_one_subset_is_sparsemax() -> None:
    scores = torch.randn(5, 7, dtype=torch.float64)
    torch.testing.assert_close(F.sparsemap(scores, KSubsets(1)), F.sparsemax(scores))
    general = F.sparsemap_solution(scores, KSubsets(1)).marginals
    torch.testing.assert_close(general, F.sparsemax(scores))


@pytest.mark.parametrize("k", [0, 5])
def test_all_or_nothing(k: int) -> None:
    scores = torch.randn(2, 5, dtype=torch.float64)
    wanted = torch.full((2, 5), float(k > 0), dtype=torch.float64)
    for structure in (KSubsets(k), SequentialKSubsets(k, 0.3)):
        torch.testing.assert_close(F.sparsemap(scores, structure), wanted)
        torch.testing.assert_close(F.sparsemap_solution(scores, structure).marginals, wanted)


def test_sequential_without_transitions_is_ksubsets_at_half_the_scores() -> None:
    scores = torch.randn(6, 12, dtype=torch.float64) * 3
    found = F.sparsemap_solution(scores, SequentialKSubsets(4)).marginals
    torch.testing.assert_close(found, F.ksubsets(scores / 2, 4))


def test_sequential_budgets_and_edges_per_row() -> None:
    scores = torch.randn(3, 6, dtype=torch.float64)
    k, edges = torch.tensor([1, 2, 4]), torch.rand(3, 5, dtype=torch.float64)
    together = F.sparsemap(scores, SequentialKSubsets(k, edges))
    for row in range(3):
        alone = F.sparsemap(scores[row], SequentialKSubsets(int(k[row]), edges[row]))
        torch.testing.assert_close(together[row], alone)
    tables = torch.zeros(3, 5, 2, 2, dtype=torch.float64)
    tables[..., 1, 1] = edges
    torch.testing.assert_close(together, F.sparsemap(scores, SequentialKSubsets(k, tables)))
    table = torch.tensor([[[0.0, 0.0], [0.0, 0.5]]], dtype=torch.float64)
    by_number = F.sparsemap(scores, SequentialKSubsets(2, 0.5))
    torch.testing.assert_close(F.sparsemap(scores, SequentialKSubsets(2, table)), by_number)


def test_a_masked_item_breaks_the_sequence() -> None:
    scores = torch.randn(7, dtype=torch.float64)
    mask = torch.ones(7, dtype=torch.bool)
    mask[3] = False
    edges = torch.full((6,), 2.0, dtype=torch.float64)
    bits = judge.subsets(7, range(3, 4))
    bits = bits[bits[:, 3] == 0]
    both = (bits[:, 1:] * bits[:, :-1]) * torch.tensor([1, 1, 0, 0, 1, 1])
    wanted, _ = judge.qp(bits, both, scores, edges, curvature=2.0)
    found = F.sparsemap(scores, SequentialKSubsets(3, edges), mask=mask)
    torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)


def test_chain_transitions_shared_per_edge_and_forbidden() -> None:
    scores = torch.randn(2, 4, 3, dtype=torch.float64)
    shared = torch.randn(3, 3, dtype=torch.float64)
    found = F.sparsemap(scores, Chain(shared))
    torch.testing.assert_close(found, F.sparsemap(scores, Chain(shared.expand(3, 3, 3))))
    torch.testing.assert_close(found, F.sparsemap(scores, Chain(shared.expand(2, 3, 3, 3))))
    shared[0, 1] = -torch.inf
    path = judge.paths(4, 3)
    allowed = path[~((path[:, :-1, 0] * path[:, 1:, 1]).any(1))]
    edges = torch.where(shared > -torch.inf, shared, 0.0).expand(3, 3, 3).flatten()
    for row in scores:
        found = F.sparsemap(row, Chain(shared)).flatten()
        wanted, _ = judge.qp(allowed.flatten(1), judge.path_edges(allowed), row.flatten(), edges)
        torch.testing.assert_close(found, wanted, atol=2e-5, rtol=0)
    with pytest.raises(ValueError, match=r"feasible structure of Chain.* in row 0"):
        F.sparsemap(scores, Chain(torch.full((3, 3), -torch.inf)))


@pytest.mark.parametrize("shape", [(5, 3), (3, 5), (1, 4), (4, 1)])
def test_rectangular_matchings(shape: tuple[int, int]) -> None:
    scores = torch.randn(shape, dtype=torch.float64)
    every = judge.matchings(*shape).reshape(-1, shape[0] * shape[1])
    none = torch.zeros(len(every), 0)
    wanted, _ = judge.qp(every, none, scores.flatten(), torch.zeros(0))
    found = F.sparsemap(scores, Matching())
    torch.testing.assert_close(found.flatten(), wanted, atol=2e-5, rtol=0)
    torch.testing.assert_close(F.sparsemap(scores.mT, Matching()), found.mT)


def test_large_scores_keep_their_digits() -> None:
    scores = torch.randn(4, 6, 6, dtype=torch.float64)
    for structure in (Matching(), Tree()):
        plain = F.sparsemap(scores, structure)
        shifted = F.sparsemap(scores + 1e6, structure)
        torch.testing.assert_close(shifted, plain, atol=1e-6, rtol=0)
        huge = F.sparsemap(scores * 1e9, structure)
        torch.testing.assert_close(huge, structure.argmax(scores * 1e9))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_dtypes(dtype: torch.dtype) -> None:
    scores = torch.randn(3, 4, 4).to(dtype).requires_grad_()
    weights = F.sparsemap(scores, Matching())
    assert weights.dtype == dtype
    exact = F.sparsemap(scores.detach().double(), Matching())
    torch.testing.assert_close(weights.double(), exact, atol=1e-2, rtol=1e-2)
    weights.sum().backward()
    assert scores.grad is not None
    assert scores.grad.dtype == dtype


def test_golden_trees_and_matchings(golden) -> None:  # type: ignore[no-untyped-def]
    from safetensors.torch import load_file

    answers = load_file(golden / "sparsemap.safetensors")
    for name in ("matching_a", "matching_b"):
        found = F.sparsemap(answers[f"{name}.scores"], Matching())
        torch.testing.assert_close(found, answers[f"{name}.y"], atol=1e-5, rtol=0)
    for name in ("tree_a", "tree_b"):
        scores = answers[f"{name}.scores_packed"].requires_grad_()
        found = F.sparsemap(scores, Tree())
        torch.testing.assert_close(found, answers[f"{name}.y"], atol=1e-5, rtol=0)
        (grad,) = torch.autograd.grad(found, scores, answers[f"{name}.v"])
        torch.testing.assert_close(grad, answers[f"{name}.vjp"], atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["seq_a", "seq_b", "seq_c", "seq_d", "seq_e"])
def test_golden_sequences(golden, name: str) -> None:  # type: ignore[no-untyped-def]
    from safetensors.torch import load_file

    answers = load_file(golden / "sparsemap.safetensors")
    scores = answers[f"{name}.scores"].requires_grad_()
    edges = answers[f"{name}.transition"].expand(len(scores) - 1).clone().requires_grad_()
    structure = SequentialKSubsets(answers[f"{name}.k"], edges)
    found = F.sparsemap_solution(scores, structure).marginals
    torch.testing.assert_close(found, answers[f"{name}.y"], atol=1e-5, rtol=0)
    grads = torch.autograd.grad(found, (scores, edges), answers[f"{name}.v"])
    torch.testing.assert_close(grads[0], answers[f"{name}.vjp_scores"], atol=1e-5, rtol=0)
    torch.testing.assert_close(grads[1], answers[f"{name}.vjp_transition"], atol=1e-5, rtol=0)
