"""Torch's defaults (device, dtype) are for the user's own tensors: nothing here depends on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy.structures import AtMostK, Chain, FactorGraph, Grid, Matching, Pair, Tree, Xor

MAPS = ["softmax", "sparsemax", "1.5-entmax", "3-entmax", "inf-entmax", "5-normmax", "2-subsets",
        "sequential-2-subsets"]  # fmt: skip
STRUCTURES = {
    "at most": (AtMostK(2), (6,)),
    "chain": (Chain(0.3), (3, 2)),
    "tree": (Tree(), (3, 3)),
    "projective": (Tree(projective=True), (3, 3)),
    "matching": (Matching(), (2, 3)),
    "graph": (FactorGraph([Xor([0, 1]), Pair(2, 3, 0.5)]), (4,)),
    "grid": (Grid(Matching(), (2, 3)), (6,)),
}


@pytest.fixture(params=["meta", torch.float16, torch.bfloat16, torch.float64], ids=str)
def _defaults(request: pytest.FixtureRequest) -> Iterator[None]:
    """Set after the inputs are made, so that only tensors made inside are affected."""
    before = torch.get_default_dtype()
    if request.param == "meta":
        torch.set_default_device("meta")
    else:
        torch.set_default_dtype(request.param)
    yield
    torch.set_default_device(None)  # type: ignore[arg-type]
    torch.set_default_dtype(before)


def _cpu(*shape: int) -> Tensor:
    generator = torch.Generator("cpu").manual_seed(len(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float32, device="cpu")


def _check(compute: Callable[[], Tensor]) -> None:
    """The same as with torch's usual defaults."""
    here = compute()
    dtype = torch.get_default_dtype()
    torch.set_default_device(None)  # type: ignore[arg-type]
    torch.set_default_dtype(torch.float32)
    there = compute()
    torch.set_default_dtype(dtype)
    assert here.device.type == "cpu"
    assert here.dtype == there.dtype
    assert torch.equal(here, there)


def _with_gradient(function: Callable[[Tensor], Tensor], *shape: int) -> Callable[[], Tensor]:
    def compute() -> Tensor:
        inputs = _cpu(*shape).requires_grad_()
        (gradient,) = torch.autograd.grad(function(inputs).square().sum(), inputs)
        return gradient

    return compute


@pytest.mark.usefixtures("_defaults")
@pytest.mark.parametrize("name", MAPS)
def test_maps_and_losses(name: str) -> None:
    omega = hopfy.omega_from(name)
    _check(_with_gradient(omega, 2, 5))
    _check(_with_gradient(lambda s: omega(s, dim=0), 5, 2))
    _check(_with_gradient(omega.conjugate, 2, 5))
    structures = omega.structures
    target = omega(_cpu(2, 5)) if structures is None else structures.argmax(_cpu(2, 5))
    _check(_with_gradient(lambda s: hopfy.FenchelYoungLoss(omega)(s, target), 2, 5))


@pytest.mark.usefixtures("_defaults")
@pytest.mark.parametrize("name", STRUCTURES)
def test_structures(name: str) -> None:
    structure, event = STRUCTURES[name]
    _check(_with_gradient(lambda s: F.sparsemap(s, structure), 2, *event))
    _check(lambda: structure.argmax(_cpu(2, *event)))
    omega = hopfy.SparseMAP(structure)
    target = structure.argmax(_cpu(2, *event))
    _check(_with_gradient(lambda s: omega.loss(s, target), 2, *event))


@pytest.mark.usefixtures("_defaults")
@pytest.mark.parametrize("name", MAPS)
def test_networks(name: str) -> None:
    patterns, queries = _cpu(20, 4), _cpu(3, 4)
    net = hopfy.HopfieldNetwork(patterns, name, 2.0)
    _check(lambda: net.update(queries))
    _check(lambda: net.energy(queries))
    _check(lambda: net.retrieve(queries, trace=True).state)
    _check(lambda: net.retrieve(queries).certified)
    _check(_with_gradient(net.update, 3, 4))
    _check(_with_gradient(net.energy, 3, 4))


@pytest.mark.usefixtures("_defaults")
def test_theory_and_search() -> None:
    patterns = _cpu(20, 4)
    _check(lambda: hopfy.theory.separations(patterns).value)
    _check(lambda: hopfy.theory.certified_radius(patterns, "sparsemax", 9.0))
    _check(lambda: hopfy.theory.is_stationary(patterns, "sparsemax", 9.0))
    members = torch.arange(20, device="cpu").unsqueeze(1)
    omega = hopfy.Tsallis(2.0)
    _check(lambda: hopfy.theory.proves_fixed_point(patterns, members, omega, 9.0))
    _check(lambda: hopfy.search.ExactIndex(patterns).top(patterns[:3], 2).indices)


@pytest.mark.usefixtures("_defaults")
def test_memories() -> None:
    patterns = _cpu(20, 4)
    _check(lambda: hopfy.AssociativeMemory().fit(patterns).recall(patterns[:3]).patterns)
