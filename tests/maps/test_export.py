"""Maps in other runtimes: traced by `torch.jit.trace`, exported to ONNX with the reference backend."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import hopfy
from hopfy import functional as F

MAPS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": F.softmax,
    "sparsemax": F.sparsemax,
    "1.5-entmax": lambda scores: F.entmax(scores, 1.5),
    "3-entmax": lambda scores: F.entmax(scores, 3.0),
    "2-normmax": lambda scores: F.normmax(scores, 2.0),
    "2-subsets": lambda scores: F.ksubsets(scores, 2),
    "at most 2": lambda scores: F.at_most_k(scores, 2),
}


TRACED = [
    pytest.param(
        name, backend, marks=[] if name in ("sparsemax", "2-subsets") else pytest.mark.slow
    )
    for name in MAPS
    for backend in ("auto", "reference")
]


@pytest.mark.parametrize(("name", "backend"), TRACED)
@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_trace_computes_the_map_of_other_scores(name: str, backend: str) -> None:
    first, other = torch.randn(3, 7), 2 * torch.randn(3, 7)
    with hopfy.use_backend(backend):
        traced = torch.jit.trace(MAPS[name], (first,))
    torch.testing.assert_close(traced(other), MAPS[name](other), atol=1e-6, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning", "ignore::DeprecationWarning")
def test_a_trace_of_a_compiled_solver_is_refused() -> None:
    with pytest.raises((RuntimeError, ValueError), match="trace"):
        torch.jit.trace(lambda scores: F.sequential_ksubsets(scores, 2, 0.3), (torch.randn(3, 7),))


class _Layer(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, scores: Tensor) -> Tensor:
        return self.function(scores)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sparsemax", "2-subsets"])
def test_onnx_computes_the_same(name: str) -> None:
    pytest.importorskip("onnxscript")
    reference = pytest.importorskip("onnx.reference")
    logging.getLogger("torch.onnx").setLevel(logging.ERROR)
    first, other = torch.randn(3, 7), 2 * torch.randn(3, 7)
    with warnings.catch_warnings(), hopfy.use_backend("reference"):
        warnings.simplefilter("ignore")
        program = torch.onnx.export(_Layer(MAPS[name]), (first,), dynamo=True, verbose=False)
    session = reference.ReferenceEvaluator(program.model_proto)
    (made,) = session.run(None, {session.input_names[0]: other.numpy()})
    torch.testing.assert_close(torch.from_numpy(made), MAPS[name](other), atol=1e-5, rtol=1e-5)
