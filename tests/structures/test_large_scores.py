"""Large finite scores: "never" written as -1e4, -1e30 or the smallest float, and huge scales."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from hopfy import functional as F
from hopfy._kernels import sequential
from hopfy.structures import (
    AtMostK,
    AtMostOne,
    Budget,
    Chain,
    Factor,
    FactorGraph,
    KSubsets,
    Matching,
    Or,
    Oracle,
    Pair,
    Sequence,
    SequentialKSubsets,
    Structure,
    Tree,
    Xor,
)
from judges import structures as judge

NEVER = [
    -1e4,
    -1e8,
    -1e13,
    -1e16,
    -1e20,
    -1e30,
    torch.finfo(torch.float32).min,
    -1e300,
    torch.finfo(torch.float64).min,
]


class Case(NamedTuple):
    """A map, the shape of its rows and the entries without which there may be no structure."""

    call: Callable[..., Tensor]
    event: tuple[int, ...]
    needed: tuple[int | tuple[int, int], ...] = ()


def _structure(structure: Structure) -> Callable[..., Tensor]:
    return lambda scores, **options: F.sparsemap(scores, structure, **options)


def _by_active_set(structure: Structure) -> Callable[..., Tensor]:
    return lambda scores, **options: F.sparsemap_solution(scores, structure, **options).marginals


def _interval(scores: Tensor) -> Tensor:
    """The best run of entries, by enumeration."""
    n = len(scores)
    runs = [(a, b) for a in range(n) for b in range(a + 1, n + 1)]
    bits = torch.stack([((torch.arange(n) >= a) & (torch.arange(n) < b)).double() for a, b in runs])
    totals = torch.where(bits > 0, scores, 0.0).sum(1)
    return bits[totals.argmax()]


def _cases() -> dict[str, Case]:
    draw = torch.Generator().manual_seed(5)

    def some(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draw, dtype=torch.float64)

    cases = {
        f"{alpha}-entmax": Case(lambda s, alpha=alpha, **o: F.entmax(s, alpha, **o), (8,))
        for alpha in (1.0, 1.01, 1.25, 1.5, 2.0, 3.0, 10.0)
    }
    for alpha in (1.1, 2.0, 5.0, math.inf):
        cases[f"{alpha}-normmax"] = Case(lambda s, alpha=alpha, **o: F.normmax(s, alpha, **o), (8,))
    for k in (1, 2, 2.5):
        cases[f"{k}-subsets"] = Case(_structure(KSubsets(k)), (8,), (0, 3, 5))
    cases["fusedmax without strength"] = Case(lambda s, **o: F.fusedmax(s, 0.0, **o), (8,))
    cases["at most 2"] = Case(_structure(AtMostK(2)), (8,))
    cases["at most 2, active set"] = Case(_by_active_set(AtMostK(2)), (8,))
    for t in (0.0, 0.5, 3.0, -1.0, -4.0):
        cases[f"sequential, {t}"] = Case(_structure(SequentialKSubsets(2, t)), (8,), (0, 3, 5))
    cases["sequential, edges"] = Case(_structure(SequentialKSubsets(3, some(7))), (8,), (0, 3, 5))
    cases["sequential, active set"] = Case(
        _by_active_set(SequentialKSubsets(3, some(7))), (8,), (0, 3, 5)
    )
    cases["chain"] = Case(_structure(Chain(some(3, 3))), (5, 3), tuple((i, 0) for i in range(5)))
    diagonal = tuple((i, i) for i in range(4))
    cases["matching"] = Case(_structure(Matching()), (4, 4), diagonal)
    cases["wide matching"] = Case(_structure(Matching()), (3, 5), diagonal[:3])
    for projective in (False, True):
        for single in (False, True):
            tree = Tree(projective=projective, single_root=single)
            needed = (*diagonal, *((i, 0) for i in range(4)))
            cases[repr(tree)] = Case(_structure(tree), (4, 4), needed)
    cases["intervals"] = Case(_structure(Oracle(_interval)), (6,), (1, 2))
    graphs = [
        (FactorGraph([Xor([0, 1, 2]), AtMostOne([2, 3, 4]), Or([4, 5])]), (0, 4, 5)),
        (FactorGraph([Pair(i, (i + 1) % 4, some()) for i in range(4)]), ()),
        (FactorGraph([Xor([0, 1, 2]), Pair(3, 4, 0.5)]), (0,)),
        (FactorGraph([Sequence(range(6), some(5)), Budget([0, 2, 4], 1)]), (0,)),
        (FactorGraph([Factor(Matching(), range(6), (2, 3)), AtMostOne([0, 4])]), (0, 5)),
    ]
    for i, (graph, needed) in enumerate(graphs):
        cases[f"graph {i}"] = Case(_structure(graph), (6,), needed)
    return cases


CASES = _cases()


@pytest.mark.parametrize("name", list(CASES))
def test_an_entry_out_of_reach_is_a_masked_entry(name: str) -> None:
    case = CASES[name]
    draw = torch.Generator().manual_seed(2)
    repeats = 1 if name.startswith("graph") else 4
    for never in NEVER:
        for _ in range(repeats):
            scores = torch.randn(*case.event, generator=draw, dtype=torch.float64)
            mask = torch.rand(*case.event, generator=draw) < 0.7
            for entry in case.needed:
                mask[entry] = True
            if not mask.any():
                continue
            wanted = case.call(scores, mask=mask)
            with warnings.catch_warnings():
                warnings.simplefilter("error")
                found = case.call(torch.where(mask, scores, scores + never))
            torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8, msg=f"{never}")


@pytest.mark.parametrize("never", [-1e4, -1e30, torch.finfo(torch.float32).min])
@pytest.mark.parametrize("strength", [0.1, 1.0])
def test_fusedmax_forgets_how_far_an_entry_is_out_of_reach(never: float, strength: float) -> None:
    scores = torch.randn(6, 9, dtype=torch.float64)
    far = torch.rand(6, 9) < 0.3
    far[:, 4] = False
    wanted = F.fusedmax(torch.where(far, scores - 1e3, scores), strength)
    found = F.fusedmax(torch.where(far, scores + never, scores), strength)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)


LISTED = {
    "sequential": (lambda draw: SequentialKSubsets(2, draw), (5,), (4,)),
    "chain": (lambda draw: Chain(draw), (3, 3), (2, 3, 3)),
    "matching": (lambda _: Matching(), (3, 3), ()),
    "tree": (lambda _: Tree(), (3, 3), ()),
    "single-root tree": (lambda _: Tree(single_root=True), (3, 3), ()),
    "projective tree": (lambda _: Tree(projective=True), (3, 3), ()),
    "k-subsets": (lambda _: KSubsets(2), (5,), ()),
    "at most k": (lambda _: AtMostK(2), (5,), ()),
}


def _every(name: str) -> tuple[Tensor, Tensor]:
    """All structures and their factor bits (for the sequence: pairs of selected neighbors)."""
    if name == "chain":
        path = judge.paths(3, 3)
        return path.flatten(1), judge.path_edges(path)
    if name == "sequential":
        bits = judge.subsets(5, range(2, 3))
        return bits, bits[:, 1:] * bits[:, :-1]
    vertices = {
        "matching": lambda: judge.matchings(3, 3).flatten(1),
        "tree": lambda: judge.trees(3, projective=False, single_root=False).flatten(1),
        "single-root tree": lambda: judge.trees(3, projective=False, single_root=True).flatten(1),
        "projective tree": lambda: judge.trees(3, projective=True, single_root=False).flatten(1),
        "k-subsets": lambda: judge.subsets(5, range(2, 3)),
        "at most k": lambda: judge.subsets(5, range(3)),
    }[name]()
    return vertices, torch.zeros(len(vertices), 0)


@pytest.mark.parametrize("scale", [1e6, 1e13, 1e16, 1e30, 1e100, 1e300])
@pytest.mark.parametrize("name", list(LISTED))
def test_at_large_scales_the_best_structure_has_all_the_weight(name: str, scale: float) -> None:
    build, event, factor_shape = LISTED[name]
    vertices, factors = _every(name)
    for _ in range(4):
        scores = torch.randn(*event, dtype=torch.float64) * scale
        scored = torch.randn(factor_shape or (0,), dtype=torch.float64) * scale
        value = judge.values(vertices, factors, scores.flatten(), scored.flatten())
        wanted = vertices[value.argmax()].reshape(event)
        structure = build(scored)
        torch.testing.assert_close(F.sparsemap(scores, structure), wanted, rtol=0, atol=0)
        found = F.sparsemap_solution(scores, structure).marginals
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


def _scaled_graphs(draw: torch.Generator) -> dict[str, Callable[[float], FactorGraph]]:
    """Graphs whose factors overlap, as functions of the scale of their pair scores."""
    pairs = torch.randn(6, generator=draw, dtype=torch.float64)
    return {
        "three factors": lambda _: FactorGraph([Xor([0, 1, 2]), AtMostOne([2, 3, 4]), Or([4, 5])]),
        "loop": lambda c: FactorGraph([Pair(i, (i + 1) % 6, c * pairs[i]) for i in range(6)]),
        "frustrated": lambda c: FactorGraph(
            [
                Pair(i, j, -c * (2 + pairs[i].abs()))
                for i, j in ((0, 1), (1, 2), (2, 0), (3, 4), (4, 5))
            ]
        ),
        "budget": lambda c: FactorGraph([Sequence(range(6), c * pairs[:5]), Budget([0, 2, 4], 1)]),
        "matching": lambda _: FactorGraph(
            [Factor(Matching(), range(6), (2, 3)), AtMostOne([0, 4]), AtMostOne([1, 5])]
        ),
    }


@pytest.mark.parametrize("name", list(_scaled_graphs(torch.Generator())))
def test_graphs_have_one_answer_at_all_large_scales(name: str) -> None:
    """Also where it is fractional: the relaxation of some graphs has vertices with halves."""
    draw, fractional = torch.Generator().manual_seed(3), 0
    for _ in range(5):
        graph = _scaled_graphs(draw)[name]
        scores = 1 + torch.randn(6, generator=draw, dtype=torch.float64)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            wanted = F.sparsemap(1e7 * scores, graph(1e7))
            for scale in (1e9, 1e30, 1e300):
                found = F.sparsemap(scale * scores, graph(scale))
                torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
        fractional += bool(((wanted > 0.01) & (wanted < 0.99)).any())
    assert fractional > 0 or name != "frustrated"


def test_a_loop_of_pairs_at_a_large_scale_solves_the_linear_program() -> None:
    """Judge: a linear program over bits and pairs with min, max(0, sum - 1) as bounds of a pair."""
    linprog = pytest.importorskip("scipy.optimize").linprog
    draw = torch.Generator().manual_seed(1)
    for _ in range(10):
        scores = torch.randn(4, generator=draw, dtype=torch.float64)
        pairs = torch.randn(4, generator=draw, dtype=torch.float64)
        rows, bounds = [], []
        for i in range(4):
            for first, second, bound in ((-1.0, 0.0, 0.0), (0.0, -1.0, 0.0), (1.0, 1.0, 1.0)):
                row = [0.0] * 8
                row[i], row[(i + 1) % 4] = first, second
                row[4 + i] = -1.0 if bound else 1.0
                rows.append(row)
                bounds.append(bound)
        cost = -torch.cat([scores, pairs]).numpy()
        judged = linprog(cost, rows, bounds, bounds=(0, 1), method="highs")
        graph = FactorGraph([Pair(i, (i + 1) % 4, 1e30 * pairs[i]) for i in range(4)])
        found = F.sparsemap(1e30 * scores, graph)
        wanted = torch.tensor(judged.x[:4], dtype=torch.float64)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)


def test_penalties_out_of_reach_forbid_pairs() -> None:
    """Every penalty that is large enough gives the same answer, if k needs no such pair."""
    scores = torch.randn(20, 9, dtype=torch.float64)
    hard = torch.rand(8) < 0.5
    edges = torch.randn(8, dtype=torch.float64)
    wanted = F.sequential_ksubsets(scores, 3, torch.where(hard, -500.0, edges))
    for never in (-1e5, -1e9, -1e16, -1e30, -1e300):
        found = F.sequential_ksubsets(scores, 3, torch.where(hard, never, edges))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)
        far = scores.clone()
        far[:, 4] += never
        masked = scores.masked_fill(torch.arange(9) == 4, -torch.inf)
        found = F.sequential_ksubsets(far, 3, torch.where(hard, never, edges))
        expected = F.sequential_ksubsets(masked, 3, torch.where(hard, -500.0, edges))
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("never", [-1e13, -2e16, -1e30, torch.finfo(torch.float64).min])
def test_scores_that_must_be_taken_all_the_same(never: float) -> None:
    """Fewer ordinary entries than k: the rest is shared by those out of reach."""
    scores = torch.tensor([[0.0, never, never, 1.0], [0.0, never, 0.5, 1.0]], dtype=torch.float64)
    found = F.sequential_ksubsets(scores, torch.tensor([3, 4]), -1.4)
    wanted = torch.tensor([[1.0, 0.5, 0.5, 1.0], [1.0] * 4], dtype=torch.float64)
    torch.testing.assert_close(found, wanted)


def test_a_common_offset_changes_nothing() -> None:
    scores = torch.randint(-4, 5, (30, 9)).double() / 4
    wanted = F.sequential_ksubsets(scores, 3, 0.75)
    for offset in (1e6, -1e10, 2.0**50):  # quarters are exact up to 2^50
        found = F.sequential_ksubsets(scores + offset, 3, 0.75)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def test_many_rows_with_a_score_out_of_reach_do_not_crash() -> None:
    scores, transition = torch.tensor([0.0, -2e16]), torch.tensor([-1.4189])
    for _ in range(2000):
        assert F.sequential_ksubsets(scores, 2, transition).tolist() == [1.0, 1.0]


def test_gradients_ignore_entries_out_of_reach() -> None:
    scores = (torch.randn(6, 9, dtype=torch.float64) * 2).requires_grad_()
    mask = torch.rand(6, 9) < 0.7
    mask[:, :3] = True
    edges = torch.randn(8, dtype=torch.float64).requires_grad_()
    cotangent = torch.randn(6, 9, dtype=torch.float64)
    wanted = torch.autograd.grad(
        F.sequential_ksubsets(scores, 3, edges, mask=mask), (scores, edges), cotangent
    )
    far = scores.masked_fill(~mask, -1e30)
    found = torch.autograd.grad(F.sequential_ksubsets(far, 3, edges), (scores, edges), cotangent)
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)


def test_the_reference_keeps_its_digits_too(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.randn(10, 7, dtype=torch.float64)
    mask = torch.rand(10, 7) < 0.6
    mask[:, [0, 4]] = True
    wanted = F.sequential_ksubsets(scores, 2, 0.7, mask=mask)
    monkeypatch.setattr(sequential, "compiled", lambda _: None)
    for never in NEVER:
        found = F.sequential_ksubsets(torch.where(mask, scores, scores + never), 2, 0.7)
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-8)


HOSTILE = """
import torch
from hopfy import functional as F
from hopfy.structures import *
torch.manual_seed(0)
numbers = [0.0, 1.0, -1.0, 0.5, 1e-300, -1e4, 1e8, -1e16, 1e16, -1e30, 3e38, -3.4e38, 1e300,
           -1.7e308, 1.7e308, float("-inf"), float("inf"), float("nan")]
