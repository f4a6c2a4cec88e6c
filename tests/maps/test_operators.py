"""Every operator that hopfy registers with torch, by torch's own checks, strides included."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import hopfy  # noqa: F401  registers the operators
from hopfy import functional as F
from hopfy.structures import AtMostK

PARAMETERS = {
    "entmax": [1.0, 1.5, 2.0, 3.0, math.inf],
    "normmax": [2.0, 5.0],
    "ksubsets": [2.0],
    "entropic_ksubsets": [2.0],
    "capped_sparsemax": [0.4],
    "at_most_k": [2.0],
    "total_variation": [0.5],
}
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.mT.contiguous().mT,
    "strided": lambda x: x.repeat_interleave(2, -1)[..., ::2],
    "expanded": lambda x: x[:1].expand_as(x),
}


def test_every_row_map_is_checked_here() -> None:
    names = {
        name.removeprefix("hopfy::").split(".")[0]
        for name in torch._C._dispatch_get_all_op_names()
        if name.startswith("hopfy::")
    }
    elsewhere = {name for name in names if name.startswith(("attention", "sequential_ksubsets"))}
    assert names - elsewhere == set(PARAMETERS)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PARAMETERS)
def test_opcheck(name: str, layout: str) -> None:
    operator = getattr(torch.ops.hopfy, name).default
    scores = LAYOUTS[layout](torch.randn(3, 4, 7, dtype=torch.float64))
    for value in PARAMETERS[name]:
        for parameter in (torch.tensor(value), torch.full((3, 4, 1), value)):
            inputs = scores.detach().requires_grad_(), parameter.double()
            # Strides and aliases for all; the whole battery, which takes seconds, for one of them.
            torch.library.opcheck(operator, inputs, test_utils=("test_schema", "test_faketensor"))
    if layout == "transposed":
        torch.library.opcheck(operator, inputs)


MAPS: dict[str, Callable[[Tensor, int], Tensor]] = {
    "sparsemax": lambda s, dim: F.sparsemax(s, dim=dim),
    "normmax": lambda s, dim: F.normmax(s, 5.0, dim=dim),
    "ksubsets": lambda s, dim: F.ksubsets(s, 2, dim=dim),
    "entropic": lambda s, dim: F.entropic_ksubsets(s, 2, dim=dim),
    "capped": lambda s, dim: F.capped_sparsemax(s, 0.4, dim=dim),
    "at most k": lambda s, dim: F.sparsemap(s, AtMostK(2), dim=dim),
    "fusedmax": lambda s, dim: F.fusedmax(s, 0.5, dim=dim),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("name", MAPS)
def test_inductor_with_any_strides(name: str, layout: str) -> None:
    """The default backend of torch.compile plans memory by the strides that fake kernels promise."""
    torch.compiler.reset()
    scores = LAYOUTS[layout](torch.randn(3, 5, 6))
    for dim in (0, 1, 2):

        def program(s: Tensor, dim: int = dim) -> Tensor:
            return MAPS[name](s, dim) @ torch.ones(6, 2)

        eager, compiled = (scores.clone().requires_grad_() for _ in range(2))
        expected = program(eager)
        found = torch.compile(program, fullgraph=True)(compiled)
        torch.testing.assert_close(found, expected)
        cotangent = torch.randn_like(expected)
        expected.backward(cotangent)
        found.backward(cotangent)
        torch.testing.assert_close(compiled.grad, eager.grad, rtol=1e-4, atol=1e-5)
