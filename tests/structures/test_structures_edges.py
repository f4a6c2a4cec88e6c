"""Structures at the edge of what is defined: NaN, infinite k, nothing to choose from, no numba."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hopfy import functional as F
from hopfy.structures import (
    AtMostK,
    Budget,
    Chain,
    Configurations,
    Dense,
    FactorGraph,
    Grid,
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

STRUCTURES: dict[str, tuple[Structure, tuple[int, ...]]] = {
    "k-subsets": (KSubsets(2), (5,)),
    "at most k": (AtMostK(2), (5,)),
    "sequential": (SequentialKSubsets(2, 0.5), (5,)),
    "chain": (Chain(0.5), (4, 3)),
    "matching": (Matching(), (3, 4)),
    "tree": (Tree(), (3, 3)),
    "projective tree": (Tree(projective=True), (3, 3)),
    "configurations": (Configurations((3, 2), torch.rand(3, 2)), (5,)),
    "graph": (FactorGraph([Xor([0, 1]), Or([2, 3, 4])]), (5,)),
}
every_structure = pytest.mark.parametrize("name", list(STRUCTURES))


@every_structure
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_nan_and_infinity_make_their_own_row_nan(name: str, wrong: float) -> None:
    structure, event = STRUCTURES[name]
    clean = torch.randn(3, *event, dtype=torch.float64)
    scores = clean.clone()
    scores[(1, *(0,) * len(event))] = wrong
    for call in (structure.argmax, lambda s: F.sparsemap(s, structure)):
        found = call(scores)
        assert found[1].isnan().all()
        torch.testing.assert_close(found[[0, 2]], call(clean)[[0, 2]])


@every_structure
def test_no_rows(name: str) -> None:
    structure, event = STRUCTURES[name]
    scores = torch.zeros(0, *event, dtype=torch.float64, requires_grad=True)
    assert structure.argmax(scores).shape == scores.shape
    weights = F.sparsemap(scores, structure)
    assert weights.shape == scores.shape
    weights.sum().backward()
    assert scores.grad is not None
    assert scores.grad.shape == scores.shape


@pytest.mark.parametrize(
    ("structure", "event"),
    [
        (KSubsets(0), (0,)),
        (AtMostK(2), (0,)),
        (SequentialKSubsets(0), (0,)),
        (Chain(0.5), (0, 3)),
        (Chain(0.5), (3, 0)),
        (Matching(), (0, 4)),
        (Matching(), (4, 0)),
        (Tree(), (0, 0)),
        (FactorGraph([]), (0,)),
    ],
    ids=str,
)
def test_nothing_to_choose_from(structure: Structure, event: tuple[int, ...]) -> None:
    scores = torch.zeros(2, *event, dtype=torch.float64)
    assert structure.argmax(scores).shape == scores.shape
    assert F.sparsemap(scores, structure).shape == scores.shape
    assert F.sparsemap_solution(scores, structure).marginals.shape == scores.shape


def test_infinitely_many() -> None:
    scores = torch.tensor([0.3, -1.0, -torch.inf, 0.5])
    for structure in (KSubsets, SequentialKSubsets):
        with pytest.raises(ValueError, match=r"got inf; AtMostK\(inf\) selects any number"):
            structure(math.inf)
    assert AtMostK(math.inf).argmax(scores).tolist() == [1.0, 0.0, 0.0, 1.0]
    clipped = torch.tensor([0.3, 0.0, 0.0, 0.5])
    torch.testing.assert_close(F.sparsemap(scores, AtMostK(math.inf)), clipped)
    torch.testing.assert_close(F.sparsemap_solution(scores, AtMostK(math.inf)).marginals, clipped)


WITHOUT_COMPILER = """
import os, sys
LINE
import warnings
warnings.simplefilter("ignore")
import torch, hopfy
from hopfy import functional as F
from hopfy.structures import *
torch.manual_seed(0)
answers = []
for structure, shape in [
    (SequentialKSubsets(2, 0.5), (2, 5)), (Chain(torch.randn(3, 3)), (2, 4, 3)), (Matching(), (2, 3, 3)),
    (Tree(), (2, 3, 3)), (Tree(True), (2, 3, 3)), (Tree(False, True), (2, 3, 3)), (AtMostK(2), (2, 5)),
    (FactorGraph([Xor([0, 1, 2]), Pair(2, 3, 0.5)]), (2, 4)),
]:
    scores = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    weights = F.sparsemap(scores, structure)
    (grad,) = torch.autograd.grad(weights.square().sum(), scores)
    answers += [weights.detach(), grad]
    if not getattr(structure, "overlaps", False):
        answers.append(structure.argmax(scores.detach()))