def rows(*shape, among=numbers):
    return torch.tensor(among, dtype=torch.float64)[torch.randint(len(among), shape)]
for dtype in (torch.float32, torch.float64):
    for among in (numbers, numbers[:15]):
        s = rows(40, 9, among=among).to(dtype).requires_grad_()
        maps = [lambda s, a=a: F.entmax(s, a) for a in (1.25, 1.5, 2.0, 3.0)]
        maps += [lambda s, a=a: F.normmax(s, a) for a in (2.0, float("inf"))]
        maps += [lambda s: F.ksubsets(s, 3), lambda s: F.sparsemap(s, AtMostK(2))]
        maps += [lambda s: F.fusedmax(s, 0.5)]
        for call in maps:
            call(s).sum().backward()
        finite = rows(40, 9, among=numbers[:15]).to(dtype).requires_grad_()
        for t in (0.5, -1e30, rows(40, 8, among=numbers[:12]).to(dtype)):
            F.sequential_ksubsets(finite, 3, t).sum().backward()
for structure, shape in [(Matching(), (3, 4)), (Tree(), (4, 4)), (Tree(True), (4, 4)),
                         (Tree(False, True), (4, 4)), (Chain(0.5), (5, 3)),
                         (SequentialKSubsets(2, 0.5), (6,))]:
    for among in ([-1e30, 0.0, 1.0, 2.0, 1e8], [0.0, 0.5, 1.0]):
        s = rows(8, *shape, among=among).requires_grad_()
        F.sparsemap_solution(s, structure, max_steps=60).marginals.sum().backward()
        F.sparsemap(s, structure).sum().backward()
        structure.argmax(s)
print("inside all bounds")
"""


@pytest.mark.slow
def test_compiled_code_stays_inside_its_arrays(tmp_path: Path) -> None:
    """Everything compiled anew with checks of every index, and fed hostile numbers."""
    environment = os.environ | {
        "NUMBA_BOUNDSCHECK": "1",
        "NUMBA_CACHE_DIR": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", HOSTILE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert "inside all bounds" in ran.stdout
