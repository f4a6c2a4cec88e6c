"""A user's own omega and structure, which answer only the abstract questions, work everywhere."""

from __future__ import annotations

import ast
import copy
import io
import pickle
from pathlib import Path

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import FenchelYoungLoss, HopfieldNetwork, Omega, SparseMAP
from hopfy import functional as F
from hopfy.structures import (
    AtMostK,
    Chain,
    Grid,
    KSubsets,
    Matching,
    Rows,
    SequentialKSubsets,
    Structure,
    Tree,
)


class Projection(Omega):
    """Half the squared norm on the simplex, written by a user: sparsemax, unknown to the library."""

    def __init__(self, strength: float | Tensor = 1.0) -> None:
        self.strength = strength

    def __call__(self, scores: Tensor, mask: Tensor | None = None, *, dim: int = -1) -> Tensor:
        return F.sparsemax(scores / self.strength, dim=dim, mask=mask)

    def value(self, weights: Tensor, *, dim: int = -1) -> Tensor:
        return self.strength * weights.square().sum(dim) / 2

    @property
    def margin(self) -> float:
        return float(torch.as_tensor(self.strength).detach())


class BestTwo(Structure):
    """Pairs of items, by a user who writes an oracle and nothing else."""

    def oracle(self, rows: Rows) -> tuple[Tensor, Tensor]:
        best = rows.scores.topk(2).indices
        bits = torch.zeros(rows.scores.shape, dtype=torch.int8).scatter(1, best, 1)
        return bits, torch.zeros(len(bits), 0, dtype=torch.int8)


OWN = [Projection(), SparseMAP(BestTwo())]
TWINS = [hopfy.Tsallis(2.0), SparseMAP(KSubsets(2))]
every_pair = pytest.mark.parametrize(
    ("own", "twin"), list(zip(OWN, TWINS, strict=True)), ids=["omega", "structure"]
)


def _close(first: Tensor, second: Tensor) -> None:
    torch.testing.assert_close(first, second, atol=1e-6, rtol=1e-6)


@every_pair
def test_networks(own: Omega, twin: Omega) -> None:
    patterns, queries = torch.randn(12, 5), torch.randn(4, 5)
    mine, theirs = HopfieldNetwork(patterns, own, 2.0), HopfieldNetwork(patterns, twin, 2.0)
    _close(mine.update(queries), theirs.update(queries))
    _close(mine.retrieve(queries).state, theirs.retrieve(queries).state)
    _close(mine.weights(queries), theirs.weights(queries))
    # The constants differ: only the library's own maps know how long a state can be.
    difference = mine.energy(queries) - theirs.energy(queries)
    _close(difference, difference[:1].expand(4))
    parts = mine.energy_parts(queries)
    _close(parts.concave + parts.convex, mine.energy(queries))
    energies = mine.retrieve(queries, trace=True).energies
    assert energies is not None
    assert (energies.diff(dim=0) <= 1e-6).all()


@every_pair
def test_losses(own: Omega, twin: Omega) -> None:
    scores = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    target = twin(torch.randn(3, 6, dtype=torch.float64))
    loss = FenchelYoungLoss(own)(scores, target)
    _close(loss, FenchelYoungLoss(twin)(scores, target))
    (gradient,) = torch.autograd.grad(loss, scores)
    _close(gradient * 3, twin(scores).detach() - target)


@every_pair
@pytest.mark.parametrize(
    "layer", ["Hopfield", "HopfieldPooling", "HopfieldLookup", "HopfieldAttention"]
)
def test_layers(own: Omega, twin: Omega, layer: str) -> None:
    arguments = (8, 2) if layer == "HopfieldAttention" else (8,)
    options = {"memories": 6} if layer == "HopfieldLookup" else {}
    torch.manual_seed(0)
    mine = getattr(hopfy.nn, layer)(*arguments, omega=own, **options)
    torch.manual_seed(0)
    theirs = getattr(hopfy.nn, layer)(*arguments, omega=twin, **options)
    x = torch.randn(2, 5, 8)
    inputs = (x, x, x) if layer == "HopfieldAttention" else (x,)
    first, second = mine(*inputs), theirs(*inputs)
    if isinstance(first, tuple):
        first, second = first[0], second[0]
    torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)
    first.sum().backward()


def test_search() -> None:
    patterns, queries = torch.randn(40, 5), torch.randn(4, 5)
    index = hopfy.search.ExactIndex(patterns)
    states = index.update(queries, Projection(), 2.0)[0]
    _close(states.to(patterns), HopfieldNetwork(patterns, "sparsemax", 2.0).update(queries))


def test_memories_refuse_what_they_cannot_use() -> None:
    with pytest.raises(TypeError, match="recalls single patterns"):
        hopfy.AssociativeMemory(Projection(), beta=1.0).fit(torch.randn(5, 3))
    with pytest.raises(TypeError, match="recalls single patterns"):
        hopfy.AssociativeMemory(SparseMAP(BestTwo()), beta=1.0).fit(torch.randn(5, 3))


