"""The attention kernels inside compiled graphs."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

import hopfy
from hopfy import functional as F
from hopfy.functional._attention_op import attention_op

attention_module = sys.modules[F.attention.__module__]
OMEGAS = ["sparsemax", "1.3-entmax", "2-normmax", "2-subsets"]


def inputs(dtype: torch.dtype = torch.float64, length: int = 12) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = ((2, 4, length, 4), (2, 2, length, 4), (2, 2, length, 3))
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def operands(kind: str, parameter: float, dropout: float = 0.0, **visible) -> tuple:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, n, d, requires_grad=True) for n, d in ((6, 4), (9, 4), (9, 3)))
    number = torch.tensor(parameter, dtype=torch.float64, requires_grad=kind != "ksubsets")
    parts = [visible.get(name) for name in ("mask", "mask_of", "bias", "bias_of", "causal")]
    parts.insert(4, torch.tensor(7) if dropout else None)
    return q, k, v, number, *parts, 6, kind, 0.5, dropout


@pytest.mark.parametrize(
    "arguments",
    [
        operands("entmax", 1.5),
        operands("entmax", 1.5, dropout=0.4),
        operands("normmax", 3.0, causal=0),
        operands("ksubsets", 2.0, mask=torch.rand(1, 6, 9) > 0.3, mask_of=torch.zeros(2).long()),
    ],
    ids=["entmax", "dropout", "normmax-causal", "ksubsets-mask"],
)
def test_torch_accepts_the_operator(arguments: tuple) -> None:
    torch.library.opcheck(attention_op, arguments)


class _Graphs:
    """A backend that keeps the joint graphs it is given, and runs them as they are."""

    def __init__(self) -> None:
        self.graphs: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, example: list[Tensor]):
        from functorch.compile import make_boxed_func
        from torch._dynamo.backends.common import aot_autograd

        def keep(inner: torch.fx.GraphModule, _):
            self.graphs.append(inner)
            return make_boxed_func(inner.forward)

        return aot_autograd(fw_compiler=keep, bw_compiler=keep)(graph, example)


def _compiled(
    attend: Callable[..., Tensor],
) -> tuple[Callable[[Tensor, Tensor, Tensor], Tensor], _Graphs]:
    torch._dynamo.reset()
    backend = _Graphs()

    def of_three(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v)

    return torch.compile(of_three, fullgraph=True, backend=backend), backend


def sizes(graph: torch.fx.GraphModule) -> list[int]:
    found = [node.meta.get("val") for node in graph.graph.nodes]
    return [x.numel() for x in found if isinstance(x, Tensor)]


@pytest.mark.parametrize("omega", OMEGAS)
def test_a_compiled_graph_holds_no_weights(omega: str) -> None:
    """The forward and the backward graph call the kernels; nothing in them has L x L entries."""
    length = 48
    data = inputs(length=length)
    attend = partial(F.attention, is_causal=True, enable_gqa=True, omega=omega)
    compiled, backend = _compiled(attend)
    wanted, got = attend(*data), compiled(*data)
    torch.testing.assert_close(got, wanted)
    cotangent = torch.randn_like(got)
    ours, theirs = (torch.autograd.grad(x, data, cotangent) for x in (got, wanted))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, atol=1e-8, rtol=1e-8)
    assert len(backend.graphs) == 2
    for graph in backend.graphs:
        assert "hopfy.attention" in graph.code
        assert max(sizes(graph)) < length * length


@pytest.mark.parametrize("omega", OMEGAS)
def test_dropout_in_a_graph_drops_the_same_weights_twice(omega: str) -> None:
    """The output is linear in the values, with the weights that the gradient must see, too."""
    length = 48
    data = inputs(length=length)
    compiled, backend = _compiled(partial(F.attention, dropout_p=0.5, enable_gqa=True, omega=omega))
    first, second = compiled(*data), compiled(*data)
    assert not torch.equal(first, second)
    (gradient,) = torch.autograd.grad(second.sum(), data[2])
    torch.testing.assert_close((gradient * data[2]).sum(), second.sum())
    assert all(max(sizes(graph)) < length * length for graph in backend.graphs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_a_graph_holds_no_weights(dtype: torch.dtype) -> None:
    length = 48
    data = [x.detach().to(dtype).requires_grad_() for x in inputs(length=length)]
    attend = partial(F.attention, enable_gqa=True)
    compiled, backend = _compiled(attend)
    found = compiled(*data)
    found.sum().backward()
    torch.testing.assert_close(found, attend(*data))
    assert all(max(sizes(graph)) < length * length for graph in backend.graphs)


def test_an_exported_program_computes_few_queries_at_a_time(monkeypatch) -> None:
    monkeypatch.setattr(attention_module, "_BLOCK", 1 << 12)

    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.attention(q, k, v, is_causal=True, omega="sparsemax")

    length = 256
    x = torch.randn(1, 1, length, 4)
    program = torch.export.export(Attention(), (x, x, x))
    assert max(sizes(program.graph_module)) <= 64 * length
    torch.testing.assert_close(program.module()(x, x, x), Attention()(x, x, x))


def test_a_learned_alpha_receives_its_gradient() -> None:
    torch._dynamo.reset()
    data = inputs()
    alpha = torch.tensor([[1.2], [1.4], [1.6], [1.9]], dtype=torch.float64, requires_grad=True)

    def attend(q: Tensor, k: Tensor, v: Tensor, alpha: Tensor) -> Tensor:
        return F.attention(q, k, v, enable_gqa=True, omega=hopfy.Tsallis(alpha))

    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    found = [torch.autograd.grad(f(*data, alpha).sin().sum(), alpha)[0] for f in (attend, compiled)]
    torch.testing.assert_close(*found)


def test_an_exported_program_needs_no_operator_of_ours() -> None:
    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.attention(q, k, v, omega="sparsemax")

    x = torch.randn(1, 2, 6, 4)
    program = torch.export.export(Attention(), (x, x, x))
    assert "hopfy.attention" not in program.graph_module.code
