"""The default device and the default dtype are the user's; the maps must not depend on them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import Tensor

from hopfy import functional as F
from hopfy.structures import AtMostK, Chain, KSubsets, Matching, SequentialKSubsets
from judges.registry import MAPS

CALLS: dict[str, Callable[[Tensor], Tensor]] = {
    **{map.name: map for map in MAPS},
    "learned alpha": lambda s: F.entmax(s, s.new_tensor([1.2, 1.0, 3.0, 2.0])),
    "fusedmax": lambda s: F.fusedmax(s, 0.5),
    "sequential": lambda s: F.sequential_ksubsets(s, 2, 0.3),
    "sequential, tensors": lambda s: F.sequential_ksubsets(s, 2, s.new_full((5,), -0.3)),
    "k-subsets": lambda s: F.sparsemap(s, KSubsets(2)),
    "at most k": lambda s: F.sparsemap(s, AtMostK(2)),
    "sequential structure": lambda s: F.sparsemap(s, SequentialKSubsets(2, 0.3)),
    "chain": lambda s: F.sparsemap(s.reshape(4, 3, 2), Chain(s.new_zeros(2, 2))),
    "matching": lambda s: F.sparsemap(s.reshape(4, 3, 2), Matching()),
}


@pytest.fixture(params=["meta", "float16", "bfloat16", "float64"])
def default(request: pytest.FixtureRequest) -> Iterator[None]:
    dtype = torch.get_default_dtype()
    if request.param == "meta":
        torch.set_default_device("meta")
    else:
        torch.set_default_dtype(getattr(torch, request.param))
    yield
    torch.set_default_device(None)
    torch.set_default_dtype(dtype)


SCORES = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
EXPECTED: dict[str, tuple[Tensor, Tensor]] = {}


def answer(call: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    leaf = SCORES.detach().requires_grad_()
    weights = call(leaf)
    (gradient,) = torch.autograd.grad(weights.square().sum(), leaf)
    return weights.detach(), gradient


@pytest.fixture(params=CALLS)
def case(request: pytest.FixtureRequest) -> str:
    """Computed before the defaults change: fixtures run in the order of the arguments."""
    if request.param not in EXPECTED:
        EXPECTED[request.param] = answer(CALLS[request.param])
    return request.param


def test_defaults_change_nothing(case: str, default: None) -> None:
    for found, expected in zip(answer(CALLS[case]), EXPECTED[case], strict=True):
        assert found.dtype == torch.float32
        assert torch.equal(found, expected)


def test_the_reference_does_not_depend_on_them_either(default: None) -> None:
    import hopfy

    with hopfy.use_backend("reference"):
        for map in MAPS:
            for part in answer(map):
                assert part.device.type == "cpu"
                assert part.dtype == torch.float32