def test_certificates_are_missing_never_wrong() -> None:
    patterns = torch.eye(4) * 3
    found = HopfieldNetwork(patterns, Projection(), 2.0).retrieve(patterns)
    assert not found.certified.any()
    _close(found.state, patterns)


def test_a_parameter_of_an_own_omega_gets_its_gradient() -> None:
    strength = torch.tensor(1.5, requires_grad=True)
    net = HopfieldNetwork(torch.randn(6, 3), Projection(strength), 1.0)
    net.update(torch.randn(2, 3)).sum().backward()
    assert strength.grad is not None
    assert strength.grad != 0


def test_an_own_omega_says_that_no_file_can_describe_it() -> None:
    with pytest.raises(TypeError, match="give the class Projection a `family`"):
        Projection().spec()


# --- facts of the library's own objects -----------------------------------------------------------

DESCRIBED = [
    hopfy.Shannon(), hopfy.Tsallis(1.5), hopfy.Tsallis(float("inf")), hopfy.Norm(5),
    hopfy.Tsallis(torch.tensor([1.25, 1.5])), SparseMAP(KSubsets(3)), SparseMAP(KSubsets(1.5)),
    SparseMAP(AtMostK(2)), SparseMAP(SequentialKSubsets(3, 0.5)), SparseMAP(Matching()),
    SparseMAP(SequentialKSubsets(3, torch.tensor([0.5, -1.0]))), SparseMAP(Tree(single_root=True)),
    SparseMAP(Chain(torch.eye(3))), SparseMAP(Grid(Chain(0.5), (2, 3))),
    hopfy.nn.ShareOfLength(0.3),
]  # fmt: skip


@pytest.mark.parametrize("omega", DESCRIBED, ids=lambda omega: omega.name[:40])
def test_a_description_makes_the_same_object_again(omega: Omega) -> None:
    import json

    made = Omega.from_spec(json.loads(json.dumps(omega.spec())))
    assert type(made) is type(omega)
    assert made.spec() == omega.spec()
    assert made.tensors().keys() == omega.tensors().keys()


@pytest.mark.parametrize("omega", DESCRIBED, ids=lambda omega: omega.name[:40])
def test_omegas_are_python_objects(omega: Omega) -> None:
    buffer = io.BytesIO()
    torch.save(omega, buffer)
    buffer.seek(0)
    for again in (
        pickle.loads(pickle.dumps(omega)),
        copy.deepcopy(omega),
        torch.load(buffer, weights_only=False),
    ):
        assert again.spec() == omega.spec()
    assert type(omega).__name__ in repr(omega)


@pytest.mark.parametrize(
    "name", ["softmax", "1.5-entmax", "5-normmax", "3-subsets", "sequential-2-subsets"]
)
def test_names_are_read_as_they_are_written(name: str) -> None:
    omega = hopfy.omega_from(name)
    assert omega.name == name
    assert (
        hopfy.omega_from(omega.name) == omega or omega.spec() == hopfy.omega_from(omega.name).spec()
    )


@pytest.mark.parametrize(
    ("wrong", "meant"),
    [("entmax15", "1.5-entmax"), ("sparse-max", "sparsemax"), ("topk-3", "3-subsets"),
     ("normmax5", "5-normmax"), ("sequential 3 subsets", "sequential-3-subsets")],
)  # fmt: skip
def test_the_nearest_name_is_suggested(wrong: str, meant: str) -> None:
    with pytest.raises(ValueError, match=f'did you mean "{meant}"'):
        hopfy.omega_from(wrong)


@pytest.mark.parametrize(
    "spec", [{}, {"family": "nonsense"}, {"family": "entmax", "beta": 1.0}, [], "entmax",
             {"family": "entmax", "alpha": {"tensor": [1.5], "shape": [1], "dtype": "object"}},
             {"family": "sparsemap", "structure": {"family": "entmax"}}],
)  # fmt: skip
def test_what_is_no_description_is_refused(spec: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        Omega.from_spec(spec)  # type: ignore[arg-type]


def test_tensors_move_together() -> None:
    omega = SparseMAP(Grid(Chain(torch.randn(2, 2)), (3, 2)))
    wide = omega.map_tensors(lambda tensor: tensor.double())
    assert [tensor.dtype for tensor in wide.tensors().values()] == [torch.float64]
    assert [tensor.dtype for tensor in omega.tensors().values()] == [torch.float32]


CONCRETE = {
    "Tsallis", "Norm", "Shannon", "SparseMAP", "KSubsets", "SequentialKSubsets", "AtMostK", "Chain",
    "Tree", "Matching", "FactorGraph", "Oracle", "Grid",
}  # fmt: skip


def test_nobody_above_asks_which_class_it_holds() -> None:
    source = Path(hopfy.__file__).parent
    ladders = []
    for file in source.rglob("*.py"):
        if file.relative_to(source).parts[0] in ("omega", "structures"):
            continue
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not (isinstance(node, ast.Call) and getattr(node.func, "id", "") == "isinstance"):
                continue
            names = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)}
            if names & CONCRETE:
                ladders.append(f"{file.relative_to(source)}:{node.lineno}")
    assert not ladders
