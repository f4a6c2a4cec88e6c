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
from hopfy._facts import identity_of
from hopfy.structures import (
    AtMostK,
    Budget,
    Chain,
    Dense,
    FactorGraph,
    Grid,
    KSubsets,
    Matching,
    Oracle,
    Pair,
    Rows,
    Sequence,
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


def _graph(score: float, k: int = 2) -> Omega:
    pair = Pair(0, 1, torch.tensor(score))
    table = Dense([[2, 3], [4, 5]], torch.tensor([[0.0, score], [0.5, 0.0]]))
    return SparseMAP(FactorGraph([pair, table, Budget([1, 3, 5], k), Sequence([0, 2], score)]))


OBJECTS = {
    "alpha": lambda: hopfy.Tsallis(torch.tensor([1.25, 1.5])),
    "norm": lambda: hopfy.Norm(torch.tensor([2.0, 5.0])),
    "capped": lambda: hopfy.omega.Capped(torch.tensor([0.5, 0.7, 0.9])),
    "k": lambda: SparseMAP(KSubsets(torch.tensor([1.0, 2.0]))),
    "sequence": lambda: SparseMAP(SequentialKSubsets(3, torch.tensor([0.5, -1.0]))),
    "sequence of numbers": lambda: SparseMAP(SequentialKSubsets(3, 0.5)),
    "chain": lambda: SparseMAP(Chain(torch.eye(3))),
    "grid": lambda: SparseMAP(Grid(Chain(torch.eye(2)), (3, 2))),
    "graph": lambda: _graph(0.5),
    "oracle": lambda: SparseMAP(Oracle(torch.sign, torch.ones(3))),
    "ball": lambda: hopfy.states.Ball(torch.tensor([1.0, 2.0])),
    "layer norm": lambda: hopfy.states.LayerNorm(torch.tensor(0.0), torch.tensor(2.0)),
    "own": lambda: Projection(torch.tensor(2.0)),
}
every_object = pytest.mark.parametrize("name", OBJECTS)


@every_object
def test_equal_objects_are_equal_and_others_are_not(name: str) -> None:
    made = OBJECTS[name]()
    for again in (OBJECTS[name](), copy.copy(made), copy.deepcopy(made)):
        assert again == made
        assert hash(again) == hash(made)
        assert identity_of(again) == identity_of(made)
    if made.tensors():
        assert made.map_tensors(lambda tensor: tensor + 1) != made
        assert made.map_tensors(lambda tensor: tensor.half()) != made
    others = [make() for other, make in OBJECTS.items() if other != name]
    assert made not in others


def test_whole_numbers_of_either_kind_are_equal() -> None:
    assert hopfy.Tsallis(2) == hopfy.Tsallis(2.0)
    assert hash(hopfy.Tsallis(2)) == hash(hopfy.Tsallis(2.0))
    assert hopfy.Tsallis(2.0) != hopfy.Norm(2.0)
    assert hopfy.Tsallis(1.5) != hopfy.Tsallis(torch.tensor(1.5))


def test_graphs_differ_in_every_parameter_of_their_factors() -> None:
    for other in (_graph(0.5, k=1), SparseMAP(FactorGraph([Pair(0, 1, 0.5)]))):
        assert other != _graph(0.5)
        assert identity_of(other) != identity_of(_graph(0.5))
        assert repr(other) != repr(_graph(0.5))
    used = _graph(0.5)
    assert used.structure.overlaps  # computed once and kept, which changes nothing
    assert identity_of(used) == identity_of(_graph(0.5))
    assert used == _graph(0.5)


@every_object
def test_tensors_move_together(name: str) -> None:
    made = OBJECTS[name]()
    before = {key: tensor.dtype for key, tensor in made.tensors().items()}
    wide = made.map_tensors(lambda tensor: tensor.double())
    assert wide.tensors().keys() == before.keys()
    assert all(tensor.dtype is torch.float64 for tensor in wide.tensors().values())
    assert {key: tensor.dtype for key, tensor in made.tensors().items()} == before


TRAINED = {
    "alpha": lambda parameter: hopfy.Tsallis(parameter + 1.0),
    "norm": lambda parameter: hopfy.Norm(parameter + 1.5),
    "transition": lambda parameter: SparseMAP(SequentialKSubsets(2, parameter)),
    "graph": lambda parameter: SparseMAP(FactorGraph([Pair(0, 1, parameter)])),
    "own": lambda parameter: Projection(parameter),
}
MODULES = {
    "Hopfield": lambda omega: hopfy.nn.Hopfield(8, 2, omega=omega),
    "HopfieldPooling": lambda omega: hopfy.nn.HopfieldPooling(8, 2, omega=omega),
    "HopfieldLookup": lambda omega: hopfy.nn.HopfieldLookup(8, heads=2, memories=5, omega=omega),
    "HopfieldAttention": lambda omega: hopfy.nn.HopfieldAttention(8, 2, omega=omega),
    "HopfieldEncoderLayer": lambda omega: hopfy.nn.HopfieldEncoderLayer(8, 2, 16, omega=omega),
    "HopfieldDecoderLayer": lambda omega: hopfy.nn.HopfieldDecoderLayer(8, 2, 16, omega=omega),
    "FenchelYoungLoss": FenchelYoungLoss,
}


@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("omega", TRAINED)
def test_parameters_of_an_omega_are_parameters_of_the_module(omega: str, module: str) -> None:
    plain = TRAINED[omega](torch.tensor(0.5)).map_tensors(torch.nn.Parameter)
    (parameter,) = plain.tensors().values()
    made = MODULES[module](plain)
    names = [name for name, each in made.named_parameters() if each is parameter]
    assert names
    assert names[0] in made.state_dict()
    twin = copy.deepcopy(made)
    with torch.no_grad():
        dict(twin.named_parameters())[names[0]].add_(0.25)
    assert dict(twin.named_parameters())[names[0]] is not parameter
    made.load_state_dict(twin.state_dict())
    (value,) = plain.tensors().values()
    torch.testing.assert_close(value, dict(twin.named_parameters())[names[0]])


@pytest.mark.parametrize("way", ["functional_call", "assign"])
@pytest.mark.parametrize("part", ["omega", "state"])
def test_parameters_that_replace_those_of_an_omega_are_used(part: str, way: str) -> None:
    make = hopfy.Tsallis if part == "omega" else hopfy.states.Ball
    x = torch.randn(2, 5, 8)
    layers = [
        hopfy.nn.Hopfield(8, 2, **{part: make(torch.nn.Parameter(torch.tensor(value)))})
        for value in (1.5, 1.9)
    ]
    values = {name: each.detach().clone() for name, each in layers[1].named_parameters()}
    if way == "assign":
        layers[0].load_state_dict(values, assign=True)
        found = layers[0](x)
    else:
        found = torch.func.functional_call(layers[0], values, (x,))
    torch.testing.assert_close(found, layers[1](x))
    loss = FenchelYoungLoss(hopfy.Tsallis(torch.nn.Parameter(torch.tensor(1.5))))
    replaced = torch.func.functional_call(
        loss, {"omega_alpha": torch.tensor(2.0)}, (x, x[..., 0].long().clamp(0, 7))
    )
    expected = FenchelYoungLoss("sparsemax")(x, x[..., 0].long().clamp(0, 7))
    torch.testing.assert_close(replaced, expected)


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
