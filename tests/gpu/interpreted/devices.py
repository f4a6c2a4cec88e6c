"""Every option of the public functions on a GPU that is not there: run by `test_interpreted.py`.

The judge is the same call on the CPU. What a call does on the device (a kernel, torch operations, a
copy to the CPU) is compared with the table in docs/gpu.md.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from pretend import Log, device, to_device, to_host
from torch import Tensor
from torch.nn.attention.bias import causal_lower_right

import hopfy
from hopfy import functional as F

DOCUMENT = Path(__file__).parents[3] / "docs" / "gpu.md"
Move = Callable[[Tensor], Tensor]
Case = Callable[[Move], Any]


def _scores(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


def _gradients(output: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    weights = torch.linspace(-1, 1, output.numel(), dtype=torch.float32).reshape(output.shape)
    cotangent = torch.empty_like(output).copy_(weights)
    return torch.autograd.grad(output, leaves, cotangent)


def _twice(output: Tensor, *leaves: Tensor) -> tuple[Tensor, ...]:
    """Second derivatives along one direction."""
    first = torch.autograd.grad(output.square().sum(), leaves, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), leaves)


MAPS: dict[str, tuple[Any, float]] = {
    "entmax": (F.entmax, 1.5),
    "normmax": (F.normmax, 2.0),
    "ksubsets": (F.ksubsets, 2.0),
    "entropic_ksubsets": (F.entropic_ksubsets, 2.0),
    "capped_sparsemax": (F.capped_sparsemax, 0.5),
    "at_most_k": (F.at_most_k, 2.0),
    "fusedmax": (F.fusedmax, 0.3),
    "sequential_ksubsets": (F.sequential_ksubsets, 2),
}


def map_cases(name: str) -> dict[str, Case]:
    """The options of a map."""
    function, number = MAPS[name]

    def gradient(to: Move) -> Any:
        scores = to(_scores(3, 9).requires_grad_())
        output = function(scores, number)
        return output, *_gradients(output, scores)

    def parameter(to: Move) -> Any:
        scores = to(_scores(3, 9).requires_grad_())
        own = to(torch.full((3, 1), float(number)).requires_grad_())
        output = function(scores, own)
        return output, *_gradients(output, scores, own)

    def second(to: Move) -> Any:
        scores = to(_scores(3, 9).requires_grad_())
        return _twice(function(scores, number), scores)

    cases: dict[str, Case] = {
        "forward": lambda to: function(to(_scores(3, 9)), number),
        "dim=0": lambda to: function(to(_scores(9, 3)), number, dim=0),
        "mask": lambda to: function(to(_scores(3, 9)), number, mask=to(_scores(3, 9) > -1)),
        "float16": lambda to: function(to(_scores(3, 9, dtype=torch.float16)), number),
        "float64": lambda to: function(to(_scores(3, 9, dtype=torch.float64)), number),
        "empty rows": lambda to: function(to(_scores(3, 9)[:0]), number),
        "gradient": gradient,
        "second derivative": second,
    }
    if name not in ("sequential_ksubsets", "fusedmax"):
        cases["parameter per row"] = parameter
    return cases


MORE: dict[str, Case] = {
    "softmax": lambda to: F.softmax(to(_scores(3, 9))),
    "sparsemax": lambda to: F.sparsemax(to(_scores(3, 9))),
    **{
        f"sparsemap {structure!r}": lambda to, structure=structure, shape=shape: F.sparsemap(
            to(_scores(*shape)), structure
        )
        for structure, shape in (
            (hopfy.structures.KSubsets(2), (2, 6)),
            (hopfy.structures.Tree(), (2, 4, 4)),
            (hopfy.structures.Matching(), (2, 3, 3)),
        )
    },
}


def _qkv(to: Move, heads: int = 2, shared: int = 2, m: int = 7, n: int = 11) -> list[Tensor]:
    shapes = (1, heads, m, 8), (1, shared, n, 8), (1, shared, n, 6)
    return [to(_scores(*shape).requires_grad_()) for shape in shapes]


def _attention(to: Move, **options: Any) -> Any:
    qkv = _qkv(to, shared=options.pop("shared", 2))
    output = F.attention(*qkv, **options)
    return output, *_gradients(output, *qkv)


def _with_mask(to: Move) -> Any:
    return _attention(to, attn_mask=to(_scores(1, 1, 7, 11) > -0.5))


def _with_window(to: Move) -> Any:
    place = torch.arange(11)
    return _attention(to, attn_mask=to((place[None, :] - torch.arange(7)[:, None]).abs() <= 2))


def _with_bias(to: Move) -> Any:
    return _attention(to, attn_mask=to(_scores(2, 7, 11)))


def _with_learned_bias(to: Move) -> Any:
    qkv, bias = _qkv(to), to(_scores(2, 7, 11).requires_grad_())
    output = F.attention(*qkv, attn_mask=bias)
    return output, *_gradients(output, *qkv, bias)


LOWER_RIGHT = causal_lower_right(7, 11)


def _with_lower_right(to: Move) -> Any:
    return _attention(to, attn_mask=LOWER_RIGHT)


def _with_alpha(to: Move) -> Any:
    qkv, alpha = _qkv(to), to(torch.tensor([[1.3], [1.8]]).requires_grad_())
    output = F.attention(*qkv, omega=hopfy.Tsallis(alpha), is_causal=True)
    return output, *_gradients(output, *qkv, alpha)


def _twice_through(to: Move, **options: Any) -> Any:
    qkv = _qkv(to)
    return _twice(F.attention(*qkv, **options), *qkv)


def _with_dropout(to: Move) -> Any:
    """Dropout differs between devices, but not from call to call with one seed."""
    qkv = _qkv(to)
    torch.manual_seed(0)
    first = F.attention(*qkv, dropout_p=0.5)
    torch.manual_seed(0)
    again = F.attention(*qkv, dropout_p=0.5)
    gradients = _gradients(first, *qkv)
    return (first - again).abs().max(), *(torch.zeros(()) * g.sum() for g in to_host(gradients))


def _dropout_twice(to: Move) -> Any:
    qkv = _qkv(to)
    torch.manual_seed(0)
    found = to_host(_twice(F.attention(*qkv, dropout_p=0.5), *qkv))
    return tuple(torch.zeros(()) * g.sum() for g in found)


def _varlen(to: Move) -> Any:
    q, k, v = (to(_scores(10, 2, size).requires_grad_()) for size in (8, 8, 6))
    output = F.varlen_attention(q, k, v, to(torch.tensor([0, 3, 10])), is_causal=True)
    return output, *_gradients(output, q, k, v)


ATTENTION: dict[str, Case] = {
    "no mask": _attention,
    "is_causal": lambda to: _attention(to, is_causal=True),
    "causal_lower_right": _with_lower_right,
    "boolean mask": _with_mask,
    "sliding window": _with_window,
    "bias": _with_bias,
    "bias that needs a gradient": _with_learned_bias,
    "enable_gqa": lambda to: _attention(to, shared=1, enable_gqa=True),
    "scale": lambda to: _attention(to, scale=0.7),
    "alpha per head": _with_alpha,
    "normmax": lambda to: _attention(to, omega=hopfy.Norm(2.0)),
    "k-subsets": lambda to: _attention(to, omega=hopfy.SparseMAP(hopfy.structures.KSubsets(3))),
    "softmax": lambda to: _attention(to, omega="softmax"),
    "structured map": lambda to: _attention(
        to, omega=hopfy.SparseMAP(hopfy.structures.SequentialKSubsets(2))
    ),
    "callable": lambda to: _attention(to, omega=lambda s, mask: F.sparsemax(s, mask=mask)),
    "return_weights": lambda to: F.attention(*_qkv(to), return_weights=True),
    "dropout_p": _with_dropout,
    "second derivative": lambda to: _twice_through(to, is_causal=True),
    "second derivative, dropout_p": _dropout_twice,
    "variable lengths": _varlen,
}


def _compare(case: Case, tolerance: float = 1e-5) -> Log:
    expected = case(lambda x: x.clone().detach().requires_grad_(x.requires_grad))
    with device() as log:
        found = to_host(case(to_device))
    expected = expected if isinstance(expected, tuple) else (expected,)
    found = found if isinstance(found, tuple) else (found,)
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == theirs.dtype
        half = tolerance if ours.dtype != torch.float16 else 2**-10
        torch.testing.assert_close(ours, theirs.detach(), rtol=half, atol=half)
    return log


@pytest.mark.parametrize("name", MAPS)
def test_the_gradient_of_every_map(name: str) -> None:
    assert _compare(map_cases(name)["gradient"]).way == documented(f"F.{name}")


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_every_option_of_a_map(name: str) -> None:
    ways = {option: _compare(case).way for option, case in map_cases(name).items()}
    assert ways["forward"] == ways["gradient"] == documented(f"F.{name}"), ways


@pytest.mark.slow
@pytest.mark.parametrize("name", MORE)
def test_other_functions(name: str) -> None:
    _compare(MORE[name])


@pytest.mark.parametrize("name", ATTENTION)
def test_every_option_of_attention(name: str) -> None:
    assert _compare(ATTENTION[name]).way_of_attention == documented(name)


@pytest.mark.slow
@pytest.mark.parametrize("name", MAPS)
def test_plain_torch_serves_every_option(name: str) -> None:
    """Without Triton."""
    with hopfy.use_backend("reference"):
        for case in map_cases(name).values():
            assert _compare(case, 2e-5).way != "kernel"


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTENTION)
def test_plain_torch_serves_attention(name: str) -> None:
    with hopfy.use_backend("reference"):
        assert _compare(ATTENTION[name], 2e-5).way != "kernel"


def documented(option: str) -> str:
    """What docs/gpu.md says about an option: "kernel", "torch" or "CPU"."""
    for line in DOCUMENT.read_text().splitlines():
        cells = [cell.strip().strip("`") for cell in line.split("|")]
        if len(cells) > 3 and cells[1] == option:
            return cells[2]
    raise AssertionError(f"docs/gpu.md does not list {option!r}")
