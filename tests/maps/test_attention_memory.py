"""Peak memory of attention grows with the number of queries, not with the number of scores."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from hopfy import functional as F
from hopfy.bench._layers import peak_megabytes
from hopfy.nn import LearnableAlpha

HEADS, SIZE = 2, 16
LENGTHS = (1024, 4096)
_SCORES = HEADS * LENGTHS[1] ** 2 * 4 / 2**20  # megabytes of all weights at the larger length


def inputs(length: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(0)
    return [torch.randn(1, HEADS, length, SIZE).to(dtype).requires_grad_() for _ in range(3)]


def plain(length: int, **options) -> Callable[[], None]:
    data = inputs(length)
    return lambda: F.attention(*data, **options).sum().backward()


def half(length: int) -> Callable[[], None]:
    data = inputs(length, torch.bfloat16)
    return lambda: F.attention(*data).float().sum().backward()


def autocast(length: int) -> Callable[[], None]:
    data = inputs(length)

    def run() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            F.attention(*data).float().sum().backward()

    return run


def learned_bias(length: int) -> Callable[[], None]:
    data, bias = inputs(length), torch.zeros(length, requires_grad=True)
    return lambda: F.attention(*data, bias[None, None, None]).sum().backward()


def compiled(length: int, **options) -> Callable[[], None]:
    torch._dynamo.reset()
    data = inputs(length)
    call = torch.compile(
        lambda q, k, v: F.attention(q, k, v, **options), fullgraph=True, backend="aot_eager"
    )
    return lambda: call(*data).sum().backward()


def exported(length: int) -> Callable[[], None]:
    class Attention(torch.nn.Module):
        def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            return F.attention(q, k, v, is_causal=True)

    data = tuple(x.detach() for x in inputs(length))
    program = torch.export.export(Attention(), data).module()
    return lambda: program(*data)


def padded(length: int) -> Callable[[], None]:
    data, there = inputs(length), torch.arange(length) < length // 2
    return lambda: F.attention(*data, there[None, None, None]).sum().backward()


def packed(length: int) -> Callable[[], None]:
    q, k, v = (x.detach()[0].transpose(0, 1).requires_grad_() for x in inputs(length))
    edges = torch.tensor([0, length // 8, length // 2, length])
    return lambda: F.varlen_attention(q, k, v, edges, is_causal=True).sum().backward()


def learned(length: int, run: Callable[..., Callable[[], None]]) -> Callable[[], None]:
    """One alpha for every head, with its gradient."""
    return run(length, omega=LearnableAlpha(HEADS, init=1.4), is_causal=True)


MODES: dict[str, Callable[[int], Callable[[], None]]] = {
    **{
        f"{omega}{', causal' if causal else ''}": lambda length, omega=omega, causal=causal: plain(
            length, omega=omega, is_causal=causal
        )
        for omega in ("softmax", "sparsemax", "1.3-entmax", "3-entmax", "2-normmax", "3-subsets")
        for causal in (False, True)
    },
    "1.01-entmax": lambda length: plain(length, omega="1.01-entmax"),
    "dropout": lambda length: plain(length, dropout_p=0.2),
    "padding": padded,
    "bfloat16": half,
    "autocast": autocast,
    "a bias with a gradient": learned_bias,
    "a structure": lambda length: plain(length, omega="entropic-2-subsets"),
    "compiled": compiled,
    "compiled with dropout": lambda length: compiled(length, dropout_p=0.2),
    "exported": exported,
    "packed": packed,
    "learned alpha": lambda length: learned(length, plain),
    "learned alpha, compiled": lambda length: learned(length, compiled),
    "3-subsets with dropout": lambda length: plain(length, omega="3-subsets", dropout_p=0.2),
    "3-subsets, compiled": lambda length: compiled(length, omega="3-subsets"),
}


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_memory_grows_with_the_number_of_queries(mode: str) -> None:
    few, many = (peak_megabytes(MODES[mode](length)) for length in LENGTHS)
    assert many <= 1.5 * (LENGTHS[1] / LENGTHS[0]) * few
    assert many < _SCORES / 2