net = hopfy.HopfieldNetwork(torch.randn(8, 4), hopfy.SparseMAP(SequentialKSubsets(2, 0.5)), 2.0)
answers.append(net.update(torch.randn(3, 4)))
found = net.retrieve(torch.randn(3, 4))
answers.append(found.state)
for size in (7, 300):
    scores = torch.randn(3, size)
    for omega in ("softmax", "1.3-entmax", "1.5-entmax", "sparsemax", "3-entmax", "5-normmax", "3-subsets"):
        answers.append(hopfy.omega_from(omega)(scores))
        answers.append(F.attention(scores[None], scores[None], scores[None], omega=omega))
torch.save(answers, sys.argv[1])
"""


@pytest.mark.parametrize(
    "line", ['sys.modules["numba"] = None', 'os.environ["NUMBA_DISABLE_JIT"] = "1"']
)
def test_everything_works_without_a_compiler(line: str, tmp_path: Path) -> None:
    answers = []
    for each in (line, ""):
        file = tmp_path / f"{len(answers)}.pt"
        program = [sys.executable, "-c", WITHOUT_COMPILER.replace("LINE", each), str(file)]
        ran = subprocess.run(program, capture_output=True, text=True, check=False)
        assert ran.returncode == 0, ran.stderr[-2000:]
        answers.append(torch.load(file))
    for slow, fast in zip(*answers, strict=True):
        torch.testing.assert_close(slow, fast, rtol=0, atol=1e-6)


SCALED = {
    "number": lambda: SequentialKSubsets(2, 0.5),
    "edges": lambda: SequentialKSubsets(2, torch.randn(5)),
    "tables": lambda: SequentialKSubsets(2, torch.randn(5, 2, 2)),
    "tables of rows": lambda: SequentialKSubsets(2, torch.randn(3, 5, 2, 2)),
    "edges of rows": lambda: SequentialKSubsets(2, torch.randn(3, 5)),
    "chain": lambda: Grid(Chain(0.5), (3, 2)),
    "chain table": lambda: Grid(Chain(torch.randn(2, 2)), (3, 2)),
    "oracle": lambda: Oracle(lambda s, f: (s > 0, f > 0), torch.randn(4)),
    "no factors": lambda: KSubsets(2),
    "pair": lambda: FactorGraph([Pair(0, 1, 0.5), Budget([2, 3, 4], 2)]),
    "pair table": lambda: FactorGraph([Pair(0, 1, torch.randn(2, 2)), Pair(1, 2, 1.0)]),
    "graph": lambda: FactorGraph(
        [Dense([[0, 1], [2, 3]], torch.randn(2, 2)), Sequence([1, 3, 5], torch.randn(2))]
    ),
}


@pytest.mark.parametrize("scale", [3.0, torch.tensor([[1.0], [2.0], [0.5]])], ids=["all", "rows"])
@pytest.mark.parametrize("name", SCALED)
def test_scaled_factors_are_the_factor_scores_times_the_scale(name: str, scale: object) -> None:
    structure, scores = SCALED[name](), torch.randn(3, 6)
    before = structure.rows(scores).factor_scores
    scaled = structure.scale_factors(scale).rows(scores).factor_scores
    torch.testing.assert_close(scaled, before * scale)
    torch.testing.assert_close(structure.rows(scores).factor_scores, before)
