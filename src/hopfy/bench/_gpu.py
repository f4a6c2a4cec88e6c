"""The Triton kernels on a GPU: checked against float64 on the device first, then timed.

Without a GPU there is nothing to time, and the subject says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

import hopfy
from hopfy import functional as F

__all__ = ["GpuRow", "bench_gpu", "check"]

_LENGTHS = (512, 2048, 8192, 32_768, 131_072)
_ENTRIES = 1 << 26  # of scores in one call of a map
_TOKENS = 1 << 15  # of queries in one call of attention
_HEADS, _SIZE = 8, 64
_ROW_TOLERANCE = 2e-6
_ATTENTION_TOLERANCE = 4e-3  # float16 inputs and outputs

Call = Callable[..., Tensor]


@dataclass(frozen=True)
class GpuRow:
    """One operation at one length: our milliseconds, others' time as a multiple of ours."""

    operation: str
    length: int
    forward_ms: float
    forward_backward_ms: float
    selected: float  # share of the weights that are not zero
    error: float
    over: str  # "softmax 0.80 / 0.75": forward, forward and backward


def bench_gpu(progress: Callable[[str], None] = lambda _: None) -> list[GpuRow]:
    """Measure maps and attention over lengths 512 to 131,072; wrong answers are not timed."""
    if not torch.cuda.is_available():
        raise RuntimeError(
            "expected a GPU that torch can use (torch.cuda.is_available()), found none; "
            "the kernels have been checked without one, see docs/gpu.md."
        )
    device = torch.device("cuda")
    rows = []
    for length in _LENGTHS:
        for name, call in _maps().items():
            progress(f"{name}, rows of {length}")
            rows.append(_bench_map(name, call, length, device))
        for name, omega in (("1.5-entmax", "1.5-entmax"), ("sparsemax", "sparsemax")):
            progress(f"{name} attention, {length} keys")
            rows.append(_bench_attention(name, omega, length, device))
    return rows


def _maps() -> dict[str, Call]:
    return {
        "sparsemax": F.sparsemax,
        "entmax 1.5": partial(F.entmax, alpha=1.5),
        "entmax 1.25": partial(F.entmax, alpha=1.25),
        "normmax 2": partial(F.normmax, alpha=2.0),
        "ksubsets 8": partial(F.ksubsets, k=8),
    }


def check(ours: Tensor, expected: Tensor, tolerance: float, what: str) -> float:
    """The largest difference; an error if it is above the tolerance."""
    error = (ours.double() - expected.double()).abs().max().item()
    if not error <= tolerance:
        raise RuntimeError(
            f"{what}: expected at most {tolerance:g} between this device and float64, got {error:g}; "
            "please report the device and the versions of torch and triton."
        )
    return error


def _bench_map(name: str, call: Call, length: int, device: torch.device) -> GpuRow:
    few = torch.randn(16, length, device=device)
    with hopfy.use_backend("reference"):
        expected = call(few.double())
    error = check(call(few), expected, _ROW_TOLERANCE, f"{name}, rows of {length}")
    scores = torch.randn(_ENTRIES // length, length, device=device, dtype=torch.float16)
    softmax = partial(torch.softmax, dim=-1)
    ours, theirs = _times(call, scores), _times(softmax, scores)
    return GpuRow(
        name,
        length,
        *ours,
        selected=(expected > 0).double().mean().item(),
        error=error,
        over=_ratios("softmax", theirs, ours),
    )


def _bench_attention(name: str, omega: Any, length: int, device: torch.device) -> GpuRow:
    heads = max(1, min(_HEADS, _TOKENS * _HEADS // length))
    shape = (1, heads, length, _SIZE)
    q, k, v = (torch.randn(shape, device=device, dtype=torch.float16) * 2 for _ in range(3))
    attention = partial(F.attention, omega=omega)
    part = q[:, :1, :16], k[:, :1], v[:, :1]
    with hopfy.use_backend("reference"):
        few, keys, values = (x.double() for x in part)
        expected, weights = F.attention(few, keys, values, omega=omega, return_weights=True)
    what = f"{name} attention, {length} keys"
    error = check(attention(*part), expected, _ATTENTION_TOLERANCE, what)
    ours = _times(attention, q, k, v)
    others = {"SDPA": torch.nn.functional.scaled_dot_product_attention, **_other_packages()}
    ratios = [_ratios(other, _times(call, q, k, v), ours) for other, call in others.items()]
    return GpuRow(
        f"attention {name}",
        length,
        *ours,
        selected=(weights > 0).double().mean().item(),
        error=error,
        over=", ".join(ratios),
    )


def _other_packages() -> dict[str, Call]:
    """Attention of other packages, where they are installed."""
    found: dict[str, Call] = {}
    for package, function in (("flash_attn", "flash_attn_func"), ("adasplash", "adasplash")):
        try:
            call = getattr(importlib.import_module(package), function)
        except (ImportError, AttributeError):
            continue
        if package == "flash_attn":  # heads come third there
            found[package] = lambda q, k, v, call=call: call(
                *(x.transpose(1, 2) for x in (q, k, v))
            ).transpose(1, 2)
        else:
            found[package] = call
    return found


def _ratios(name: str, theirs: tuple[float, float], ours: tuple[float, float]) -> str:
    return f"{name} {theirs[0] / ours[0]:.2f} / {theirs[1] / ours[1]:.2f}"


def _times(call: Call, *inputs: Tensor) -> tuple[float, float]:
    """Milliseconds of forward, and of forward and backward: the median of several runs."""
    leaves = [x.detach().requires_grad_() for x in inputs]
    cotangent = torch.randn_like(call(*inputs))

    def both() -> None:
        torch.autograd.grad(call(*leaves), leaves, cotangent)

    return _median(lambda: call(*inputs)), _median(both)


def _median(run: Callable[[], Any], repeat: int = 10) -> float:
    event: Any = torch.cuda.Event
    for _ in range(3):
        run()
    times: list[float] = []
    for _ in range(repeat):
        begin, end = event(enable_timing=True), event(enable_timing=True)
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(float(begin.elapsed_time(end)))
    return sorted(times)[len(times) // 2]
